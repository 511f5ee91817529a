"""Checks of arguments, and what they are converted to: the one room for all of this library."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import FLOATS, accumulator_dtype
from jax_gnn._core.ids import as_signed, index_dtype, is_traced

C = TypeVar("C")

# --- Features and weights ------------------------------------------------------------------------


def check_features(
    name: str, x: Any, size_name: str = "num_rows", size: int | None = None
) -> Array:
    """An array ``(size, *features)`` of floating-point numbers."""
    x = as_array(name, x)
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {x.dtype}")
    if x.ndim == 0 or size not in (None, x.shape[0]):
        rows = size_name if size is None else f"{size_name}={size}"
        raise ValueError(f"{name} must be ({rows}, *features), got shape {x.shape}")
    return x


def check_real(name: str, values: Any) -> Array:
    """An array of integers or floating-point numbers."""
    values = as_array(name, values)
    if not is_real(values.dtype):
        raise TypeError(f"{name} must be real numbers, got {values.dtype}")
    return values


def check_weight(
    name: str, weight: Any, size_name: str, size: int, x: Any, x_name: str, rows_name: str
) -> Array | None:
    """Weights of entries, perhaps by head: ``(size, heads)`` in the accumulator type of x.

    Args:
        name: of the argument.
        weight: ``(size,)`` or ``(size, heads)``, or None.
        size_name: what the number of entries is called.
        size: number of entries.
        x: the features, of which only shape and dtype are looked at.
        x_name: what they are called.
        rows_name: what the number of their rows is called.
    """
    if weight is None:
        return None
    weight = check_real(name, weight)
    if weight.ndim not in (1, 2) or weight.shape[0] != size:
        raise ValueError(
            f"{name} must be ({size_name}={size},) or ({size_name}={size}, heads), got shape "
            f"{weight.shape}"
        )
    if weight.ndim == 2 and weight.shape[1:] != x.shape[1:2]:
        raise ValueError(
            f"{name} of shape {weight.shape} has a column for each of {weight.shape[1]} heads: "
            f"{x_name} must be ({rows_name}, {weight.shape[1]}, *features), got shape {x.shape}"
        )
    dtype = accumulator_dtype(x.dtype)
    if weight.shape[1:] == (0,):  # without heads there are no features either: one head is as well
        return jnp.zeros((size, 1), dtype)
    return weight.reshape(size, *weight.shape[1:] or (1,)).astype(dtype)


def check_float_dtype(name: str, dtype: Any) -> Any:
    """A dtype of floating-point numbers that kernels take; of 64 bits only where there are such."""
    try:
        found = jnp.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{name} must be a dtype, got {dtype!r}") from error
    if dtype is None or found not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {dtype!r}")
    return jax.dtypes.canonicalize_dtype(found)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """One of several options."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_scale_column(name: str, scale: Any, size_name: str, size: int, acc: Any) -> Array | None:
    """A factor for each row, as a column."""
    if scale is None:
        return None
    scale = check_real(name, scale)
    if scale.shape != (size,):
        raise ValueError(f"{name} must be ({size_name}={size},), got shape {scale.shape}")
    return scale.astype(acc)[:, None]


def check_row_scale(name: str, scale: Any, size_name: str, size: int, acc: Any) -> Array | None:
    """A factor for each row, ``(size,)``, or one for all of them, ``(1,)``."""
    if scale is None:
        return None
    scale = check_real(name, scale)
    if scale.shape not in ((), (size,)):
        raise ValueError(
            f"{name} must be a scalar or ({size_name}={size},), got shape {scale.shape}"
        )
    return scale.astype(acc).ravel()


def check_bias(bias: Any, x: Array) -> Array | None:
    """What is added to all rows like those of x, in its accumulator type."""
    if bias is None:
        return None
    bias = check_real("bias", bias).astype(accumulator_dtype(x.dtype))
    if bias.shape != x.shape[1:]:
        raise ValueError(f"bias must have the features {x.shape[1:]} of x, got shape {bias.shape}")
    return bias


def check_residual(residual: Any, size_name: str, size: int, x: Array) -> Array | None:
    """What is added to rows like those of x, in its dtype."""
    if residual is None:
        return None
    residual = check_features("residual", residual, size_name, size).astype(x.dtype)
    if residual.shape[1:] != x.shape[1:]:
        raise ValueError(
            f"residual must be ({size_name}={size}, *features) with the features {x.shape[1:]} of "
            f"x, got shape {residual.shape}"
        )
    return residual


# --- Ids and sizes -------------------------------------------------------------------------------


def as_ids(name: str, ids: Any) -> Array:
    """Checks an argument that is a vector of ids, and makes it int32 or int64."""
    return check_ids(name, ids, traced=True)


def check_pairs(first_name: str, first: Any, second_name: str, second: Any) -> tuple[Any, Any]:
    """Two ids arrays of one length: both int64 in numpy, or both traced."""
    first, second = check_columns({first_name: first, second_name: second})
    return first, second


def split_edge_pairs(name: str, edges: Any) -> Any:
    """Sources and destinations: the rows of ``(2, num_edges)``, or of pairs that are tuples."""
    wanted = f"{name}, where dst is not given, must be (2, num_edges) integers or a list of tuples"
    if isinstance(edges, str | bytes) or not isinstance(edges, Iterable):
        raise TypeError(f"{wanted} (source, destination), got {described(edges)}")
    if not hasattr(edges, "shape"):
        rows, edges = isinstance(edges, tuple), list(edges)
        if not edges:
            return (), ()
        if not rows and all(isinstance(edge, tuple) for edge in edges):
            for i, edge in enumerate(edges):
                if len(edge) != 2:
                    raise ValueError(f"{name}[{i}] must be (source, destination), got {edge!r}")
            return tuple(zip(*edges, strict=True))
        rank = 1 + all(np.ndim(row) == 1 for row in edges) if len(edges) == 2 else 0
    else:
        rank = len(edges.shape)
        if isinstance(edges, jax.Array) and not is_traced(edges):
            edges = np.asarray(edges)  # whose rows are taken without compiling
    if rank != 2 or len(edges) != 2:
        hint = "; transpose it" if getattr(edges, "shape", ())[1:] == (2,) else ""
        raise ValueError(f"{wanted} (source, destination), got {described(edges)}{hint}")
    return edges[0], edges[1]


def check_columns(columns: dict[str, Any]) -> list[Any]:
    """Ids arrays of one length, by name: all int64 in numpy, or all traced."""
    traced = is_traced(*columns.values())
    checked = {name: check_ids(name, ids, traced) for name, ids in columns.items()}
    first_name, first = next(iter(checked.items()))
    for name, ids in checked.items():
        if ids.shape != first.shape:
            raise ValueError(
                f"{first_name} and {name} must have the same length, got "
                f"{first.shape[0]} and {ids.shape[0]}"
            )
    return list(checked.values())


def check_ids(name: str, ids: Any, traced: bool = False) -> Any:
    """A one-dimensional array of integers: int64 in numpy, or int32 or int64 in JAX if traced.

    It may be the one that was given, or share its memory: what is kept must be copied. Without
    elements an array of floats is one of integers, too: ``[]`` becomes floats.
    """
    given = ids
    ids = to_array(name, ids) if traced else to_numpy(name, ids)
    if 0 in ids.shape and jnp.issubdtype(ids.dtype, np.floating):
        ids = ids.astype(np.int32)
    if not jnp.issubdtype(ids.dtype, np.integer) and isinstance(given, list | tuple):
        ids = _exact(given, ids)
    if not jnp.issubdtype(ids.dtype, np.integer):
        hint = "; jax_gnn.convert.from_table takes names" if ids.dtype.kind in "UO" else ""
        raise TypeError(f"{name} must be an array of integers, got {ids.dtype}{hint}")
    if ids.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {ids.shape}")
    if traced:
        return as_signed(ids)
    if ids.dtype == np.uint64:  # what int64 does not hold is out of range as its largest number
        ids = np.minimum(ids, np.iinfo(np.int64).max)
    return ids.astype(np.int64, copy=False)


def _exact(given: Any, ids: Any) -> Any:
    """Integers of which numpy made other numbers, as none of its types holds them all."""
    exact = np.array(given, object)
    if not exact.size or not all(type(i) is int or isinstance(i, np.integer) for i in exact.flat):
        return ids
    limits = np.iinfo(np.int64)
    return np.clip(exact, limits.min, limits.max).astype(np.int64)


def check_size(name: str, size: Any, *ids: Any) -> Any:
    """A size, by default the largest of the ids plus one."""
    if size is None and ids:
        if is_traced(*ids):
            raise TypeError(
                f"{name} must be given inside jax.jit, where it cannot be read off the ids, got "
                "None"
            )
        size = max(int(array.max(initial=-1)) for array in ids) + 1
    if jax.export.is_symbolic_dim(size):
        return size
    size = check_integer(name, size)
    if size < 0:
        raise ValueError(f"{name} must not be negative, got {size}")
    index_dtype(size)  # there must be an id for padding
    return size


def num_nodes_conflict(num_nodes: Any, num_src: Any, num_dst: Any) -> str:
    """What is wrong with giving all of these."""
    return (
        "num_nodes stands for num_src and num_dst: give it or those, not both, got "
        f"{num_nodes=}, {num_src=}, {num_dst=}"
    )


def check_concrete(name: str, size: int, reason: str) -> None:
    """A size that may not be a symbolic dimension of :mod:`jax.export`."""
    if jax.export.is_symbolic_dim(size):
        raise ValueError(f"{name} must be concrete, got the symbolic {size}: {reason}")


def check_range(name: str, ids: np.ndarray, size_name: str, size: int) -> None:
    """Raises an error where ids are out of range."""
    bad = np.flatnonzero((ids < 0) | (ids >= size))
    if bad.size:
        raise ValueError(
            f"{name}[{bad[0]}] = {ids[bad[0]]} is outside [0, {size_name}={size}) "
            f"({bad.size} such ids)"
        )


def check_integer(name: str, value: Any) -> int:
    """An integer of 64 bits."""
    try:
        value = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from error
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must fit 64 bits, got {value}")
    return value


def check_sparse(name: str, matrix: Any, shape: str) -> Any:
    """A copy of a scipy sparse matrix of any format, in coordinates.

    scipy's conversions write where the index arrays say, and those are its user's to change: hence
    what decides over how much is written is checked before.
    """
    scipy_sparse = sys.modules.get("scipy.sparse")  # 0.1 s to import: whoever has a matrix did
    if scipy_sparse is None or not scipy_sparse.issparse(matrix):
        raise TypeError(
            f"{name} must be a scipy sparse matrix or array, got {type(matrix).__name__}"
        )
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be {shape}, got shape {matrix.shape}")
    try:
        return _sound(matrix).tocoo()
    except (ValueError, TypeError, IndexError, OverflowError, AttributeError) as error:
        raise ValueError(f"{name} is not a valid {matrix.format} matrix: {error}") from error


def _sound(matrix: Any) -> Any:
    """The matrix, or one like it, if scipy can convert it without leaving its arrays."""
    num_rows, num_cols = matrix.shape
    if matrix.format in ("csr", "csc", "bsr"):
        data = np.asarray(matrix.data)
        if data.ndim != (3 if matrix.format == "bsr" else 1) or 0 in data.shape[1:]:
            raise ValueError(f"data has shape {data.shape}")
        sizes = num_cols, num_rows
        if matrix.format != "csc":
            block = data.shape[1:] or (1, 1)
            if num_rows % block[0] or num_cols % block[1]:
                raise ValueError(f"blocks of shape {block} do not divide {matrix.shape}")
            sizes = num_rows // block[0], num_cols // block[1]
        parts = check_compressed(data, matrix.indices, matrix.indptr, *sizes)
        return type(matrix)(parts, shape=matrix.shape)
    if matrix.format == "coo":  # these are checked when a matrix is made
        return type(matrix)((matrix.data, (matrix.row, matrix.col)), shape=matrix.shape)
    if matrix.format == "lil":
        for part in (matrix.rows, matrix.data):
            _check_lengths("rows", len(part), num_rows)
        for i, (cols, values) in enumerate(zip(matrix.rows, matrix.data, strict=True)):
            _check_lengths(f"rows[{i}]", len(cols), len(values))
    if matrix.format == "dia":
        _check_lengths("offsets", matrix.offsets.size, matrix.data.shape[0])
        if not ((matrix.offsets >= -num_rows) & (matrix.offsets <= num_cols)).all():
            raise ValueError("offsets name a diagonal outside")
    return matrix


def check_compressed(
    values: np.ndarray, indices: Any, indptr: Any, num_rows: int, num_cols: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parts of a CSR matrix that nobody has checked yet, less what no row has.

    scipy's own check passes over all indices if ``indptr`` ends at 0, and over decreases that do
    not fit 32 bits.

    Raises:
        ValueError: they are not the parts of a matrix of this size.
    """
    for part, array in (("indices", indices), ("indptr", indptr)):
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"{part} must be a one-dimensional array of integers")
    _check_lengths("indptr", indptr.size, num_rows + 1)
    if indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        raise ValueError("indptr must start at 0 and never decrease")
    _check_lengths("indices", indices.size, len(values))
    count = int(indptr[-1])
    if count > indices.size:
        raise ValueError(f"indptr ends at {count}, but there are {indices.size} indices")
    indices = indices[:count]
    if count and not 0 <= indices.min() <= indices.max() < num_cols:
        raise ValueError(f"indices must be in [0, {num_cols})")
    if not {indices.dtype, indptr.dtype} <= {np.dtype(np.int32), np.dtype(np.int64)}:
        indices, indptr = indices.astype(np.int64), indptr.astype(np.int64)
    return values[:count], indices, indptr


def _check_lengths(part: str, size: int, wanted: int) -> None:
    if size != wanted:
        raise ValueError(f"{part} has {size} entries in place of {wanted}")


def to_array(name: str, values: Any) -> Any:
    """An array of numbers: of JAX where it is one or traced, else of numpy, as it was given."""
    if isinstance(values, jax.Array):
        return values
    if hasattr(values, "__jax_array__") or is_traced(*jax.tree.leaves(values)):
        return as_array(name, values)
    return to_numpy(name, values)


def to_numpy(name: str, values: Any) -> np.ndarray:
    """An array of numbers, of whatever type."""
    if type(values) is np.ndarray:
        return values
    with argument_errors(name, "an array of numbers", values):
        return np.asarray(values)


def as_array(name: str, values: Any) -> Array:
    """An array of JAX."""
    with argument_errors(name, "an array of numbers", values):
        return jnp.asarray(values)


def as_numbers(name: str, values: Any, xp: Any) -> Any:
    """An array of JAX or of numpy, in a dtype of JAX that holds its integers.

    Raises:
        TypeError: it is no array of numbers.
        ValueError: JAX has 32 bits for integers, and one needs more.
    """
    values = to_array(name, values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.size:
        limits = np.iinfo(jax.dtypes.canonicalize_dtype(values.dtype))
        extremes = (values.min(), values.max()) if limits.dtype != values.dtype else ()
        for number in extremes:
            if not limits.min <= number <= limits.max:
                raise ValueError(
                    f"{name} must fit in {limits.dtype}, as jax_enable_x64 is off, got {number}: "
                    "subtract the least number, or turn it on"
                )
    if xp is jnp:
        return as_array(name, values)
    values = to_numpy(name, values)
    if not (values.dtype == np.bool_ or jnp.issubdtype(values.dtype, np.number)):
        raise TypeError(f"{name} must be an array of numbers, got {values.dtype}")
    return values.astype(jax.dtypes.canonicalize_dtype(values.dtype), copy=False)


def fill_value(dtype: Any) -> Any:
    """What a gather of JAX puts where nothing is: NaN or, of integers, the extreme value."""
    if jnp.issubdtype(dtype, np.inexact):
        return np.nan
    return True if dtype == np.bool_ else (np.iinfo(dtype).min or np.iinfo(dtype).max)


def added_size(name: str, wanted: int | None, size: int) -> int:
    """How much a size must grow to reach a wanted capacity, which is checked; None leaves it."""
    if wanted is None:
        return 0
    wanted = check_integer(name, wanted)
    if wanted < size:
        raise ValueError(f"{name} must be at least the present {size}, got {wanted}")
    return wanted - size


def is_real(dtype: Any) -> bool:
    """Whether a dtype is of integers or floating-point numbers."""
    return jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)


@contextlib.contextmanager
def argument_errors(name: str, what: str, given: Any) -> Iterator[None]:
    """Says of errors of JAX and numpy which argument is to blame, and what it must be."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} must be {what}, got {described(given)}") from error


def described(value: Any) -> str:
    """What was given, in a few words: of an array its dtype and shape."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
        kind = "an array" if is_array else type(value).__name__
        return f"{kind} of {value.dtype} of shape {value.shape}"
    return reprlib.repr(value)


def check_number(name: str, value: Any) -> None:
    """A real number."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {type(value).__name__}")


def check_finite(name: str, value: Any) -> float:
    """A real number that is finite."""
    check_number(name, value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


_EXACT_PRESETS = ("F32_F32_F32", "F64_F64_F64", "TF32_TF32_F32_X3", "BF16_BF16_F32_X9")


def precision_level(precision: Any) -> jax.lax.Precision:
    """One of JAX's three levels, for whatever JAX calls a precision."""
    if precision is None:
        precision = jax.default_matmul_precision.value
    if isinstance(precision, tuple | list):  # for each operand
        return max(map(precision_level, precision), key=operator.attrgetter("value"))
    try:
        return jax.lax.Precision(precision)
    except (TypeError, ValueError):
        pass
    name = getattr(precision, "name", precision)
    if not isinstance(name, str) or name not in jax.lax.DotAlgorithmPreset.__members__:
        raise ValueError(f"precision must be what jax.lax.dot takes, got {precision!r}")
    return jax.lax.Precision.HIGHEST if name in _EXACT_PRESETS else jax.lax.Precision.DEFAULT


def check_flag(name: str, value: Any) -> bool:
    """True or False, static."""
    if not isinstance(value, bool | int | np.bool_):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return bool(value)


def check_callable(name: str, value: Any) -> None:
    """A function, or a module that is called like one."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {described(value)}")


def check_container(name: str, value: Any, kind: type[C]) -> C:
    """A container of graphs that passes its own check."""
    check_instance(name, value, kind)
    return value.check(name)


def check_instance(name: str, value: Any, kind: type) -> None:
    """An object of a class of this library."""
    if not isinstance(value, kind):
        wanted = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        is_array = isinstance(value, jax.Array | np.ndarray)
        given = described(value) if is_array else type(value).__name__
        # What has a graph, told by name, as these modules import this one.
        if given in ("Batch", "Data") and isinstance(value.graph, kind):
            given += f"; pass {given.lower()}.graph"
        if given == "ShardedGraph":
            given += "; its apply calls models with what each device has"
        raise TypeError(f"{name} must be a {wanted}, got {given}")


# --- Names ---------------------------------------------------------------------------------------


def check_distinct(name: str, names: Sequence[Any]) -> None:
    """Names of which none is given twice."""
    numbers: dict[Any, int] = {}
    for number, each in enumerate(names):
        if (first := numbers.setdefault(each, number)) != number:
            raise ValueError(
                f"{name} must differ from each other, got {each!r:.200} as number {first} and as "
                f"number {number}"
            )


def numbers_by_name(
    what: str, own: Sequence[Any], given: Sequence[Any], owner: str, giver: str
) -> np.ndarray:
    """The number that each given name has among others, which are the same but for their order.

    Args:
        what: what has the names, in the plural.
        own: the names whose numbers are wanted.
        given: the names of what is to be brought into that order.
        owner: what has the former, in errors.
        giver: what has the latter.

    Raises:
        ValueError: a name is on one side only, or given twice; the error says which.
    """
    check_distinct(f"the {what} of {giver}", given)
    numbers = {name: number for number, name in enumerate(own)}
    wrong = []
    if unknown := [name for name in given if name not in numbers]:
        wrong.append(f"has the {what} {_few(unknown)}, which {owner} lacks")
    if missing := numbers.keys() - set(given):
        wrong.append(f"lacks the {what} {_few(sorted(missing, key=numbers.__getitem__))}")
    if wrong:
        raise ValueError(f"{giver} {', and '.join(wrong)}")
    return np.fromiter((numbers[name] for name in given), np.int64, len(given))


def _few(names: Sequence[Any]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{name!r:.200}" for name in names[:3]) + more
