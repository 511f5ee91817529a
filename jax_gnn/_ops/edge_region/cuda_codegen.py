"""CUDA code generation for walks: the C++ struct ``Text`` that ``edge_region.cuh`` runs per entry.

A lane of the walk (``cpp/kernels/cuda/segment_walk.cuh``) owns a few neighbouring *slots*, and a
slot a few elements of each row. Code is generated backwards from the outputs: for each value, the
array ``indices`` says which element every slot needs. A ``take`` only changes these indices, so
that nothing moves between lanes except in a ``reduce``. The number of slots, and the layout of
outputs over them, is the cheapest of a few candidates.

Products with large shared matrices run on tensor cores (``cpp/kernels/cuda/edge_products.cuh``). A
warp multiplies the rows of all its entries together. Rows lie in *tiles* in shared memory, and the
code is cut into *stages*, each of which fills tiles and then multiplies them.

Entries are compared with extremes that another kernel made, to the same bits. Such kernels contract
no products with sums, and add up the elements of a row in an order that is independent of slots.

Generated source contains no user strings, only numbers and what stands in this file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.row_program import (
    SLOW,
    Instruction,
    Output,
    RowProgram,
    Unsupported,
)

MAX_ARRAYS = 32
"""Largest number of inputs, and of outputs; as in ``edge_region.cuh``."""
THREADS = 128
"""Threads of a block; as in ``edge_region.cuh``."""

_MAX_UNROLLED_WEIGHTS = 64  # of a matrix; products with larger ones run on tensor cores
_WARP = 32
_MAX_SLOTS = 8192
_MAX_COMPONENTS = 16  # elements of an output for each slot
_MAX_TERMS = 64  # of a sum within a slot
_MAX_WRITTEN_OUT = 1 << 10  # weights of a product that is written out: compile time
_MAX_SHARED_REGISTERS = 24  # for values that all entries share
_SHARED_BYTES = 227 << 10  # shared memory of a multiprocessor
_WALK_BYTES = 4 << 10  # shared memory of the walk itself, for each block
_WORD_BYTES = 16

# Types in memory and in registers, and sizes in memory.
_STORED_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int32": "int",
    "int64": "int64_t",
    "uint32": "unsigned",
    "bool": "unsigned char",
}
_REGISTER_TYPES = _STORED_TYPES | {"float16": "float", "bfloat16": "float", "bool": "bool"}
_BYTES = {
    name: 1 if name == "bool" else int(name.lstrip("abfiolntu")) // 8 for name in _STORED_TYPES
}
_HALVES = ("float16", "bfloat16")
_FLOATS = ("float32", "float64", *_HALVES)
_COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")

# Functions of one operand that have the same name in C++.
_UNARY = (
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 floor log log1p "
    "sin sinh sqrt tan tanh"
)
# A C++ expression for each elementwise function. {f} is the suffix of functions of float.
_EXPRESSIONS = {
    **{name: f"{name}{{f}}({{0}})" for name in _UNARY.split()},
    "abs": "({0} < 0 ? -{0} : {0})",
    "add": "{0} + {1}",
    "and": "{0} & {1}",
    "atan2": "atan2{f}({0}, {1})",
    "clamp": "lesser(greater({0}, {1}), {2})",
    "div": "{0} / {1}",
    "eq": "{0} == {1}",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "is_finite": "{0} - {0} == 0",
    "le": "{0} <= {1}",
    "logistic": "logistic({0})",
    "lt": "{0} < {1}",
    "max": "greater({0}, {1})",
    "min": "lesser({0}, {1})",
    "mul": "{0} * {1}",
    "ne": "{0} != {1}",
    "neg": "-{0}",
    "or": "{0} | {1}",
    "pow": "pow{f}({0}, {1})",
    "rsqrt": "1 / sqrt{f}({0})",
    "sign": "sign({0})",
    "square": "{0} * {0}",
    "sub": "{0} - {1}",
    "xor": "{0} ^ {1}",
}
# Cost of the walk itself for a lane, in elementary operations: per entry, step, and part of a step.
_ENTRY_COST, _STEP_COST, _PART_COST = 24, 32, 24
_JOINS = {"sum": "Join::kSum", "max": "Join::kMax", "min": "Join::kMin"}


@dataclass(frozen=True)
class Kernel:
    """Generated source of a walk, and its launch parameters.

    Attributes:
        source: The struct ``Text`` in C++, see ``edge_region.cuh``.
        slots: Number of slots that are distributed over lanes.
        vec: Slots of a lane.
        lanes: Lanes of a team, a power of two up to 32.
        unroll: Entries of a team's step.
        parts: Elements of reduced rows that a lane holds.
        blocks: Blocks of a multiprocessor.
        shared: Bytes of matrices and tiles in shared memory.
        acc: Dtype of sums.
        words: Required alignment in bytes of the rows of each input, then of each output.
        exact: Whether another kernel must produce the same bits.
        cost: Estimated cost of an entry, to compare kernels.
    """

    source: str
    slots: int
    vec: int
    lanes: int
    unroll: int
    parts: int
    blocks: int
    shared: int
    acc: str
    words: tuple[int, ...]
    exact: bool
    cost: float

    @property
    def room(self) -> int:
        """Elements of the workspace for each slot; ``kRoom`` of ``edge_region.cuh``."""
        return -(-self.parts // self.vec)


def generate(program: RowProgram) -> Kernel:
    """Generate the kernel of a program whose outputs are by edge or by row.

    Raises:
        Unsupported: A value, or the whole, is beyond what a kernel can hold.
    """
    if max(len(program.inputs), len(program.outputs)) > MAX_ARRAYS:
        raise Unsupported(None, f"more than {MAX_ARRAYS} arrays")
    for instruction in program.instructions:
        if instruction.name == "dot" and not _on_tensor_cores(program, instruction):
            weights = program.values[instruction.operands[1]].width
            if weights > _MAX_WRITTEN_OUT:
                raise Unsupported(None, f"a product with {weights} weights")
    reasons: list[str] = []
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
    for schedule in _schedules(slots, _has_tiles(program)):
        if schedule.vec not in by_vec:
            by_vec[schedule.vec] = []
            for layout in _layouts(program, slots):
                try:
                    codegen = _Codegen(program, slots, schedule.vec, layout, limits)
                    by_vec[schedule.vec].append(codegen)
                except _Infeasible as error:
                    reasons.append(str(error))
                except RecursionError:
                    reasons.append("too many values one after another")
        kernels = []
        for codegen in by_vec[schedule.vec]:
            try:
                kernels.append(codegen.kernel(schedule))
            except _Infeasible as error:
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


def _schedules(slots: int, has_tiles: bool) -> Iterator[_Schedule]:
    """Yield schedules, the fastest first as measured: wide words, then many entries in flight.

    Tiles need whole warps, and 16 entries at a time.
    """
    if has_tiles:
        for blocks, registers in ((3, 230), (2, 300), (1, 300)):
            for vec, unroll in itertools.product((4, 2, 1, 8, 7, 6, 5, 3), (8, 4)):
                if slots % vec == 0 and slots <= _WARP * vec:
                    yield _Schedule(vec, unroll, blocks, registers)
        return
    pairs = [(4, 8), (4, 4), (2, 8), (2, 4), (4, 2), (2, 2), (1, 8), (1, 4)]
    # `sort` is stable: pairs with equal numbers of slots keep their order as measured.
    if slots > 2 * _WARP:  # one team for a row rather than two
        pairs.sort(key=lambda pair: -pair[0])
    for vec, unroll in pairs:
        if slots % vec == 0:
            registers = 128 if unroll == 8 else 160 if (vec, unroll) == (2, 2) else 144
            yield _Schedule(vec, unroll, 4, registers)
    yield _Schedule(1, 4, 2, 250)
    for vec in (8, 7, 6, 5, 3):  # rows that one warp must hold
        if slots % vec == 0 and slots <= _WARP * vec:
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


class _Infeasible(Exception):
    """There is no kernel for this number of slots."""


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


class _Tile(NamedTuple):
    """Rows of a warp's entries in shared memory.

    Attributes:
        value: Index of the value.
        stage: Stage that fills the tile.
        width: Width of a row; an entry has one or several rows.
    """

    value: int
    stage: int
    width: int


class _Codegen:
    """Code of a program for a number of slots, slots of a lane, and layout."""

    def __init__(
        self, program: RowProgram, slots: int, vec: int, layout: _Layout, limits: _Limits
    ) -> None:
        self.program, self.slots, self.vec, self.layout = program, slots, vec, layout
        self.limits = limits
        self.lanes = 1
        while self.lanes < _WARP and self.lanes * vec < slots:
            self.lanes *= 2
        self.lane_tiles = -(-slots // (self.lanes * vec))
        self.exact = _needs_exact_bits(program)
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
        self.tile_of: dict[tuple[int, int], int] = {}  # by value and width of rows
        self.stage = 0  # the stage being generated
        self.tiles: list[_Tile] = []
        self.stages: list[tuple[list[str], list[str]]] = []  # code that fills tiles, products
        self.matrices: list[str] = []
        self.matrix_offsets: dict[tuple[object, ...], int] = {}
        self.matrix_size = 0
        self._generate()

    # ---- Outputs and reductions -----------------------------------------------------------------

    def _generate(self) -> None:
        program = self.program
        if any(output.dest not in ("edge", "row") for output in program.outputs):
            raise ValueError("the outputs of a kernel are by edge or by row")
        dtypes = {self._dtype(output.value) for output in program.outputs if output.dest == "row"}
        if not dtypes <= set(_FLOATS):
            raise _Infeasible(f"sums of {', '.join(sorted(dtypes))}")
        self.acc = "float64" if "float64" in dtypes else "float32"
        acc_type = _REGISTER_TYPES[self.acc]
        joins = self.part_joins
        self._generate_stages()
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
                joins += [_JOINS[output.reduce]] * (self.vec if is_vector else 1)
                stored.append(
                    _Value(f"run[{first} + {{i}}]" if is_vector else f"run[{first}]", is_vector)
                )
                part = f"parts[{first} + i]" if is_vector else f"parts[{first}]"
                line = f"{part} = static_cast<{acc_type}>({value.at('i')});"
                self.body.append(self._for_slots(line) if is_vector else line)
            self._store(self.stores, number, output, placement, stored, "row", "")
        if not joins:  # the walk needs at least one part
            joins += [_JOINS["sum"]]
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
                raise _Infeasible("an output has fewer numbers than lanes")
            condition = f"first % {group} == 0"
            return _Placement([index // group], f"first / {group}", 1, condition, False)
        if width > _MAX_COMPONENTS:
            raise _Infeasible("rows of outputs have too many numbers")
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
        kind, array = _STORED_TYPES[dtype], number + len(self.program.inputs)
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

    # ---- Tiles ----------------------------------------------------------------------------------

    def _generate_stages(self) -> None:
        """Generate the code that fills tiles and multiplies them, stage by stage."""
        program, first = self.program, len(self.program.inputs)
        self.precise = any(
            step.name == "dot" and len(step.params) > 1 for step in program.instructions
        )
        # Level 0 needs no product of tensor cores. A product is multiplied at the end of the stage
        # of its operands, so that its readers belong to the next stage.
        # The stage after which each value can be computed.
        levels = [0] * len(program.values)
        products: list[list[int]] = []
        for index, step in enumerate(program.instructions, first):
            levels[index] = max((levels[i] for i in step.operands), default=0)
            if _on_tensor_cores(program, step):
                stage = levels[index]
                products += [[] for _ in range(stage + 1 - len(products))]
                products[stage].append(index)
                levels[index] = stage + 1
        # A dict without values is an ordered set: tiles are numbered in the order of the products.
        factors: dict[tuple[int, int], None] = {}  # value and width
        for index in itertools.chain(*products):
            step = program.instructions[index - first]
            factors[step.operands[0], _dot_sizes(program, step)[0]] = None
        for value, width in factors:
            self._add_tile(value, width, levels[value])
        for stage in range(max((tile.stage + 1 for tile in self.tiles), default=0)):
            for i, tile in enumerate(self.tiles):
                if tile.stage == stage:
                    self._fill_tile(i, tile)
            indices = products[stage] if stage < len(products) else ()
            self.stages.append((self.body, [self._multiply(index, stage) for index in indices]))
            # Variables of a stage are out of scope in the next one; tiles and loads remain.
            self.stage, self.body, self.values = stage + 1, [], {}
            self.fields = {key: name for key, name in self.fields.items() if "." in name}

    def _add_tile(self, value: int, width: int, stage: int) -> None:
        self.tile_of[value, width] = len(self.tiles)
        self.tiles.append(_Tile(value, stage, width))

    def _fill_tile(self, number: int, tile: _Tile) -> None:
        """Write a lane's elements of a value to its tile."""
        width, slots = self._width(tile.value), self.slots
        rows = f"Tile{number}::row(memory, {width // tile.width} * in_warp)"
        for start in range(0, width, slots):
            value = self._value(tile.value, np.minimum(start + self.all_slots, width - 1))
            count = min(slots, width - start)
            place = f"{start} + first" if start else "first"
            element = f"valid ? {value.at('i')} : 0"
            # Words of several numbers need that no lane straddles the end of the row, or of the
            # tile's row.
            if count % self.vec == tile.width % self.vec == start % self.vec == 0:
                word = math.gcd(self.vec, 4)
                self.body += [
                    "{",
                    "float words[kVec];",
                    self._for_slots(f"words[i] = {element};"),
                    f"if (active && first < {count}) put_numbers<{word}>({rows} + "
                    f"Tile{number}::place({place}), words);",
                    "}",
                ]
            else:
                line = f"{rows}[Tile{number}::place({place} + i)] = {element};"
                self.body.append(self._for_slots(f"if (active && first + i < {count}) {line}"))
            self.work += 2 * count

    def _multiply(self, index: int, stage: int) -> str:
        """Return the CUDA statement that multiplies a tile by a matrix in shared memory."""
        step = self.program.instructions[index - len(self.program.inputs)]
        inner, columns = _dot_sizes(self.program, step)
        array, *strides = _matrix(self.program, step)
        precise = "true" if self.precise else "false"
        key = array, *strides, inner, columns
        # Products with the same matrix share one copy of it in shared memory. The copy is padded to
        # blocks of 8 × 8, the fragments that tensor cores read.
        if key not in self.matrix_offsets:
            kind = _stored_type(self.program.inputs[array].dtype.name)
            self.matrix_offsets[key] = self.matrix_size
            self.matrices.append(
                f"load_matrix<{inner}, {columns}, {precise}>(static_cast<const {kind}*>"
                f"(in.at[{array}]), {', '.join(map(str, strides))}, matrices + {self.matrix_size});"
            )
            self.matrix_size += -(-inner // 8) * -(-columns // 8) * 64
        offset = self.matrix_offsets[key]
        self._add_tile(index, columns, stage)
        lhs, product = self.tile_of[step.operands[0], inner], len(self.tiles) - 1
        self.work += step.width * inner / 16
        return f"multiply_rows<Tile{lhs}, Tile{product}, {precise}>(memory, matrices + {offset});"

    def _read_tile(self, number: int, indices: np.ndarray) -> _Value:
        """Return elements of a tile."""
        value, _, columns = self.tiles[number]
        row = f"Tile{number}::row(memory, {self._width(value) // columns} * in_warp)"
        start = int(indices[0])
        is_contiguous = (indices == start + self.all_slots).all() and self.vec > 1
        if is_contiguous and columns % self.vec == 0 and start % self.vec == 0:
            name = f"y{len(self.values)}_{len(self.body)}"
            place = f"{start} + first" if start else "first"
            self.body += [
                f"float {name}[kVec];",
                f"take_numbers<{math.gcd(self.vec, 4)}>({row} + "
                f"(active ? Tile{number}::place({place}) : 0), {name});",
            ]
            self.work += self.slots
            return _Value(f"{name}[{{i}}]", True)
        by_lane = self._is_by_lane(indices)

        def text(i: str) -> str:
            slot = "first" if by_lane else f"(first + {i})"
            place = self._index(indices, slot, by_lane)
            return f"{row}[active ? Tile{number}::place({place}) : 0]"

        return self._define(self._dtype(value), text, not by_lane, 1)

    def _tile_types(self, entries: int) -> tuple[list[str], int]:
        """Return the types of the tiles of a warp's entries, and their elements in all."""
        lines, offset = [], 0
        for i, tile in enumerate(self.tiles):
            rows = entries * self._width(tile.value) // tile.width
            # Tensor cores multiply 16 rows at a time. A stride of 4 modulo 8 words puts
            # neighbouring rows into different banks of shared memory.
            rows = -(-rows // 16) * 16
            stride = -(-tile.width // 8) * 8 + 4  # eight rows are in different banks
            lines.append(f"using Tile{i} = EntryTile<{offset}, {rows}, {tile.width}, {stride}>;")
            offset += rows * stride
        return lines, offset

    # ---- The struct -----------------------------------------------------------------------------

    def kernel(self, schedule: _Schedule) -> Kernel:
        """Return the kernel of a schedule.

        Raises:
            _Infeasible: It needs too many registers, or too much shared memory.
        """
        joins, unroll = self.part_joins, schedule.unroll
        # Registers are estimated: elements of the entries in flight, values that all entries share,
        # ids of entries, and the running sums of the row.
        entry = unroll * (self.registers + 1) + self.registers_once + 2 * self.vec
        ids, sums = 6 * unroll + 40, 4 * len(joins) * _BYTES[self.acc] / 4
        if ids + entry + sums > schedule.registers:
            raise _Infeasible("an entry has too many numbers for the registers of a GPU")
        tile_types, tile_size = self._tile_types(_WARP // self.lanes * unroll)
        shared = 4 * (self.matrix_size + THREADS // _WARP * tile_size)
        if schedule.blocks * (shared + _WALK_BYTES) > _SHARED_BYTES:
            raise _Infeasible("linear maps have too many numbers for the shared memory of a GPU")
        arrays = "const Arrays& in, "
        ids_of_entry = "Index row, Index col, Index place, unsigned first, "
        memory = "float* memory, unsigned in_warp"
        lines = [
            *self.tables,
            "struct Text {",
            *tile_types,
            f"using Acc = {_REGISTER_TYPES[self.acc]};",
            f"static constexpr int kVec = {self.vec}, kParts = {len(joins)};",
            f"static constexpr int kUnroll = {unroll}, kMinBlocks = {schedule.blocks};",
            "static __device__ constexpr Join kind([[maybe_unused]] int part) {",
            f"return {_join_of_part(joins)};",
            "}",
            *_struct("Entry", self.entry),
            *_struct("Once", self.once),
            *_function(
                f"load_once({arrays}bool active, unsigned first, Once& once)", self.loads_once
            ),
            *_function(f"load({arrays}bool valid, {ids_of_entry}Entry& entry)", self.loads),
            *_function(
                f"value(const Entry& entry, const Once& once, {arrays}const Arrays& out, "
                f"bool active, bool there, bool valid, {ids_of_entry}{memory}, "
                "Acc (&parts)[kParts])",
                self.body,
            ),
            f"static constexpr int kStages = {len(self.stages)};",
            f"static constexpr int kMatrices = {self.matrix_size}, kTiles = {tile_size};",
        ]
        for i, (fills, products) in enumerate(self.stages):
            lines += _function(
                f"stage(Stage<{i}>, const Entry& entry, const Once& once, {arrays}"
                f"bool active, bool valid, {ids_of_entry}{memory})",
                fills,
            )
            lines += _function(
                f"multiply(Stage<{i}>, float* memory, const float* matrices)", products
            )
        if self.stages:
            lines += _function(f"load_matrices({arrays}float* matrices)", self.matrices)
        lines += _function(
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
            blocks=schedule.blocks,
            shared=shared,
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
            tiles = (
                i
                for i, tile in enumerate(self.tiles)
                if tile.value == number and tile.stage < self.stage
            )
            tile = next(tiles, None)
            if tile is not None:
                value = self._read_tile(tile, indices)
            elif number < first:
                value = self._load(number, indices)
            else:
                value = self._compute(self.program.instructions[number - first], indices)
            self.values[key] = value
        return self.values[key]

    def _compute(self, step: Instruction, indices: np.ndarray) -> _Value:
        name, operands = step.name, step.operands
        if name == "take":
            return self._value(operands[0], np.asarray(step.params, np.int64)[indices])
        if name in ("constant", "concatenate", "reduce", "dot"):
            rule: Callable[[Instruction, np.ndarray], _Value] = getattr(self, f"_{name}")
            return rule(step, indices)
        # Operands of width 1 broadcast: every slot reads their only element.
        zeros = np.zeros_like(indices)
        values = [self._value(i, zeros if self._width(i) == 1 else indices) for i in operands]
        dtypes = [self._dtype(i) for i in operands]
        expression = _expression(step, dtypes)
        if name == "log1p" and dtypes[0] == "float32" and self._is_softplus_term(operands[0]):
            expression = "log1p_of_fraction({0})".format
        if name in _COMPARISONS:  # operands from memory are rounded, others are not yet
            values = [
                value._replace(text=_rounded(value.text, dtype))
                for value, dtype in zip(values, dtypes, strict=True)
            ]
        is_vector = any(value.is_vector for value in values)

        def text(i: str) -> str:
            return expression(*(value.at(i) for value in values))

        return self._define(step.dtype.name, text, is_vector, 4 if name in SLOW else 1)

    def _is_softplus_term(self, number: int) -> bool:
        """Whether a value is exp(-abs(x)), as in a softplus."""
        names: list[str] = []
        while number >= len(self.program.inputs) and len(names) < 3:
            step = self.program.instructions[number - len(self.program.inputs)]
            names.append(step.name)
            number = step.operands[0] if step.operands else 0
        return names == ["exp", "neg", "abs"]

    def _define(
        self, dtype: str, text: Callable[[str], str], is_vector: bool, work: float
    ) -> _Value:
        """Define a variable, whose expression for slot ``i`` is ``text(i)``."""
        kind, name = _register_type(dtype), f"v{len(self.values)}_{len(self.body)}"
        if is_vector:
            self.body.append(f"{kind} {name}[kVec];")
            self.body.append(self._for_slots(f"{name}[i] = {text('i')};"))
        else:
            self.body.append(f"const {kind} {name} = {text('0')};")
        self.statements += work
        if self.statements > self.limits.statements:
            raise _Infeasible(f"more than {self.limits.statements} operations on a number")
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
        # A constant with one number for all slots is a literal (NaN counts as equal to NaN);
        # others are tables in global memory, read by slot.
        if all(x == chosen[0] or (x != x and chosen[0] != chosen[0]) for x in chosen):
            return _Value(_literal(chosen[0], dtype), False)
        if len(chosen) > 1 << 12:
            raise _Infeasible("a constant of too many numbers")
        name = self._table(_register_type(dtype), [_literal(x, dtype) for x in chosen])
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
        is_joinable = kind in _JOINS and dtype in ("float32", "float64")
        if self._is_by_lane(indices) and is_joinable and count > 2 and run % self.vec == 0:
            # Lanes share the elements of a reduction only if all slots of a group need the same
            # result: each slot then reduces its share, and shuffles join the lanes.
            for group in (count, run):
                even = run % group == count % group == 0 and count // group <= _MAX_TERMS
                if even and self._lanes_of(group):
                    return self._reduce_over_lanes(step, indices, group)
        if count > _MAX_TERMS:
            raise _Infeasible(f"a reduction over {count} numbers that lanes do not share evenly")
        values = [self._value(operand, indices * count + i) for i in range(count)]
        is_vector = any(value.is_vector for value in values)
        return self._define(
            dtype, lambda i: _tree(kind, [value.at(i) for value in values]), is_vector, count
        )

    def _lanes_of(self, group: int) -> int:
        """Return the lanes of a group of neighbouring slots; 0 if shuffles cannot join them."""
        if group == self.slots:
            return self.lanes if self.lane_tiles == 1 else 0
        lanes, remainder = divmod(group, self.vec)
        return lanes if remainder == 0 and _is_power_of_2(lanes) and lanes <= self.lanes else 0

    def _reduce_over_lanes(self, step: Instruction, indices: np.ndarray, group: int) -> _Value:
        """Reduce over groups of slots, which share the elements evenly.

        The order is that of `_tree`, if a lane or the lanes have a power of two of the elements.
        """
        kind, count = str(step.params[0]), int(step.params[1])
        operand, dtype = step.operands[0], step.dtype.name
        inside, terms_per_slot = self.all_slots % group, count // group
        side_by_side = _is_power_of_2(terms_per_slot * self.vec)
        in_order = side_by_side or (_is_power_of_2(group) and _is_power_of_2(self.vec))
        if self.exact and kind == "sum" and not in_order:
            raise _Infeasible(f"a sum over {count} numbers in an order of its own")
        if side_by_side:
            offsets = [terms_per_slot * inside + i for i in range(terms_per_slot)]
        else:
            offsets = [group * i + inside for i in range(terms_per_slot)]
        values = [self._value(operand, indices * count + offset) for offset in offsets]
        by_slot = [[value.at(str(i)) for value in values] for i in range(self.vec)]
        if side_by_side:
            terms = [_tree(kind, [text for slot in by_slot for text in slot])]
        else:
            terms = [_tree(kind, [slot[i] for slot in by_slot]) for i in range(terms_per_slot)]
        join, register_type = _JOINS[kind], _register_type(dtype)
        # Lanes beyond the slots take part in shuffles, and must not change the result.
        if self.lanes * self.vec > self.slots:
            neutral = f"neutral_of<{join}, {register_type}>()"
            terms = [f"(active ? {term} : {neutral})" for term in terms]
        lanes = self._lanes_of(group)
        self.work += count / group * self.slots + 8 * len(terms) * self.slots / self.vec
        joined = [f"join_lanes<{join}, {lanes}>({term})" for term in terms]
        names = [self._define(dtype, _constantly(text), False, 1).text for text in joined]
        return self._define(dtype, lambda i: _tree(kind, names), False, 1)

    def _dot(self, step: Instruction, indices: np.ndarray) -> _Value:
        """Write out a product with a small matrix."""
        left, right = step.operands
        inner, columns = _dot_sizes(self.program, step)
        if inner > _MAX_TERMS:
            raise _Infeasible(f"a product of {inner} terms")
        row, column = indices // columns, indices % columns
        terms = [
            (self._value(left, row * inner + i), self._value(right, i * columns + column))
            for i in range(inner)
        ]
        is_vector = any(factor.is_vector for term in terms for factor in term)
        return self._define(
            step.dtype.name,
            lambda i: " + ".join(f"{a.at(i)} * {b.at(i)}" for a, b in terms),
            is_vector,
            inner,
        )

    # ---- Inputs ---------------------------------------------------------------------------------

    def _load(self, number: int, indices: np.ndarray) -> _Value:
        """Return elements of an input, loaded once, in wide words where they are contiguous."""
        width, dtype = self._width(number), self._dtype(number)
        if width == 1:
            indices = np.zeros_like(indices)
        if self._is_by_lane(indices):
            index = self._index(indices, "first", True)
            field = self._field(number, ("lane", index), 1, [index], 1)
            return _Value(_loaded(f"{field}[0]", dtype), False)
        step = int(indices[1] - indices[0])
        if 1 <= step <= 8 and (indices == indices[0] + step * self.all_slots).all():
            start = int(indices[0]) // step * step
            if start + step * self.slots <= width:
                count = step * self.vec
                word = self._word_size(number, width, dtype, count, start)
                place = f"{start} + {step} * first"
                field = self._field(number, ("block", start, step), count, [place], word)
                offset = int(indices[0]) - start
                return _Value(_loaded(f"{field}[{step} * {{i}} + {offset}]", dtype), True)
        places = [
            self._index(indices, f"(first + {i})" if self.vec > 1 else "first", False)
            for i in range(self.vec)
        ]
        field = self._field(number, ("each", *places), self.vec, places, 1)
        return _Value(_loaded(f"{field}[{{i}}]", dtype), True)

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
        kind, shared = _stored_type(dtype), source.access == "shared"
        self.num_fields += 1
        name = f"x{self.num_fields}"
        registers = max(1.0, count * _BYTES[dtype] / 4)
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
        divisor = math.gcd(_WORD_BYTES // _BYTES[dtype], count, width, start)
        word = divisor & -divisor
        self.words[array] = max(self.words[array], word * _BYTES[dtype])
        return word

    def _index(self, indices: np.ndarray, slot: str, by_lane: bool) -> str:
        """Return `indices` as a C++ expression of a slot, or of a lane's first slot."""
        step = self.vec if by_lane else 1
        slots, wanted = self.all_slots[::step], indices[::step].astype(np.int64)
        start = int(wanted[0])
        if (wanted == start).all():
            return str(start)
        # start + outer * (slot / group) + inner * (slot % group), else a table
        inner, remainder = divmod(int(wanted[1]) - start, step)
        if remainder == 0:
            breaks = np.flatnonzero(wanted != start + inner * slots)
            group = int(slots[breaks[0]]) if len(breaks) else self.slots
            outer = int(wanted[breaks[0]]) - start if len(breaks) else 0
            if (wanted == start + outer * (slots // group) + inner * (slots % group)).all():
                terms = [str(start)] if start else []
                if outer:
                    terms.append(f"{outer} * static_cast<int>({slot} / {group})")
                if inner:
                    place = f"{slot} % {group}" if group < self.slots else slot
                    terms.append(f"{inner} * static_cast<int>({place})")
                return f"({' + '.join(terms)})"
        return f"{self._table('int', [str(int(i)) for i in indices])}[{slot}]"


# --- Row programs --------------------------------------------------------------------------------


def _dot_sizes(program: RowProgram, step: Instruction) -> tuple[int, int]:
    """Return the number of terms of a product, and of columns of its matrix."""
    inner = int(step.params[0])
    return inner, program.values[step.operands[1]].width // inner


def _on_tensor_cores(program: RowProgram, step: Instruction) -> bool:
    """Whether a warp computes an instruction for all its entries together."""
    return (
        step.name == "dot"
        and step.dtype.name in ("float32", *_HALVES)
        and program.values[step.operands[1]].width > _MAX_UNROLLED_WEIGHTS
    )


def _has_tiles(program: RowProgram) -> bool:
    return any(_on_tensor_cores(program, step) for step in program.instructions)


def _needs_exact_bits(program: RowProgram) -> bool:
    """Whether values are compared with those of another kernel: extremes."""
    return any(output.reduce in ("max", "min") for output in program.outputs) or any(
        step.name == "eq" for step in program.instructions
    )


def _matrix(program: RowProgram, dot: Instruction) -> tuple[int, int, int, int, int, int]:
    """Return the input of a matrix, and the layout of its elements for ``load_matrix``.

    Element (i, j) is at start + i * down + j % group * across + j // group * apart.
    """
    inner, columns = _dot_sizes(program, dot)
    number, places = dot.operands[1], np.arange(inner * columns)
    while number >= len(program.inputs):
        step = program.instructions[number - len(program.inputs)]
        if step.name == "take":
            places = np.asarray(step.params, np.int64)[places]
        elif step.name != "convert_element_type" or step.dtype.name != "float32":
            raise _Infeasible("a matrix that is computed")
        number = step.operands[0]
    source = program.inputs[number]
    if source.access != "shared" or source.dtype.name not in ("float32", *_HALVES):
        raise _Infeasible(f"a matrix of {source.dtype}, by {source.access}")
    start = int(places[0])
    down = int(places[columns]) - start if inner > 1 else 0
    across = int(places[1]) - start if columns > 1 else 0
    j = np.arange(columns)
    breaks = np.flatnonzero(places[:columns] != start + across * j)
    group = int(breaks[0]) if len(breaks) else columns
    apart = int(places[group]) - start if len(breaks) else 0
    layout = start + down * np.arange(inner)[:, None] + j % group * across + j // group * apart
    if (places != layout.ravel()).any():
        raise _Infeasible("a matrix whose numbers lie in no order")
    return number, start, down, across, group, apart


# --- C++ -----------------------------------------------------------------------------------------


def _register_type(dtype: str) -> str:
    if dtype not in _REGISTER_TYPES:
        raise _Infeasible(f"numbers of {dtype}")
    return _REGISTER_TYPES[dtype]


def _stored_type(dtype: str) -> str:
    _register_type(dtype)
    return _STORED_TYPES[dtype]


def _rounded(text: str, dtype: str) -> str:
    """Round a half type, which has the precision of float in registers, as in memory."""
    return f"number(cast<{_STORED_TYPES[dtype]}>({text}))" if dtype in _HALVES else text


def _loaded(text: str, dtype: str) -> str:
    return f"({text} != 0)" if dtype == "bool" else f"number({text})"


def _expression(step: Instruction, dtypes: Sequence[str]) -> Callable[..., str]:
    """Return the C++ expression of an elementwise function, from those of its operands."""
    name, dtype = step.name, step.dtype.name
    if name == "convert_element_type":
        return lambda x: _rounded(f"cast<{_register_type(dtype)}>({x})", dtype)
    if name == "integer_pow":
        return lambda x: f"power<{int(step.params[0])}>({x})"
    if name == "round":
        function = "rint" if int(step.params[0]) == 1 else "round"
        return lambda x: f"{function}{_suffix(dtype)}({x})"
    if name == "not":
        return lambda x: f"!{x}" if dtype == "bool" else f"~{x}"
    if name == "rem":
        return lambda a, b: f"fmod{_suffix(dtype)}({a}, {b})" if dtype in _FLOATS else f"{a} % {b}"
    if name == "select_n":
        return lambda which, x, y: f"{which} ? {y} : {x}"
    if name not in _EXPRESSIONS:
        raise _Infeasible(f"{name}, which has no line of CUDA")
    if "{f}" in _EXPRESSIONS[name] and dtypes[0] not in _FLOATS:
        raise _Infeasible(f"{name} of {dtypes[0]}")
    return lambda *operands: _EXPRESSIONS[name].format(*operands, f=_suffix(dtypes[0]))


def _constantly(text: str) -> Callable[[str], str]:
    """Return the expression of a variable that is the same for all slots."""
    return lambda i: text


def _suffix(dtype: str) -> str:
    return "" if dtype == "float64" else "f"


def _literal(value: float | np.generic, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    kind = _register_type(dtype)
    if dtype not in _FLOATS:
        return f"static_cast<{kind}>({int(value)}ll)"
    number = float(value)
    if math.isnan(number):
        return f"std::numeric_limits<{kind}>::quiet_NaN()"
    if math.isinf(number):
        return f"({'-' if number < 0 else ''}std::numeric_limits<{kind}>::infinity())"
    return f"({number!r}{'' if kind == 'double' else 'f'})"


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


def _tree(kind: str, terms: Sequence[str]) -> str:
    """Join terms pairwise, neighbours first: an order that lanes can follow, too."""
    while len(terms) > 1:
        pairs = [_join(kind, terms[i], terms[i + 1]) for i in range(0, len(terms) - 1, 2)]
        terms = pairs + list(terms[len(pairs) * 2 :])
    return terms[0]


def _join(kind: str, a: str, b: str) -> str:
    if kind in ("sum", "prod"):
        return f"({a} {'+' if kind == 'sum' else '*'} {b})"
    return f"{'greater' if kind == 'max' else 'lesser'}({a}, {b})"


def _join_of_part(joins: Sequence[str]) -> str:
    """Return the C++ expression of the reduction of a part."""
    expression, stop = "", 0
    for join, group in itertools.groupby(joins):
        stop += len(list(group))
        expression += f"part < {stop} ? {join} : " if stop < len(joins) else join
    return expression


def _struct(name: str, fields: Sequence[str]) -> list[str]:
    return [f"struct {name} {{", *fields, "};"]


def _function(signature: str, lines: Sequence[str]) -> list[str]:
    return [f"static __device__ __forceinline__ void {signature} {{", *lines, "}"]
