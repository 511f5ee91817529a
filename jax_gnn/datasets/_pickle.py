"""Reading pickles that may be hostile: nothing of what they name is ever called.

The few globals that files of arrays need are mapped to inert classes of this module, which only
record what the pickle says. Not even numpy's own reconstructors run while unpickling, for a forged
dtype state there can make raw bytes pass for Python objects. Arrays are built afterwards, from
plain bytes with an allow-listed dtype.

What a pickle takes is proportional to its length. A few bytes make gigabytes of a list that holds
the same list twice, which holds the same list twice, and so on, once something walks through it: a
hash, a message, ``numpy.asarray``. Hence tuples cannot be hashed, messages are cut, and only flat
sequences become arrays.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from jax_gnn.datasets._check import Memory, blame, dense_from_csr


class PickleFormatError(pickle.UnpicklingError, ValueError):
    """A pickle is damaged, or names a global outside the allow-list, of which nothing was run.

    The allow-list: numpy arrays, scalars and dtypes, ``scipy.sparse.csr_matrix`` (both under their
    old and new module paths), built-in containers and ``collections.defaultdict(list)``, and what
    stands for bytes and for new objects before protocol 3.
    """


class _Inert:
    """Accepts any arguments and any state, and does nothing with them.

    Instances have ``__setstate__``, so that the pickle cannot set attributes; neither can it on the
    classes themselves, where calling ``__setstate__`` fails for want of an instance.
    """

    _args: tuple[Any, ...] = ()  # stays where the pickle calls __new__ only
    _state: Any = None

    def __init__(self, *args: Any) -> None:
        self._args = args

    def __setstate__(self, state: Any) -> None:
        self._state = state


class _PickledDtype(_Inert):
    """``numpy.dtype("f4", False, True)`` with the state ``(3, "<", …)``."""

    def to_numpy(self) -> np.dtype:
        name = self._args[0] if self._args else None
        order = self._state[1] if isinstance(self._state, tuple) and len(self._state) > 1 else "="
        if not isinstance(name, str) or not re.fullmatch("b1|[iu][1248]|f[248]", name):
            raise ValueError(f"dtype {reprlib.repr(name)} is not a plain number type")
        if not isinstance(order, str) or order not in ("<", ">", "=", "|"):
            raise ValueError(f"byte order {reprlib.repr(order)} is unknown")
        return np.dtype(order + name)


class _PickledScalar(_Inert):
    """``scalar(dtype, bytes)``, which gives a Python number at once, to be in lists and sets."""

    def __new__(cls, dtype: Any, raw: Any) -> Any:
        return _from_bytes(dtype, (), raw).item()


class _PickledBytes(_Inert):
    """``encode(text, "latin1")``, or ``bytes()``: bytes as Python 3 writes them for Python 2."""

    def __new__(cls, text: Any = "", encoding: Any = "latin1") -> Any:
        if not isinstance(text, str) or encoding != "latin1":
            raise ValueError("bytes that are not written as latin1")
        return text.encode("latin1")


class PickledArray(_Inert):
    """``_reconstruct(ndarray, (0,), b"b")`` and (version, shape, dtype, fortran, raw)."""

    def to_numpy(self) -> np.ndarray:
        """The array.

        Raises:
            ValueError: the recorded state is not that of an array of numbers.
        """
        if not isinstance(self._state, tuple) or len(self._state) != 5:
            raise ValueError("an array without a proper state")
        _, shape, dtype, fortran, raw = self._state
        return _from_bytes(dtype, shape, raw, "F" if fortran is True else "C")


class _PickledBuffer(PickledArray):
    """``_frombuffer(raw, dtype, shape, order)``: an array of protocol 5."""

    def to_numpy(self) -> np.ndarray:
        if len(self._args) != 4 or self._args[3] not in ("C", "F"):
            raise ValueError("an array without a proper buffer")
        raw, dtype, shape, order = self._args
        return _from_bytes(dtype, shape, raw, order)


class PickledCsr(_Inert):
    """``csr_matrix`` with the dictionary of its attributes as the state."""

    def to_dense(self, memory: Memory) -> np.ndarray:
        """The matrix as a dense float32 array.

        Raises:
            ValueError: the recorded state is not that of a CSR matrix of numbers, or the array
                would take too much memory.
        """
        state = self._state if isinstance(self._state, dict) else {}
        parts = [state.get(key) for key in ("data", "indices", "indptr")]
        arrays = [part.to_numpy() for part in parts if isinstance(part, PickledArray)]
        shape = state.get("_shape")
        if len(arrays) != 3 or not isinstance(shape, tuple):
            raise ValueError("a CSR matrix without data, indices, indptr and shape")
        data, indices, indptr = arrays
        return dense_from_csr("features", data, indices, indptr, flat("shape", shape), memory)


class _PickledObject(_Inert):
    """``_reconstructor(csr_matrix, object, None)``: a new object before protocol 2."""

    def __new__(cls, kind: Any, *rest: Any) -> Any:
        if kind is not PickledCsr:
            raise ValueError("an object that is not a CSR matrix")
        return PickledCsr()


class _PickledDefaultDict(_Inert, dict):
    """``defaultdict(list)``: a dictionary that forgets its factory."""


def _from_bytes(dtype: Any, shape: Any, raw: Any, order: Any = "C") -> np.ndarray:
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
    if size == 0 and max(shape) > _MOST_EMPTY:
        raise ValueError(f"an array of shape {shape} is empty")
    return np.ndarray(shape, numpy_dtype, buffer=raw, order=order)


_MOST_EMPTY = 2**16  # rows of nothing, which cost no bytes in the file

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
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,  # numpy 2
    ("numpy.core.multiarray", "scalar"): _PickledScalar,
    ("numpy._core.multiarray", "scalar"): _PickledScalar,
    ("numpy.core.numeric", "_frombuffer"): _PickledBuffer,  # protocol 5
    ("numpy._core.numeric", "_frombuffer"): _PickledBuffer,
    ("scipy.sparse.csr", "csr_matrix"): PickledCsr,
    ("scipy.sparse._csr", "csr_matrix"): PickledCsr,  # scipy 1.8
}


class _Tuple(tuple):
    __hash__ = None  # type: ignore[assignment]


def _unhashable(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """An opcode that leaves a tuple on the stack, as one that is no key and in no set."""

    def load_tuple(unpickler: _Unpickler) -> None:
        load(unpickler)
        unpickler.stack[-1] = _Tuple(unpickler.stack[-1])

    return load_tuple


_TUPLES = pickle.EMPTY_TUPLE + pickle.TUPLE + pickle.TUPLE1 + pickle.TUPLE2 + pickle.TUPLE3
# Hashes sets of sets; and finds what other modules registered.
_REFUSED = pickle.FROZENSET + pickle.EXT1 + pickle.EXT2 + pickle.EXT4


class _Unpickler(pickle._Unpickler):
    """In Python, as the one in C allocates what opcodes claim: 2 GB for a place in its memo."""

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
    """Reads a pickle without executing anything that it names.

    Args:
        path: the file.

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
    """Reads a pickle like :func:`load_pickle`; an array, at the top, becomes a numpy array."""
    value = load_pickle(path)
    with blame(path):
        return value.to_numpy() if isinstance(value, PickledArray) else value


def flat(field: str, value: Any) -> Any:
    """What was read from a pickle, if numpy may look at it; a set becomes a list.

    Raises:
        ValueError: it is a list, tuple or set of something else than numbers.
    """
    if not isinstance(value, list | tuple | set):
        return value
    for kind in set(map(type, value)) - {int, float, bool}:
        raise ValueError(f"{field}: expected integers, got {kind.__name__} among them")
    return list(value)


def load_matrix(path: Path, memory: Memory) -> np.ndarray:
    """Reads the pickle of an array or a scipy CSR matrix, which becomes dense float32.

    Raises:
        PickleFormatError: see :func:`load_pickle`.
        ValueError: the pickle holds something else, or takes too much memory.
    """
    value = load_pickle(path)
    with blame(path):
        if isinstance(value, PickledCsr):
            return value.to_dense(memory)
        if isinstance(value, PickledArray):
            return value.to_numpy()
        raise ValueError(f"expected a scipy CSR matrix or an array, got {type(value).__name__}")
