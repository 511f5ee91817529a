// The Python module jax_gnn._cuda: CUDA handlers. It imports without a GPU or a driver.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "../host/shared_memory.h"
#include "../kernels/cuda/attention.h"
#include "../kernels/cuda/attention_gradients.h"
#include "../kernels/cuda/edge_region.h"
#include "../kernels/cuda/hypergraph_aggregate.h"
#include "../kernels/cuda/relation_pairs.h"
#include "../kernels/cuda/sample_block.h"
#include "../kernels/cuda/sddmm.h"
#include "../kernels/cuda/segment_matmul.h"
#include "../kernels/cuda/segment_order.h"
#include "../kernels/cuda/segment_reduce.h"
#include "../kernels/cuda/segment_softmax.h"
#include "attention.h"
#include "edge_region_text.h"
#include "hypergraph_aggregate.h"
#include "module.h"
#include "relation_pairs.h"
#include "sample_block.h"
#include "sddmm.h"
#include "segment_matmul.h"
#include "segment_reduce.h"
#include "segment_softmax.h"
#ifdef JAX_GNN_EMULATED
#include "../emulator/ffi.h"
#endif

namespace xla::ffi {

template <>
struct CtxBinding<cudaStream_t> {
  using Ctx = PlatformStream<cudaStream_t>;
};

}  // namespace xla::ffi

namespace jax_gnn {
namespace {

struct Cuda {
  using Context = cudaStream_t;
  using Half = __half;
  using BFloat16 = __nv_bfloat16;

  // Slots: ids, and places.
  static bool is_stage(const Buffer& ids, const Buffer& places, int64_t) {
    const auto dims = ids.dimensions();
    return ids.element_type() == ffi::S32 && dims.size() == 2 && dims[0] >= 1 &&
           dims[1] == kSlotSize && has_shape(places, {dims[0], 2});
  }
  template <typename Index>
  static EdgeSplit stage(const Buffer& ids, const Buffer& places, int64_t num_rows,
                         int64_t num_cols) {
    return {data<const int32_t>(ids), data<const int32_t>(places), ids.dimensions()[0], num_rows,
            num_cols};
  }

  // Launchers that take the handlers' arguments as they are.
#define JAX_GNN_LAUNCHER(op)                                  \
  template <typename... Args>                                 \
  static ffi::Error op(Context stream, const Args&... args) { \
    return status(cuda::op(stream, args...));                 \
  }
  JAX_GNN_LAUNCHER(attention_gradients)
  JAX_GNN_LAUNCHER(keyed_attention_gradients)
  JAX_GNN_LAUNCHER(leaky_scores)
  JAX_GNN_LAUNCHER(relation_pairs)
  JAX_GNN_LAUNCHER(sample_distinct)
  JAX_GNN_LAUNCHER(sample_uniform)
  JAX_GNN_LAUNCHER(sddmm)
  JAX_GNN_LAUNCHER(segment_order)
#undef JAX_GNN_LAUNCHER

  // Launchers with a choice of kernels.
#define JAX_GNN_LAUNCHER(op)                                                         \
  template <typename... Args>                                                        \
  static ffi::Error op(Context stream, std::string_view kernel, Workspace workspace, \
                       const Args&... args) {                                        \
    return status(cuda::op(stream, kernel_of(kernel), args..., workspace), kernel);  \
  }
  JAX_GNN_LAUNCHER(attention)
  JAX_GNN_LAUNCHER(keyed_attention)
  JAX_GNN_LAUNCHER(leaky_sum)
  JAX_GNN_LAUNCHER(typed_attention)
#undef JAX_GNN_LAUNCHER

  static constexpr bool kHasOnePass = true;
  template <typename Acc, typename T, typename Attained, typename Attention, typename... Args>
  static ffi::Error attention_vjp(Context stream, const AttentionVjpAttributes& attributes,
                                  Workspace workspace, Acc* scratch, const Csr<int32_t>& csr,
                                  const T* value, const Attained& attained,
                                  const Attention& attention, Features features,
                                  const Args&... args) {
    if (!attributes.by_passes)
      return status(cuda::attention_vjp(stream, csr, value, attained, attention, features, args...,
                                        workspace));
    const cuda::Schedule schedule = schedule_of(attributes, workspace);
    if (!serves_both<T>(schedule, attributes.one_pass, csr, features)) return refusal(attributes);
    return status(cuda::attention_vjp(stream, schedule, attributes.one_pass, csr, value, attained,
                                      attention, features, args..., scratch, workspace.bytes));
  }

  template <typename... Args>
  static ffi::Error keyed_attention_vjp(Context stream, Workspace workspace, const Args&... args) {
    return status(cuda::keyed_attention_vjp(stream, args..., workspace));
  }

  template <typename... Args>
  static ffi::Error typed_attention_vjp(Context stream, Workspace workspace, const Args&... args) {
    return status(cuda::typed_attention_vjp(stream, args..., workspace));
  }

  template <typename... Args>
  static ffi::Error hypergraph_aggregate(Context stream, const AggregateAttributes& attributes,
                                         const Args&... args) {
    return status(
        cuda::hypergraph_aggregate(stream, static_cast<int>(attributes.threads), args...));
  }

  static constexpr size_t kMaxRegionArrays = cuda::kMaxRegionArrays;
  static ffi::Error load_region(const RegionAttributes& attributes) {
    return status(cuda::load_region(text_of(attributes)));
  }
  static ffi::Error edge_region(Context stream, const RegionAttributes& attributes,
                                Workspace workspace, const Csr<int32_t>& csr, void* const* in,
                                void* const* out) {
    const cuda::Schedule schedule = {cuda::Kernel::kWalk, static_cast<int>(attributes.lanes),
                                     static_cast<int>(attributes.threads), workspace.blocks};
    return status(
        cuda::edge_region(stream, schedule, csr, text_of(attributes), in, out, workspace.bytes));
  }

  template <typename T, typename Acc>
  static ffi::Error segment_reduce(Context stream, const ReduceAttributes& attributes,
                                   Workspace workspace, const Csr<int32_t>& csr, Reduce reduce,
                                   const Input<T>& in, const Acc* weight, Features features,
                                   const Epilogue<T, Acc>& epilogue, T* out) {
    const bool sums = !std::is_integral_v<T> && (reduce == Reduce::kSum || reduce == Reduce::kMean);
    const cuda::Schedule schedule = schedule_of(attributes, workspace);
    if (!cuda::serves(schedule, csr, features, sums)) return refusal(attributes);
    return status(cuda::segment_reduce(stream, schedule, csr, reduce, in, weight, features,
                                       epilogue, out, workspace.bytes));
  }

  template <typename T, typename Acc>
  static ffi::Error segment_reduce_vjp(Context stream, const ReduceVjpAttributes& attributes,
                                       Workspace workspace, const Csr<int32_t>& csr, const T* in,
                                       const Acc* weight, const T* left, Features features, T* out,
                                       Acc* dots) {
    const cuda::Schedule schedule = schedule_of(attributes, workspace);
    if (!serves_both<T>(schedule, attributes.one_pass, csr, features)) return refusal(attributes);
    return status(cuda::segment_reduce_vjp(stream, schedule, attributes.one_pass, csr, in, weight,
                                           left, features, out, dots, workspace.bytes));
  }

  static int64_t segment_order_scratch(int64_t count) { return cuda::segment_order_scratch(count); }

  template <typename T, typename Acc>
  static ffi::Error segment_select(Context stream, const SelectAttributes& attributes,
                                   Workspace workspace, const Csr<int32_t>& csr,
                                   const Select<T, Acc>& select, Features features, T* out) {
    const cuda::Schedule schedule = schedule_of(attributes, workspace);
    if (!cuda::serves(schedule, csr, features, /*sums=*/false)) return refusal(attributes);
    return status(
        cuda::segment_select(stream, schedule, csr, select, features, out, workspace.bytes));
  }

  static int64_t relation_pairs_scratch(int64_t num_edges, int64_t num_relations,
                                        int64_t num_pairs) {
    return cuda::relation_pairs_scratch(num_edges, num_relations, num_pairs);
  }
  template <typename Index>
  static ffi::Error sample_block(Context stream, bool tree, const Drawn<Index>& drawn,
                                 const Block<Index>& block, bool* overflow) {
    if (!tree) return invalid("there is no kernel for nodes that are one source");
    return status(cuda::sample_tree(stream, drawn, block, overflow));
  }

  static int64_t distinct_scratch(int64_t num_dst, int64_t num_edges, int64_t num_src) {
    return cuda::distinct_scratch(num_dst, num_edges, num_src);
  }
  template <typename T, typename Acc, typename... Args>
  static ffi::Error segment_softmax(Context stream, Workspace workspace, const Args&... args) {
    return status(
        cuda::segment_softmax<T, Acc>(stream, args..., workspace.bytes, workspace.blocks));
  }

  template <typename T, typename Acc, typename... Args>
  static ffi::Error segment_softmax_tangent(Context stream, Workspace workspace,
                                            const Args&... args) {
    return status(
        cuda::segment_softmax_tangent<T, Acc>(stream, args..., workspace.bytes, workspace.blocks));
  }

  template <typename T, typename Acc, typename Out>
  static ffi::Error segment_matmul(Context stream, const MatmulAttributes& attributes,
                                   const Groups& groups, int64_t k, int64_t n, bool transposed,
                                   Activation activation, const T* lhs, const T* rhs, const T* bias,
                                   const Out* residual, const RowLists<Acc>& lists, Out* out) {
    const bool single = attributes.kernel == "single";
    if (single && !cuda::can_be_single<T, Out>(k, groups))
      return invalid("the kernel \"single\" cannot do this product");
    return status(cuda::segment_matmul(
        stream, {single, attributes.tile, attributes.chunk, attributes.blocks}, groups, k, n,
        transposed, attributes.exact, activation, lhs, rhs, bias, residual, lists, out));
  }

  template <typename T, typename Acc, typename Out>
  static ffi::Error segment_outer(Context stream, const OuterAttributes& attributes,
                                  Buffer workspace, const Groups& groups, int64_t k, int64_t n,
                                  const T* lhs, const T* rhs, const FactorLists<Acc>& lists,
                                  Out* out) {
    const int64_t blocks = std::max<int64_t>(attributes.blocks, 1);
    if (static_cast<int64_t>(workspace.size_bytes()) <
        cuda::outer_workspace_bytes(blocks, k, n, sizeof(Acc)))
      return invalid("the workspace is too small");
    return status(cuda::segment_outer(stream, {false, 0, attributes.chunk, blocks}, groups, k, n,
                                      attributes.exact, attributes.deterministic, lhs, rhs, lists,
                                      out, workspace.untyped_data()));
  }

 private:
  static cuda::Kernel kernel_of(std::string_view name) {
    return name == "step"     ? cuda::Kernel::kStep
           : name == "gather" ? cuda::Kernel::kGather
                              : cuda::Kernel::kWalk;
  }

  static cuda::RegionText text_of(const RegionAttributes& attributes) {
    return {attributes.code,  attributes.digest,    attributes.name,
            attributes.slots, attributes.vec,       attributes.unroll,
            attributes.parts, attributes.acc_bytes, attributes.shared};
  }

  template <typename Attributes>
  static cuda::Schedule schedule_of(const Attributes& attributes, Workspace workspace) {
    return {kernel_of(attributes.kernel), static_cast<int>(attributes.lanes),
            static_cast<int>(attributes.threads), workspace.blocks};
  }

  // Whether a schedule's kernel can take both gradients of a weighted sum, in one pass or in two.
  template <typename T>
  static bool serves_both(const cuda::Schedule& schedule, bool one_pass, const Csr<int32_t>& csr,
                          Features features) {
    return one_pass ? cuda::serves_with_dots<T>(schedule, csr, features)
                    : cuda::serves(schedule, csr, features, /*sums=*/true);
  }

  template <typename Attributes>
  static ffi::Error refusal(const Attributes& attributes) {
    return invalid("the kernel \"" + std::string(attributes.kernel) + "\" of " +
                   std::to_string(attributes.lanes) + " lanes and " +
                   std::to_string(attributes.threads) + " threads cannot do this call");
  }

  // The status of a launch that may refuse a call which its kernel cannot do.
  static ffi::Error status(cudaError_t error, std::string_view kernel) {
    if (error == cudaErrorInvalidConfiguration && kernel != "walk")
      return invalid("the kernel \"" + std::string(kernel) + "\" cannot do this call");
    return status(error);
  }

  static ffi::Error status(cudaError_t error) {
    if (error == cudaSuccess) return ffi::Error::Success();
    return ffi::Error(ffi::ErrorCode::kInternal,
                      std::string("jax_gnn: CUDA error: ") + cudaGetErrorString(error));
  }
};

// Edge regions have two stages. Their operands are as many as a text has.
XLA_FFI_Error* load_walk_handler(XLA_FFI_CallFrame* frame) {
  static const auto* const bound = ffi::Ffi::BindInitialize()
                                       .RemainingArgs()
                                       .RemainingRets()
                                       .Attrs<RegionAttributes>()
                                       .To(load_region<Cuda>)
                                       .release();
  return bound->Call(frame);
}
XLA_FFI_Error* edge_walk_handler(XLA_FFI_CallFrame* frame) {
  static const auto* const bound = ffi::Ffi::BindExecute()
                                       .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                       .RemainingArgs()
                                       .RemainingRets()
                                       .Attrs<RegionAttributes>()
                                       .To(edge_region<Cuda>, {ffi::Traits::kCmdBufferCompatible})
                                       .release();
  return bound->Call(frame);
}

}  // namespace

// clang-format off
#define JAX_GNN_TARGETS(X) \
  X(attention) \
  X(attention_vjp) \
  X(hypergraph_aggregate) \
  X(leaky_scores) \
  X(leaky_sum) \
  X(relation_pairs) \
  X(sample_block) \
  X(sample_distinct) \
  X(sample_uniform) \
  X(sddmm) \
  X(sddmm_select) \
  X(segment_matmul) \
  X(segment_order) \
  X(segment_outer) \
  X(segment_reduce) \
  X(segment_reduce_vjp) \
  X(segment_select) \
  X(segment_softmax) \
  X(segment_softmax_tangent)
// clang-format on
// Handlers only launch on the given stream, so XLA may record them into command buffers.
#define JAX_GNN_HANDLER(op) JAX_GNN_SYMBOL(op, handler<op<Cuda>, ffi::Traits::kCmdBufferCompatible>)
JAX_GNN_TARGETS(JAX_GNN_HANDLER)
JAX_GNN_SYMBOL(edge_walk_initialize, load_walk_handler)
JAX_GNN_SYMBOL(edge_walk_execute, edge_walk_handler)

#ifdef JAX_GNN_EMULATED
NB_MODULE(_cuda_emulated, m) {
#else
NB_MODULE(_cuda, m) {
  m.attr("compiler") = JAX_GNN_CUDA_COMPILER;
  m.attr("architectures") = JAX_GNN_CUDA_ARCHITECTURES;
#endif
  m.attr("ffi_version") = ffi_version();
  host::define_shared_memory(m);
  m.def("targets", [] {
    nanobind::dict all = targets({JAX_GNN_TARGETS(JAX_GNN_TARGET)});
    all["edge_walk"] = targets(
        {{"initialize", jax_gnn_edge_walk_initialize}, {"execute", jax_gnn_edge_walk_execute}});
    return all;
  });
}

}  // namespace jax_gnn
