"""cuSPARSE as its manual advises: descriptors, buffers and preprocessing are done once.

Called through ctypes, on torch's memory and stream: torch itself does all of this at every call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_float, c_int64, c_size_t, c_void_p
from typing import Any

# Values of cusparse.h and library_types.h.
SPMM_ALGORITHMS = {"default": 0, "CSR_ALG1": 4, "CSR_ALG2": 6, "CSR_ALG3": 12}
_SDDMM_ALGORITHM = 0
_INDEX_32I, _BASE_ZERO, _ORDER_ROW = 2, 0, 2
_NON_TRANSPOSE, _TRANSPOSE = 0, 1
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}


class _Product:
    """A product that was set up and is ready to be called again and again.

    Raises:
        RuntimeError: A status of cuSPARSE is not success.
    """

    def __init__(self, name: str, transposed: bool, algorithm: int) -> None:
        import torch

        self._torch, self._name = torch, name
        self._library = ctypes.CDLL("libcusparse.so.12")  # of CUDA 12 and 13
        self._handle = c_void_p()
        self._do("cusparseCreate", byref(self._handle))
        self._one, self._zero = c_float(1), c_float(0)
        self._operations = _NON_TRANSPOSE, _TRANSPOSE if transposed else _NON_TRANSPOSE
        self._algorithm = algorithm
        self._held: list[Any] = []  # what the descriptors point to

    def _set_up(self, a: c_void_p, b: c_void_p, c: c_void_p) -> None:
        self._operands = a, b, c
        size = c_size_t()
        self._call("_bufferSize", byref(size))
        self._buffer = self._torch.empty(max(size.value, 1), dtype=self._torch.uint8)
        self._call("_preprocess", c_void_p(self._buffer.data_ptr()))

    def run(self) -> None:
        """Computes in torch's current stream."""
        self._call("", c_void_p(self._buffer.data_ptr()))

    def _call(self, step: str, last: Any) -> None:
        a, b, c = self._operands
        # A capture into a CUDA graph has a stream of its own.
        stream = c_void_p(self._torch.cuda.current_stream().cuda_stream)
        self._do("cusparseSetStream", self._handle, stream)
        self._do(
            f"cusparse{self._name}{step}",
            self._handle,
            *self._operations,
            byref(self._one),
            a,
            b,
            byref(self._zero),
            c,
            _TYPES["float32"],  # in which it is computed
            self._algorithm,
            last,
        )

    def _sparse(self, matrix: Any) -> c_void_p:
        parts = matrix.crow_indices(), matrix.col_indices(), matrix.values()
        descriptor = c_void_p()
        self._held += parts
        self._do(
            "cusparseCreateCsr",
            byref(descriptor),
            c_int64(matrix.shape[0]),
            c_int64(matrix.shape[1]),
            c_int64(len(parts[2])),
            *(c_void_p(part.data_ptr()) for part in parts),
            _INDEX_32I,
            _INDEX_32I,
            _BASE_ZERO,
            self._type(parts[2]),
        )
        return descriptor

    def _dense(self, matrix: Any) -> c_void_p:
        descriptor = c_void_p()
        self._held.append(matrix)
        self._do(
            "cusparseCreateDnMat",
            byref(descriptor),
            c_int64(matrix.shape[0]),
            c_int64(matrix.shape[1]),
            c_int64(matrix.stride(0)),
            c_void_p(matrix.data_ptr()),
            self._type(matrix),
            _ORDER_ROW,
        )
        return descriptor

    def _type(self, tensor: Any) -> int:
        return _TYPES[str(tensor.dtype).removeprefix("torch.")]

    def _do(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} returned status {status}")


class Spmm(_Product):
    """``out = matrix @ x``: CSR times row-major; ``algorithm`` is a key of `SPMM_ALGORITHMS`."""

    def __init__(self, matrix: Any, x: Any, algorithm: str) -> None:
        super().__init__("SpMM", False, SPMM_ALGORITHMS[algorithm])
        self.out = x.new_empty(matrix.shape[0], x.shape[1])
        self._set_up(self._sparse(matrix), self._dense(x), self._dense(self.out))


class Sddmm(_Product):
    """``out[e] = <a[row of e], b[col of e]>`` for the entries of a CSR matrix."""

    def __init__(self, matrix: Any, a: Any, b: Any) -> None:
        super().__init__("SDDMM", True, _SDDMM_ALGORITHM)
        self.out = self._torch.empty_like(matrix.values())
        result = self._torch.sparse_csr_tensor(
            matrix.crow_indices(),
            matrix.col_indices(),
            self.out,
            size=matrix.shape,
            check_invariants=False,
        )
        self._set_up(self._dense(a), self._dense(b), self._sparse(result))


def prepared(algorithm: str, sampled: bool = False) -> Callable[..., tuple[Any, ...]]:
    """A candidate's function: products of matrices and features, set up at the first call.

    It is called with (matrix, x) and perhaps a further pair. ``sampled`` adds the dot products of
    the second features and the first for the entries of the first matrix.
    """
    products: list[Any] = []

    def run(*operands: Any) -> tuple[Any, ...]:
        if not products:
            pairs = list(zip(operands[::2], operands[1::2], strict=True))
            products.extend(Spmm(matrix, x, algorithm) for matrix, x in pairs)
            if sampled:
                (matrix, x), (_, cotangent) = pairs
                products.append(Sddmm(matrix, cotangent, x))
        for product in products:
            product.run()
        return tuple(product.out for product in products)

    return run


def prepared_pair(algorithm: str) -> Callable[..., tuple[Any, ...]]:
    """The same of products of two matrices each: called with features and the matrices of each."""
    chains: list[tuple[Spmm, Spmm]] = []

    def run(*operands: Any) -> tuple[Any, ...]:
        if not chains:
            for x, first, second in zip(*(operands[i::3] for i in range(3)), strict=True):
                inner = Spmm(first, x, algorithm)
                chains.append((inner, Spmm(second, inner.out, algorithm)))
        for chain in chains:
            for product in chain:
                product.run()
        return tuple(last.out for _, last in chains)

    return run
