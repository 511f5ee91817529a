"""Pickles that may be hostile, read without calling anything that they name.

The few globals that files of arrays need are mapped to inert classes of this module, which only
record their arguments and state. Not even numpy's own reconstructors run, as a forged dtype state
can make raw bytes pass for Python objects there. Arrays are built afterwards, from plain bytes with
an allow-listed dtype.

The memory for unpickling is proportional to the length of the pickle. But a few bytes describe a
list that holds the same list twice, which holds the same list twice, and so on: anything that walks
through it, such as a hash, a message or ``numpy.asarray``, would take gigabytes. Hence tuples
cannot be hashed, messages are cut, and only flat sequences become arrays.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from jax_gnn._core.files import Memory, errors_in
from jax_gnn.datasets._check import dense_from_csr

_MAX_EMPTY_ROWS = 2**16  # an array without elements takes no bytes in the file


class PickleFormatError(pickle.UnpicklingError, ValueError):
    """Error of a pickle that is damaged, or names a global outside the allow-list; nothing was run.

    The allow-list: numpy arrays, scalars and dtypes, ``scipy.sparse.csr_matrix`` (both under their
    old and new module paths), built-in containers, ``collections.defaultdict(list)``, and the
    functions that make bytes and new objects before protocol 3.
    """


class _Inert:
    """Record of arguments and state, which does nothing with them.

    Instances have ``__setstate__``, so that the pickle cannot set attributes; neither can it on the
    classes themselves, as ``__setstate__`` needs an instance.
    """

    _args: tuple[object, ...] = ()  # the default if the pickle calls __new__ only
    _state: object = None

    def __init__(self, *args: object) -> None:
        self._args = args

    def __setstate__(self, state: object) -> None:
        self._state = state


class _PickledDtype(_Inert):
    """Record of ``numpy.dtype("f4", False, True)`` with the state ``(3, "<", …)``."""

    def to_numpy(self) -> np.dtype:
        name = self._args[0] if self._args else None
        order = self._state[1] if isinstance(self._state, tuple) and len(self._state) > 1 else "="
        if not isinstance(name, str) or not re.fullmatch("b1|[iu][1248]|f[248]", name):
            raise ValueError(f"dtype {reprlib.repr(name)} is not a plain number type")
        if not isinstance(order, str) or order not in ("<", ">", "=", "|"):
            raise ValueError(f"byte order {reprlib.repr(order)} is unknown")
        return np.dtype(order + name)


class _PickledScalar(_Inert):
    """Python number for ``scalar(dtype, bytes)``: lists and sets hold numbers, not records."""

    def __new__(cls, dtype: object, raw: object) -> Any:
        return _from_bytes(dtype, (), raw).item()


class _PickledBytes(_Inert):
    """Bytes for ``encode(text, "latin1")`` or ``bytes()``, by which Python 3 writes protocol 2."""

    def __new__(cls, text: object = "", encoding: object = "latin1") -> Any:
        if not isinstance(text, str) or encoding != "latin1":
            raise ValueError("bytes that are not written as latin1")
        return text.encode("latin1")


class PickledArray(_Inert):
    """Record of an array: its state is (version, shape, dtype, is_fortran, bytes)."""

    def to_numpy(self) -> np.ndarray:
        """Build the array; raise ValueError if the state is not that of an array of numbers."""
        if not isinstance(self._state, tuple) or len(self._state) != 5:
            raise ValueError("an array without a proper state")
        _, shape, dtype, fortran, raw = self._state
        return _from_bytes(dtype, shape, raw, "F" if fortran is True else "C")


class _PickledBuffer(PickledArray):
    """Record of ``_frombuffer(raw, dtype, shape, order)``: an array of protocol 5."""

    def to_numpy(self) -> np.ndarray:
        if len(self._args) != 4 or self._args[3] not in ("C", "F"):
            raise ValueError("an array without a proper buffer")
        raw, dtype, shape, order = self._args
        return _from_bytes(dtype, shape, raw, "F" if order == "F" else "C")


class PickledCsr(_Inert):
    """Record of a ``csr_matrix``: its state is the dictionary of its attributes."""

    def to_dense(self, memory: Memory) -> np.ndarray:
        """Build a dense float32 array; raise ValueError if it is not valid, or too large."""
        state = self._state if isinstance(self._state, dict) else {}
        parts = [state.get(key) for key in ("data", "indices", "indptr")]
        arrays = [part.to_numpy() for part in parts if isinstance(part, PickledArray)]
        shape = state.get("_shape")
        if len(arrays) != 3 or not isinstance(shape, tuple):
            raise ValueError("a CSR matrix without data, indices, indptr and shape")
        data, indices, indptr = arrays
        return dense_from_csr("features", data, indices, indptr, flat("shape", shape), memory)


class _PickledObject(_Inert):
    """New object for ``_reconstructor(csr_matrix, object, None)``, before protocol 2."""

    def __new__(cls, kind: object, *bases: object) -> Any:
        if kind is not PickledCsr:
            raise ValueError("an object that is not a CSR matrix")
        return PickledCsr()


class _PickledDefaultDict(_Inert, dict[Any, Any]):
    """Dictionary for ``defaultdict(list)``, without its factory."""


def _from_bytes(
    dtype: object, shape: object, raw: object, order: Literal["C", "F"] = "C"
) -> np.ndarray:
    """Build an array of numbers, after a check of all that a pickle says of it."""
    if not isinstance(dtype, _PickledDtype):
        raise ValueError("an array without a proper dtype")
    numpy_dtype = dtype.to_numpy()
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{reprlib.repr(shape)} is not the shape of an array")
    if isinstance(raw, str):  # bytes written by Python 2
        raw = raw.encode("latin1")
    size = math.prod(shape) * numpy_dtype.itemsize
    if not isinstance(raw, bytes) or len(raw) != size:
        raise ValueError(f"an array of shape {shape} and {numpy_dtype} is not {size} bytes long")
    if size == 0 and max(shape) > _MAX_EMPTY_ROWS:
        raise ValueError(f"an array of shape {shape} is empty")
    return np.ndarray(shape, numpy_dtype, buffer=raw, order=order)


_ALLOWED: dict[tuple[str, str], type] = {
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,  # Python 2
    ("collections", "defaultdict"): _PickledDefaultDict,
    ("builtins", "list"): _Inert,  # its factory
    ("__builtin__", "list"): _Inert,
    ("_codecs", "encode"): _PickledBytes,  # protocols below 3
    ("__builtin__", "bytes"): _PickledBytes,
    ("copy_reg", "_reconstructor"): _PickledObject,  # protocols below 2
    ("__builtin__", "object"): _Inert,
    ("numpy", "ndarray"): _Inert,
    ("numpy", "dtype"): _PickledDtype,
    ("scipy.sparse.csr", "csr_matrix"): PickledCsr,
    ("scipy.sparse._csr", "csr_matrix"): PickledCsr,  # scipy 1.8
}
for _core in ("numpy.core", "numpy._core"):  # of numpy 1 and 2
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = PickledArray
    _ALLOWED[f"{_core}.multiarray", "scalar"] = _PickledScalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _PickledBuffer  # protocol 5


class _Tuple(tuple[Any, ...]):
    __hash__ = None  # type: ignore[assignment]


def _unhashable(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return an opcode whose tuple on the stack cannot be a key or in a set."""

    def load_tuple(unpickler: _Unpickler) -> None:
        load(unpickler)
        unpickler.stack[-1] = _Tuple(unpickler.stack[-1])

    return load_tuple


_TUPLES = pickle.EMPTY_TUPLE + pickle.TUPLE + pickle.TUPLE1 + pickle.TUPLE2 + pickle.TUPLE3
# Frozen sets would hash their contents; extensions name globals that other modules registered.
_REFUSED = pickle.FROZENSET + pickle.EXT1 + pickle.EXT2 + pickle.EXT4


class _Unpickler(pickle._Unpickler):
    """Unpickler in Python, as the one in C allocates what opcodes claim, such as 2 GB of memo."""

    stack: list[Any]
    dispatch: ClassVar = {
        code: _unhashable(load) if code in _TUPLES else load
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in _REFUSED
    } | {pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]]}

    def __init__(self, data: bytes, path: Path) -> None:
        # Reading past the end of bytes in memory allocates nothing.
        super().__init__(io.BytesIO(data), encoding="latin1")  # for the bytes of Python 2
        self._path = path

    def find_class(self, module: str, name: str) -> type:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise PickleFormatError(
                f"{self._path}: the pickle names {module}.{name}, which a file of arrays does not "
                "need; it was not run, and the file was not read further"
            ) from None


def load_pickle(path: Path) -> Any:
    """Read a pickle without executing anything that it names.

    Returns:
        Numbers, strings and built-in containers as they are; arrays as :class:`PickledArray`, CSR
        matrices as :class:`PickledCsr`, numpy scalars as Python numbers.

    Raises:
        PickleFormatError: the file is damaged, or names a global outside the allow-list.
    """
    data = path.read_bytes()
    try:
        return _Unpickler(data, path).load()
    except PickleFormatError:
        raise
    except Exception as error:  # damage surfaces as nearly any type
        raise PickleFormatError(
            f"{path}: not a readable pickle ({type(error).__name__}: {error})"
        ) from error


def load_value(path: Path) -> Any:
    """Read a pickle like :func:`load_pickle`; if it is an array, build it in numpy."""
    value = load_pickle(path)
    with errors_in(path):
        return value.to_numpy() if isinstance(value, PickledArray) else value


def flat(field: str, value: Any) -> Any:
    """Return a value of a pickle after a check that numpy may read it; a set becomes a list."""
    if not isinstance(value, list | tuple | set):
        return value
    for kind in set(map(type, value)) - {int, float, bool}:
        raise ValueError(f"{field}: expected integers, got {kind.__name__} among them")
    return list(value)


def load_matrix(path: Path, memory: Memory) -> np.ndarray:
    """Read the pickle of an array, or of a scipy CSR matrix, which becomes dense float32."""
    value = load_pickle(path)
    with errors_in(path):
        if isinstance(value, PickledCsr):
            return value.to_dense(memory)
        if isinstance(value, PickledArray):
            return value.to_numpy()
        raise ValueError(f"expected a scipy CSR matrix or an array, got {type(value).__name__}")
