"""Checks and conversions of the arguments of public functions."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import reprlib
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType, UnionType
from typing import Any, TypeVar, cast, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arrays import FLOATS, accumulator_dtype
from jax_gnn._core.ids import as_signed, index_dtype, is_traced
from jax_gnn._core.types import DType, IdArray, Shaped

C = TypeVar("C")

# --- Features and weights ------------------------------------------------------------------------


def check_features(
    name: str, x: ArrayLike, size_name: str = "num_rows", size: int | None = None
) -> Array:
    """Return ``x`` as an array ``(size, *features)`` of floating-point numbers."""
    x = as_array(name, x)
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {x.dtype}")
    if x.ndim == 0 or size not in (None, x.shape[0]):
        rows = size_name if size is None else f"{size_name}={size}"
        raise ValueError(f"{name} must be ({rows}, *features), got shape {x.shape}")
    return x


def check_shape(name: str, array: Shaped, axes: str, *sizes: int | None) -> None:
    """Raise an error unless an array has these sizes, where None is any; errors give ``axes``."""
    shape = array.shape
    if len(shape) != len(sizes) or any(
        n not in (None, m) for n, m in zip(sizes, shape, strict=True)
    ):
        raise ValueError(f"{name} must be {axes}, got shape {shape}")


def check_real(name: str, values: ArrayLike) -> Array:
    """Return the values as an array of integers or floating-point numbers."""
    values = as_array(name, values)
    if not is_real(values.dtype):
        raise TypeError(f"{name} must be real numbers, got {values.dtype}")
    return values


def check_real_vector(name: str, values: object, size_name: str, size: int) -> Array:
    """Return ``(size,)`` real numbers as an array of JAX or, if they are none, of numpy."""
    array: Array = to_array(name, values)
    if not is_real(array.dtype):
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    check_shape(name, array, f"({size_name}={size},)", size)
    return array


def check_weight(
    name: str,
    weight: ArrayLike | None,
    size_name: str,
    size: int,
    x: Shaped,
    x_name: str,
    rows_name: str,
) -> Array | None:
    """Return weights ``(size,)`` or ``(size, heads)`` of entries as ``(size, heads)``.

    They get the accumulator type of ``x``, ``(rows, *features)`` or ``(rows, heads, *features)``.
    The names of both and of their sizes are for errors.
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
    if weight.shape[1:] == (0,):  # without heads there are no features: one head gives the same
        return jnp.zeros((size, 1), dtype)
    return weight.reshape(size, *weight.shape[1:] or (1,)).astype(dtype)


def check_float_dtype(name: str, dtype: DType) -> DType:
    """Return a floating-point dtype of kernels; 64 bits become 32 where JAX has no others."""
    try:
        canonical = jnp.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{name} must be a dtype, got {dtype!r}") from error
    if dtype is None or canonical not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {dtype!r}")
    return jax.dtypes.canonicalize_dtype(canonical)


def check_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Raise an error unless the value is one of the choices."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_scale_column(
    name: str, scale: ArrayLike | None, size_name: str, size: int, acc: DType
) -> Array | None:
    """Return a factor for each row, ``(size,)``, as a column ``(size, 1)``."""
    if scale is None:
        return None
    scale = check_real(name, scale)
    check_shape(name, scale, f"({size_name}={size},)", size)
    return scale.astype(acc)[:, None]


def check_row_scale(
    name: str, scale: ArrayLike | None, size_name: str, size: int, acc: DType
) -> Array | None:
    """Return a factor for each row, ``(size,)``, or one for all rows, ``(1,)``."""
    if scale is None:
        return None
    scale = check_real(name, scale)
    if scale.shape not in ((), (size,)):
        raise ValueError(
            f"{name} must be a scalar or ({size_name}={size},), got shape {scale.shape}"
        )
    return scale.astype(acc).ravel()


def check_bias(bias: ArrayLike | None, x: Shaped) -> Array | None:
    """Return a bias with the features of ``x``, in its accumulator type."""
    if bias is None:
        return None
    bias = check_real("bias", bias).astype(accumulator_dtype(x.dtype))
    if bias.shape != x.shape[1:]:
        raise ValueError(f"bias must have the features {x.shape[1:]} of x, got shape {bias.shape}")
    return bias


def check_residual(
    residual: ArrayLike | None, size_name: str, size: int, x: Shaped
) -> Array | None:
    """Return a residual ``(size, *features)`` with the features and the dtype of ``x``."""
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


def as_ids(name: str, ids: object) -> Array:
    """Return a vector of ids as int32 or int64 in JAX."""
    return cast(Array, check_ids(name, ids, traced=True))


def check_pairs(first_name: str, first: object, second_name: str, second: object) -> Any:
    """Return two id arrays of one length: both int64 in numpy, or both traced."""
    return tuple(check_columns({first_name: first, second_name: second}))


def split_edge_pairs(name: str, edges: Any) -> tuple[Any, Any]:
    """Return sources and destinations from ``(2, num_edges)`` or a list of (source, destination).

    A list of lists is taken as two rows, a list of tuples as pairs.
    """
    expected = (
        f"{name}, where dst is not given, must be (2, num_edges) integers or a list of tuples "
        "(source, destination), got"
    )
    if isinstance(edges, str | bytes) or not isinstance(edges, Iterable):
        raise TypeError(f"{expected} {described(edges)}")
    if not hasattr(edges, "shape"):
        is_tuple, edges = isinstance(edges, tuple), list(edges)
        if not edges:
            return (), ()
        if not is_tuple and all(isinstance(edge, tuple) for edge in edges):
            for i, edge in enumerate(edges):
                if len(edge) != 2:
                    raise ValueError(f"{name}[{i}] must be (source, destination), got {edge!r}")
            src, dst = zip(*edges, strict=True)
            return src, dst
        rank = 1 + all(np.ndim(row) == 1 for row in edges) if len(edges) == 2 else 0
    else:
        rank = len(edges.shape)
        if isinstance(edges, jax.Array) and not is_traced(edges):
            edges = np.asarray(edges)  # JAX would compile a program to take its rows
    if rank != 2 or len(edges) != 2:
        hint = "; transpose it" if getattr(edges, "shape", ())[1:] == (2,) else ""
        raise ValueError(f"{expected} {described(edges)}{hint}")
    return edges[0], edges[1]


def check_columns(columns: Mapping[str, object]) -> list[Any]:
    """Return id arrays of one length, by name: all int64 in numpy, or all traced."""
    traced = is_traced(*columns.values())
    checked = {name: check_ids(name, ids, traced) for name, ids in columns.items()}
    first_name, first = next(iter(checked.items()))
    for name, ids in checked.items():
        if (size := ids.shape[0]) != (first_size := first.shape[0]):
            names = f"{first_name} and {name}"
            raise ValueError(f"{names} must have the same length, got {first_size} and {size}")
    return list(checked.values())


def check_ids(name: str, ids: object, traced: bool = False) -> Any:
    """Return a vector of integers: int64 in numpy, or int32 or int64 in JAX if ``traced``.

    The result may be the argument itself or share its memory: copy it before storing it. An empty
    array of floats counts as integers, as ``[]`` becomes one.
    """
    array = to_array(name, ids) if traced else to_numpy(name, ids)
    if 0 in array.shape and jnp.issubdtype(array.dtype, np.floating):
        array = array.astype(np.int32)
    if not jnp.issubdtype(array.dtype, np.integer) and isinstance(ids, list | tuple):
        array = _clip_large_integers(ids, array)
    if not jnp.issubdtype(array.dtype, np.integer):
        hint = "; jax_gnn.convert.from_table takes names" if array.dtype.kind in "UO" else ""
        raise TypeError(f"{name} must be an array of integers, got {array.dtype}{hint}")
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if traced:
        return as_signed(array)
    if array.dtype == np.uint64:  # numbers beyond int64 become its largest: still out of range
        array = np.minimum(array, np.iinfo(np.int64).max)
    return array.astype(np.int64, copy=False)


def _clip_large_integers(values: Sequence[object], array: np.ndarray) -> np.ndarray:
    """Return integers that fit no dtype of numpy, clipped to int64; else the array."""
    exact = np.array(values, object)
    if not exact.size or not all(type(i) is int or isinstance(i, np.integer) for i in exact.flat):
        return array
    limits = np.iinfo(np.int64)
    return cast(np.ndarray, np.clip(exact, limits.min, limits.max).astype(np.int64))


def check_size(name: str, size: Any, *ids: IdArray) -> Any:
    """Return a size; by default the largest of the ids plus one."""
    if size is None and ids:
        if is_traced(*ids):
            where = "inside jax.jit, where it cannot be read off the ids"
            raise TypeError(f"{name} must be given {where}, got None")
        size = max(int(array.max(initial=-1)) for array in ids) + 1
    if jax.export.is_symbolic_dim(size):
        return size
    size = check_integer(name, size)
    if size < 0:
        raise ValueError(f"{name} must not be negative, got {size}")
    index_dtype(size)  # raises where no id of padding is left
    return size


def num_nodes_conflict(num_nodes: object, num_src: object, num_dst: object) -> str:
    """Return the error message for ``num_nodes`` beside ``num_src`` or ``num_dst``."""
    return (
        "num_nodes stands for num_src and num_dst: give it or those, not both, got "
        f"{num_nodes=}, {num_src=}, {num_dst=}"
    )


def check_concrete(name: str, size: int, reason: str) -> None:
    """Raise an error if the size is a symbolic dimension of :mod:`jax.export`."""
    if jax.export.is_symbolic_dim(size):
        raise ValueError(f"{name} must be concrete, got the symbolic {size}: {reason}")


def check_range(name: str, ids: np.ndarray, size_name: str, size: int) -> None:
    """Raise an error if an id is outside ``[0, size)``."""
    bad = np.flatnonzero((ids < 0) | (ids >= size))
    if bad.size:
        raise ValueError(
            f"{name}[{bad[0]}] = {ids[bad[0]]} is outside [0, {size_name}={size}) "
            f"({bad.size} such ids)"
        )


def check_integer(name: str, value: Any) -> int:
    """Return an integer of at most 64 bits."""
    try:
        number: int = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from error
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} must fit 64 bits, got {number}")
    return number


# --- Sparse matrices of scipy --------------------------------------------------------------------


def check_sparse(name: str, matrix: Any, shape: str) -> Any:
    """Return a copy of a scipy sparse matrix of any format, in coordinates.

    scipy's conversions write to the places that the index arrays name, which users may change. So
    the arrays that decide how much is written are checked first.
    """
    # Importing scipy.sparse takes 0.1 s: a caller that has a matrix has imported it.
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is None or not scipy_sparse.issparse(matrix):
        kind = type(matrix).__name__
        raise TypeError(f"{name} must be a scipy sparse matrix or array, got {kind}")
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be {shape}, got shape {matrix.shape}")
    try:
        return _validated(matrix).tocoo()
    except (ValueError, TypeError, IndexError, OverflowError, AttributeError) as error:
        raise ValueError(f"{name} is not a valid {matrix.format} matrix: {error}") from error


def _validated(matrix: Any) -> Any:
    """Return an equal matrix that scipy converts without leaving its arrays, or raise an error."""
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
    if matrix.format == "coo":  # the constructor checks ids
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
    values: np.ndarray, indices: np.ndarray, indptr: np.ndarray, num_rows: int, num_cols: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Check the arrays of a CSR matrix, and return them without entries past the last row.

    scipy's own check accepts any indices if ``indptr`` ends at 0, and decreases beyond 32 bits.
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


def _check_lengths(part: str, size: int, expected: int) -> None:
    if size != expected:
        raise ValueError(f"{part} has {size} entries in place of {expected}")


# --- Arrays and numbers --------------------------------------------------------------------------


def to_array(name: str, values: object) -> Any:
    """Return an array of numbers: of JAX if the values are traced or of JAX, else of numpy."""
    if isinstance(values, jax.Array):
        return values
    if hasattr(values, "__jax_array__") or is_traced(*jax.tree.leaves(values)):
        return as_array(name, values)
    return to_numpy(name, values)


def to_numpy(name: str, values: object) -> np.ndarray:
    """Return the values as an array of numpy."""
    if type(values) is np.ndarray:
        return values
    with argument_errors(name, "an array of numbers", values):
        return np.asarray(values)


def check_numbers(name: str, values: object) -> np.ndarray:
    """Return numbers or booleans as an array of numpy, in their dtype."""
    array = to_numpy(name, values)
    if not (array.dtype == np.bool_ or jnp.issubdtype(array.dtype, np.number)):
        raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
    return array


def check_rows(name: str, array: Shaped, size_name: str, size: int) -> None:
    """Raise an error unless an array has this number of rows."""
    if array.shape[:1] != (size,):
        raise ValueError(f"{name} must be ({size_name} = {size}, ...), got shape {array.shape}")


def as_array(name: str, values: Any) -> Array:
    """Return the values as an array of JAX."""
    with argument_errors(name, "an array of numbers", values):
        return jnp.asarray(values)


def as_numbers(name: str, values: object, xp: ModuleType) -> Any:
    """Return an array of the module ``xp`` in a dtype of JAX that holds its integers."""
    array = to_array(name, values)
    if isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
        extremes = (array.min(), array.max()) if limits.dtype != array.dtype else ()
        if bad := [number for number in extremes if not limits.min <= number <= limits.max]:
            raise ValueError(
                f"{name} must fit in {limits.dtype}, as jax_enable_x64 is off, got {bad[0]}: "
                "subtract the least number, or turn it on"
            )
    if xp is jnp:
        return as_array(name, array)
    array = check_numbers(name, array)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def fill_value(dtype: DType) -> Any:
    """Return JAX's value for gathers out of range: NaN or, for integers, an extreme value."""
    if jnp.issubdtype(dtype, np.inexact):
        return np.nan
    return True if dtype == np.bool_ else (np.iinfo(dtype).min or np.iinfo(dtype).max)


def added_size(name: str, capacity: int | None, size: int) -> int:
    """Return the padding that raises a size to a capacity; 0 if the capacity is None."""
    if capacity is None:
        return 0
    capacity = check_integer(name, capacity)
    if capacity < size:
        raise ValueError(f"{name} must be at least the present {size}, got {capacity}")
    return capacity - size


def is_real(dtype: DType) -> bool:
    """Whether a dtype is one of integers or floating-point numbers."""
    return jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)


@contextlib.contextmanager
def argument_errors(name: str, expected: str, value: object) -> Iterator[None]:
    """Turn errors of JAX and numpy into ones that name the argument and its expected kind."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} must be {expected}, got {described(value)}") from error


def described(value: object) -> str:
    """Describe a value in a few words, for errors: an array by its dtype and shape."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
        kind = "an array" if is_array else type(value).__name__
        return f"{kind} of {value.dtype} of shape {value.shape}"
    return reprlib.repr(value)


def check_number(name: str, value: object) -> None:
    """Raise an error unless the value is a real number."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {type(value).__name__}")


def check_finite(name: str, value: Any) -> float:
    """Return a finite real number."""
    check_number(name, value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


_EXACT_PRESETS = ("F32_F32_F32", "F64_F64_F64", "TF32_TF32_F32_X3", "BF16_BF16_F32_X9")


def precision_level(precision: Any) -> jax.lax.Precision:
    """Return the one of JAX's three levels that a precision of `jax.lax.dot` stands for."""
    if precision is None:
        precision = jax.default_matmul_precision.value
    if isinstance(precision, tuple | list):  # one for each operand
        return max(map(precision_level, precision), key=operator.attrgetter("value"))
    try:
        return jax.lax.Precision(precision)
    except (TypeError, ValueError):
        pass
    name = getattr(precision, "name", precision)
    if not isinstance(name, str) or name not in jax.lax.DotAlgorithmPreset.__members__:
        raise ValueError(f"precision must be what jax.lax.dot takes, got {precision!r}")
    return jax.lax.Precision.HIGHEST if name in _EXACT_PRESETS else jax.lax.Precision.DEFAULT


# --- Objects and names ---------------------------------------------------------------------------


def check_flag(name: str, value: object) -> bool:
    """Return a truth value that is static."""
    if not isinstance(value, bool | int | np.bool_):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return bool(value)


def check_callable(name: str, value: object) -> None:
    """Raise an error unless the value is a function or a callable module."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {described(value)}")


def check_container(name: str, value: Any, kind: type[C]) -> C:
    """Return a container of graphs that has passed its own check."""
    check_instance(name, value, kind)
    return cast(C, value.check(name))


def check_instance(name: str, value: Any, kind: type | UnionType) -> None:
    """Raise an error unless the value is an object of a class, or of one of several."""
    if not isinstance(value, kind):
        kinds = get_args(kind) or (kind,)
        expected = " or ".join(f"{k.__module__.partition('.')[0]}.{k.__name__}" for k in kinds)
        is_array = isinstance(value, jax.Array | np.ndarray)
        got = described(value) if is_array else type(value).__name__
        # Classes that hold a graph are recognized by name, as their modules import this one.
        if got in ("Batch", "Data") and isinstance(value.graph, kind):
            got += f"; pass {got.lower()}.graph"
        if got == "ShardedGraph":
            got += "; its apply calls models with what each device has"
        raise TypeError(f"{name} must be a {expected}, got {got}")


def check_distinct(name: str, names: Sequence[Hashable]) -> None:
    """Raise an error if a name occurs twice."""
    positions: dict[Hashable, int] = {}
    for position, value in enumerate(names):
        if (first := positions.setdefault(value, position)) != position:
            raise ValueError(
                f"{name} must differ from each other, got {value!r:.200} as number {first} and as "
                f"number {position}"
            )


def numbers_by_name(
    what: str,
    ordered: Sequence[Hashable],
    names: Sequence[Hashable],
    ordered_owner: str,
    names_owner: str,
) -> np.ndarray:
    """Return the position of each name among ``ordered``, which must hold the same names.

    Errors name ``what`` has the names, in the plural, and the owners of both sequences.
    """
    check_distinct(f"the {what} of {names_owner}", names)
    positions = {name: position for position, name in enumerate(ordered)}
    problems = []
    if unknown := [name for name in names if name not in positions]:
        problems.append(f"has the {what} {_list_few(unknown)}, which {ordered_owner} lacks")
    if missing := positions.keys() - set(names):
        problems.append(f"lacks the {what} {_list_few(sorted(missing, key=positions.__getitem__))}")
    if problems:
        raise ValueError(f"{names_owner} {', and '.join(problems)}")
    return np.fromiter((positions[name] for name in names), np.int64, len(names))


def _list_few(names: Sequence[Hashable]) -> str:
    tail = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{name!r:.200}" for name in names[:3]) + tail
