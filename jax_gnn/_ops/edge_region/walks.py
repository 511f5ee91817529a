"""The walks of a region: the results of each kernel, and what it stores for a later one.

Alternatives are compared by estimated time: arithmetic, slower where few warps find room, and bytes
that entries read and write.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jax_gnn._core.arrays import FLOATS, accumulator_dtype
from jax_gnn._ops.edge_region.channels import channels_of
from jax_gnn._ops.edge_region.cuda_codegen import kernel_of
from jax_gnn._ops.edge_region.cuda_text import WARP, has_tiles, on_tensor_cores
from jax_gnn._ops.edge_region.row_program import (
    FUNCTIONS,
    SLOW,
    Input,
    Instruction,
    Output,
    RowProgram,
    Unsupported,
)
from jax_gnn._ops.edge_region.simplify import simplified

_MAX_SHORT = 4  # numbers of a row that is read again rather than stored
_MAX_MASKS = 4  # that one walk stores for another
# Fitted to walks with products on an H100, as few warps issue both these and functions.
FLOPS = 140e6  # in a microsecond, of walks
FUNCTION_FLOPS, SLOW_FUNCTION_FLOPS = 3.3, 70.0
"""Flops of matrix units that a number of a function is worth, and of a slow one."""
EXACT_FLOPS = 7.0
"""The same of a flop of a product in full precision, on an H200."""

# Times that a flop of a sum of products over all entries counts, where each warp has the sums in
# registers, and where a block has them.
_OWN_OUTER, _SHARED_OUTER = 1.5, 4.0
_ALONE_OUTER = 1.6  # the latter in a walk that has nothing but sums over all entries
FLOPS_PER_BYTE = 45  # that take the time of a byte
_STORED = 0.5  # of the time of a byte: one that a walk writes for another alone
_OPERATION = 7.8  # flops that take the time of a lane's operation; fitted to ten walks on an H200
_LAUNCH = 20_000  # flops that one more walk must save: 3 µs for 20,000 entries
_NARROW = 16  # numbers of a row that lanes with parts of wide rows compute as a whole
_BUSY_WARPS = 8  # that keep a multiprocessor's matrix units as busy as they get


class Walk(NamedTuple):
    """One pass over the entries that makes some results of a region.

    Attributes:
        program: The row program, with results by row or entry.
        used: Indices of the region's arrays that it reads.
        stored: Indices of the results of an earlier walk that it reads after them.
        results: Indices of its results; those beyond the region's are stored for another walk.
        by_col: Whether it walks the transpose.
        over_all: For each result, the reduction of its rows to one; None if it stays by row.
    """

    program: RowProgram
    used: tuple[int, ...]
    stored: tuple[int, ...]
    results: tuple[int, ...]
    by_col: bool
    over_all: tuple[str | None, ...]


@functools.lru_cache(maxsize=1024)
def walks_of(program: RowProgram, edges_by_col: bool) -> list[Walk]:
    """Split a program into walks: results by row and over all by row, results by column by column.

    The walk that stores results by entry comes first; the second one reads them, or masks, where
    that takes fewer bytes. Sums of products over all entries may have a walk of their own between,
    and functions of few numbers one ahead, which lanes of wide rows would all compute again.

    Args:
        program: The program.
        edges_by_col: Whether the entries of columns, not those of rows, are in the edges' order.
    """
    program = simplified(program)
    num_results = len(program.outputs)
    by_row: list[int] = []
    by_col: list[int] = []
    for i, output in enumerate(program.outputs):
        to_cols = output.dest == "col" or (output.dest == "edge" and edges_by_col)
        (by_col if to_cols else by_row).append(i)
    first, second = (by_col, by_row) if edges_by_col else (by_row, by_col)
    best, shortest, error = list[Walk](), math.inf, None
    program, sums = _with_stored_sums(program, first)
    drafts = [(0, _walks_in_turn(x)) for x in _splits(program, first, sums, second, edges_by_col)]
    functions = _repeated_functions(program)
    if functions:
        outputs = (*program.outputs, *(Output(i, "edge", "none") for i in functions))
        stored = list(range(len(program.outputs), len(outputs)))
        program = replace(program, outputs=outputs)
        for split in _splits(program, first, sums, second, edges_by_col):
            groups = [(stored, edges_by_col), *split.groups]
            drafts.append((_LAUNCH, _walks_in_turn(split._replace(groups=groups))))
    drafts.sort(key=lambda draft: draft[0] + _least_time(draft[1]))
    for launch, draft in drafts:
        if launch + _least_time(draft) >= shortest:
            break  # kernels only add to it
        try:
            walks = [walk for part in draft for walk in part.feasible()]
        except Unsupported as unsupported:
            error = error or unsupported
            continue
        time = launch + sum(map(time_of, walks))
        time += _STORED * FLOPS_PER_BYTE * sum(_bytes_stored(walk, num_results) for walk in walks)
        if time < shortest:
            best, shortest = walks, time
    if error is not None and not best:
        raise error
    return best


class _Split(NamedTuple):
    """Results in groups, each with whether its walks go by column; later ones read stored rows."""

    program: RowProgram
    groups: list[tuple[list[int], bool]]


def _splits(
    program: RowProgram, first: list[int], stored_sums: list[int], second: list[int], by_col: bool
) -> Iterator[_Split]:
    """Yield the ways to part results into walks.

    Args:
        program: The program.
        first: Results of the walk in the order of entries, which goes by column if `by_col`.
        stored_sums: Results of a second walk in this order, which read what the first one stores.
        second: Results of the walk in the other direction.
        by_col: Whether the entries of columns are in order.
    """
    variants = [program]
    if first and second:
        masked = _with_masks(program, first, second, by_col)
        reduced = _with_reduced_values(masked, second, not by_col)
        variants = [reduced, masked] if has_tiles(masked.only(second)) else [reduced]
    for variant in variants:
        results = [*first, *range(len(program.outputs), len(variant.outputs))]
        moved = _sums_of_stored_values(variant, results, not by_col) if second else []
        rest = [i for i in results if i not in moved]
        groups = [(rest, by_col), (stored_sums, by_col), ([*second, *moved], not by_col)]
        yield _Split(variant, groups)
        sums = [i for i in results if variant.outputs[i].dest == "all"]
        if sums and has_tiles(variant.only(results)):
            extended, stored = _with_factors(variant, sums)
            rest = [*(i for i in results if i not in sums), *stored]
            for parts in ([sums], _by_product(extended, sums)):
                groups = [(group, by_col) for group in (rest, *parts)]
                groups += [(stored_sums, by_col), (second, not by_col)]
                yield _Split(extended, groups)


def _repeated_functions(program: RowProgram) -> list[int]:
    """Return slow functions of few numbers that wide rows are computed from, as a whole."""
    if has_tiles(program):
        return []
    first, found = len(program.inputs), dict[int, None]()
    is_narrow = [x.access == "shared" or x.width <= _NARROW for x in program.inputs]
    is_slow = [False] * first
    for step in program.instructions:
        for i in step.operands:
            if step.width > _NARROW and is_narrow[i] and is_slow[i]:
                while i >= first and program.instructions[i - first].name == "take":
                    (i,) = program.instructions[i - first].operands
                if program.varies[i] and program.values[i].width <= _MAX_SHORT:
                    found[i] = None
        is_narrow.append(step.width <= _NARROW and all(is_narrow[i] for i in step.operands))
        is_slow.append(step.name in SLOW or any(is_slow[i] for i in step.operands))
    return [i for i in found if program.values[i].dtype in FLOATS]


class _Draft(NamedTuple):
    """A walk before its kernel is generated.

    Attributes:
        walk: The walk.
        program: The program of all results.
        readable: Results that walks before it store by entry.
    """

    walk: Walk
    program: RowProgram
    readable: tuple[int, ...]

    def feasible(self) -> list[Walk]:
        """Return the walk, or several where one kernel cannot hold it."""
        try:
            kernel_of(self.walk.program)
        except Unsupported:
            results = self.walk.results
            if len(results) == 1:
                raise
            middle = len(results) // 2
            halves = (self._of(results[:middle]), self._of(results[middle:]))
            return [walk for half in halves for walk in half.feasible()]
        return [self.walk]

    def _of(self, results: Sequence[int]) -> _Draft:
        walk = _cheapest_walk(self.program, results, self.walk.by_col, self.readable)
        return self._replace(walk=walk)


def _walks_in_turn(split: _Split) -> list[_Draft]:
    """Return the walks of a split, which read what those before them store by entry."""
    program = split.program
    drafts: list[_Draft] = []
    readable: list[int] = []
    for results, is_by_col in split.groups:
        if results:
            walk = _cheapest_walk(program, results, is_by_col, readable)
            drafts.append(_Draft(walk, program, tuple(readable)))
        readable += [i for i in reversed(results) if program.outputs[i].dest == "edge"]
    return drafts


def _least_time(drafts: Sequence[_Draft]) -> float:
    return sum(_work(draft.walk.program) for draft in drafts)


def _with_factors(program: RowProgram, sums: Sequence[int]) -> tuple[RowProgram, list[int]]:
    """Add the factors of sums of products as results by entry, where reading them takes less.

    Returns:
        The program, and the indices of these results.
    """
    first, values = len(program.inputs), dict[int, None]()
    stack = [program.outputs[i].value for i in sums]
    while stack:
        index = stack.pop()
        if index < first or not program.varies[index]:
            continue
        step = program.instructions[index - first]
        if step.name in ("take", "outer", "convert_element_type"):
            stack += step.operands
            continue
        alone = replace(program, outputs=(Output(index, "edge", "none"),)).only([0])
        if _work(alone) > 3 * FLOPS_PER_BYTE * step.width * step.dtype.itemsize:
            values[index] = None  # cheaper written (as _work counts) and read than computed again
    stored = {output.value for output in program.outputs if output.dest == "edge"}
    added = [Output(value, "edge", "none") for value in values if value not in stored]
    indices = range(len(program.outputs), len(program.outputs) + len(added))
    return replace(program, outputs=(*program.outputs, *added)), list(indices)


def _by_product(program: RowProgram, sums: Sequence[int]) -> list[list[int]]:
    """Part sums over all entries by outer product; others join one that reads the same rows."""
    products, others = list[list[int]](), list[int]()
    for i in sums:
        steps = program.only([i]).instructions
        if any(step.name == "outer" and on_tensor_cores(program, step) for step in steps):
            products.append([i])
        else:
            others.append(i)
    products = products or [[]]
    for i in others:

        def extra(group: list[int], i: int = i) -> float:
            return _work(program.only([*group, i])) - _work(program.only(group))

        min(products, key=extra).append(i)
    return products


def time_of(walk: Walk) -> float:
    """Return the estimated time of an entry, in flops of matrix units."""
    kernel = kernel_of(walk.program)
    if not has_tiles(walk.program):
        return max(_work(walk.program), _OPERATION * kernel.cost)
    warps = kernel.blocks * kernel.threads // WARP
    is_alone = all(output.dest == "all" for output in walk.program.outputs)
    shared_outer = _ALONE_OUTER if is_alone else _SHARED_OUTER
    outer = _OWN_OUTER if kernel.own_sums else shared_outer
    return _work(walk.program, outer, max(1.0, _BUSY_WARPS / warps))


def _work(program: RowProgram, outer: float = _OWN_OUTER, slowdown: float = 1.0) -> float:
    """Return the arithmetic of an entry, and its bytes as arithmetic that takes their time."""
    return slowdown * (_arithmetic(program, outer) + FLOPS_PER_BYTE * _bytes_moved(program))


def _arithmetic(program: RowProgram, outer: float) -> float:
    """Return the arithmetic of an entry, in flops of matrix units, ``outer`` for one of a sum."""
    work = 0.0
    for step in program.instructions:
        if step.name in ("dot", "outer"):
            flop = EXACT_FLOPS if "highest" in step.params else 1
            if step.name == "outer":
                flop *= outer
            elif not on_tensor_cores(program, step):
                flop = 8
            work += 2 * step.width * step.params[0] * flop
        elif step.name in FUNCTIONS:
            work += step.width * (SLOW_FUNCTION_FLOPS if step.name in SLOW else FUNCTION_FLOPS)
    return work


def _bytes_moved(program: RowProgram) -> int:
    """Return the bytes that an entry reads and writes.

    Tiles read the row that an entry is reduced into again for each entry.
    """
    moved = [program.values[x.value] for x in program.outputs if x.dest == "edge"]
    if has_tiles(program):
        moved += [x for x in (program.inputs[i] for i in program.used) if x.access == "row"]
    return program.bytes_per_entry + sum(x.width * x.dtype.itemsize for x in moved)


def _bytes_stored(walk: Walk, num_results: int) -> int:
    """Return the bytes that an entry writes for later walks alone."""
    outputs = zip(walk.results, walk.program.outputs, strict=True)
    values = [walk.program.values[x.value] for i, x in outputs if i >= num_results]
    return sum(x.width * x.dtype.itemsize for x in values)


def _with_masks(
    program: RowProgram, first: Sequence[int], second: Sequence[int], by_col: bool
) -> RowProgram:
    """Add the masks of the second walk as results of the first one, where that moves less."""
    masks = _masks(program, second)
    new = range(len(program.outputs), len(program.outputs) + len(masks))
    outputs = (*program.outputs, *(Output(value, "edge", "none") for value in masks))
    extended = replace(program, outputs=outputs)

    def bytes_moved(program: RowProgram, added: Sequence[int]) -> int:
        results = [*first, *added]
        readable = [*added, *(i for i in first if program.outputs[i].dest == "edge")]
        pair = (
            _walk(program, results, by_col, ()),
            _cheapest_walk(program, second, not by_col, readable),
        )
        return sum(walk.program.bytes_per_entry for walk in pair)

    written = sum(program.values[value].width for value in masks)
    gains = 0 < len(masks) <= _MAX_MASKS and bytes_moved(extended, new) + written < bytes_moved(
        program, ()
    )
    return extended if gains else program


def _with_reduced_values(program: RowProgram, second: Sequence[int], by_col: bool) -> RowProgram:
    """Add the values that the second walk reduces as results of the first one, if it has products.

    The second walk then has none: it reads a row where it would compute all of them again. Products
    by channel are made again where these rows are wider than half of what they read.
    """
    of_second = program.only(second)
    if not has_tiles(of_second) and channels_of(of_second) is None:
        return program
    values = {program.outputs[i].value: program.only([i]) for i in second}
    stored = {output.value for output in program.outputs if output.dest == "edge"}
    added = [
        Output(value, "edge", "none")
        for value, of_value in values.items()
        if value not in stored and (has_tiles(of_value) or channels_of(of_value) is not None)
    ]
    values_added = [program.values[output.value] for output in added]
    size = sum(value.width * value.dtype.itemsize for value in values_added)
    most = _walk(program, second, by_col, ()).program.bytes_per_entry
    if not has_tiles(of_second) and 2 * size > most:
        return program
    return replace(program, outputs=(*program.outputs, *added))


def _with_stored_sums(program: RowProgram, first: list[int]) -> tuple[RowProgram, list[int]]:
    """Store sums over channels that are reduced, and return which of the results are left.

    The results leave `first`, and values by entry join it: lanes that have channels store sums over
    these by entry.
    """
    if channels_of(program.only(first)) is None:
        return program, []
    sums, values = list[int](), list[int]()
    for i in (i for i in first if program.outputs[i].dest != "edge"):
        of_result, value = program.only([i]), program.outputs[i].value
        channels = channels_of(of_result)
        place = of_result.outputs[0].value
        if channels is None:  # the result has nothing to do with channels
            sums.append(i)
        elif (channels.of(place, np.arange(program.values[value].width)) < 0).all():
            sums.append(i)
            values.append(value)
    stored = {output.value for output in program.outputs if output.dest == "edge"}
    new = [Output(value, "edge", "none") for value in dict.fromkeys(values) if value not in stored]
    count = len(program.outputs)
    first[:] = [i for i in first if i not in sums] + list(range(count, count + len(new)))
    return replace(program, outputs=(*program.outputs, *new)), sums


def _sums_of_stored_values(
    program: RowProgram, first: Sequence[int], second_by_col: bool
) -> list[int]:
    """Return the sums over all entries that the second walk takes from the first one.

    These are sums of values that the first walk stores by entry, so that the second one, which has
    no products with matrices, reads nothing else but entries' own rows and short ones. The first
    walk has most of the registers and shared memory to lose.
    """
    if not has_tiles(program.only(first)):
        return []
    stored = [i for i in first if program.outputs[i].dest == "edge"]

    def is_short(sum_over_all: int) -> bool:
        walk = _walk(program, [sum_over_all], second_by_col, stored).program
        return not any(step.name == "dot" for step in walk.instructions) and all(
            x.access in ("edge", "shared") or x.width <= _MAX_SHORT for x in walk.inputs
        )

    return [i for i in first if program.outputs[i].dest == "all" and is_short(i)]


def _masks(program: RowProgram, results: Sequence[int]) -> list[int]:
    """Return the boolean values by entry from which numbers of some results are computed."""
    first, masks = len(program.inputs), set[int]()
    stack = [program.outputs[i].value for i in results]
    needed: set[int] = set()
    while stack:
        index = stack.pop()
        if index < first or index in needed:
            continue
        needed.add(index)
        instruction = program.instructions[index - first]
        stack += instruction.operands
        if instruction.dtype != bool:
            masks |= {i for i in instruction.operands if i >= first and program.varies[i]}
    return sorted(i for i in masks if program.values[i].dtype == bool)


def _cheapest_walk(
    program: RowProgram, results: Sequence[int], by_col: bool, readable: Sequence[int]
) -> Walk:
    """Return the walk that reads those stored results that save time, leaving out one by one."""

    def cost(walk: Walk) -> tuple[float, int]:
        return _work(walk.program), len(walk.program.instructions)

    best = _walk(program, results, by_col, readable)
    while best.stored:
        fewer = [[i for i in best.stored if i != left_out] for left_out in best.stored]
        shorter = min((_walk(program, results, by_col, stored) for stored in fewer), key=cost)
        if cost(shorter) > cost(best):
            break
        best = shorter
    return min(best, _walk(program, results, by_col, ()), key=cost)


def _walk(program: RowProgram, results: Sequence[int], by_col: bool, stored: Sequence[int]) -> Walk:
    program = _with_inputs(program, results, stored)
    program = program.transposed() if by_col else program
    inputs, instructions = program.inputs, list(program.instructions)
    # Blocks of tiles add up all their entries. Other walks reduce by row, and rows are joined.
    by_block = has_tiles(program)
    outputs, over_all = [], []
    for output in program.outputs:
        index, dest = output.value, output.dest
        over_all.append(output.reduce if dest == "all" else None)
        is_sum_of_block = by_block and dest == "all" and output.reduce == "sum"
        value = program.values[index]
        acc = np.dtype(accumulator_dtype(value.dtype))
        if dest == "all" and acc != value.dtype and not is_sum_of_block:
            # Sums of rows are not rounded before they are added up.
            wide = Instruction("convert_element_type", (index,), value.width, acc)
            instructions.append(wide)
            index = len(inputs) + len(instructions) - 1
        if dest != "edge" and not is_sum_of_block:
            dest = "row"
        outputs.append(Output(index, dest, output.reduce))
    pruned, used = _without_inputs(RowProgram(inputs, tuple(instructions), tuple(outputs)))
    num_arrays = len(inputs) - len(stored)
    return Walk(
        pruned,
        tuple(i for i in used if i < num_arrays),
        tuple(stored[i - num_arrays] for i in used if i >= num_arrays),
        tuple(results),
        by_col,
        tuple(over_all),
    )


# --- Rewrites of row programs --------------------------------------------------------------------


def _with_inputs(program: RowProgram, results: Sequence[int], stored: Sequence[int]) -> RowProgram:
    """Return the program of some results that reads others as further inputs by entry."""
    count, steps = len(program.inputs), program.instructions
    outputs = [program.outputs[i] for i in results]
    values = [program.outputs[i].value for i in stored]
    indices = {i: i for i in range(count)}
    indices |= {value: count + i for i, value in enumerate(values)}
    needed = {output.value for output in outputs}
    for i in range(len(steps) - 1, -1, -1):
        if count + i in needed and count + i not in indices:
            needed.update(steps[i].operands)
    live: list[Instruction] = []
    for i in sorted(needed - indices.keys()):
        indices[i] = count + len(values) + len(live)
        live.append(steps[i - count].renumbered(indices))
    inputs = [Input("edge", x.width, x.dtype) for x in (program.values[i] for i in values)]
    return RowProgram(
        (*program.inputs, *inputs),
        tuple(live),
        tuple(replace(output, value=indices[output.value]) for output in outputs),
    )


def _without_inputs(program: RowProgram) -> tuple[RowProgram, tuple[int, ...]]:
    """Return the program without unused inputs, and the indices of the used ones."""
    count, used = len(program.inputs), program.used
    indices = {old: new for new, old in enumerate(used)}
    indices |= {i: i - count + len(used) for i in range(count, len(program.values))}
    return _renumbered(program, (program.inputs[i] for i in used), indices), used


def _renumbered(
    program: RowProgram, inputs: Sequence[Input] | Iterator[Input], indices: dict[int, int]
) -> RowProgram:
    return RowProgram(
        tuple(inputs),
        tuple(instruction.renumbered(indices) for instruction in program.instructions),
        tuple(replace(output, value=indices[output.value]) for output in program.outputs),
    )
