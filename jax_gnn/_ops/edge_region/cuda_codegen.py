"""CUDA code generation for walks: the C++ struct ``Text`` that ``edge_region.cuh`` runs per entry.

A lane of the walk (``cpp/kernels/cuda/segment_walk.cuh``) owns a few neighbouring *slots*, and a
slot a few elements of each row. Code is generated backwards from the outputs: for each value, the
array ``indices`` says which element every slot needs. A ``take`` only changes these indices, so
that nothing moves between lanes except in a ``reduce``. The number of slots, and the layout of
outputs over them, is the cheapest of a few candidates.

Programs that have products with large shared matrices have another template
(:mod:`jax_gnn._ops.edge_region.tile_kernel`), and so have products by channel
(:mod:`jax_gnn._ops.edge_region.channel_kernel`).

Entries are compared with extremes that another kernel made, to the same bits. Such kernels contract
no products with sums, and add up the elements of a row in an order that is independent of slots.

Generated source contains no user strings, only numbers and what stands in this file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.channel_kernel import generate_channels
from jax_gnn._ops.edge_region.channels import channels_of
from jax_gnn._ops.edge_region.cuda_text import (
    BYTES,
    FLOATS,
    JOINS,
    MAX_ARRAYS,
    REGISTER_TYPES,
    STORED_TYPES,
    THREADS,
    WARP,
    Infeasible,
    Kernel,
    affine,
    dot_sizes,
    elementwise,
    function,
    has_tiles,
    join_of_part,
    literal,
    literals,
    loaded,
    needs_exact_bits,
    on_tensor_cores,
    outer_sizes,
    register_type,
    stored_type,
    struct,
    tree,
)
from jax_gnn._ops.edge_region.row_program import (
    SLOW,
    Instruction,
    Output,
    RowProgram,
    Unsupported,
)
from jax_gnn._ops.edge_region.tile_kernel import generate_tiles

_MAX_SLOTS = 8192
_MAX_COMPONENTS = 16  # elements of an output for each slot
_MAX_TERMS = 64  # of a sum within a slot
_MAX_WRITTEN_OUT = 1 << 10  # weights of a product that is written out: compile time
_MAX_SHARED_REGISTERS = 24  # for values that all entries share
_WORD_BYTES = 16

# Cost of the walk itself for a lane, in elementary operations: per entry, step, and part of a step.
_ENTRY_COST, _STEP_COST, _PART_COST = 24, 32, 24


def generate(program: RowProgram) -> Kernel:
    """Generate the kernel of a program whose outputs are by edge or by row.

    Raises:
        Unsupported: A value, or the whole, is beyond what a kernel can hold.
    """
    if max(len(program.inputs), len(program.outputs)) > MAX_ARRAYS:
        raise Unsupported(None, f"more than {MAX_ARRAYS} arrays")
    reasons: list[str] = []
    if channels_of(program) is not None:
        try:
            return generate_channels(program)
        except Infeasible as error:
            reasons.append(str(error))
    for instruction in program.instructions:
        if instruction.name == "dot" and not on_tensor_cores(program, instruction):
            weights = program.values[instruction.operands[1]].width
            if weights > _MAX_WRITTEN_OUT:
                raise Unsupported(None, f"a product with {weights} weights")
    if has_tiles(program):
        try:
            return generate_tiles(program)
        except Infeasible as error:
            raise Unsupported(None, str(error)) from error
    # Limits are tried in order: fewer registers for loads in flight, and then more statements, are
    # accepted only if no number of slots has a kernel under the limits before.
    for limits in _LIMITS:
        kernels = [
            kernel
            for slots in _slot_counts(program)
            if (kernel := _cheapest(program, slots, limits, reasons)) is not None
        ]
        if kernels:
            return min(kernels, key=lambda kernel: kernel.cost)
    raise Unsupported(None, reasons[0] if reasons else "rows are too wide")


def _cheapest(
    program: RowProgram, slots: int, limits: _Limits, reasons: list[str]
) -> Kernel | None:
    """Return the cheapest kernel of the first schedule that has enough registers."""
    by_vec: dict[int, list[_Codegen]] = {}
    # Code depends on the schedule only by the slots of a lane, so that generators are kept by
    # `vec`, and their text is generated once for all numbers of entries and blocks.
    for schedule in _schedules(slots):
        if schedule.vec not in by_vec:
            by_vec[schedule.vec] = []
            for layout in _layouts(program, slots):
                try:
                    codegen = _Codegen(program, slots, schedule.vec, layout, limits)
                    by_vec[schedule.vec].append(codegen)
                except Infeasible as error:
                    reasons.append(str(error))
                except RecursionError:
                    reasons.append("too many values one after another")
        kernels = []
        for codegen in by_vec[schedule.vec]:
            try:
                kernels.append(codegen.kernel(schedule))
            except Infeasible as error:
                reasons.append(str(error))
        if kernels:
            return min(kernels, key=lambda kernel: kernel.cost)
    return None


class _Schedule(NamedTuple):
    """The division of a multiprocessor's registers.

    Attributes:
        vec: Slots of a lane.
        unroll: Entries of a team's step.
        blocks: Blocks of a multiprocessor.
        registers: Registers of a lane as counted here; compilers need fewer.
    """

    vec: int
    unroll: int
    blocks: int
    registers: int


def _schedules(slots: int) -> Iterator[_Schedule]:
    """Yield schedules, the fastest first as measured: wide words, then many entries in flight."""
    pairs = [(4, 8), (4, 4), (2, 8), (2, 4), (4, 2), (2, 2), (1, 8), (1, 4)]
    # `sort` is stable: pairs with equal numbers of slots keep their order as measured.
    if slots > 2 * WARP:  # one team for a row rather than two
        pairs.sort(key=lambda pair: -pair[0])
    for vec, unroll in pairs:
        if slots % vec == 0:
            registers = 128 if unroll == 8 else 160 if (vec, unroll) == (2, 2) else 144
            yield _Schedule(vec, unroll, 4, registers)
    yield _Schedule(1, 4, 2, 250)
    for vec in (8, 7, 6, 5, 3):  # rows that one warp must hold
        if slots % vec == 0 and slots <= WARP * vec:
            for unroll, blocks, registers in ((8, 4, 128), (4, 4, 144), (4, 2, 250)):
                yield _Schedule(vec, unroll, blocks, registers)


def _slot_counts(program: RowProgram) -> list[int]:
    """Return the candidate numbers of slots, the largest first."""
    widths = {value.width for value in program.values}
    widths |= {int(step.params[1]) for step in program.instructions if step.name == "reduce"}
    outputs = _output_widths(program)
    # Every output must have a placement (see `_placement`): some elements for each slot, one
    # element for a group of slots, or the whole row in one slot.
    fitting = [
        n
        for n in widths | outputs | {1, math.lcm(*outputs)}
        if 1 <= n <= _MAX_SLOTS
        and all(
            (w % n == 0 and w // n <= _MAX_COMPONENTS) or n % w == 0 or w <= _MAX_COMPONENTS
            for w in outputs
        )
    ]
    return sorted(fitting, reverse=True)[:24]


def _output_widths(program: RowProgram) -> set[int]:
    return {program.values[output.value].width for output in program.outputs}


class _Layout(NamedTuple):
    """The distribution of outputs over slots.

    Attributes:
        interleaved: For rows of several elements a slot: whether a slot has neighbouring ones.
        grouped: For rows of fewer elements than slots: whether neighbouring slots share an element;
            else each slot has all.
    """

    interleaved: bool
    grouped: bool


def _layouts(program: RowProgram, slots: int) -> Iterator[_Layout]:
    widths = _output_widths(program)
    wide = any(w > slots for w in widths)
    narrow = any(1 < w < slots and slots % w == 0 for w in widths)
    for interleaved, grouped in itertools.product((False, True), (True, False)):
        if (wide or not interleaved) and (grouped or narrow):
            yield _Layout(interleaved, grouped)


class _Limits(NamedTuple):
    """Limits of a kernel.

    Attributes:
        registers: Registers of an entry's elements that are loaded before their use.
        statements: Operations on an element; some hundreds take a second to compile.
    """

    registers: float
    statements: int


# In the order in which they are tried.
_LIMITS = _Limits(math.inf, 400), _Limits(6, 400), _Limits(6, 1000)


class _Value(NamedTuple):
    """A C++ expression of a value.

    Attributes:
        text: The expression, in which ``{i}`` stands for the slot of a lane.
        is_vector: Whether slots of a lane differ.
    """

    text: str
    is_vector: bool

    def at(self, slot: str) -> str:
        return self.text.replace("{i}", slot)


class _Placement(NamedTuple):
    """The elements of an output by slot.

    Attributes:
        components: For each element of a slot, the index in the output's row for all slots.
        start: C++ expression of a lane's first index.
        width: Number of neighbouring elements of a lane for each store.
        condition: C++ condition of the lanes that store; "" if all do.
        interleaved: Whether components are neighbours, and stored together.
    """

    components: list[np.ndarray]
    start: str
    width: int
    condition: str
    interleaved: bool


class _Codegen:
    """Code of a program for a number of slots, slots of a lane, and layout."""

    def __init__(
        self, program: RowProgram, slots: int, vec: int, layout: _Layout, limits: _Limits
    ) -> None:
        self.program, self.slots, self.vec, self.layout = program, slots, vec, layout
        self.limits = limits
        self.lanes = 1
        while self.lanes < WARP and self.lanes * vec < slots:
            self.lanes *= 2
        self.lane_tiles = -(-slots // (self.lanes * vec))
        self.exact = needs_exact_bits(program)
        self.all_slots = np.arange(slots)
        self.values: dict[tuple[int, bytes], _Value] = {}
        self.fields: dict[tuple[object, ...], str] = {}
        self.num_fields = 0
        # Lines of the members of the struct: what an entry, and all entries, hold; their loads; …
        self.entry: list[str] = []
        self.once: list[str] = []
        self.loads: list[str] = []
        self.loads_once: list[str] = []
        self.body: list[str] = []
        self.tables: list[str] = []
        self.stores: list[str] = []
        self.part_joins: list[str] = []  # the reduction of each part
        arrays = [*program.inputs, *(program.values[output.value] for output in program.outputs)]
        self.words = [array.dtype.itemsize for array in arrays]
        self.registers = 0.0  # of an entry
        self.registers_once = 0.0  # of what entries share
        self.work = 0.0
        self.statements = 0.0
        self._generate()

    # ---- Outputs and reductions -----------------------------------------------------------------

    def _generate(self) -> None:
        program = self.program
        if any(output.dest not in ("edge", "row") for output in program.outputs):
            raise ValueError("the outputs of a kernel are by edge or by row")
        dtypes = {self._dtype(output.value) for output in program.outputs if output.dest == "row"}
        if not dtypes <= set(FLOATS):
            raise Infeasible(f"sums of {', '.join(sorted(dtypes))}")
        self.acc = "float64" if "float64" in dtypes else "float32"
        acc_type = REGISTER_TYPES[self.acc]
        joins = self.part_joins
        # An output by edge is stored while its entry is visited. An output by row is a part of the
        # walk's reduction: the entry's code sets `parts`, the walk joins them over entries into
        # `run`, and code in `stores` writes `run` once for each row.
        for number, output in enumerate(program.outputs):
            placement = self._placement(output)
            values = [self._value(output.value, indices) for indices in placement.components]
            if output.dest == "edge":
                stored = [_Value(f"(valid ? {v.text} : 0)", v.is_vector) for v in values]
                self._store(self.body, number, output, placement, stored, "place", "there")
                continue
            stored = []
            is_vector = placement.width > 1 or placement.condition == ""
            for value in values:
                first = len(joins)
                joins += [JOINS[output.reduce]] * (self.vec if is_vector else 1)
                stored.append(
                    _Value(f"run[{first} + {{i}}]" if is_vector else f"run[{first}]", is_vector)
                )
                part = f"parts[{first} + i]" if is_vector else f"parts[{first}]"
                line = f"{part} = static_cast<{acc_type}>({value.at('i')});"
                self.body.append(self._for_slots(line) if is_vector else line)
            self._store(self.stores, number, output, placement, stored, "row", "")
        if not joins:  # the walk needs at least one part
            joins += [JOINS["sum"]]
            self.body.append("parts[0] = 0;")

    def _placement(self, output: Output) -> _Placement:
        width, slots, vec = self._width(output.value), self.slots, self.vec
        index = self.all_slots
        # Wide rows: a slot has `count` elements, either neighbours or `slots` apart. The second
        # layout lets neighbouring lanes store neighbouring words.
        if width % slots == 0 and width // slots <= _MAX_COMPONENTS:
            count = width // slots
            if self.layout.interleaved and count > 1:
                components = [count * index + i for i in range(count)]
                return _Placement(components, f"{count} * first", count * vec, "", True)
            return _Placement([i * slots + index for i in range(count)], "first", vec, "", False)
        # Narrow rows: `group` neighbouring slots share an element, and the first lane of the group
        # stores it. A group must hold whole lanes, since a lane stores as one.
        group = slots // width
        if slots % width == 0 and (self.layout.grouped or width > _MAX_COMPONENTS):
            if group % vec:
                raise Infeasible("an output has fewer numbers than lanes")
            condition = f"first % {group} == 0"
            return _Placement([index // group], f"first / {group}", 1, condition, False)
        if width > _MAX_COMPONENTS:
            raise Infeasible("rows of outputs have too many numbers")
        components = [np.full_like(index, i) for i in range(width)]
        return _Placement(components, "0", 1, "first == 0", False)

    def _store(
        self,
        lines: list[str],
        number: int,
        output: Output,
        placement: _Placement,
        values: Sequence[_Value],
        row: str,
        condition: str,
    ) -> None:
        """Append the code that stores a lane's elements of output `number` to `lines`."""
        width, dtype = self._width(output.value), self._dtype(output.value)
        kind, array = STORED_TYPES[dtype], number + len(self.program.inputs)
        conditions = " && ".join(filter(None, (condition, placement.condition)))
        lines.append(f"if ({conditions}) {{" if conditions else "{")
        lines.append(f"{kind}* const to = row_of<{kind}, {width}>(out.at[{number}], {row});")
        count = len(values)
        if placement.interleaved:
            lines.append(f"{kind} words[{placement.width}];")
            for i, value in enumerate(values):
                word = f"words[{count} * i + {i}] = cast<{kind}>({value.at('i')});"
                lines.append(self._for_slots(word))
            word_size = self._word_size(array, width, dtype, placement.width, 0)
            lines.append(f"store_numbers<{word_size}>(to + {placement.start}, words);")
        elif placement.condition == "":
            word_size = self._word_size(array, width, dtype, self.vec, self.slots)
            for i, value in enumerate(values):
                lines.append(f"{kind} words{i}[kVec];")
                lines.append(self._for_slots(f"words{i}[i] = cast<{kind}>({value.at('i')});"))
                start = f"{i * self.slots} + {placement.start}"
                lines.append(f"store_numbers<{word_size}>(to + {start}, words{i});")
        else:
            for i, value in enumerate(values):
                start = f"{placement.start} + {i}" if count > 1 else placement.start
                lines.append(f"to[{start}] = cast<{kind}>({value.at('0')});")
        lines.append("}")
        self.work += 4 * width

    # ---- The struct -----------------------------------------------------------------------------

    def kernel(self, schedule: _Schedule) -> Kernel:
        """Return the kernel of a schedule.

        Raises:
            Infeasible: It needs too many registers, or too much shared memory.
        """
        joins, unroll = self.part_joins, schedule.unroll
        # Registers are estimated: elements of the entries in flight, values that all entries share,
        # ids of entries, and the running sums of the row.
        entry = unroll * (self.registers + 1) + self.registers_once + 2 * self.vec
        ids, sums = 6 * unroll + 40, 4 * len(joins) * BYTES[self.acc] / 4
        if ids + entry + sums > schedule.registers:
            raise Infeasible("an entry has too many numbers for the registers of a GPU")
        arrays = "const Arrays& in, "
        ids_of_entry = "Index row, Index col, Index place, unsigned first, "
        lines = [
            *self.tables,
            "struct Text {",
            f"using Acc = {REGISTER_TYPES[self.acc]};",
            f"static constexpr int kVec = {self.vec}, kParts = {len(joins)};",
            f"static constexpr int kUnroll = {unroll}, kMinBlocks = {schedule.blocks};",
            f"static constexpr int kThreads = {THREADS};",
            "static __device__ constexpr Join kind([[maybe_unused]] int part) {",
            f"return {join_of_part(joins)};",
            "}",
            *struct("Entry", self.entry),
            *struct("Once", self.once),
            *function(
                f"load_once({arrays}bool active, unsigned first, Once& once)", self.loads_once
            ),
            *function(f"load({arrays}bool valid, {ids_of_entry}Entry& entry)", self.loads),
            *function(
                f"value(const Entry& entry, const Once& once, {arrays}const Arrays& out, "
                f"bool active, bool there, bool valid, {ids_of_entry}Acc (&parts)[kParts])",
                self.body,
            ),
        ]
        lines += function(
            "store(const Arrays& out, Index row, unsigned first, const Acc (&run)[kParts])",
            self.stores,
        )
        lanes = self.lane_tiles * self.lanes
        step_cost = _STEP_COST + _PART_COST * len(joins)
        work = self.work * lanes * self.vec / self.slots
        return Kernel(
            source="\n".join([*lines, "};"]) + "\n",
            slots=self.slots,
            vec=self.vec,
            lanes=self.lanes,
            unroll=unroll,
            parts=len(joins),
            threads=THREADS,
            blocks=schedule.blocks,
            shared=0,
            acc=self.acc,
            words=tuple(self.words),
            exact=self.exact,
            cost=work + lanes * (_ENTRY_COST + step_cost / unroll),
        )

    # ---- Values ---------------------------------------------------------------------------------

    def _width(self, value: int) -> int:
        return self.program.values[value].width

    def _dtype(self, value: int) -> str:
        return str(self.program.values[value].dtype.name)

    def _value(self, number: int, indices: np.ndarray) -> _Value:
        """Return elements of a value: ``indices[s]`` for each slot s."""
        # Values are memoised by their elements: the same value at other elements is other code.
        key = number, indices.tobytes()
        if key not in self.values:
            first = len(self.program.inputs)
            if number < first:
                value = self._load(number, indices)
            else:
                value = self._compute(self.program.instructions[number - first], indices)
            self.values[key] = value
        return self.values[key]

    def _compute(self, step: Instruction, indices: np.ndarray) -> _Value:
        name, operands = step.name, step.operands
        if name == "take":
            return self._value(operands[0], np.asarray(step.params, np.int64)[indices])
        if name in ("constant", "concatenate", "reduce", "dot", "outer"):
            rule: Callable[[Instruction, np.ndarray], _Value] = getattr(self, f"_{name}")
            return rule(step, indices)
        # Operands of width 1 broadcast: every slot reads their only element.
        zeros = np.zeros_like(indices)
        values = [self._value(i, zeros if self._width(i) == 1 else indices) for i in operands]
        expression = elementwise(self.program, step)
        is_vector = any(value.is_vector for value in values)

        def text(i: str) -> str:
            return expression(*(value.at(i) for value in values))

        return self._define(step.dtype.name, text, is_vector, 4 if name in SLOW else 1)

    def _define(
        self, dtype: str, text: Callable[[str], str], is_vector: bool, work: float
    ) -> _Value:
        """Define a variable, whose expression for slot ``i`` is ``text(i)``."""
        kind, name = register_type(dtype), f"v{len(self.values)}_{len(self.body)}"
        if is_vector:
            self.body.append(f"{kind} {name}[kVec];")
            self.body.append(self._for_slots(f"{name}[i] = {text('i')};"))
        else:
            self.body.append(f"const {kind} {name} = {text('0')};")
        self.statements += work
        if self.statements > self.limits.statements:
            raise Infeasible(f"more than {self.limits.statements} operations on a number")
        self.work += work * (self.slots if is_vector else self.slots / self.vec)
        return _Value(f"{name}[{{i}}]" if is_vector else name, is_vector)

    @staticmethod
    def _for_slots(line: str) -> str:
        """Return a loop of a line over the slots ``i`` of a lane."""
        return f"JAX_GNN_EACH_SLOT(i) {line}"

    def _constant(self, step: Instruction, indices: np.ndarray) -> _Value:
        numbers = np.asarray(step.params)
        if numbers.size == 1:
            indices = np.zeros_like(indices)
        chosen, dtype = numbers[indices], step.dtype.name
        # A constant with one number for all slots is a literal; others are tables in global memory,
        # read by slot.
        texts = literals(chosen, dtype)
        if len(texts) == 1:
            return _Value(texts[0], False)
        name = self._table(register_type(dtype), texts)
        self.work += 2 * self.slots
        if self._is_by_lane(indices):
            return self._define(dtype, lambda i: f"{name}[first]", False, 1)
        return self._define(dtype, lambda i: f"{name}[first + {i}]", True, 1)

    def _table(self, kind: str, elements: Sequence[str]) -> str:
        name = f"table{len(self.tables)}"
        self.tables.append(f"__device__ const {kind} {name}[] = {{{', '.join(elements)}}};")
        return name

    def _is_by_lane(self, indices: np.ndarray) -> bool:
        """Whether the slots of each lane need the same element."""
        lanes = indices.reshape(-1, self.vec)
        return bool((lanes == lanes[:, :1]).all())

    def _concatenate(self, step: Instruction, indices: np.ndarray) -> _Value:
        widths = [self._width(i) for i in step.operands]
        stops = np.cumsum(widths)
        pieces = np.searchsorted(stops, indices, side="right")
        used = sorted(set(pieces.tolist()))
        values = []
        for piece in used:
            inside = np.clip(indices - (stops[piece] - widths[piece]), 0, widths[piece] - 1)
            values.append(self._value(step.operands[piece], inside))
        if len(used) == 1:
            return values[0]
        by_lane = self._is_by_lane(pieces)

        def text(i: str) -> str:
            piece = self._index(pieces, "first" if by_lane else f"(first + {i})", by_lane)
            chosen = values[-1].at(i)
            for number, value in reversed(list(zip(used[:-1], values[:-1], strict=True))):
                chosen = f"({piece} == {number} ? {value.at(i)} : {chosen})"
            return chosen

        is_vector = not by_lane or any(value.is_vector for value in values)
        return self._define(step.dtype.name, text, is_vector, len(used))

    def _reduce(self, step: Instruction, indices: np.ndarray) -> _Value:
        kind, count = str(step.params[0]), int(step.params[1])
        operand, dtype = step.operands[0], step.dtype.name
        run = _run_length(indices)
        is_joinable = kind in JOINS and dtype in ("float32", "float64")
        if self._is_by_lane(indices) and is_joinable and count > 2 and run % self.vec == 0:
            # Lanes share the elements of a reduction only if all slots of a group need the same
            # result: each slot then reduces its share, and shuffles join the lanes.
            for group in (count, run):
                even = run % group == count % group == 0 and count // group <= _MAX_TERMS
                if even and self._lanes_of(group):
                    return self._reduce_over_lanes(step, indices, group)
        if count > _MAX_TERMS:
            raise Infeasible(f"a reduction over {count} numbers that lanes do not share evenly")
        values = [self._value(operand, indices * count + i) for i in range(count)]
        is_vector = any(value.is_vector for value in values)
        return self._define(
            dtype, lambda i: tree(kind, [value.at(i) for value in values]), is_vector, count
        )

    def _lanes_of(self, group: int) -> int:
        """Return the lanes of a group of neighbouring slots; 0 if shuffles cannot join them."""
        if group == self.slots:
            return self.lanes if self.lane_tiles == 1 else 0
        lanes, remainder = divmod(group, self.vec)
        return lanes if remainder == 0 and _is_power_of_2(lanes) and lanes <= self.lanes else 0

    def _reduce_over_lanes(self, step: Instruction, indices: np.ndarray, group: int) -> _Value:
        """Reduce over groups of slots, which share the elements evenly.

        The order is that of `tree`, if a lane or the lanes have a power of two of the elements.
        """
        kind, count = str(step.params[0]), int(step.params[1])
        operand, dtype = step.operands[0], step.dtype.name
        inside, terms_per_slot = self.all_slots % group, count // group
        side_by_side = _is_power_of_2(terms_per_slot * self.vec)
        in_order = side_by_side or (_is_power_of_2(group) and _is_power_of_2(self.vec))
        if self.exact and kind == "sum" and not in_order:
            raise Infeasible(f"a sum over {count} numbers in an order of its own")
        if side_by_side:
            offsets = [terms_per_slot * inside + i for i in range(terms_per_slot)]
        else:
            offsets = [group * i + inside for i in range(terms_per_slot)]
        values = [self._value(operand, indices * count + offset) for offset in offsets]
        by_slot = [[value.at(str(i)) for value in values] for i in range(self.vec)]
        if side_by_side:
            terms = [tree(kind, [text for slot in by_slot for text in slot])]
        else:
            terms = [tree(kind, [slot[i] for slot in by_slot]) for i in range(terms_per_slot)]
        join, kind_of_lane = JOINS[kind], register_type(dtype)
        # Lanes beyond the slots take part in shuffles, and must not change the result.
        if self.lanes * self.vec > self.slots:
            neutral = f"neutral_of<{join}, {kind_of_lane}>()"
            terms = [f"(active ? {term} : {neutral})" for term in terms]
        lanes = self._lanes_of(group)
        self.work += count / group * self.slots + 8 * len(terms) * self.slots / self.vec
        joined = [f"join_lanes<{join}, {lanes}>({term})" for term in terms]
        names = [self._define(dtype, _constantly(text), False, 1).text for text in joined]
        return self._define(dtype, lambda i: tree(kind, names), False, 1)

    def _dot(self, step: Instruction, indices: np.ndarray) -> _Value:
        """Write out a product with a small matrix."""
        left, right = step.operands
        inner, columns = dot_sizes(self.program, step)
        if inner > _MAX_TERMS:
            raise Infeasible(f"a product of {inner} terms")
        row, column = indices // columns, indices % columns
        terms = [
            (self._value(left, row * inner + i), self._value(right, i * columns + column))
            for i in range(inner)
        ]
        return self._sum_of_products(step.dtype.name, terms)

    def _sum_of_products(self, dtype: str, terms: Sequence[tuple[_Value, _Value]]) -> _Value:
        zero = literal(0.0, dtype)
        terms = [term for term in terms if term[1].text != zero] or terms[:1]
        is_vector = any(factor.is_vector for term in terms for factor in term)
        return self._define(
            dtype,
            lambda i: " + ".join(f"{a.at(i)} * {b.at(i)}" for a, b in terms),
            is_vector,
            len(terms),
        )

    def _outer(self, step: Instruction, indices: np.ndarray) -> _Value:
        count, _, columns = outer_sizes(self.program, step)
        if count > _MAX_TERMS:
            raise Infeasible(f"a product of {count} terms")
        left, right = step.operands
        rows = self._width(left) // count
        terms = [
            (
                self._value(left, i * rows + indices // columns),
                self._value(right, i * columns + indices % columns),
            )
            for i in range(count)
        ]
        return self._sum_of_products(step.dtype.name, terms)

    # ---- Inputs ---------------------------------------------------------------------------------

    def _load(self, number: int, indices: np.ndarray) -> _Value:
        """Return elements of an input, loaded once, in wide words where they are contiguous."""
        width, dtype = self._width(number), self._dtype(number)
        if width == 1:
            indices = np.zeros_like(indices)
        if self._is_by_lane(indices):
            index = self._index(indices, "first", True)
            field = self._field(number, ("lane", index), 1, [index], 1)
            return _Value(loaded(f"{field}[0]", dtype), False)
        step = int(indices[1] - indices[0])
        if 1 <= step <= 8 and (indices == indices[0] + step * self.all_slots).all():
            start = int(indices[0]) // step * step
            if start + step * self.slots <= width:
                count = step * self.vec
                word = self._word_size(number, width, dtype, count, start)
                place = f"{start} + {step} * first"
                field = self._field(number, ("block", start, step), count, [place], word)
                offset = int(indices[0]) - start
                return _Value(loaded(f"{field}[{step} * {{i}} + {offset}]", dtype), True)
        places = [
            self._index(indices, f"(first + {i})" if self.vec > 1 else "first", False)
            for i in range(self.vec)
        ]
        field = self._field(number, ("each", *places), self.vec, places, 1)
        return _Value(loaded(f"{field}[{{i}}]", dtype), True)

    def _field(
        self, number: int, key: tuple[object, ...], count: int, places: Sequence[str], word: int
    ) -> str:
        """Return the name of loaded elements of an input.

        Args:
            number: Index of the input.
            key: Identifies the elements.
            count: Number of elements.
            places: C++ index of the first element, or of each.
            word: Elements of a word.
        """
        if (number, *key) in self.fields:
            return self.fields[number, *key]
        source = self.program.inputs[number]
        dtype = source.dtype.name
        kind, shared = stored_type(dtype), source.access == "shared"
        self.num_fields += 1
        name = f"x{self.num_fields}"
        registers = max(1.0, count * BYTES[dtype] / 4)
        declaration = f"{kind} {name}[{count}];"
        if shared and self.registers_once + registers <= _MAX_SHARED_REGISTERS:
            lines, condition = self.loads_once, "active"
            self.once.append(declaration)
            self.registers_once += registers
            name = f"once.{name}"
        elif not shared and self.registers + registers <= self.limits.registers:
            lines, condition = self.loads, "valid"
            self.entry.append(declaration)
            self.registers += registers
            name = f"entry.{name}"
        else:  # loaded at its use
            lines, condition = self.body, "active" if shared else "valid"
            self.body.append(declaration)
            self.statements += count
        row = {"edge": "place", "row": "row", "col": "col", "shared": "0"}[source.access]
        base = f"row_of<const {kind}, {source.width}>(in.at[{number}], {row})"
        streams = "true" if source.access == "edge" else "false"
        if len(places) == 1:
            address = f"{base} + {places[0]}"
            lines.append(f"load_numbers<{word}, {streams}>({condition}, {address}, {name});")
        else:
            lines += [
                f"load_number<{streams}>({condition}, {base} + {place}, {name}[{i}]);"
                for i, place in enumerate(places)
            ]
        self.work += (4 if len(places) == 1 else 6) * self.slots * count / self.vec
        self.fields[number, *key] = name
        return name

    def _word_size(self, array: int, width: int, dtype: str, count: int, start: int) -> int:
        """Return the elements of the widest aligned word; records the alignment of the array."""
        divisor = math.gcd(_WORD_BYTES // BYTES[dtype], count, width, start)
        word = divisor & -divisor
        self.words[array] = max(self.words[array], word * BYTES[dtype])
        return word

    def _index(self, indices: np.ndarray, slot: str, by_lane: bool) -> str:
        """Return `indices` as a C++ expression of a slot, or of a lane's first slot."""
        step = self.vec if by_lane else 1
        text = affine(indices[::step].astype(np.int64), slot, step, "static_cast<int>")
        if text is not None:
            return text
        return f"{self._table('int', [str(int(i)) for i in indices])}[{slot}]"


# --- C++ -----------------------------------------------------------------------------------------


def _constantly(text: str) -> Callable[[str], str]:
    """Return the expression of a variable that is the same for all slots."""
    return lambda i: text


def _run_length(indices: np.ndarray) -> int:
    """Return the length of the runs of equal indices if all have the same; else 1."""
    breaks = np.flatnonzero(np.diff(indices))
    if not len(breaks):
        return len(indices)
    run = int(breaks[0]) + 1
    if len(indices) % run:
        return 1
    runs = indices.reshape(-1, run)
    return run if (runs == runs[:, :1]).all() else 1


def _is_power_of_2(n: int) -> bool:
    return n & (n - 1) == 0
