"""Edge regions on CUDA: a region is one walk by row, one by column, or both.

A walk is an op of its own, ``edge_walk``, whose kernel is compiled when the call is: its text is
made in :mod:`jax_gnn._ops.edge_region.cuda_text`.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import at_most, in_range
from jax_gnn._core.kernels import csr_operands, workspace_of
from jax_gnn._core.op import Bind, Call, Op, define
from jax_gnn._ops.edge_region import cuda_compile
from jax_gnn._ops.edge_region.cuda_text import THREADS, Text, message_text
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import (
    Builder,
    Input,
    Instruction,
    Output,
    RowProgram,
    Unsupported,
    described,
    evaluate,
    without_dead_code,
)
from jax_gnn._ops.edge_region.xla import Edges

_MULTIPROCESSORS = 132  # that blocks are dealt out to, as of sums (segment_reduce/schedule.py)
_MOST_STORED = 4  # results that a walk may read of the one before: all choices are tried

_READS = {"edge": 0, "row": 1, "col": 2, "shared": 3}
_INTO = {"edge": 0, "row": 1}


# --- A walk --------------------------------------------------------------------------------------


class WalkOperands(NamedTuple):
    """``(rows, width)`` arrays, of one row where they are shared, and the entries."""

    arrays: tuple[Any, ...]
    csr: Csr


def _blocks(text: Text, csr: Any) -> Any:
    """Blocks that share the entries."""
    blocks = 4 if not text.shared else text.blocks
    return jax.core.min_dim(
        blocks * _MULTIPROCESSORS, jax.core.max_dim(1, -(-csr.count // (THREADS // text.lanes)))
    )


def _result(operands: WalkOperands, *, program: RowProgram, num_cols: int) -> list[Any]:
    del num_cols
    sizes = {"row": operands.csr.num_rows, "edge": operands.csr.count}
    values = [program.values[each.value] for each in program.outputs]
    return [
        jax.ShapeDtypeStruct((sizes[each.into], value.width), value.dtype)
        for each, value in zip(program.outputs, values, strict=True)
    ]


def _xla(arrays: Sequence[Array], csr: Csr, *, program: RowProgram, num_cols: int) -> list[Array]:
    edges = Edges(SparseMatrix(csr, Csr(None, csr.ids, num_rows=num_cols)))
    reads = [each.read for each in program.inputs]
    read = [
        x[0] if by == "shared" else edges.read(x, by) for x, by in zip(arrays, reads, strict=True)
    ]
    made = edges.applied(lambda *rows: evaluate(program, rows), reads, read)
    return [
        edges.reduced(x, each.into, each.reduce)
        for x, each in zip(made, program.outputs, strict=True)
    ]


def _call(
    platform: str, operands: WalkOperands, *, program: RowProgram, num_cols: int
) -> Call | None:
    del platform
    csr = operands.csr
    ids = csr_operands(csr, num_cols)
    if ids is None:
        return None
    text, binary = _text_of(program), _binary_of(program)
    values = [*program.inputs, *(program.values[each.value] for each in program.outputs)]
    acc = np.dtype(text.acc)
    attributes = {
        "code": binary.code,
        "digest": binary.digest,
        "name": binary.name,
        "slots": np.int64(text.slots),
        "vec": np.int64(text.vec),
        "unroll": np.int64(text.unroll),
        "parts": np.int64(text.parts),
        "shared": np.int64(text.shared),
        "acc_bytes": np.int64(acc.itemsize),
        "reads": np.array([_READS[each.read] for each in program.inputs], np.int64),
        "into": np.array([_INTO[each.into] for each in program.outputs], np.int64),
        "row_bytes": np.array([x.width * x.dtype.itemsize for x in values], np.int64),
        "words": np.array(text.words, np.int64),
        "num_rows": np.int64(csr.num_rows),
        "num_cols": np.int64(num_cols),
        "lanes": np.int64(text.lanes),
        **ids[1],
    }
    workspace = workspace_of(_blocks(text, csr), text.slots * text.room, acc)
    return Call([*ids[0], *operands.arrays], attributes, [workspace])


def _never_batched(bind: Bind, operands: Any, batched: Any, size: int) -> Any:
    raise AssertionError("a walk is made when a region is lowered")


edge_walk = define(
    Op(
        name="edge_walk",
        operands=WalkOperands,
        result=_result,
        xla=_xla,
        transpose={},
        batch=_never_batched,
        several=True,
        platforms=("cuda",),
        call=_call,
    )
)


@functools.lru_cache(maxsize=1024)
def _text_of(program: RowProgram) -> Text:
    return message_text(program)


def _binary_of(program: RowProgram) -> cuda_compile.Binary:
    arch = cuda_compile.architecture()
    if arch is None:
        raise cuda_compile.CompilerError("there is no GPU to compile for")
    text = _text_of(program)
    return cuda_compile.compile_text(text.source, arch, fma=not text.exact)


# --- A region in walks ---------------------------------------------------------------------------


def composition(
    platform: str, implementation: str | None, operands: Any, *, region: Region
) -> Callable[..., list[Array]] | None:
    """The region in walks, a function of arrays and matrix; None where XLA does it.

    Raises:
        ValueError: CUDA was demanded, and there is no kernel.
    """
    if platform != "cuda":
        return None
    demanded = implementation is not None
    matrix: SparseMatrix = operands.matrix
    if not _walkable(matrix):
        return None
    reason = cuda_compile.missing()
    if reason is None and cuda_compile.architecture() is None:
        reason = "there is no GPU to compile for"
    if reason is not None:
        if demanded:
            raise ValueError(f"edge_region has no cuda kernel here: {reason}")
        return None
    try:
        if isinstance(region.program, Unsupported):
            raise region.program
        walks = _walks(region.program, matrix)
        with ThreadPoolExecutor(len(walks) or 1) as pool:  # compilers run side by side
            list(pool.map(lambda walk: _binary_of(walk.program), walks))
    except (Unsupported, cuda_compile.CompilerError) as error:
        message = f"edge_region has no cuda kernel: {_told(error)}"
        if demanded:
            raise ValueError(message) from error
        warnings.warn(f"{message}. Using plain XLA instead.", RuntimeWarning, stacklevel=2)
        return None

    def function(arrays: Sequence[Array], matrix: SparseMatrix) -> list[Array]:
        found: list[Any] = [None] * (1 + max(place for walk in walks for place in walk.places))
        flat = [
            x.reshape(1 if read == "shared" else x.shape[0], -1)
            for x, read in zip(arrays, region.reads, strict=True)
        ]
        for walk in walks:
            read = [*(flat[i] for i in walk.used), *(found[i] for i in walk.stored)]
            made = walk(read, matrix, implementation, len(region.outputs))
            for place, x in zip(walk.places, made, strict=True):
                found[place] = x
        return [
            x.reshape(*(() if into == "all" else x.shape[:1]), *row.shape).astype(row.dtype)
            for x, row, (into, _) in zip(found, region.results, region.outputs, strict=False)
        ]

    return function


def texts(region: Region, matrix: SparseMatrix) -> list[str]:
    """The text of each kernel of a region, as it is compiled.

    Raises:
        Unsupported: it has none.
    """
    if isinstance(region.program, Unsupported):
        raise region.program
    return [_text_of(walk.program).source for walk in _walks(region.program, matrix)]


def _walkable(matrix: SparseMatrix) -> bool:
    """Whether there are entries, sorted both ways, whose ids fit int32."""
    return at_most(1, matrix.by_row.count) and all(
        csr_operands(csr, other.num_rows) is not None
        for csr, other in (matrix, (matrix.by_col, matrix.by_row))
    )


def _told(error: Exception) -> str:
    """A reason, with the user's line."""
    return described(error) if isinstance(error, Unsupported) else str(error).strip()


class _Walk(NamedTuple):
    """Some results of a region.

    Attributes:
        program: with results by row or entry.
        used: the region's arrays that it reads.
        stored: the results that it reads after them, made by a walk before.
        places: of the region's results; those beyond are masks for another walk.
        by_col: whether it goes through the transpose.
        over_all: for each result, how rows of it are reduced, if they are.
    """

    program: RowProgram
    used: tuple[int, ...]
    stored: tuple[int, ...]
    places: tuple[int, ...]
    by_col: bool
    over_all: tuple[str | None, ...]

    def __call__(
        self,
        read: Sequence[Array],
        matrix: SparseMatrix,
        implementation: str | None,
        results: int,
    ) -> list[Array]:
        """What is at its places: the first ones are ``results``, which padding has zeros of."""
        matrix = matrix.T if self.by_col else matrix
        csr, num_cols = matrix.by_row, matrix.by_col.num_rows
        found = edge_walk(
            tuple(read),
            Csr(csr.rows, csr.cols, csr.order, num_rows=csr.num_rows),
            program=self.program,
            num_cols=num_cols,
            implementation=implementation,
        )
        if csr.order is not None and any(each.into == "edge" for each in self.program.outputs):
            # Of padding, no entry has the place.
            placed = jnp.where(in_range(csr.order, csr.count), csr.order, csr.count)
            there = jnp.zeros(csr.count, bool).at[placed].set(True, mode="drop")
            found = [
                jnp.where(there[:, None], x, 0) if each.into == "edge" and place < results else x
                for x, each, place in zip(found, self.program.outputs, self.places, strict=True)
            ]
        return [
            x if how is None else getattr(jnp, how)(x, 0)
            for x, how in zip(found, self.over_all, strict=True)
        ]


def _walks(program: RowProgram, matrix: SparseMatrix) -> list[_Walk]:
    """What goes to rows, and to all, by row; what goes to columns by column.

    What entries keep is made first, masks among it; the other walk reads it where that takes fewer
    bytes.
    """
    program = _with_fewer_selects(program)
    edges_by_col = matrix.by_row.order is not None and matrix.by_col.order is None
    of_rows: list[int] = []
    of_cols: list[int] = []
    for place, output in enumerate(program.outputs):
        to_cols = output.into == "col" or (output.into == "edge" and edges_by_col)
        (of_cols if to_cols else of_rows).append(place)
    walks: list[_Walk] = []
    kept: list[int] = []
    ways = [(of_rows, False), (of_cols, True)]
    if edges_by_col:
        ways.reverse()
    (first, by_col), (second, _) = ways
    if first and second:
        count = len(program.outputs)
        program = _with_masks(program, first, second, by_col)
        first += range(count, len(program.outputs))
    for places, by_col in ways:
        if places:
            walks += _feasible(program, places, by_col, kept)
        kept += [i for i in reversed(places) if program.outputs[i].into == "edge"]
    return walks


def _with_masks(
    program: RowProgram, first: Sequence[int], second: Sequence[int], by_col: bool
) -> RowProgram:
    """Truth values of entries as further results of the first walk, where that moves less."""
    masks = _masks(program, second)
    new = range(len(program.outputs), len(program.outputs) + len(masks))
    outputs = (*program.outputs, *(Output(value, "edge", "none") for value in masks))
    more = replace(program, outputs=outputs)

    def moved(program: RowProgram, added: Sequence[int]) -> int:
        places = [*first, *added]
        kept = [*added, *(i for i in first if program.outputs[i].into == "edge")]
        walks = _walk(program, places, by_col, ()), _cheapest(program, second, not by_col, kept)
        return sum(walk.program.moved for walk in walks)

    written = sum(program.values[value].width for value in masks)
    gains = 0 < len(masks) <= _MOST_STORED and moved(more, new) + written < moved(program, ())
    return more if gains else program


def _masks(program: RowProgram, places: Sequence[int]) -> list[int]:
    """The truth values of entries that numbers of some results are made of."""
    count, found = len(program.inputs), set[int]()
    left = [program.outputs[i].value for i in places]
    needed: set[int] = set()
    while left:
        number = left.pop()
        if number < count or number in needed:
            continue
        needed.add(number)
        of = program.instructions[number - count]
        left += of.operands
        if of.dtype != bool:
            found |= {i for i in of.operands if i >= count and program.varies[i]}
    return sorted(i for i in found if program.values[i].dtype == bool)


def _feasible(
    program: RowProgram, places: Sequence[int], by_col: bool, kept: Sequence[int]
) -> list[_Walk]:
    """One walk for results, or several where they are too many numbers for one."""
    walk = _cheapest(program, places, by_col, kept)
    try:
        _text_of(walk.program)
    except Unsupported:
        if len(places) == 1:
            raise
        middle = len(places) // 2
        halves = places[:middle], places[middle:]
        return [walk for half in halves for walk in _feasible(program, half, by_col, kept)]
    return [walk]


def _cheapest(
    program: RowProgram, places: Sequence[int], by_col: bool, kept: Sequence[int]
) -> _Walk:
    """One walk that reads of what is kept what saves bytes."""
    return min(
        (
            _walk(program, places, by_col, stored)
            for count in range(len(kept) + 1)
            for stored in itertools.combinations(kept[:_MOST_STORED], count)
        ),
        key=lambda walk: (walk.program.moved, len(walk.program.instructions)),
    )


def _walk(program: RowProgram, places: Sequence[int], by_col: bool, stored: Sequence[int]) -> _Walk:
    program = _with_inputs(program, [program.outputs[i].value for i in stored])
    program = program.transposed() if by_col else program
    inputs, instructions = program.inputs, list(program.instructions)
    outputs, over_all = [], []
    for place in places:
        output = program.outputs[place]
        value = output.value
        over_all.append(output.reduce if output.into == "all" else None)
        if output.into == "all":  # sums of rows are not rounded before they are added up
            of = program.values[value]
            acc = np.dtype(accumulator_dtype(of.dtype))
            if acc != of.dtype:
                new = Instruction("convert_element_type", (value,), of.width, acc)
                instructions.append(new)
                value = len(inputs) + len(instructions) - 1
        outputs.append(Output(value, "edge" if output.into == "edge" else "row", output.reduce))
    whole = RowProgram(inputs, tuple(instructions), tuple(outputs))
    alone, used = _without_inputs(whole.only(range(len(outputs))))
    arrays = len(program.inputs) - len(stored)
    return _Walk(
        alone,
        tuple(i for i in used if i < arrays),
        tuple(stored[i - arrays] for i in used if i >= arrays),
        tuple(places),
        by_col,
        tuple(over_all),
    )


def _with_fewer_selects(program: RowProgram) -> RowProgram:
    """The same program, where a number that one of two masks makes zero has one mask for both."""
    build, count = Builder(program.inputs), len(program.inputs)
    values = list(range(count))

    def masked(each: Instruction, operands: Sequence[int]) -> tuple[int, int, int] | None:
        if each.name != "select_n" or len(operands) != 3 or build.value(operands[0]).dtype != bool:
            return None
        zeros = build.constant_of(operands[1])
        return (operands[0], operands[1], operands[2]) if _all_zero(zeros) else None

    for each in program.instructions:
        operands = [values[i] for i in each.operands]
        outer = masked(each, operands)
        of = build.value(outer[2]) if outer else None
        inner = masked(of, of.operands) if isinstance(of, Instruction) else None
        if outer and inner and build.value(outer[0]).width == build.value(inner[0]).width:
            width, dtype = build.value(outer[0]).width, np.dtype(bool)
            both = build.emit("and", (outer[0], inner[0]), width, dtype)
            operands = [both, outer[1], inner[2]]
        values.append(build.emit(each.name, operands, each.width, each.dtype, each.params))
    outputs = [replace(each, value=values[each.value]) for each in program.outputs]
    return without_dead_code(build.inputs, build.instructions, outputs)


def _all_zero(numbers: np.ndarray | None) -> bool:
    return numbers is not None and not numbers.any() and not np.signbit(numbers).any()


def _with_inputs(program: RowProgram, given: Sequence[int]) -> RowProgram:
    """The program with more inputs, by entry, in place of some of its values."""
    count, more = len(program.inputs), len(given)
    numbers = {i: i if i < count else i + more for i in range(len(program.values))}
    numbers |= {value: count + i for i, value in enumerate(given)}
    inputs = [Input("edge", x.width, x.dtype) for x in (program.values[i] for i in given)]
    return RowProgram(
        (*program.inputs, *inputs),
        tuple(
            replace(each, operands=tuple(numbers[i] for i in each.operands))
            for each in program.instructions
        ),
        tuple(replace(each, value=numbers[each.value]) for each in program.outputs),
    )


def _without_inputs(program: RowProgram) -> tuple[RowProgram, tuple[int, ...]]:
    """The program without inputs that it does not read, and those that it does."""
    count, used = len(program.inputs), program.used
    numbers = {old: new for new, old in enumerate(used)}
    numbers |= {i: i - count + len(used) for i in range(count, len(program.values))}
    instructions = (
        replace(each, operands=tuple(numbers[i] for i in each.operands))
        for each in program.instructions
    )
    outputs = (replace(each, value=numbers[each.value]) for each in program.outputs)
    inputs = (program.inputs[i] for i in used)
    return RowProgram(tuple(inputs), tuple(instructions), tuple(outputs)), used
