"""The text of a message: what a CUDA kernel computes for each entry of a row program.

A lane of the walk (``cpp/kernels/cuda/segment_walk.cuh``) has a few neighbouring *slots*. The text
is found backwards, from the outputs: each says which of a value's numbers every slot wants, and a
``take`` only changes which. So nothing is ever moved between lanes but in a ``reduce``. What a slot
wants of an input is an index that is computed, or looked up. How many slots there are, and how
outputs are dealt out to them, is what makes the shortest text of a few that are tried.

A warp multiplies rows of all its entries together with a large shared matrix, on tensor cores
(``cpp/kernels/cuda/edge_products.cuh``). The text has stages then: rows go to shared memory, to
*tiles*, and products come from there.

What a derivative of a maximum compares has the same bits in all texts: products are not contracted
with sums there, and sums of a row's numbers are made in an order that does not depend on slots.

No string of the user's gets into a text: it is made of numbers and of what stands here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.row_program import (
    SLOW,
    Instruction,
    Output,
    RowProgram,
    Unsupported,
)

MOST_ARRAYS = 32
"""As in ``edge_region.cuh``: inputs of a text, and outputs."""
_MOST_WEIGHTS = 64
"""Of a matrix: rows are multiplied with larger ones on tensor cores."""

_WARP = 32
THREADS = 128
"""Of a block, as in ``edge_region.cuh``."""
_MOST_SLOTS = 8192
_MOST_COMPONENTS = 16  # of an output, that a slot has
_MOST_TERMS = 64  # of a sum that a slot adds up by itself
_MOST_WRITTEN_OUT = 1 << 10  # weights of another product: no more lines than a compiler takes
_MOST_KEPT = 24  # registers for what all entries share
_SHARED_BYTES = 227 << 10  # of a multiprocessor
_OWN_BYTES = 4 << 10  # of a block, for what the walk has there
_WORD_BYTES = 16

# What a number is in memory, and in a register.
_STORED = {
    "float32": "float",
    "float64": "double",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int32": "int",
    "int64": "int64_t",
    "uint32": "unsigned",
    "bool": "unsigned char",
}
_HELD = _STORED | {"float16": "float", "bfloat16": "float", "bool": "bool"}
_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "int64": 8,
    "uint32": 4,
    "bool": 1,
}
_HALVES = ("float16", "bfloat16")
_COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")

# A line for each primitive. {f}: "f" of floats of 32 bits.
_LINES = {
    "abs": "({0} < 0 ? -{0} : {0})",
    "acos": "acos{f}({0})",
    "acosh": "acosh{f}({0})",
    "add": "{0} + {1}",
    "and": "{0} & {1}",
    "asin": "asin{f}({0})",
    "asinh": "asinh{f}({0})",
    "atan": "atan{f}({0})",
    "atan2": "atan2{f}({0}, {1})",
    "atanh": "atanh{f}({0})",
    "cbrt": "cbrt{f}({0})",
    "ceil": "ceil{f}({0})",
    "clamp": "lesser(greater({0}, {1}), {2})",
    "copy": "{0}",
    "copy_p": "{0}",
    "cos": "cos{f}({0})",
    "cosh": "cosh{f}({0})",
    "div": "{0} / {1}",
    "eq": "{0} == {1}",
    "erf": "erf{f}({0})",
    "erfc": "erfc{f}({0})",
    "exp": "exp{f}({0})",
    "exp2": "exp2{f}({0})",
    "expm1": "expm1{f}({0})",
    "floor": "floor{f}({0})",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "is_finite": "{0} - {0} == 0",
    "le": "{0} <= {1}",
    "log": "log{f}({0})",
    "log1p": "log1p{f}({0})",
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
    "sin": "sin{f}({0})",
    "sinh": "sinh{f}({0})",
    "sqrt": "sqrt{f}({0})",
    "square": "{0} * {0}",
    "stop_gradient": "{0}",
    "sub": "{0} - {1}",
    "tan": "tan{f}({0})",
    "tanh": "tanh{f}({0})",
    "xor": "{0} ^ {1}",
}
# What a lane does for the walk, in sums of numbers: for an entry, for a step, for a step's part.
_WORK_OF_ENTRY, _WORK_OF_STEP, _WORK_OF_PART = 24, 32, 24
_JOINS = {"sum": "Join::kSum", "max": "Join::kMax", "min": "Join::kMin"}


@dataclass(frozen=True)
class Text:
    """The text of a row program for the walk.

    Attributes:
        source: a struct ``Text`` in C++, see ``edge_region.cuh``.
        slots: that the walk deals out to lanes.
        vec: slots of a lane.
        lanes: of a team, a power of two up to 32.
        unroll: entries of a team's step.
        parts: numbers that a lane has of a row.
        blocks: of a multiprocessor.
        shared: bytes of matrices and tiles in shared memory.
        acc: dtype of sums.
        words: bytes that the rows of each input, then of each output, must be aligned to.
        exact: whether another text must make the same bits.
        cost: of an entry, to compare texts.
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
        """Numbers of a workspace for each slot; as ``kRoom``."""
        return -(-self.parts // self.vec)


def message_text(program: RowProgram) -> Text:
    """Writes the text of a program.

    Its outputs are by edge or by row.

    Raises:
        Unsupported: a value, or the whole, that no text can have.
    """
    if max(len(program.inputs), len(program.outputs)) > MOST_ARRAYS:
        raise Unsupported(None, f"more than {MOST_ARRAYS} arrays")
    for each in program.instructions:
        written_out = each.name == "dot" and not _on_tensor_cores(program, each)
        weights = _width_of(program, each.operands[1]) if written_out else 0
        if weights > _MOST_WRITTEN_OUT:
            raise Unsupported(None, f"a product with {weights} weights")
    reasons: list[str] = []
    for limits in _LIMITS:
        texts = [
            text
            for slots in _candidates(program)
            if (text := _shortest(program, slots, limits, reasons)) is not None
        ]
        if texts:
            return min(texts, key=lambda text: text.cost)
    raise Unsupported(None, reasons[0] if reasons else "rows are too wide")


def _shortest(program: RowProgram, slots: int, limits: _Limits, reasons: list[str]) -> Text | None:
    """The best text for so many slots, of the first schedule for which there are registers."""
    written: dict[int, list[_Writer]] = {}
    for schedule in _schedules(slots, _has_tiles(program)):
        if schedule.vec not in written:
            written[schedule.vec] = list(_written(program, slots, schedule.vec, limits, reasons))
        texts = []
        for writer in written[schedule.vec]:
            try:
                texts.append(writer.text(schedule))
            except _Infeasible as error:
                reasons.append(str(error))
        if texts:
            return min(texts, key=lambda text: text.cost)
    return None


def _written(
    program: RowProgram, slots: int, vec: int, limits: _Limits, reasons: list[str]
) -> Iterator[_Writer]:
    for layout in _layouts(program, slots):
        try:
            yield _Writer(program, slots, vec, layout, limits)
        except _Infeasible as error:
            reasons.append(str(error))
        except RecursionError:
            reasons.append("too many values one after another")


class _Schedule(NamedTuple):
    """What the registers of a multiprocessor are shared between.

    Attributes:
        vec: slots of a lane.
        unroll: entries of a team's step.
        blocks: of a multiprocessor.
        registers: of a lane, as they are counted here: compilers need fewer.
    """

    vec: int
    unroll: int
    blocks: int
    registers: int


def _schedules(slots: int, has_tiles: bool) -> Iterator[_Schedule]:
    """The fastest ones first, as measured: wide words, then many entries on their way.

    Tiles take whole warps, and 16 entries at a time.
    """
    if has_tiles:
        for blocks, registers in ((3, 230), (2, 300), (1, 300)):
            for vec, unroll in itertools.product((4, 2, 1, 8, 7, 6, 5, 3), (8, 4)):
                if slots % vec == 0 and slots <= _WARP * vec:
                    yield _Schedule(vec, unroll, blocks, registers)
        return
    pairs = [(4, 8), (4, 4), (2, 8), (2, 4), (4, 2), (2, 2), (1, 8), (1, 4)]
    if slots > 2 * _WARP:  # one team for a row rather than two
        pairs.sort(key=lambda pair: -pair[0])
    for vec, unroll in pairs:
        if slots % vec == 0:
            registers = 128 if unroll == 8 else 160 if (vec, unroll) == (2, 2) else 144
            yield _Schedule(vec, unroll, 4, registers)
    yield _Schedule(1, 4, 2, 250)
    for vec in (8, 7, 6, 5, 3):  # of what a warp must hold whole
        if slots % vec == 0 and slots <= _WARP * vec:
            for unroll, blocks, registers in ((8, 4, 128), (4, 4, 144), (4, 2, 250)):
                yield _Schedule(vec, unroll, blocks, registers)


def _candidates(program: RowProgram) -> list[int]:
    """How many slots there may be: the wide ones first."""
    widths = {each.width for each in program.values}
    for each in program.instructions:
        if each.name == "reduce":
            widths.add(_reduced(each)[1])
    outputs = {_width_of(program, each.value) for each in program.outputs if each.into != "all"}
    fits = [
        n
        for n in widths | outputs | {1, math.lcm(*outputs)}
        if 1 <= n <= _MOST_SLOTS
        and all(
            (w % n == 0 and w // n <= _MOST_COMPONENTS) or n % w == 0 or w <= _MOST_COMPONENTS
            for w in outputs
        )
    ]
    return sorted(fits, reverse=True)[:24]


class _Layout(NamedTuple):
    """How outputs are dealt out to slots.

    Attributes:
        interleaved: of a row of several numbers a slot, a slot has neighbouring ones.
        grouped: of a row of fewer numbers than slots, neighbouring slots have the same; else each
            slot has all.
    """

    interleaved: bool
    grouped: bool


def _layouts(program: RowProgram, slots: int) -> Iterator[_Layout]:
    widths = [_width_of(program, each.value) for each in program.outputs if each.into != "all"]
    wide = any(w > slots for w in widths)
    narrow = any(1 < w < slots and slots % w == 0 for w in widths)
    for interleaved, grouped in itertools.product((False, True), (True, False)):
        if (interleaved and not wide) or (not grouped and not narrow):
            continue
        yield _Layout(interleaved, grouped)


class _Limits(NamedTuple):
    """What a text may ask for.

    Attributes:
        ahead: registers for what is loaded of an entry ahead of its use.
        statements: operations on a number; a compiler takes a second for some hundreds.
    """

    ahead: float
    statements: int


# The first for which there is a text.
_LIMITS = _Limits(math.inf, 400), _Limits(6, 400), _Limits(6, 1000)


class _Infeasible(Exception):
    """No text for so many slots."""


class _Value(NamedTuple):
    """A value in the text, of slot ``{i}`` of a lane; of all of them where it is no ``vector``."""

    text: str
    vector: bool

    def at(self, slot: str) -> str:
        return self.text.replace("{i}", slot)


class _Place(NamedTuple):
    """Where the numbers of an output are: components, each of them for all slots.

    Attributes:
        components: for each, which of the output's numbers every slot has.
        start: in C++, the place of the lane's first number.
        width: numbers of a lane that lie side by side for each store.
        only: in C++, which lanes store; "" where all do.
        interleaved: whether components lie side by side, in one store.
    """

    components: list[np.ndarray]
    start: str
    width: int
    only: str
    interleaved: bool


class _Tile(NamedTuple):
    """Rows in shared memory of a warp's entries.

    Attributes:
        value: That they are of.
        stage: In which they are put there, or made.
        width: Of a row, of which an entry has one or several.
    """

    value: int
    stage: int
    width: int


class _Writer:
    def __init__(
        self, program: RowProgram, slots: int, vec: int, layout: _Layout, limits: _Limits
    ) -> None:
        self.program, self.slots, self.vec, self.layout = program, slots, vec, layout
        self.limits = limits
        self.lanes = 1
        while self.lanes < _WARP and self.lanes * vec < slots:
            self.lanes *= 2
        self.tiles = -(-slots // (self.lanes * vec))
        self.exact = _compares(program)
        self.all_slots = np.arange(slots)
        self.values: dict[tuple[int, bytes], _Value] = {}
        self.fields: dict[tuple[Any, ...], str] = {}
        self.num_fields = 0
        self.entry: list[str] = []
        self.once: list[str] = []
        self.loads: list[str] = []
        self.loads_once: list[str] = []
        self.body: list[str] = []
        self.tables: list[str] = []
        self.stores: list[str] = []
        self.parts: list[str] = []  # how each is joined
        arrays = [*program.inputs, *(program.values[each.value] for each in program.outputs)]
        self.words = [each.dtype.itemsize for each in arrays]
        self.registers = 0.0  # of an entry, and of what all share
        self.registers_once = 0.0
        self.work = 0.0
        self.statements = 0.0
        self.tile_of: dict[tuple[int, int], int] = {}  # a value, and the width of rows
        self.stage = 0  # that is written
        self.tiles_: list[_Tile] = []
        self.stages: list[tuple[list[str], list[str]]] = []  # bodies: what is put there, products
        self.matrices: list[str] = []
        self.matrix_at: dict[tuple[int, ...], int] = {}
        self.matrix_numbers = 0
        self._write()

    # ---- The whole ------------------------------------------------------------------------------

    def _write(self) -> None:
        program = self.program
        dtypes = {_dtype_of(program, each.value) for each in program.outputs if each.into == "row"}
        if any(each.into not in ("edge", "row") for each in program.outputs):
            raise ValueError("the outputs of a text are by edge or by row")
        if not dtypes <= {"float32", "float64", "float16", "bfloat16"}:
            raise _Infeasible(f"sums of {', '.join(sorted(dtypes))}")
        self.acc = "float64" if "float64" in dtypes else "float32"
        held = _HELD[self.acc]
        parts = self.parts
        self.write_stages()
        for number, output in enumerate(program.outputs):
            place = self.place(number, output)
            values = [self.value(output.value, slots) for slots in place.components]
            if output.into == "edge":
                texts = [_Value(f"(valid ? {value.text} : 0)", value.vector) for value in values]
                self.store(self.body, number, output, place, texts, "place", "there")
                continue
            at = []
            for value in values:
                first, many = len(parts), place.width > 1 or place.only == ""
                parts += [_JOINS[output.reduce]] * (self.vec if many else 1)
                at.append(_Value(f"run[{first} + {{i}}]" if many else f"run[{first}]", many))
                slot = f"parts[{first} + i]" if many else f"parts[{first}]"
                line = f"{slot} = static_cast<{held}>({value.at('i')});"
                self.body.append(self.each(line) if many else line)
            self.store(self.stores, number, output, place, at, "row", "")
        if not parts:  # the walk has something to carry
            parts += [_JOINS["sum"]]
            self.body.append("parts[0] = 0;")

    # ---- Tiles ----------------------------------------------------------------------------------

    def write_stages(self) -> None:
        """Tiles of what is multiplied and of products, and what fills them."""
        program, first = self.program, len(self.program.inputs)
        self.precise = any(_is_precise(each) for each in program.instructions)
        levels = [0] * len(program.values)  # stages after which a value can be made
        products: list[list[int]] = []
        for number, each in enumerate(program.instructions, first):
            levels[number] = max((levels[i] for i in each.operands), default=0)
            if _on_tensor_cores(program, each):
                stage = levels[number]
                products += [[] for _ in range(stage + 1 - len(products))]
                products[stage].append(number)
                levels[number] = stage + 1
        wanted: dict[tuple[int, int], None] = {}  # a value and its width
        for number in itertools.chain(*products):
            operand = program.instructions[number - first].operands[0]
            wanted[operand, _dot_sizes(program, program.instructions[number - first])[0]] = None
        for value, width in wanted:
            self.add_tile(value, width, levels[value])
        for stage in range(max((tile.stage + 1 for tile in self.tiles_), default=0)):
            for i, tile in enumerate(self.tiles_):
                if tile.stage == stage:
                    self.put(i, tile)
            made = products[stage] if stage < len(products) else ()
            self.stages.append((self.body, [self.product(number, stage) for number in made]))
            # What is made in a stage is no more there in the next one, but for tiles.
            self.stage, self.body, self.values = stage + 1, [], {}
            self.fields = {key: x for key, x in self.fields.items() if "." in x}

    def add_tile(self, value: int, width: int, stage: int) -> None:
        self.tile_of[value, width] = len(self.tiles_)
        self.tiles_.append(_Tile(value, stage, width))

    def put(self, number: int, tile: _Tile) -> None:
        """Writes what a lane has of a value to its tile."""
        width, slots = _width_of(self.program, tile.value), self.slots
        for start in range(0, width, slots):
            at = np.minimum(start + self.all_slots, width - 1)
            value = self.value(tile.value, at)
            count = min(slots, width - start)
            place = f"{start} + first" if start else "first"
            rows = _width_of(self.program, tile.value) // tile.width
            to = f"Tile{number}::row(memory, {rows} * in_warp)"
            whole = count % self.vec == 0 and tile.width % self.vec == 0 and start % self.vec == 0
            condition = f"active && first < {count}"
            text = f"valid ? {value.at('i')} : 0"
            if whole:
                word = math.gcd(self.vec, 4)
                self.body += [
                    "{",
                    "float words[kVec];",
                    self.each(f"words[i] = {text};"),
                    f"if ({condition}) put_numbers<{word}>({to} + Tile{number}::place({place}), "
                    "words);",
                    "}",
                ]
            else:
                line = f"{to}[Tile{number}::place({place} + i)] = {text};"
                self.body.append(self.each(f"if (active && first + i < {count}) {line}"))
            self.work += 2 * count

    def product(self, number: int, stage: int) -> str:
        """A product of tiles; its matrix goes to shared memory once for a block."""
        instruction = self.program.instructions[number - len(self.program.inputs)]
        inner, columns = _dot_sizes(self.program, instruction)
        given, start, down, across, group, apart = _matrix(self.program, instruction)
        precise = _bool(self.precise)
        key = given, start, down, across, group, apart, inner, columns
        if key not in self.matrix_at:
            kind = _stored(self.program.inputs[given].dtype.name)
            self.matrix_at[key] = place = self.matrix_numbers
            self.matrix_numbers += -(-inner // 8) * -(-columns // 8) * 64
            self.matrices.append(
                f"load_matrix<{inner}, {columns}, {precise}>(static_cast<const {kind}*>"
                f"(in.at[{given}]), {start}, {down}, {across}, {group}, {apart}, "
                f"matrices + {place});"
            )
        place = self.matrix_at[key]
        self.add_tile(number, columns, stage)
        of, to = self.tile_of[instruction.operands[0], inner], len(self.tiles_) - 1
        self.work += instruction.width * inner / 16
        return f"multiply_rows<Tile{of}, Tile{to}, {precise}>(memory, matrices + {place});"

    def tile_with(self, number: int) -> int | None:
        """Where a value is that a stage before has made."""
        tiles = enumerate(self.tiles_)
        there = (i for i, each in tiles if each.value == number and each.stage < self.stage)
        return next(there, None)

    def read_tile(self, tile: int, slots: np.ndarray) -> _Value:
        """What slots want of a tile."""
        number, _, columns = self.tiles_[tile]
        rows = _width_of(self.program, number) // columns
        row = f"Tile{tile}::row(memory, {rows} * in_warp)"
        dtype = _dtype_of(self.program, number)
        start = int(slots[0])
        together = (slots == start + self.all_slots).all() and self.vec > 1
        if together and columns % self.vec == 0 and start % self.vec == 0:
            name = f"y{len(self.values)}_{len(self.body)}"
            word = math.gcd(self.vec, 4)
            place = f"{start} + first" if start else "first"
            inside = f"active ? Tile{tile}::place({place}) : 0"
            self.body += [
                f"float {name}[kVec];",
                f"take_numbers<{word}>({row} + ({inside}), {name});",
            ]
            self.work += self.slots
            return _Value(f"{name}[{{i}}]", True)
        by_lane = self.by_lane(slots)

        def text(i: str) -> str:
            slot = "first" if by_lane else f"(first + {i})"
            inside = f"active ? Tile{tile}::place({self.index(slots, slot, by_lane)}) : 0"
            return f"{row}[{inside}]"

        return self.define(dtype, text, not by_lane, 1)

    def tile_lines(self, entries: int) -> tuple[list[str], int]:
        """Where tiles lie that have so many entries, and how many numbers they are together."""
        lines, place = [], 0
        for i, tile in enumerate(self.tiles_):
            rows = entries * _width_of(self.program, tile.value) // tile.width
            rows = -(-rows // 16) * 16
            stride = -(-tile.width // 8) * 8 + 4  # eight rows are in different banks
            lines.append(f"using Tile{i} = EntryTile<{place}, {rows}, {tile.width}, {stride}>;")
            place += rows * stride
        return lines, place

    # ---- The text -------------------------------------------------------------------------------

    def text(self, schedule: _Schedule) -> Text:
        """The text by a schedule.

        Raises:
            _Infeasible: it takes too many registers.
        """
        parts, unroll = self.parts, schedule.unroll
        entry = unroll * (self.registers + 1) + self.registers_once + 2 * self.vec
        ids, sums = 6 * unroll + 40, 4 * len(parts) * _BYTES[self.acc] / 4
        if ids + entry + sums > schedule.registers:
            raise _Infeasible("an entry has too many numbers for the registers of a GPU")
        tiles, numbers = self.tile_lines(_WARP // self.lanes * unroll)
        shared = 4 * (self.matrix_numbers + THREADS // _WARP * numbers)
        if schedule.blocks * (shared + _OWN_BYTES) > _SHARED_BYTES:
            raise _Infeasible("linear maps have too many numbers for the shared memory of a GPU")
        kinds = " : ".join(f"part < {end} ? {join}" for join, end in _runs(parts)[:-1])
        kind = f"{kinds} : {parts[-1]}" if kinds else parts[-1]
        lines = [
            *self.tables,
            "struct Text {",
            *tiles,
            f"using Acc = {_HELD[self.acc]};",
            f"static constexpr int kVec = {self.vec}, kParts = {len(parts)};",
            f"static constexpr int kUnroll = {unroll}, kMinBlocks = {schedule.blocks};",
            "static __device__ constexpr Join kind([[maybe_unused]] int part) {",
            f"return {kind};",
            "}",
            *_struct("Entry", self.entry),
            *_struct("Once", self.once),
            *_function(
                "load_once(const Arrays& in, bool active, unsigned first, Once& once)",
                self.loads_once,
            ),
            *_function(
                "load(const Arrays& in, bool valid, Index row, Index col, Index place, "
                "unsigned first, Entry& entry)",
                self.loads,
            ),
            *_function(
                "value(const Entry& entry, const Once& once, const Arrays& in, const Arrays& out, "
                "bool active, bool there, bool valid, Index row, Index col, Index place, "
                "unsigned first, float* memory, unsigned in_warp, Acc (&parts)[kParts])",
                self.body,
            ),
            f"static constexpr int kStages = {len(self.stages)};",
            f"static constexpr int kMatrices = {self.matrix_numbers}, kTiles = {numbers};",
            *self.stage_functions(),
            *_function(
                "store(const Arrays& out, Index row, unsigned first, const Acc (&run)[kParts])",
                self.stores,
            ),
            "};",
        ]
        lanes = self.tiles * self.lanes
        work = self.work * lanes * self.vec / self.slots
        step = _WORK_OF_STEP + _WORK_OF_PART * len(parts)
        work += lanes * (_WORK_OF_ENTRY + step / unroll)
        return Text(
            "\n".join(lines) + "\n",
            self.slots,
            self.vec,
            self.lanes,
            unroll,
            len(parts),
            schedule.blocks,
            shared,
            self.acc,
            tuple(self.words),
            self.exact,
            work,
        )

    def stage_functions(self) -> list[str]:
        """What a text with tiles has beside others."""
        found: list[str] = []
        for i, (puts, multiplies) in enumerate(self.stages):
            found += _function(
                f"stage(Stage<{i}>, const Entry& entry, const Once& once, const Arrays& in, "
                "bool active, bool valid, Index row, Index col, Index place, unsigned first, "
                "float* memory, unsigned in_warp)",
                puts,
            )
            signature = f"multiply(Stage<{i}>, float* memory, const float* matrices)"
            found += _function(signature, multiplies)
        if self.stages:
            found += _function("load_matrices(const Arrays& in, float* matrices)", self.matrices)
        return found

    # ---- Outputs --------------------------------------------------------------------------------

    def place(self, number: int, output: Output) -> _Place:
        width, slots, vec = _width_of(self.program, output.value), self.slots, self.vec
        at = self.all_slots
        if width % slots == 0 and width // slots <= _MOST_COMPONENTS:
            count = width // slots
            if self.layout.interleaved and count > 1:
                components = [count * at + i for i in range(count)]
                return _Place(components, f"{count} * first", count * vec, "", True)
            return _Place([i * slots + at for i in range(count)], "first", vec, "", False)
        group = slots // width
        if slots % width == 0 and (self.layout.grouped or width > _MOST_COMPONENTS):
            if group % vec:
                raise _Infeasible("an output has fewer numbers than lanes")
            return _Place([at // group], f"first / {group}", 1, f"first % {group} == 0", False)
        if width > _MOST_COMPONENTS:
            raise _Infeasible("rows of outputs have too many numbers")
        components = [np.full_like(at, i) for i in range(width)]
        return _Place(components, "0", 1, "first == 0", False)

    def store(
        self,
        lines: list[str],
        number: int,
        output: Output,
        place: _Place,
        values: Sequence[_Value],
        row: str,
        condition: str,
    ) -> None:
        """Writes a lane's numbers of an output."""
        width = _width_of(self.program, output.value)
        dtype = _dtype_of(self.program, output.value)
        kind = _STORED[dtype]
        condition = " && ".join(each for each in (condition, place.only) if each)
        lines.append(f"if ({condition}) {{" if condition else "{")
        lines.append(f"{kind}* const to = row_of<{kind}, {width}>(out.at[{number}], {row});")
        many, count = place.only == "", len(values)
        if place.interleaved:
            lines.append(f"{kind} words[{place.width}];")
            for i, value in enumerate(values):
                lines.append(
                    self.each(f"words[{count} * i + {i}] = cast<{kind}>({value.at('i')});")
                )
            word = self.word(number + len(self.program.inputs), width, dtype, place.width, 0)
            lines.append(f"store_numbers<{word}>(to + {place.start}, words);")
        elif many:
            word = self.word(number + len(self.program.inputs), width, dtype, self.vec, self.slots)
            for i, value in enumerate(values):
                lines.append(f"{kind} words{i}[kVec];")
                lines.append(self.each(f"words{i}[i] = cast<{kind}>({value.at('i')});"))
                start = f"{i * self.slots} + {place.start}"
                lines.append(f"store_numbers<{word}>(to + {start}, words{i});")
        else:
            for i, value in enumerate(values):
                start = f"{place.start} + {i}" if count > 1 else place.start
                lines.append(f"to[{start}] = cast<{kind}>({value.at('0')});")
        lines.append("}")
        self.work += 4 * width

    # ---- Values ---------------------------------------------------------------------------------

    def value(self, number: int, slots: np.ndarray) -> _Value:
        """The number ``slots[s]`` of a value, for each slot s."""
        key = number, slots.tobytes()
        if key not in self.values:
            inputs = len(self.program.inputs)
            tile = self.tile_with(number)
            if tile is not None:
                found = self.read_tile(tile, slots)
            elif number < inputs:
                found = self.load(number, slots)
            else:
                found = self.compute(self.program.instructions[number - inputs], slots)
            self.values[key] = found
        return self.values[key]

    def compute(self, instruction: Instruction, slots: np.ndarray) -> _Value:
        name, operands = instruction.name, instruction.operands
        if name == "constant":
            return self.constant(instruction, slots)
        if name == "take":
            return self.value(operands[0], np.asarray(instruction.params, np.int64)[slots])
        if name == "concatenate":
            return self.concatenate(instruction, slots)
        if name == "reduce":
            return self.reduce(instruction, slots)
        if name == "dot":
            return self.dot(instruction, slots)
        none = np.zeros_like(slots)
        program = self.program
        values = [
            self.value(each, none if _width_of(program, each) == 1 else slots) for each in operands
        ]
        dtypes = [_dtype_of(program, each) for each in operands]
        line = _line_of(instruction, dtypes)
        if name == "log1p" and dtypes[0] == "float32" and self.is_fraction(operands[0]):
            line = "log1p_of_fraction({0})".format
        if name in _COMPARISONS:  # of what is in memory with what is not
            values = [
                value._replace(text=_rounded(value.text, dtype))
                for value, dtype in zip(values, dtypes, strict=True)
            ]
        vector = any(value.vector for value in values)

        def text(i: str) -> str:
            return line(*(value.at(i) for value in values))

        return self.define(instruction.dtype.name, text, vector, 4 if name in SLOW else 1)

    def is_fraction(self, number: int) -> bool:
        """Whether it is exp(-abs(x)), as in a softplus."""
        names: list[str] = []
        while number >= len(self.program.inputs) and len(names) < 3:
            of = self.program.instructions[number - len(self.program.inputs)]
            names.append(of.name)
            number = of.operands[0] if of.operands else 0
        return names == ["exp", "neg", "abs"]

    def define(self, dtype: str, text: Any, vector: bool, work: float) -> _Value:
        """A variable."""
        held, name = _held(dtype), f"v{len(self.values)}_{len(self.body)}"
        if vector:
            self.body.append(f"{held} {name}[kVec];")
            self.body.append(self.each(f"{name}[i] = {text('i')};"))
        else:
            self.body.append(f"const {held} {name} = {text('0')};")
        self.statements += work
        if self.statements > self.limits.statements:
            raise _Infeasible(f"more than {self.limits.statements} operations on a number")
        self.work += work * (self.slots if vector else self.slots / self.vec)
        return _Value(f"{name}[{{i}}]" if vector else name, vector)

    @staticmethod
    def each(line: str) -> str:
        """Does a line for each slot i of the lane."""
        return f"JAX_GNN_EACH_SLOT(i) {line}"

    def constant(self, instruction: Instruction, slots: np.ndarray) -> _Value:
        numbers = np.asarray(instruction.params)
        if numbers.size == 1:
            slots = np.zeros_like(slots)
        chosen = numbers[slots]
        dtype = instruction.dtype.name
        if all(_same(each, chosen[0]) for each in chosen):
            return _Value(_literal(chosen[0], dtype), False)
        if len(chosen) > 1 << 12:
            raise _Infeasible("a constant of too many numbers")
        name = self.table(_held(dtype), [_literal(each, dtype) for each in chosen])
        self.work += 2 * self.slots
        if self.by_lane(slots):
            return self.define(dtype, lambda i: f"{name}[first]", False, 1)
        return self.define(dtype, lambda i: f"{name}[first + {i}]", True, 1)

    def table(self, kind: str, texts: Sequence[str]) -> str:
        name = f"table{len(self.tables)}"
        self.tables.append(f"__device__ const {kind} {name}[] = {{{', '.join(texts)}}};")
        return name

    def by_lane(self, slots: np.ndarray) -> bool:
        """Whether the slots of a lane all want the same."""
        lanes = slots.reshape(-1, self.vec)
        return bool((lanes == lanes[:, :1]).all())

    def concatenate(self, instruction: Instruction, slots: np.ndarray) -> _Value:
        widths = [_width_of(self.program, each) for each in instruction.operands]
        ends = np.cumsum(widths)
        pieces = np.searchsorted(ends, slots, side="right")
        used = sorted(set(pieces.tolist()))
        values = []
        for piece in used:
            inside = np.clip(slots - (ends[piece] - widths[piece]), 0, widths[piece] - 1)
            values.append(self.value(instruction.operands[piece], inside))
        if len(used) == 1:
            return values[0]
        by_lane = self.by_lane(pieces)

        def text(i: str) -> str:
            piece = self.index(pieces, "first" if by_lane else f"(first + {i})", by_lane)
            chosen = values[-1].at(i)
            for at, value in reversed(list(zip(used[:-1], values[:-1], strict=True))):
                chosen = f"({piece} == {at} ? {value.at(i)} : {chosen})"
            return chosen

        vector = not by_lane or any(value.vector for value in values)
        return self.define(instruction.dtype.name, text, vector, len(used))

    def reduce(self, instruction: Instruction, slots: np.ndarray) -> _Value:
        kind, count = _reduced(instruction)
        operand, dtype = instruction.operands[0], instruction.dtype.name
        group = _run_length(slots)
        joins = kind in _JOINS and dtype in ("float32", "float64")
        if self.by_lane(slots) and joins and count > 2 and group % self.vec == 0:
            for each in (count, group):
                even = group % each == 0 and count % each == 0 and count // each <= _MOST_TERMS
                if even and self.lanes_of(each):
                    return self.reduce_lanes(instruction, slots, each)
        if count > _MOST_TERMS:
            raise _Infeasible(f"a reduction over {count} numbers that lanes do not share evenly")
        values = [self.value(operand, slots * count + i) for i in range(count)]
        vector = any(value.vector for value in values)
        return self.define(
            dtype, lambda i: _tree(kind, [value.at(i) for value in values]), vector, count
        )

    def lanes_of(self, group: int) -> int:
        """Lanes that have so many neighbouring slots together; 0 if shuffles cannot join them."""
        if group == self.slots:
            return self.lanes if self.tiles == 1 else 0
        lanes, rest = divmod(group, self.vec)
        return lanes if rest == 0 and lanes & (lanes - 1) == 0 and lanes <= self.lanes else 0

    def reduce_lanes(self, instruction: Instruction, slots: np.ndarray, group: int) -> _Value:
        """Over neighbouring lanes, whose slots share the numbers evenly.

        In the order of `_tree`, for which a lane or the lanes must have a power of two of them.
        """
        kind, count = _reduced(instruction)
        operand, dtype = instruction.operands[0], instruction.dtype.name
        inside, parts = self.all_slots % group, count // group
        side_by_side = _is_power(parts * self.vec)
        in_order = side_by_side or (_is_power(group) and _is_power(self.vec))
        if self.exact and kind == "sum" and not in_order:
            raise _Infeasible(f"a sum over {count} numbers in an order of its own")
        if side_by_side:
            places = [parts * inside + i for i in range(parts)]
        else:
            places = [group * i + inside for i in range(parts)]
        values = [self.value(operand, slots * count + place) for place in places]
        texts = [[value.at(str(i)) for value in values] for i in range(self.vec)]
        if side_by_side:
            terms = [_tree(kind, [text for slot in texts for text in slot])]
        else:
            terms = [_tree(kind, [slot[i] for slot in texts]) for i in range(parts)]
        join, held = _JOINS[kind], _held(dtype)
        if self.lanes * self.vec > self.slots:
            terms = [f"(active ? {term} : neutral_of<{join}, {held}>())" for term in terms]
        lanes = self.lanes_of(group)
        joined = [f"join_lanes<{join}, {lanes}>({term})" for term in terms]
        self.work += count / group * self.slots + 8 * len(terms) * self.slots / self.vec
        names = [self.define(dtype, lambda i, text=text: text, False, 1).text for text in joined]
        return self.define(dtype, lambda i: _tree(kind, names), False, 1)

    def dot(self, instruction: Instruction, slots: np.ndarray) -> _Value:
        left, right = instruction.operands
        inner, columns = _dot_sizes(self.program, instruction)
        if inner > _MOST_TERMS:
            raise _Infeasible(f"a product of {inner} terms")
        row, column = slots // columns, slots % columns
        terms = [
            (self.value(left, row * inner + i), self.value(right, i * columns + column))
            for i in range(inner)
        ]
        vector = any(value.vector for term in terms for value in term)
        return self.define(
            instruction.dtype.name,
            lambda i: " + ".join(f"{a.at(i)} * {b.at(i)}" for a, b in terms),
            vector,
            inner,
        )

    # ---- Inputs ---------------------------------------------------------------------------------

    def load(self, number: int, slots: np.ndarray) -> _Value:
        """What slots want of an input: loaded once, in words where it lies side by side."""
        given = self.program.inputs[number]
        width, dtype = given.width, given.dtype.name
        if width == 1:
            slots = np.zeros_like(slots)
        if self.by_lane(slots):
            index = self.index(slots, "first", True)
            field = self.field(number, ("lane", index), 1, [f"{index}"], 1)
            return _Value(_read(f"{field}[0]", dtype), False)
        step = int(slots[1] - slots[0])
        if 1 <= step <= 8 and (slots == slots[0] + step * self.all_slots).all():
            start = int(slots[0]) // step * step
            if start + step * self.slots <= width:
                count = step * self.vec
                word = self.word(number, width, dtype, count, start)
                place = f"{start} + {step} * first"
                field = self.field(number, ("block", start, step), count, [place], word)
                at = f"{step} * {{i}} + {int(slots[0]) - start}"
                return _Value(_read(f"{field}[{at}]", dtype), True)
        places = [
            self.index(slots, f"(first + {i})" if self.vec > 1 else "first", False)
            for i in range(self.vec)
        ]
        field = self.field(number, ("each", *places), self.vec, places, 1)
        return _Value(_read(f"{field}[{{i}}]", dtype), True)

    def field(
        self, number: int, key: tuple[Any, ...], count: int, places: Sequence[str], word: int
    ) -> str:
        """Numbers that are loaded, from one place on or from as many as they are."""
        if (number, *key) in self.fields:
            return self.fields[number, *key]
        given = self.program.inputs[number]
        dtype = given.dtype.name
        kind, shared = _stored(dtype), given.read == "shared"
        self.num_fields += 1
        name = f"x{self.num_fields}"
        registers = max(1.0, count * _BYTES[dtype] / 4)
        lines, condition, declared = self.loads, "valid", f"{kind} {name}[{count}];"
        if shared and self.registers_once + registers <= _MOST_KEPT:
            lines, condition = self.loads_once, "active"
            self.once.append(declared)
            self.registers_once += registers
            name = f"once.{name}"
        elif not shared and self.registers + registers <= self.limits.ahead:
            self.entry.append(declared)
            self.registers += registers
            name = f"entry.{name}"
        else:  # loaded where it is used
            lines, condition = self.body, "active" if shared else "valid"
            self.body.append(declared)
            self.statements += count
        row = {"edge": "place", "row": "row", "col": "col", "shared": "0"}[given.read]
        base = f"row_of<const {kind}, {given.width}>(in.at[{number}], {row})"
        once = "true" if given.read == "edge" else "false"
        if len(places) == 1:
            at = f"{base} + {places[0]}"
            lines.append(f"load_numbers<{word}, {once}>({condition}, {at}, {name});")
        else:
            for i, place in enumerate(places):
                lines.append(f"load_number<{once}>({condition}, {base} + {place}, {name}[{i}]);")
        self.work += (4 if len(places) == 1 else 6) * self.slots * count / self.vec
        self.fields[number, *key] = name
        return name

    def word(self, array: int, width: int, dtype: str, count: int, start: int) -> int:
        """Numbers of the widest word in which neighbouring ones move, all of them aligned."""
        most = math.gcd(_WORD_BYTES // _BYTES[dtype], count, width, start)
        word = most & -most
        self.words[array] = max(self.words[array], word * _BYTES[dtype])
        return word

    def index(self, slots: np.ndarray, slot: str, by_lane: bool) -> str:
        """In C++, ``slots`` as a function of the slot, or of a lane's first."""
        step = self.vec if by_lane else 1
        at, wanted = self.all_slots[::step], slots[::step].astype(np.int64)
        start = int(wanted[0])
        if (wanted == start).all():
            return str(start)
        # start + outer * (slot / group) + inner * (slot % group)
        slope, rest = divmod(int(wanted[1]) - start, step)
        if rest == 0:
            breaks = np.flatnonzero(wanted != start + slope * at)
            group = int(at[breaks[0]]) if len(breaks) else self.slots
            outer = int(wanted[breaks[0]]) - start if len(breaks) else 0
            if (wanted == start + outer * (at // group) + slope * (at % group)).all():
                terms = [str(start)] if start else []
                if outer:
                    terms.append(f"{outer} * static_cast<int>({slot} / {group})")
                if slope:
                    inner = f"{slot} % {group}" if group < self.slots else slot
                    terms.append(f"{slope} * static_cast<int>({inner})")
                return f"({' + '.join(terms)})"
        name = self.table("int", [str(int(each)) for each in slots])
        return f"{name}[{slot}]"


# --- The representation --------------------------------------------------------------------------


def _width_of(program: RowProgram, number: int) -> int:
    return program.values[number].width


def _dtype_of(program: RowProgram, number: int) -> str:
    return program.values[number].dtype.name


def _reduced(instruction: Instruction) -> tuple[str, int]:
    kind, count = instruction.params
    return str(kind), int(count)


def _dot_sizes(program: RowProgram, instruction: Instruction) -> tuple[int, int]:
    """Terms, and columns of the right side."""
    inner = int(instruction.params[0])
    return inner, _width_of(program, instruction.operands[1]) // inner


def _on_tensor_cores(program: RowProgram, each: Instruction) -> bool:
    """Whether a warp makes it for all its entries together."""
    return (
        each.name == "dot"
        and each.dtype.name in ("float32", *_HALVES)
        and _width_of(program, each.operands[1]) > _MOST_WEIGHTS
    )


def _has_tiles(program: RowProgram) -> bool:
    return any(_on_tensor_cores(program, each) for each in program.instructions)


def _is_precise(each: Instruction) -> bool:
    """Whether it must not be rounded to tf32."""
    return each.name == "dot" and len(each.params) > 1


def _matrix(program: RowProgram, dot: Instruction) -> tuple[int, int, int, int, int, int]:
    """The input that a matrix is of, and what ``load_matrix`` is told of its numbers' places."""
    inner, columns = _dot_sizes(program, dot)
    number, places = dot.operands[1], np.arange(inner * columns)
    while number >= len(program.inputs):
        of = program.instructions[number - len(program.inputs)]
        if of.name == "take":
            places = np.asarray(of.params, np.int64)[places]
        elif of.name != "convert_element_type" or of.dtype.name != "float32":
            raise _Infeasible("a matrix that is computed")
        number = of.operands[0]
    given = program.inputs[number]
    start = int(places[0])
    down = int(places[columns]) - start if inner > 1 else 0
    across = int(places[1]) - start if columns > 1 else 0
    at = np.arange(columns)
    breaks = np.flatnonzero(places[:columns] != start + across * at)
    group = int(breaks[0]) if len(breaks) else columns
    apart = int(places[group]) - start if len(breaks) else 0
    even = start + down * np.arange(inner)[:, None] + at % group * across + at // group * apart
    if given.read != "shared" or given.dtype.name not in ("float32", *_HALVES):
        raise _Infeasible(f"a matrix of {given.dtype}, by {given.read}")
    if (places != even.ravel()).any():
        raise _Infeasible("a matrix whose numbers lie in no order")
    return number, start, down, across, group, apart


# --- Pieces of C++ -------------------------------------------------------------------------------


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _held(dtype: str) -> str:
    if dtype not in _HELD:
        raise _Infeasible(f"numbers of {dtype}")
    return _HELD[dtype]


def _stored(dtype: str) -> str:
    _held(dtype)
    return _STORED[dtype]


def _rounded(text: str, dtype: str) -> str:
    """A number of a half type, which is more precise in a register, as it is in memory."""
    return f"number(cast<{_STORED[dtype]}>({text}))" if dtype in _HALVES else text


def _read(text: str, dtype: str) -> str:
    return f"({text} != 0)" if dtype == "bool" else f"number({text})"


def _line_of(instruction: Instruction, dtypes: Sequence[str]) -> Any:
    """A function of the operands' texts."""
    name, dtype = instruction.name, instruction.dtype.name
    if name == "convert_element_type":
        return lambda x: _rounded(f"cast<{_held(dtype)}>({x})", dtype)
    if name == "integer_pow":
        return lambda x: f"power<{int(instruction.params[0])}>({x})"
    if name == "round":
        to_even = int(instruction.params[0]) == 1
        return lambda x: f"{'rint' if to_even else 'round'}{_suffix(dtype)}({x})"
    if name == "not":
        return lambda x: f"!{x}" if dtype == "bool" else f"~{x}"
    if name == "rem":
        return lambda a, b: f"fmod{_suffix(dtype)}({a}, {b})" if _real(dtype) else f"{a} % {b}"
    if name == "select_n":
        cases = len(instruction.operands) - 1

        def select(which: str, *values: str) -> str:
            if dtypes[0] == "bool":
                return f"{which} ? {values[1]} : {values[0]}"
            chosen = values[-1]
            for i in reversed(range(cases - 1)):
                chosen = f"({which} == {i} ? {values[i]} : {chosen})"
            return chosen

        return select
    if name not in _LINES:
        raise _Infeasible(f"{name}, which has no line of CUDA")
    operand = dtypes[0]
    if "{f}" in _LINES[name] and not _real(operand):
        raise _Infeasible(f"{name} of {operand}")
    return lambda *texts: _LINES[name].format(*texts, f=_suffix(operand))


def _real(dtype: str) -> bool:
    return dtype in ("float32", "float64", "float16", "bfloat16")


def _suffix(dtype: str) -> str:
    return "" if dtype == "float64" else "f"


def _same(a: Any, b: Any) -> bool:
    return a == b or (a != a and b != b)


def _literal(value: Any, name: str) -> str:
    if name == "bool":
        return "true" if value else "false"
    if not _real(name):
        return f"static_cast<{_held(name)}>({int(value)}ll)"
    kind, number = _held(name), float(value)
    if math.isnan(number):
        return f"std::numeric_limits<{kind}>::quiet_NaN()"
    if math.isinf(number):
        return f"({'-' if number < 0 else ''}std::numeric_limits<{kind}>::infinity())"
    return f"({number!r}{'' if kind == 'double' else 'f'})"


def _run_length(slots: np.ndarray) -> int:
    """How many neighbouring slots want the same, if all do in groups of as many; else 1."""
    breaks = np.flatnonzero(np.diff(slots))
    if not len(breaks):
        return len(slots)
    group = int(breaks[0]) + 1
    if len(slots) % group:
        return 1
    groups = slots.reshape(-1, group)
    return group if (groups == groups[:, :1]).all() else 1


def _is_power(n: int) -> bool:
    """Whether it is one of two."""
    return n & (n - 1) == 0


def _tree(kind: str, texts: Sequence[str]) -> str:
    """All joined, neighbours first: an order in which lanes can do it too."""
    while len(texts) > 1:
        pairs = [_joined(kind, *texts[i : i + 2]) for i in range(0, len(texts) - 1, 2)]
        texts = pairs + list(texts[len(pairs) * 2 :])
    return texts[0]


def _joined(kind: str, a: str, b: str) -> str:
    if kind in ("sum", "prod"):
        return f"({a} {'+' if kind == 'sum' else '*'} {b})"
    return f"{'greater' if kind == 'max' else 'lesser'}({a}, {b})"


def _compares(program: RowProgram) -> bool:
    """Whether the same number that another text makes must have the same bits: of maxima."""
    extremes = any(each.reduce in ("max", "min") for each in program.outputs)
    return extremes or any(each.name == "eq" for each in program.instructions)


def _runs(parts: Sequence[str]) -> list[tuple[str, int]]:
    """Each value of neighbouring parts, and where it ends."""
    ends, end = [], 0
    for value, group in itertools.groupby(parts):
        end += len(list(group))
        ends.append((value, end))
    return ends


def _struct(name: str, fields: Sequence[str]) -> list[str]:
    return [f"struct {name} {{", *fields, "};"]


def _function(signature: str, lines: Sequence[str]) -> list[str]:
    return [f"static __device__ __forceinline__ void {signature} {{", *lines, "}"]
