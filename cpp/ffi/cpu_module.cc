// The Python module jax_gnn._cpu: CPU handlers, functions of the host (../host), and attributes of
// the build.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "../host/functions.h"
#include "../kernels/cpu/attention.h"
#include "../kernels/cpu/gather_rows.h"
#include "../kernels/cpu/half.h"
#include "../kernels/cpu/hypergraph_aggregate.h"
#include "../kernels/cpu/sample_block.h"
#include "../kernels/cpu/sddmm.h"
#include "../kernels/cpu/segment_matmul.h"
#include "../kernels/cpu/segment_order.h"
#include "../kernels/cpu/segment_reduce.h"
#include "../kernels/cpu/segment_softmax.h"
#include "attention.h"
#include "hypergraph_aggregate.h"
#include "module.h"
#include "sample_block.h"
#include "sddmm.h"
#include "segment_matmul.h"
#include "segment_reduce.h"
#include "segment_softmax.h"

namespace xla::ffi {

template <>
struct CtxBinding<ThreadPool> {
  using Ctx = ThreadPool;
};

}  // namespace xla::ffi

namespace jax_gnn {
namespace {

// The calling thread takes tasks like every helper does, so the loop ends even if no helper ever
// starts; it then waits only for tasks that are running. Nothing blocks on work that is merely
// scheduled.
void run_parallel(ffi::ThreadPool& pool, int64_t count, const std::function<void(int64_t)>& task) {
  struct State {
    std::atomic<int64_t> next{0}, num_done{0};
  };
  auto state = std::make_shared<State>();
  // `task` lives until all `count` tasks are done: whoever draws a number below count may use it.
  const auto work = [state, count, &task] {
    for (int64_t i; (i = state->next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      task(i);
      state->num_done.fetch_add(1, std::memory_order_release);
    }
  };
  const int64_t helpers = std::min(count, pool.num_threads()) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([work] { work(); });
  work();
  while (state->num_done.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

struct Cpu {
  using Context = ffi::ThreadPool;
  using Half = cpu::Half;
  using BFloat16 = cpu::BFloat16;

  // Compressed rows: indptr, and ids.
  static bool is_stage(const Buffer& indptr, const Buffer& ids, int64_t num_rows) {
    return has_shape(indptr, {num_rows + 1}) && ids.dimensions().size() == 1;
  }
  template <typename Index>
  static RowPointers<Index> stage(const Buffer& indptr, const Buffer& ids, int64_t num_rows,
                                  int64_t num_cols) {
    return {data<const Index>(indptr), data<const Index>(ids), num_rows, num_cols,
            static_cast<int64_t>(ids.element_count())};
  }

  // Kernels that take the handlers' arguments as they are.
#define JAX_GNN_KERNEL(op)                                   \
  template <typename... Args>                                \
  static ffi::Error op(Context& pool, const Args&... args) { \
    cpu::op(parallel_for(pool), args...);                    \
    return ffi::Error::Success();                            \
  }
  JAX_GNN_KERNEL(gather_rows)
  JAX_GNN_KERNEL(leaky_scores)
  JAX_GNN_KERNEL(sample_uniform)
  JAX_GNN_KERNEL(sample_weighted)
  JAX_GNN_KERNEL(sddmm)
#undef JAX_GNN_KERNEL

  // Schedules and workspaces are for GPUs.
  template <class Aggregation>
  static ffi::Error hypergraph_aggregate(Context& pool, const AggregateAttributes&, Workspace,
                                         Workspace, const Aggregation& aggregation) {
    cpu::hypergraph_aggregate(parallel_for(pool), aggregation);
    return ffi::Error::Success();
  }

  template <typename T, typename... Args>
  static ffi::Error segment_reduce(Context& pool, const ReduceAttributes&, Workspace,
                                   const Csr<int32_t>& csr, Reduce reduce, const Input<T>& in,
                                   const Args&... args) {
    if (in.halo != nullptr) return invalid("kernels of CPUs take no halo");
    cpu::segment_reduce(parallel_for(pool), csr, reduce, in.rows, args...);
    return ffi::Error::Success();
  }

  template <typename Attributes, typename... Args>
  static ffi::Error segment_select(Context& pool, const Attributes&, Workspace,
                                   const Args&... args) {
    cpu::segment_select(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  template <typename... Args>
  static ffi::Error segment_scatter(Context& pool, const Args&... args) {
    cpu::segment_scatter(parallel_for(pool), pool.num_threads(), args...);
    return ffi::Error::Success();
  }

  static int64_t segment_order_scratch(int64_t /*count*/) { return 0; }
  template <typename Index>
  static ffi::Error segment_order(Context& /*pool*/, const Index* ids, int64_t count,
                                  int64_t num_segments, Index* order, Index* /*scratch*/) {
    cpu::segment_order(ids, count, num_segments, order);
    return ffi::Error::Success();
  }

  template <typename Index>
  using Weighted = cpu::Weighted<Index>;

  template <typename Index>
  static ffi::Error sample_block(Context& pool, bool tree, const Drawn<Index>& drawn,
                                 const Block<Index>& block, bool* overflow) {
    *overflow = cpu::sample_block(parallel_for(pool), tree, drawn, block);
    return ffi::Error::Success();
  }

  template <typename T, typename Acc, typename... Args>
  static ffi::Error segment_softmax(Context& pool, Workspace, const Args&... args) {
    cpu::segment_softmax<T, Acc>(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  template <typename T, typename Acc, typename... Args>
  static ffi::Error segment_softmax_tangent(Context& pool, Workspace, const Args&... args) {
    cpu::segment_softmax_tangent<T, Acc>(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  template <typename... Args>
  static ffi::Error attention(Context& pool, std::string_view, Workspace, const Args&... args) {
    cpu::attention(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  static constexpr bool kHasOnePass = false;  // of numbers of edges
  template <typename Attributes, typename... Args>
  static ffi::Error attention_vjp(Context& pool, const Attributes&, Workspace, const void*,
                                  const Args&... args) {
    cpu::attention_vjp(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  // Serves dot products whose keys are not the values; other scores are compositions on CPUs.
  template <typename T, typename Acc>
  static ffi::Error keyed_attention_vjp(Context& pool, Workspace, const Csr<int32_t>& csr,
                                        const T* value, const Attained<T, Acc>& attained,
                                        const Keys<T, Acc>& keys, const Acc* edge_scale,
                                        Features features, T* out, T* to_key, Acc* to_score,
                                        Acc* to_vector, AttentionRecord<Acc>* records, Acc*) {
    if (to_vector != nullptr || to_key == nullptr)
      return invalid("there is a kernel of dot products of keys apart alone");
    cpu::keyed_attention_vjp(parallel_for(pool), csr, value, attained, keys, edge_scale, features,
                             out, to_key, to_score, records);
    return ffi::Error::Success();
  }

  // Compositions, which have no kernels.
#define JAX_GNN_NO_KERNEL(op, what)                            \
  template <typename... Args>                                  \
  static ffi::Error op(const Args&...) {                       \
    return invalid("there is no kernel of " what " on a CPU"); \
  }
  JAX_GNN_NO_KERNEL(keyed_attention, "such scores")
  JAX_GNN_NO_KERNEL(typed_attention, "such scores")
  JAX_GNN_NO_KERNEL(typed_attention_vjp, "such scores")
  JAX_GNN_NO_KERNEL(keyed_attention_gradients, "all gradients")
  JAX_GNN_NO_KERNEL(attention_gradients, "all gradients")
#undef JAX_GNN_NO_KERNEL

  template <typename... Args>
  static ffi::Error leaky_sum(Context& pool, std::string_view, Workspace, const Args&... args) {
    cpu::leaky_sum(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  // Float products are in full precision, and sums have one order.
  template <typename... Args>
  static ffi::Error segment_matmul(Context& pool, const MatmulAttributes&, const Args&... args) {
    cpu::segment_matmul(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  template <typename... Args>
  static ffi::Error segment_outer(Context& pool, const OuterAttributes&, Buffer,
                                  const Args&... args) {
    cpu::segment_outer(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

 private:
  static cpu::ParallelFor parallel_for(Context& pool) {
    return [&pool](int64_t count, const std::function<void(int64_t)>& task) {
      run_parallel(pool, count, task);
    };
  }
};

}  // namespace

// clang-format off
#define JAX_GNN_TARGETS(X) \
  X(attention) \
  X(attention_vjp) \
  X(gather_rows) \
  X(hypergraph_aggregate) \
  X(leaky_scores) \
  X(leaky_sum) \
  X(sample_block) \
  X(sample_uniform) \
  X(sample_weighted) \
  X(sddmm) \
  X(sddmm_select) \
  X(segment_matmul) \
  X(segment_order) \
  X(segment_outer) \
  X(segment_reduce) \
  X(segment_scatter) \
  X(segment_select) \
  X(segment_softmax) \
  X(segment_softmax_tangent)
// clang-format on
#define JAX_GNN_HANDLER(op) JAX_GNN_SYMBOL(op, handler<op<Cpu>>)
JAX_GNN_TARGETS(JAX_GNN_HANDLER)

NB_MODULE(_cpu, m) {
  host::define_instruction_sets(m);
  host::define_partition(m);
  host::define_sampling(m);
  host::define_sorting(m);
  m.def("targets", [] { return targets({JAX_GNN_TARGETS(JAX_GNN_TARGET)}); });
  m.attr("ffi_version") = ffi_version();
  m.attr("compiler") = JAX_GNN_COMPILER;
  m.attr("cuda_build") = JAX_GNN_CUDA_BUILD;  // "" if _cuda was built too, else why it was not
}

}  // namespace jax_gnn
