"""Published kernels, of checkouts that lie, named as on GitHub, in one folder.

None of their code is kept here. Sources below include a checkout's own files and bind what those
declare to torch, which compiles them at first use. Graphs are prepared beforehand, and autograd is
left out. Most of these kernels run in the null stream, so that no CUDA graph can hold them.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from benchmarks.timing import EventTimer
from benchmarks.workloads import PlainGraph

Function = Callable[..., tuple[Any, ...]]
Option = TypeVar("Option", bound=tuple[Any, ...])


@cache
def _extension(name: str, source: str, folder: Path, flags: tuple[str, ...] = ()) -> Any:
    """The module that the source binds; ``folder`` is where it finds what it includes."""
    import torch
    from torch.utils.cpp_extension import load_inline

    # Headers of CUDA's libraries may be in packages beside torch's instead of in the toolkit.
    packages = Path(torch.__file__).parents[1].glob("nvidia/*/include")
    beside = [f"-Xcompiler=-idirafter,{package}" for package in packages]
    return load_inline(
        name,
        cpp_sources="",
        cuda_sources="#include <torch/extension.h>\n" + source,
        extra_cuda_cflags=["-O3", *flags, *beside],
        extra_include_paths=[str(folder)],
    )


def _refuse_capture() -> None:
    """A capture would miss the null stream's kernels, and memory that is allocated ends it.

    Raises:
        RuntimeError: Torch captures what its stream does.
    """
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("kernels in the null stream cannot be captured")


def _by_head(width: int, *tensors: Any) -> list[Any]:
    return [tensor.view(len(tensor), -1, width) for tensor in tensors]


@cache
def _timer() -> EventTimer:
    return EventTimer()


def _fastest(
    options: Iterable[Option],
    call: Callable[[Option], Any],
    refused: tuple[type[Exception], ...] = (RuntimeError,),
) -> Option:
    """Of those that can be launched; what is far from the best is called but twice.

    ``refused`` is what a launch raises that asks for too much shared memory.
    """
    calls = {}
    for option in options:
        with contextlib.suppress(*refused):
            call(option)
            calls[option] = partial(call, option)
    for repeats in 1, 3:
        seconds = {o: min(times) for o, times in _timer().measure(calls, repeats).items()}
        best = min(seconds, key=lambda option: seconds[option])
        calls = {o: timed for o, timed in calls.items() if seconds[o] <= 1.5 * seconds[best]}
    return best


# Turbo-GNN: GATv2 and dot products.

TURBO_GNN_WIDTHS = 32, 64, 128, 256

_TURBO_GNN_SOURCES = {"gatv2": "gatv2/gatv2_kernel.cu", "dot": "gt/graph_transformer.cu"}
_TURBO_GNN_FUNCTIONS = {
    "gatv2": "gatv2_##direction##_cuda",
    "dot": "graph_attention_##direction##_csr_mh_cuda",
}
TURBO_GNN_TYPES = {"float32": "float", "float16": "at::Half", "bfloat16": "at::BFloat16"}

# Their files hold an instance for every type of index and of number and every width. The macros
# leave those of one case, which still take a minute to compile.
_TURBO_GNN = """
#include "kernels.cuh"
#include "common.cuh"
template <typename...> auto index_type(at::ScalarType type) {
  return MakeIndexVariant<int32_t>(type);
}
template <typename...> auto number_type(at::ScalarType type) {
  return MakeTypeVariant<NUMBER>(type);
}
template <int... values> auto number(int value) {  // of widths there are four
  if constexpr (sizeof...(values) == 4) return MakeIntVariant<WIDTH>(value);
  else return MakeIntVariant<values...>(value);
}
#define MakeIndexVariant index_type
#define MakeTypeVariant number_type
#define MakeIntVariant number
#include "SOURCE"
#define BIND(direction) m.def(#direction, &FUNCTION)
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  BIND(forward);
  BIND(backward);
}
"""

_TURBO_GNN_FLAGS = (  # those of their setup.py
    "--use_fast_math",
    "-std=c++20",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT162_OPERATORS__",
)

# What their tuner tries: where the heavy nodes begin (-1: there are none), and warps a node.
_QUANTILES, _LIGHT_WARPS, _HEAVY_WARPS = (-1, 0.9, 0.95, 0.99), (1, 2, 4), (8, 16, 32)
_Schedule = tuple[float, int, int]
_SCHEDULES: list[_Schedule] = [
    (quantile, light, heavy)
    for quantile, light, heavy in itertools.product(_QUANTILES, _LIGHT_WARPS, _HEAVY_WARPS)
    if quantile != -1 or heavy == _HEAVY_WARPS[0]
]
_CHUNKS = 512, 32, 64, 128, 256, 1024, 2048
"""Nodes whose parts of the gradient to GATv2's vector a block sums; first their default."""


class TurboGnn:
    """GATv2 or dot products by Turbo-GNN, tuned at the first call among what their tuner tries.

    It is called with dst, src, the vector or the values, perhaps the cotangent, row pointers and
    columns, and those of the transposed.

    Args:
        checkout: Their repository.
        kind: "gatv2" or "dot".
        factor: Slope of the LeakyReLU, or what dot products are multiplied by.
    """

    def __init__(
        self, checkout: Path, graph: PlainGraph, kind: str, dtype: str, width: int, factor: float
    ) -> None:
        source = _TURBO_GNN
        for word, by in {
            "NUMBER": TURBO_GNN_TYPES[dtype],
            "WIDTH": str(width),
            "SOURCE": _TURBO_GNN_SOURCES[kind],
            "FUNCTION": _TURBO_GNN_FUNCTIONS[kind],
        }.items():
            source = source.replace(word, by)
        name = f"turbo_gnn_{kind}_{dtype}_{width}"
        self._module = _extension(name, source, checkout / "csrc", _TURBO_GNN_FLAGS)
        self._is_gatv2, self._factor, self._width = kind == "gatv2", factor, width
        into, out_of = ((g.indptr, g.cols) for g in (graph, graph.transposed))
        self._degrees = np.diff(into[0]), np.diff(out_of[0])
        self._symmetric = all(map(np.array_equal, into, out_of))
        self._buckets = cache(self._make_buckets)
        self._schedule: _Schedule | None = None
        self._schedule_of_gradients: tuple[bool, _Schedule, int] | None = None

    def __call__(self, dst: Any, src: Any, third: Any, *rest: Any) -> tuple[Any, ...]:
        """The result and, if there is a cotangent, all gradients."""
        *cotangent, indptr, cols, indptr_t, cols_t = rest
        graph = indptr, cols, indptr_t, cols_t
        if self._is_gatv2 or cotangent:
            _refuse_capture()
        dst, src, *cotangent = _by_head(self._width, dst, src, *cotangent)
        if not self._is_gatv2:
            (third,) = _by_head(self._width, third)
        nodes = dst, src, third
        forward = partial(self._forward, nodes, graph)
        if self._schedule is None:
            self._schedule = _fastest(_SCHEDULES, forward)
        out, logsumexp = forward(self._schedule)
        if not cotangent:
            return (out.flatten(1),)
        backward = partial(self._backward, nodes, graph, out, logsumexp, cotangent[0])
        if self._schedule_of_gradients is None:
            self._schedule_of_gradients = self._tuned(backward)
        return tuple(x.flatten(1) for x in (out, *backward(self._schedule_of_gradients)))

    def _tuned(self, backward: Callable[[Any], Any]) -> tuple[bool, _Schedule, int]:
        """Symmetric graphs may be taken as that, in which case there are no schedules."""
        options = [(True, schedule, _CHUNKS[0]) for schedule in _SCHEDULES]
        if self._symmetric:
            options.append((False, _SCHEDULES[0], _CHUNKS[0]))
        best = _fastest(options, backward)
        if not self._is_gatv2:
            return best
        return _fastest([(*best[:2], chunk) for chunk in _CHUNKS], backward)

    def _forward(self, nodes: Any, graph: Any, schedule: _Schedule) -> Any:
        dst, src, third = nodes
        quantile, *warps = schedule
        rest = self._factor, *self._buckets(0, quantile), *warps
        if self._is_gatv2:
            return self._module.forward(dst, src, *graph[:2], third, *rest)
        return self._module.forward(*graph[:2], src, dst, third, *rest)  # their queries are of src

    def _backward(
        self,
        nodes: Any,
        graph: Any,
        out: Any,
        logsumexp: Any,
        cotangent: Any,
        options: tuple[bool, _Schedule, int],
    ) -> Any:
        dst, src, third = nodes
        directed, (quantile, *warps), chunk = options
        rest = *self._buckets(1, quantile), *warps, directed
        if self._is_gatv2:
            assert self._schedule is not None
            forward = self._buckets(0, self._schedule[0])
            return self._module.backward(
                *(cotangent, dst, src, *graph, third, logsumexp),
                *(self._factor, chunk, *forward, *rest),
            )
        to_src, to_dst, to_value = self._module.backward(
            *graph, src, dst, third, out, cotangent, logsumexp, self._factor, *rest
        )
        return to_dst, to_src, to_value

    def _make_buckets(self, side: int, quantile: float) -> tuple[Any, Any]:
        """Light nodes and heavy ones, by their number of edges."""
        import torch

        degrees = self._degrees[side]
        limit = np.inf if quantile == -1 else np.quantile(degrees, quantile)
        light, heavy = (np.nonzero(which)[0] for which in (degrees < limit, degrees >= limit))
        return torch.tensor(light, dtype=torch.int32), torch.tensor(heavy, dtype=torch.int32)


# dgNN: GAT.

# Their forward for training draws the mask of dropout again, by a generator that it makes for every
# call: here the mask is given. Their dispatch has a second kernel for inference, of wide heads.
_DGNN = """
#include <curand.h>
#include <curand_kernel.h>
#define curandCreateGenerator(...) 0
#define curandSetPseudoRandomGeneratorSeed(...) 0
#define curandGenerateUniform(...) 0
#include "fused_gatconv/fused_gatconv_kernel.cu"
using torch::Tensor;
std::vector<Tensor> training(
    Tensor dst, Tensor src, Tensor row_ptr, Tensor col_ind, float slope, Tensor value,
    Tensor mask) {
  int m = dst.size(0), h = dst.size(1), f = value.size(2);
  Tensor largest = torch::empty_like(dst), sum = torch::empty_like(dst);
  Tensor out = torch::empty_like(value);
  fused_forward_kernel<<<dim3(m, h), dim3(32, (f + 31) / 32), 256>>>(
      m, col_ind.size(0), h, f, 0, dst.data_ptr<float>(), src.data_ptr<float>(),
      row_ptr.data_ptr<int>(), col_ind.data_ptr<int>(), value.data_ptr<float>(), slope,
      largest.data_ptr<float>(), sum.data_ptr<float>(), mask.data_ptr<float>(),
      out.data_ptr<float>(), 0);
  return {out, largest, sum};
}
Tensor wide_inference(
    Tensor dst, Tensor src, Tensor row_ptr, Tensor col_ind, float slope, Tensor value) {
  int m = dst.size(0), h = dst.size(1), f = value.size(2);
  Tensor out = torch::empty_like(value);
  fused_inference_kernel<<<dim3(m, h), dim3(32, (f + 31) / 32), 256>>>(
      m, col_ind.size(0), h, f, dst.data_ptr<float>(), src.data_ptr<float>(),
      row_ptr.data_ptr<int>(), col_ind.data_ptr<int>(), value.data_ptr<float>(), slope,
      out.data_ptr<float>());
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("inference", &gat_inference_cuda);
  m.def("wide_inference", &wide_inference);
  m.def("training", &training);
  m.def("backward", &gat_backward_cuda);
}
"""

DGNN_INFERENCE = {"dgNN": "inference", "dgNN wide": "wide_inference"}
"""Their dispatch, and their kernel of wide heads for narrow ones, too."""


def dgnn_inference(checkout: Path, kernel: str, slope: float) -> Function:
    """GAT by dgNN: called with dst, src, value, row pointers and columns."""
    inference = getattr(_extension("dgnn", _DGNN, checkout / "dgNN" / "src"), kernel)

    def run(dst: Any, src: Any, value: Any, *edges: Any) -> tuple[Any, ...]:
        _refuse_capture()
        y = inference(dst, src, *edges, slope, value.view(*dst.shape, -1))
        return (y.flatten(1),)

    return run


def dgnn(checkout: Path, slope: float) -> Function:
    """GAT and its gradients by dgNN.

    It is called with dst, src, value, cotangent, row pointers, columns, those of the transposed,
    the order of its edges, and ones (edges, heads).
    """
    module = _extension("dgnn", _DGNN, checkout / "dgNN" / "src")

    def run(dst: Any, src: Any, value: Any, cotangent: Any, *rest: Any) -> tuple[Any, ...]:
        _refuse_capture()
        *edges, mask = rest
        value, cotangent = (x.view(*dst.shape, -1) for x in (value, cotangent))
        y, *softmax = module.training(dst, src, *edges[:2], slope, value, mask)
        to_value, to_dst, to_src = module.backward(
            slope, 0.0, *edges, *softmax, mask, value, dst, src, cotangent
        )
        return y.flatten(1), to_dst, to_src, to_value.flatten(1)

    return run


# DF-GNN: dot products.

_DF_GNN = """
#include "fused_gtconv/fused_gtconv_csr.cu"
#include "fused_gtconv/fused_gtconv_hyper.cu"
#include "fused_gtconv/fused_gtconv_backward.cu"
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("csr", &gt_csr_inference_cuda);
  m.def("hyper", &gt_hyper_inference_cuda);
  m.def("forward", &gt_hyper_forward_cuda);
  m.def("backward", &gt_backward_cuda);
}
"""

DF_GNN_ROWS = {"csr": 1, "hyper": 8}
"""Destinations of a block, all of whose scores must fit its shared memory."""

DF_GNN_SCORES = 48 * 2**10 // 4 - 32
"""Scores that do, beside 32 numbers that "csr" has there."""


def df_gnn_scores(graph: PlainGraph, way: str) -> int:
    """The most scores of a block."""
    return int(np.diff(np.append(graph.indptr[: -1 : DF_GNN_ROWS[way]], graph.num_edges)).max())


def df_gnn_inference(checkout: Path, graph: PlainGraph, way: str, width: int) -> Function:
    """Dot products by DF-GNN, in a way of `DF_GNN_ROWS`.

    It is called with queries, keys, values, row pointers, columns, for "hyper" rows, and what
    edges' dot products are multiplied by.
    """
    inference = getattr(_extension("df_gnn", _DF_GNN, checkout / "DFGNN" / "src"), way)
    scores = df_gnn_scores(graph, way)

    def run(query: Any, key: Any, value: Any, *edges: Any) -> tuple[Any, ...]:
        _refuse_capture()
        (y,) = inference(*edges, scores, *_by_head(width, query, key, value))
        return (y.flatten(1),)

    return run


def df_gnn(checkout: Path, graph: PlainGraph, width: int) -> Function:
    """The same with gradients, by "hyper".

    The cotangent follows values, and after the factors are row pointers and columns of the
    transposed and the order of its edges.
    """
    module = _extension("df_gnn", _DF_GNN, checkout / "DFGNN" / "src")
    scores = df_gnn_scores(graph, "hyper")

    def run(*all_: Any) -> tuple[Any, ...]:
        _refuse_capture()
        *nodes, cotangent = _by_head(width, *all_[:4])
        y, weights = module.forward(*all_[4:], scores, *nodes)
        to_query, to_key, to_value = module.backward(*all_[4:], scores, *nodes, weights, cotangent)
        for gradient in (to_query, to_key):  # theirs are to scores that nothing has multiplied
            gradient *= width**-0.5
        return tuple(x.flatten(1) for x in (y, to_query, to_key, to_value))

    return run


# GeoT: sums of rows by sorted ids, and weighted sums of gathered rows.

# Their functions look up the number of rows, or of columns, on the device at every call: here it is
# given. What they add to is cleared first, as there.
_GEOT = """
#include <ATen/Dispatch.h>
#undef AT_DISPATCH_FLOATING_TYPES
#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) [&] { using scalar_t = float; __VA_ARGS__(); }()
#include "cuda/index_scatter_cuda.cu"
#include "cuda/gather_weight_scatter_cuda.cu"
#include "cuda/wrapper/csr_gws_rule.h"
using torch::Tensor;
Tensor zeros(const Tensor& x, int64_t rows) {
  return torch::zeros({rows, x.size(1)}, x.options());
}
Tensor geot_sum(Tensor x, Tensor ids, int64_t rows) {
  return index_scatter_cuda(0, ids, x, zeros(x, rows), "sum", true);
}
Tensor product(Tensor x, Tensor weight, Tensor cols, Tensor ids, int64_t rows) {
  return gather_weight_scatter_cuda(cols, ids, weight, x, zeros(x, rows), "sum");
}
Tensor csr_product(Tensor x, Tensor weight, Tensor cols, Tensor indptr) {
  int rows = indptr.size(0) - 1;
  Tensor out = zeros(x, rows);
  csr_gws_wrapper(rows, x.size(1), x.size(0), cols.size(0), indptr, cols, weight, x, out);
  return out;
}
Tensor dots(Tensor left, Tensor right, Tensor rows, Tensor cols) {
  Tensor out = torch::zeros({rows.size(0)}, left.options());
  sddmm_coo_cuda(cols, rows, left, right, out);
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("sum", &geot_sum);
  m.def("product", &product);
  m.def("csr_product", &csr_product);
  m.def("dots", &dots);
}
"""

GEOT_PRODUCTS = {"GeoT": "product", "GeoT CSR": "csr_product"}
"""Over sorted ids of 64 bits, and over row pointers."""


def geot_sum(checkout: Path, num_rows: int) -> Function:
    """Called with rows and sorted ids of 64 bits."""
    module = _extension("geot", _GEOT, checkout / "csrc")

    def run(x: Any, ids: Any) -> tuple[Any]:
        _refuse_capture()
        return (module.sum(x, ids, num_rows),)

    return run


def geot_product(checkout: Path, kernel: str, num_rows: int) -> Function:
    """A weighted sum, or it and its gradients, by a kernel of `GEOT_PRODUCTS`.

    It is called with features, weights, columns and ids or row pointers; for gradients also with
    the cotangent, the transposed matrix's weights, columns and ids or row pointers, and the rows
    and columns of the edges.
    """
    module = _extension("geot", _GEOT, checkout / "csrc")
    sizes = (num_rows,) if kernel == "product" else ()
    product = getattr(module, kernel)

    def run(x: Any, weight: Any, cols: Any, rows: Any, *rest: Any) -> tuple[Any, ...]:
        _refuse_capture()
        y = product(x, weight, cols, rows, *sizes)
        if not rest:
            return (y,)
        cotangent, *transposed, rows, cols = rest
        to_weight = module.dots(cotangent, x, rows, cols)
        return y, product(cotangent, *transposed, *sizes), to_weight

    return run


# pyg-lib: sums of rows by sorted ids, and CUTLASS's grouped products. These are what PyG calls
# where pyg-lib is installed; its package is not needed, but CUTLASS is.

_PYG_LIB = {
    "sum": """
#include "pyg_lib/csrc/ops/cuda/segment_coo_kernel.cu"
using torch::Tensor;
Tensor run(Tensor x, Tensor ids, int64_t rows) {
  return pyg::ops::segment_sum_coo_kernel(x, ids, std::nullopt, rows);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
""",
    "matmul": """
#include "pyg_lib/csrc/ops/cuda/matmul_kernel.cu"
#include "pyg_lib/csrc/utils/convert.cpp"
using torch::Tensor;
Tensor run(Tensor x, Tensor indptr, Tensor weights) {
  return pyg::ops::segment_matmul_kernel(x, indptr, weights);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
""",
}


@cache
def pyg_lib(checkout: Path, kernel: str) -> Callable[..., Any]:
    """A function of pyg-lib, with ids and row pointers of 64 bits.

    "sum" is called with rows, sorted ids and the number of segments; "matmul" with rows, row
    pointers and weights.

    CUTLASS's headers are looked for in ``cutlass`` beside the checkout.
    """
    cutlass = checkout.parent / "cutlass"
    headers = f"-I{cutlass / 'include'}", f"-I{cutlass / 'tools' / 'util' / 'include'}"
    flags = ("-std=c++20", *(headers if kernel == "matmul" else ()))
    run = _extension(f"pyg_lib_{kernel}", _PYG_LIB[kernel], checkout, flags).run
    return cast(Callable[..., Any], run)


# HyperGef: both sums of a hypergraph in one kernel.

# Their function gives the kernel that adds two groups up in shared memory none of it.
_HYPERGEF = """
#include "source/hgnnaggr/hgnnaggr_cuda.cu"
using torch::Tensor;
Tensor aggregate(
    bool adds_pairs, Tensor x, Tensor node_scale, Tensor edge_scale, Tensor edge_weight,
    Tensor nodes, Tensor key, Tensor row, Tensor start, Tensor end) {
  int width = x.size(1), groups = row.size(0);
  Tensor out = torch::zeros({node_scale.size(0), width}, x.options());
  auto kernel = adds_pairs ? HGNNAggr_forward_kernel_shm<int, float, 2, 32>
                           : HGNNAggr_forward_kernel<int, float, 2, 32>;
  int shared = adds_pairs ? 2 * width * sizeof(float) : 0;
  kernel<<<dim3(CEIL(groups, 2), CEIL(width, 32)), dim3(32, 2), shared>>>(
      groups, width, key.data_ptr<int>(), row.data_ptr<int>(), start.data_ptr<int>(),
      end.data_ptr<int>(), nodes.data_ptr<int>(), edge_scale.data_ptr<float>(),
      node_scale.data_ptr<float>(), edge_weight.data_ptr<float>(), x.data_ptr<float>(),
      out.data_ptr<float>());
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("aggregate", &aggregate); }
"""

HYPERGEF_WIDTH = 32
"""Widths must be multiples of it, or their kernels for wide rows write beyond them."""

# Sizes of partitions that their table of data sets has, and the most pairs of partitions of a
# hyperedge, each of which a warp works on.
_PARTITIONS = 6, 10, 20, 40, 80, 210, 300, 400
_MOST_PAIRS = 1 << 22


class HyperGef:
    """A hypergraph's aggregation, or it and its gradient, tuned at the first call.

    It is called with features, scales of nodes and of hyperedges, ones (hyperedges,), the nodes of
    all hyperedges, and perhaps the cotangent.
    """

    def __init__(self, checkout: Path, indptr: np.ndarray) -> None:
        folder = checkout / "HyperGsys"
        self._aggregate = _extension("hypergef", _HYPERGEF, folder).aggregate
        self._indptr = indptr
        self._best: tuple[Any, ...] | None = None

    def __call__(self, x: Any, *rest: Any) -> tuple[Any, ...]:
        """The result and, if there is a cotangent, its gradient; input scales are multiplied."""
        _refuse_capture()
        scale, edge_scale, ones, nodes, *cotangent = rest

        def run(option: tuple[Any, ...]) -> tuple[Any, ...]:
            adds_pairs, *groups = option
            return tuple(
                self._aggregate(
                    adds_pairs, each * scale[:, None], scale, edge_scale, ones, nodes, *groups
                )
                for each in (x, *cotangent)
            )

        if self._best is None:
            self._best = _fastest(self._options(), run)
        return run(self._best)

    def _options(self) -> Iterable[tuple[Any, ...]]:
        import torch

        for size in _PARTITIONS:
            parts = -(-np.diff(self._indptr) // size)
            if (parts.astype(np.int64) ** 2).sum() <= _MOST_PAIRS:
                groups = [torch.tensor(ids) for ids in _pairs(self._indptr, parts, size)]
                yield from ((adds_pairs, *groups) for adds_pairs in (False, True))


def _pairs(indptr: np.ndarray, parts: np.ndarray, size: int) -> list[np.ndarray]:
    """Where partitions begin; of each pair its hyperedge, what it reads and where it writes."""
    first = np.cumsum(parts) - parts  # partition of a hyperedge
    of_part = np.repeat(np.arange(len(parts)), parts)
    begins = indptr[of_part] + (np.arange(len(of_part)) - first[of_part]) * size
    reads = parts[of_part]  # how many of the hyperedge's partitions
    written = np.repeat(np.arange(len(of_part)), reads)
    row = of_part[written]
    within = np.arange(len(row)) - (np.cumsum(reads) - reads)[written]
    found = np.append(begins, indptr[-1]), row, first[row] + within, written
    return [ids.astype(np.int32) for ids in found]


# FASTEN: segmented products by Triton.

# Rows of a tile, and tiles of a block: the first is what their own tuner tries its kernels on.
_FASTEN_TILES = {
    "fwd": ((64, 1), (32, 1), (32, 4), (128, 1), (64, 2)),
    "dX": ((64, 1), (32, 1), (32, 4), (128, 1), (64, 2)),
    "dW": ((64, 4), (32, 16), (64, 16), (128, 8), (128, 16)),
}
_FASTEN_FUNCTIONS = {
    "fwd": "segment_matmul_forward",
    "dX": "segment_matmul_backward_input",
    "dW": "segment_matmul_backward_other",
}


@cache
def _fasten_configs(kernel: Any) -> list[Any]:
    """What the kernel's own tuner tries."""
    return list(kernel.configs)


class Fasten:
    """A product of rows by group in a mode of `_FASTEN_TILES`, tuned at the first call.

    Their tuner chooses a kernel for the first tiles; then the tiles are chosen with which it is
    fastest, for ``dW`` also whether sums are added by atomics. Tiles lie on the device beforehand.
    It is called with the factors of the mode.

    Args:
        checkout: Their repository.
        sizes: Rows of each group.
        deterministic: Of ``dW``, which ways to add sums are tried.
    """

    def __init__(
        self,
        checkout: Path,
        mode: str,
        sizes: np.ndarray,
        deterministic: tuple[bool, ...] = (False, True),
    ) -> None:
        self._deterministic = deterministic if mode == "dW" else (False,)
        if str(checkout) not in sys.path:
            sys.path.append(str(checkout))
        self._mode, self._sizes = mode, sizes
        self._chosen: tuple[Any, dict[str, Any]] | None = None

    def __call__(self, lhs: Any, rhs: Any) -> tuple[Any, ...]:
        """The product."""
        from fasten.operators.triton_ops import segment_matmul as kernels

        is_outer = self._mode == "dW"
        kernel = kernels.split_matmul_kernel if is_outer else kernels.segment_matmul_kernel
        product = getattr(kernels, _FASTEN_FUNCTIONS[self._mode])
        if self._mode == "fwd":
            product = partial(product, lhs, rhs)
        elif self._mode == "dX":  # what is looked at for a shape comes first
            product = partial(product, lhs, lhs, rhs)
        else:  # and last
            shape = len(self._sizes), lhs.shape[1], rhs.shape[1]
            product = partial(product, lhs, rhs, lhs.new_empty(1).expand(shape).contiguous())
        if self._chosen is None:
            self._chosen = self._tuned(kernel, product)
        config, options = self._chosen
        kernel.configs = [config]
        return (product(**options),)

    def _tuned(self, kernel: Any, product: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
        from triton.runtime.errors import OutOfResources

        tiles = [self._tiles(*sizes) for sizes in _FASTEN_TILES[self._mode]]
        kernel.configs = _fasten_configs(kernel)
        kernel.cache.clear()  # which takes fwd and dX for one
        product(**tiles[0])
        config = kernel.best_config
        kernel.configs = [config]

        def options(choice: tuple[int, bool]) -> dict[str, Any]:
            return {**tiles[choice[0]], "deterministic": choice[1]}

        choices = itertools.product(range(len(tiles)), self._deterministic)
        refused = RuntimeError, OutOfResources
        best = _fastest(choices, lambda choice: product(**options(choice)), refused)
        return config, options(best)

    def _tiles(self, rows: int, block: int) -> dict[str, Any]:
        from fasten import TensorSlice, TilingMethod

        ends = np.cumsum(self._sizes)
        found = np.flatnonzero(self._sizes)
        begins = ends - self._sizes
        slices = [[i, int(g), int(begins[g]), int(ends[g]), -1] for i, g in enumerate(found)]
        whole = TensorSlice(None, slices, "cuda")
        method = TilingMethod.DEFAULT if self._mode == "dW" else TilingMethod.BALANCED
        tiles = whole.tiling(rows, block, method)
        return {
            "tile_size": rows,
            "block_size": block,
            "input_slices": whole.slices,
            "input_tiles": tiles.slices,
            "num_blocks": tiles.num_blocks,
            "slice_tile_mapping": tiles.slice_tile_mapping,
            "avg_tile_size": tiles.avg_tile_size,
            "stddev_tile_size": tiles.stddev_tile_size,
        }
