"""C++ text of values: types, literals and elementwise functions, for both code generators.

Generated source contains no user strings, only numbers and what stands in these files.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jax_gnn._ops.edge_region.channels import MAX_UNROLLED_WEIGHTS, channels_of
from jax_gnn._ops.edge_region.row_program import Instruction, Output, RowProgram

MAX_ARRAYS = 32
"""Largest number of inputs, and of outputs; as in ``edge_region.cuh``."""
THREADS = 128
"""Threads of a block that adds up nothing for all of its entries."""
WARP = 32
TILE_ENTRIES = 16
"""Entries of a warp that tensor cores take together; as in ``edge_tiles.cuh``."""
SHARED_BYTES = 227 << 10
"""Shared memory of a multiprocessor."""

# Types in memory and in registers, and sizes in memory.
STORED_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int32": "int",
    "int64": "int64_t",
    "uint32": "unsigned",
    "bool": "unsigned char",
}
REGISTER_TYPES = STORED_TYPES | {"float16": "float", "bfloat16": "float", "bool": "bool"}
BYTES = {name: 1 if name == "bool" else int(name.lstrip("abfiolntu")) // 8 for name in STORED_TYPES}
HALVES = ("float16", "bfloat16")
FLOATS = ("float32", "float64", *HALVES)
COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")

# Functions of one operand that have the same name in C++.
_UNARY = (
    "acos acosh asin asinh atan atanh cbrt ceil cosh erf erfc exp2 expm1 floor log log1p sinh sqrt "
    "tan tanh"
)
# A C++ expression for each elementwise function. {f} is the suffix of functions of float.
_EXPRESSIONS = {
    **{name: f"{name}{{f}}({{0}})" for name in _UNARY.split()},
    "abs": "absolute({0})",
    "add": "{0} + {1}",
    "and": "{0} & {1}",
    "atan2": "atan2{f}({0}, {1})",
    "clamp": "lesser(greater({0}, {1}), {2})",
    "cos": "sine<1>({0})",
    "div": "{0} / {1}",
    "eq": "{0} == {1}",
    "exp": "quick_exponential({0})",
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
    "sin": "sine<0>({0})",
    "square": "{0} * {0}",
    "sub": "{0} - {1}",
    "xor": "{0} ^ {1}",
}
JOINS = {"sum": "Join::kSum", "max": "Join::kMax", "min": "Join::kMin"}
_TIES, _EXP_SUM = "Join::kTies", "Join::kExpSum"


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
        threads: Threads of a block.
        blocks: Blocks of a multiprocessor.
        shared: Bytes of matrices and tiles in shared memory.
        acc: Dtype of sums.
        words: Required alignment in bytes of the rows of each input, then of each output.
        exact: Whether another kernel must produce the same bits.
        cost: Estimated cost of an entry, to compare kernels.
        own_sums: Whether each warp has sums of outer products in registers.
        copies: For each output, the number of shares that are added up after the walk; 0 or no
            item of outputs that are stored whole.
    """

    source: str
    slots: int
    vec: int
    lanes: int
    unroll: int
    parts: int
    threads: int
    blocks: int
    shared: int
    acc: str
    words: tuple[int, ...]
    exact: bool
    cost: float
    own_sums: bool = False
    copies: tuple[int, ...] = ()

    @property
    def room(self) -> int:
        """Elements of the workspace for each slot; ``kRoom`` of ``edge_region.cuh``."""
        return -(-self.parts // self.vec)


class Infeasible(Exception):
    """A value, or the whole, is beyond what one kernel can hold."""


# --- Row programs --------------------------------------------------------------------------------


def dot_sizes(program: RowProgram, step: Instruction) -> tuple[int, int]:
    """Return the number of terms of a product, and of columns of its matrix."""
    inner = int(step.params[0])
    return inner, program.values[step.operands[1]].width // inner


def on_tensor_cores(program: RowProgram, step: Instruction) -> bool:
    """Whether tensor cores compute an instruction, for several entries together."""
    if step.name not in ("dot", "outer") or step.dtype_name not in ("float32", *HALVES):
        return False
    weights = step.width if step.name == "outer" else program.values[step.operands[1]].width
    return weights > MAX_UNROLLED_WEIGHTS


@functools.lru_cache(maxsize=1024)
def has_tiles(program: RowProgram) -> bool:
    """Whether a program has products for tensor cores, and none by channel."""
    has_products = any(on_tensor_cores(program, step) for step in program.instructions)
    return has_products and channels_of(program) is None


def outer_sizes(program: RowProgram, step: Instruction) -> tuple[int, int, int]:
    """Return the rows of an outer product's operands, and the widths of these rows."""
    count = int(step.params[0])
    widths = [program.values[i].width // count for i in step.operands]
    return count, widths[0], widths[1]


def product_terms(
    program: RowProgram, step: Instruction, indices: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each term of a product at indices of its result, those into both operands."""
    count = int(step.params[0])
    rows, columns = (program.values[i].width // count for i in step.operands)
    row, column = np.divmod(indices, columns)
    for i in range(count):
        yield (row * count + i if step.name == "dot" else i * rows + row), i * columns + column


def needs_exact_bits(program: RowProgram) -> bool:
    """Whether values are compared with those of another kernel: extremes, but not of a softmax."""
    reductions = {output.reduce for output in program.outputs}
    has_extremes = any(reduce[:3] in ("max", "min") for reduce in reductions)
    return (has_extremes and "exp_sum" not in reductions) or any(
        step.name == "eq" for step in program.instructions
    )


@functools.lru_cache(maxsize=1024)
def matrix_layout(program: RowProgram, dot: Instruction) -> tuple[int, int, int, int, int, int]:
    """Return the input of a matrix, and the layout of its elements for ``load_matrix``.

    Element (i, j) is at start + i * down + j % group * across + j // group * apart.
    """
    inner, columns = dot_sizes(program, dot)
    number, places = dot.operands[1], np.arange(inner * columns)
    while number >= len(program.inputs):
        step = program.instructions[number - len(program.inputs)]
        if step.name == "take":
            places = step.places[places]
        elif step.name != "convert_element_type" or step.dtype_name != "float32":
            raise Infeasible("a matrix that is computed")
        number = step.operands[0]
    source = program.inputs[number]
    if source.access != "shared" or source.dtype_name not in ("float32", *HALVES):
        raise Infeasible(f"a matrix of {source.dtype}, by {source.access}")
    start = int(places[0])
    down = int(places[columns]) - start if inner > 1 else 0
    across = int(places[1]) - start if columns > 1 else 0
    j = np.arange(columns)
    breaks = np.flatnonzero(places[:columns] != start + across * j)
    group = int(breaks[0]) if len(breaks) else columns
    apart = int(places[group]) - start if len(breaks) else 0
    layout = start + down * np.arange(inner)[:, None] + j % group * across + j // group * apart
    if (places != layout.ravel()).any():
        raise Infeasible("a matrix whose numbers lie in no order")
    return number, start, down, across, group, apart


# --- C++ -----------------------------------------------------------------------------------------


def register_type(dtype: str) -> str:
    if dtype not in REGISTER_TYPES:
        raise Infeasible(f"numbers of {dtype}")
    return REGISTER_TYPES[dtype]


def stored_type(dtype: str) -> str:
    register_type(dtype)
    return STORED_TYPES[dtype]


def rounded(text: str, dtype: str) -> str:
    """Round a half type, which has the precision of float in registers, as in memory."""
    return f"number(cast<{STORED_TYPES[dtype]}>({text}))" if dtype in HALVES else text


def loaded(text: str, dtype: str) -> str:
    return f"({text} != 0)" if dtype == "bool" else f"number({text})"


def elementwise(program: RowProgram, step: Instruction) -> Callable[..., str]:
    """Return the C++ expression of an elementwise function, from those of its operands.

    Raises:
        Infeasible: There is none.
    """
    dtypes = [program.values[i].dtype_name for i in step.operands]
    expression = _expression(step, dtypes)
    if step.name == "log1p" and dtypes[0] == "float32" and _is_softplus_term(program, step):
        return lambda x: f"log1p_of_fraction({x})"
    if step.name in COMPARISONS:  # operands from memory are rounded, others are not yet
        return lambda *x: expression(*map(rounded, x, dtypes))
    return expression


def _is_softplus_term(program: RowProgram, step: Instruction) -> bool:
    """Whether the operand of a function is exp(-abs(x)), as in a softplus."""
    names: list[str] = []
    while len(names) < 3 and step.operands and step.operands[0] >= len(program.inputs):
        step = program.instructions[step.operands[0] - len(program.inputs)]
        names.append(step.name)
    return names == ["exp", "neg", "abs"]


def _expression(step: Instruction, dtypes: Sequence[str]) -> Callable[..., str]:
    """Return the C++ expression of an elementwise function, from those of its operands."""
    name, dtype = step.name, step.dtype_name
    if name == "convert_element_type":
        return lambda x: rounded(f"cast<{register_type(dtype)}>({x})", dtype)
    if name == "integer_pow":
        return lambda x: f"power<{int(step.params[0])}>({x})"
    if name == "round":
        function = "rint" if int(step.params[0]) == 1 else "round"
        return lambda x: f"{function}{_suffix(dtype)}({x})"
    if name == "not":
        return lambda x: f"!{x}" if dtype == "bool" else f"~{x}"
    if name == "rem":
        return lambda a, b: f"fmod{_suffix(dtype)}({a}, {b})" if dtype in FLOATS else f"{a} % {b}"
    if name == "select_n":
        return lambda which, x, y: f"select({which}, {y}, {x})"
    if name not in _EXPRESSIONS:
        raise Infeasible(f"{name}, which has no line of CUDA")
    if "{f}" in _EXPRESSIONS[name] and dtypes[0] not in FLOATS:
        raise Infeasible(f"{name} of {dtypes[0]}")
    return lambda *operands: _EXPRESSIONS[name].format(*operands, f=_suffix(dtypes[0]))


def _suffix(dtype: str) -> str:
    return "" if dtype == "float64" else "f"


def literal(value: float | np.generic, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    kind = register_type(dtype)
    if dtype not in FLOATS:
        return f"static_cast<{kind}>({int(value)}ll)"
    number = float(value)
    if math.isnan(number):
        return f"std::numeric_limits<{kind}>::quiet_NaN()"
    if math.isinf(number):
        return f"({'-' if number < 0 else ''}std::numeric_limits<{kind}>::infinity())"
    return f"({number!r}{'' if kind == 'double' else 'f'})"


def literals(numbers: np.ndarray, dtype: str) -> list[str]:
    """Return the literals of a constant: one if all numbers are equal, NaN counted as equal to NaN.

    Raises:
        Infeasible: A table of the numbers would be too long.
    """
    first = numbers[0]
    if all(x == first or (x != x and first != first) for x in numbers):
        numbers = numbers[:1]
    if len(numbers) > 1 << 12:
        raise Infeasible("a constant of too many numbers")
    return [literal(x, dtype) for x in numbers]


def affine(indices: np.ndarray, variable: str, step: int = 1, cast: str = "") -> str | None:
    """Return an index as a C++ expression of a place, `variable`; None if it is not affine.

    The form is start + outer * (place / group) + inner * (place % group).

    Args:
        indices: The index at places 0, `step`, 2 `step` and so on.
        variable: C++ of the place.
        step: Distance of places.
        cast: C++ of a conversion of places to numbers with a sign.
    """
    return _affine(np.asarray(indices, np.int64).tobytes(), variable, step, cast)


@functools.lru_cache(maxsize=4096)
def _affine(index_bytes: bytes, variable: str, step: int, cast: str) -> str | None:
    indices = np.frombuffer(index_bytes, np.int64)
    count, start = len(indices), int(indices[0])
    if (indices == start).all():
        return str(start)
    places = step * np.arange(count)
    inner, remainder = divmod(int(indices[1]) - start, step)
    breaks = np.flatnonzero(indices != start + inner * places)
    group = int(places[breaks[0]]) if len(breaks) else step * count
    outer = int(indices[breaks[0]]) - start if len(breaks) else 0
    if remainder or (indices != start + outer * (places // group) + inner * (places % group)).any():
        return None
    terms = [str(start)] if start else []
    if outer:
        terms.append(f"{outer} * {cast}({variable} / {group})")
    if inner:
        place = f"{variable} % {group}" if len(breaks) else variable
        terms.append(f"{inner} * {cast}({place})")
    return f"({' + '.join(terms)})"


def tree(kind: str, terms: Sequence[str]) -> str:
    """Join terms pairwise, neighbours first: an order that lanes can follow, too."""
    while len(terms) > 1:
        pairs = [_join(kind, terms[i], terms[i + 1]) for i in range(0, len(terms) - 1, 2)]
        terms = pairs + list(terms[len(pairs) * 2 :])
    return terms[0]


def _join(kind: str, a: str, b: str) -> str:
    if kind in ("sum", "prod"):
        return f"({a} {'+' if kind == 'sum' else '*'} {b})"
    return f"{'greater' if kind == 'max' else 'lesser'}({a}, {b})"


def struct(name: str, fields: Sequence[str]) -> list[str]:
    return [f"struct {name} {{", *fields, "};"]


def function(signature: str, lines: Sequence[str]) -> list[str]:
    return [f"static __device__ __forceinline__ void {signature} {{", *lines, "}"]


class Parts:
    """Numbers of a row that a lane reduces, each joined over entries in its way.

    Attributes:
        joins: The reduction of each part.
    """

    def __init__(self, program: RowProgram) -> None:
        self.joins: list[str] = []
        self._distances: list[int] = []  # from a part of ties, or of exponentials, to its extreme
        self._extremes: dict[tuple[int, int, str], int] = {}
        self._maxima = [x.value for x in program.outputs if x.reduce == "max"]

    def __len__(self) -> int:
        return len(self.joins)

    def add(self, output: Output, chunk: int, count: int) -> Iterator[tuple[int, bool]]:
        """Add the parts of a chunk of an output, after those of an extreme whose ties it counts.

        Yields:
            The first index of `count` parts, and whether they count ties. The last ones are those
            of the output.
        """
        if output.reduce == "exp_sum":
            keys = [(value, chunk, "max") for value in self._maxima]
            if len(keys) != 1 or keys[0] not in self._extremes:
                raise Infeasible("exponentials without their maximum")
            yield self._append(_EXP_SUM, count, self._extremes[keys[0]]), False
            return
        reduce, _, ties = output.reduce.partition("_")
        key = output.value, chunk, reduce
        if key not in self._extremes or not ties:
            self._extremes[key] = self._append(JOINS[reduce], count)
            yield self._extremes[key], False
        if ties:
            yield self._append(_TIES, count, self._extremes[key]), True

    def fill(self) -> None:
        """Add the part that a walk needs that reduces nothing."""
        self._append(JOINS["sum"], 1)

    def _append(self, join: str, count: int, extreme: int | None = None) -> int:
        first = len(self.joins)
        self.joins += [join] * count
        self._distances += [0 if extreme is None else first - extreme] * count
        return first

    def functions(self) -> list[str]:
        """Return the functions of a part's reduction, and of the extreme whose ties it counts."""
        distance = _by_part(list(map(str, self._distances)))
        return [
            "static __device__ constexpr Join kind([[maybe_unused]] int part) {",
            f"return {_by_part(self.joins)};",
            "}",
            "static __device__ constexpr int extreme_of(int part) {",
            f"return part - ({distance});",
            "}",
        ]


def _by_part(texts: Sequence[str]) -> str:
    """Return a C++ expression of ``part`` that has a text for each."""
    expression, stop = "", 0
    for text, group in itertools.groupby(texts):
        stop += len(list(group))
        expression += f"part < {stop} ? {text} : " if stop < len(texts) else text
    return expression
