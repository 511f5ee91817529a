// The Python module jax_gnn._cpu: CPU handlers, what builds containers on the host, and what is
// known about the build.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "../kernels/cpu/attention.h"
#include "../kernels/cpu/edge_split.h"
#include "../kernels/cpu/gather_rows.h"
#include "../kernels/cpu/half.h"
#include "../kernels/cpu/host_threads.h"
#include "../kernels/cpu/hypergraph_aggregate.h"
#include "../kernels/cpu/instruction_set.h"
#include "../kernels/cpu/partition.h"
#include "../kernels/cpu/sample_block.h"
#include "../kernels/cpu/sddmm.h"
#include "../kernels/cpu/segment_matmul.h"
#include "../kernels/cpu/segment_order.h"
#include "../kernels/cpu/segment_reduce.h"
#include "../kernels/cpu/segment_softmax.h"
#include "../kernels/cpu/sort_triples.h"
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
    std::atomic<int64_t> next{0}, done{0};
  };
  auto state = std::make_shared<State>();
  // `task` lives until all `count` tasks are done: whoever draws a number below count may use it.
  const auto work = [state, count, &task] {
    for (int64_t i; (i = state->next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      task(i);
      state->done.fetch_add(1, std::memory_order_release);
    }
  };
  const int64_t helpers = std::min(count, pool.num_threads()) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([work] { work(); });
  work();
  while (state->done.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

struct Cpu {
  using Context = ffi::ThreadPool;
  using Half = cpu::Half;
  using BFloat16 = cpu::BFloat16;

  // Compressed rows: indptr, and ids.
  static bool is_stage(const ffi::AnyBuffer& indptr, const ffi::AnyBuffer& ids, int64_t num_rows) {
    return has_shape(indptr, {num_rows + 1}) && ids.dimensions().size() == 1;
  }
  template <typename Index>
  static RowPointers<Index> stage(const ffi::AnyBuffer& indptr, const ffi::AnyBuffer& ids,
                                  int64_t num_rows, int64_t num_cols) {
    return {data<const Index>(indptr), data<const Index>(ids), num_rows, num_cols,
            static_cast<int64_t>(ids.element_count())};
  }

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

  template <typename... Args>
  static ffi::Error gather_rows(Context& pool, const Args&... args) {
    cpu::gather_rows(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  static int64_t segment_order_scratch(int64_t /*count*/) { return 0; }
  template <typename Index>
  static ffi::Error segment_order(Context& /*pool*/, const Index* ids, int64_t count,
                                  int64_t num_segments, Index* order, Index* /*scratch*/) {
    cpu::segment_order(ids, count, num_segments, order);
    return ffi::Error::Success();
  }

  template <typename... Args>
  static ffi::Error sample_uniform(Context& pool, const Args&... args) {
    cpu::sample_uniform(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  template <typename Index>
  using Weighted = cpu::Weighted<Index>;
  template <typename... Args>
  static ffi::Error sample_weighted(Context& pool, const Args&... args) {
    cpu::sample_weighted(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

  template <typename Index>
  static ffi::Error sample_block(Context& pool, bool tree, const Drawn<Index>& drawn,
                                 const Block<Index>& block, bool* overflow) {
    *overflow = cpu::sample_block(parallel_for(pool), tree, drawn, block);
    return ffi::Error::Success();
  }

  template <typename... Args>
  static ffi::Error sddmm(Context& pool, const Args&... args) {
    cpu::sddmm(parallel_for(pool), args...);
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

  // Of dot products and keys that are not the values: else it is a composition here.
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

  // Compositions here.
  template <typename... Args>
  static ffi::Error keyed_attention(const Args&...) {
    return invalid("there is no kernel of such scores on a CPU");
  }
  template <typename... Args>
  static ffi::Error typed_attention(const Args&...) {
    return invalid("there is no kernel of such scores on a CPU");
  }
  template <typename... Args>
  static ffi::Error typed_attention_vjp(const Args&...) {
    return invalid("there is no kernel of such scores on a CPU");
  }
  template <typename... Args>
  static ffi::Error keyed_attention_gradients(const Args&...) {
    return invalid("there is no kernel of all gradients on a CPU");
  }
  template <typename... Args>
  static ffi::Error attention_gradients(const Args&...) {
    return invalid("there is no kernel of all gradients on a CPU");
  }

  template <typename... Args>
  static ffi::Error leaky_scores(Context& pool, const Args&... args) {
    cpu::leaky_scores(parallel_for(pool), args...);
    return ffi::Error::Success();
  }

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
  static ffi::Error segment_outer(Context& pool, const OuterAttributes&, ffi::AnyBuffer,
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

namespace nb = nanobind;

template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_sizes(std::initializer_list<size_t> sizes, size_t wanted, const char* message) {
  for (const size_t size : sizes)
    if (size != wanted) throw nb::value_error(message);
}

// See sort_triples.h: the arrays of SortedTriples, in order. Without relations there are no types.
template <typename Index>
void sort_triples(Vector<const int64_t> src, std::optional<Vector<const int64_t>> rel,
                  Vector<const int64_t> dst, int64_t num_relations, bool inverse, bool loops,
                  Vector<Index> indptr, Vector<Index> rows, Vector<Index> cols,
                  Vector<Index> t_indptr, Vector<Index> t_rows, Vector<Index> t_cols,
                  Vector<Index> t_order, Vector<Index> ids, std::optional<Vector<Index>> types) {
  const auto size_of = [](const auto& given, size_t otherwise) {
    return given ? given->size() : otherwise;
  };
  check_sizes({size_of(rel, src.size()), dst.size()}, src.size(),
              "triples must have three ids each");
  if (indptr.size() == 0 || t_indptr.size() == 0)
    throw nb::value_error("indptr must have at least one element");
  const auto num_dst = static_cast<int64_t>(indptr.size()) - 1;
  const auto num_src = static_cast<int64_t>(t_indptr.size()) - 1;
  const auto count = static_cast<int64_t>(src.size());
  if (num_relations < 0 || ((inverse || loops) && num_src != num_dst))
    throw nb::value_error("inverse edges and loops want as many sources as destinations");
  const cpu::Triples triples{src.data(),    rel ? rel->data() : nullptr,
                             dst.data(),    count,
                             num_src,       num_dst,
                             num_relations, inverse,
                             loops};
  check_sizes({rows.size(), cols.size(), t_rows.size(), t_cols.size(), t_order.size(), ids.size(),
               size_of(types, triples.total())},
              triples.total(), "there must be a result for each edge");
  const nb::gil_scoped_release released;
  cpu::sort_triples<Index>(
      cpu::host_threads(triples.total()), triples,
      {indptr.data(), rows.data(), cols.data(), types ? types->data() : nullptr, ids.data(),
       t_indptr.data(), t_rows.data(), t_cols.data(), t_order.data()});
}

// What pairs are built of: rows, cols, types, how many edges are no padding, and the numbers of
// sources and destinations; relations are as many as sizes.
template <typename Index>
cpu::SortedEdges<Index> sorted_edges(Vector<const Index> rows, Vector<const Index> cols,
                                     Vector<const Index> types, int64_t valid, int64_t num_src,
                                     int64_t num_dst, Vector<Index> sizes) {
  check_sizes({cols.size(), types.size()}, rows.size(), "there must be one id for each edge");
  return {rows.data(), cols.data(), types.data(), static_cast<int64_t>(rows.size()),
          valid,       num_src,     num_dst,      static_cast<int64_t>(sizes.size())};
}

template <typename Index>
cpu::NodePairs<Index> node_pairs(Vector<Index> nodes, Vector<Index> sizes,
                                 Vector<Index> sorted_nodes, Vector<Index> order,
                                 Vector<Index> places, size_t count) {
  check_sizes({nodes.size(), sorted_nodes.size(), order.size(), places.size()}, count,
              "there must be room for a pair for each edge");
  return {nodes.data(), sizes.data(), sorted_nodes.data(), order.data(), places.data()};
}

void check_sound(bool sound) {
  if (!sound) throw nb::value_error("ids of edges are out of range, and not those of padding");
}

// See sort_triples.h: what sorted_edges takes, then NodePairs, then the edges; gives how many
// pairs.
template <typename Index>
int64_t source_pairs(Vector<const Index> edge_rows, Vector<const Index> edge_cols,
                     Vector<const Index> types, int64_t valid, int64_t num_src, int64_t num_dst,
                     Vector<Index> nodes, Vector<Index> sizes, Vector<Index> sorted_nodes,
                     Vector<Index> order, Vector<Index> places, Vector<Index> cols,
                     Vector<Index> t_indptr, Vector<Index> t_rows, Vector<Index> t_cols,
                     Vector<Index> t_order) {
  const auto edges =
      sorted_edges<Index>(edge_rows, edge_cols, types, valid, num_src, num_dst, sizes);
  const size_t count = edge_rows.size();
  const auto pairs = node_pairs<Index>(nodes, sizes, sorted_nodes, order, places, count);
  check_sizes({cols.size(), t_indptr.size() - 1, t_rows.size(), t_cols.size(), t_order.size()},
              count, "there must be a result for each edge");
  const nb::gil_scoped_release released;
  check_sound(edges.sound());
  return cpu::source_pairs<Index>(cpu::host_threads(edges.valid), edges, pairs, cols.data(),
                                  t_indptr.data(), t_rows.data(), t_cols.data(), t_order.data());
}

template <typename Index>
int64_t destination_pairs(Vector<const Index> edge_rows, Vector<const Index> edge_cols,
                          Vector<const Index> types, int64_t valid, int64_t num_src,
                          int64_t num_dst, Vector<Index> nodes, Vector<Index> sizes,
                          Vector<Index> sorted_nodes, Vector<Index> order, Vector<Index> places,
                          Vector<Index> indptr, Vector<Index> rows, Vector<Index> t_cols) {
  const auto edges =
      sorted_edges<Index>(edge_rows, edge_cols, types, valid, num_src, num_dst, sizes);
  const size_t count = edge_rows.size();
  const auto pairs = node_pairs<Index>(nodes, sizes, sorted_nodes, order, places, count);
  check_sizes({indptr.size() - 1, rows.size(), t_cols.size()}, count,
              "there must be a result for each edge");
  const nb::gil_scoped_release released;
  check_sound(edges.sound());
  return cpu::destination_pairs<Index>(cpu::host_threads(edges.valid), edges, pairs, indptr.data(),
                                       rows.data(), t_cols.data());
}

template <typename Index>
void sort_by_source(Vector<Index> rows, Vector<Index> cols, int64_t valid, Vector<Index> t_indptr,
                    Vector<Index> t_rows, Vector<Index> t_cols, Vector<Index> t_order) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t num_src = static_cast<int64_t>(t_indptr.size()) - 1;
  check_sizes({cols.size(), t_rows.size(), t_cols.size(), t_order.size()}, rows.size(),
              "there must be a result for each edge");
  const nb::gil_scoped_release released;
  check_sound(num_src >= 0 && valid >= 0 && valid <= count &&
              std::all_of(cols.data(), cols.data() + std::clamp<int64_t>(valid, 0, count),
                          [&](Index id) { return id >= 0 && id < num_src; }));
  cpu::sort_by_source<Index>(cpu::host_threads(valid), count, valid, num_src,
                             {nullptr, rows.data(), cols.data(), nullptr, nullptr, t_indptr.data(),
                              t_rows.data(), t_cols.data(), t_order.data()});
}

template <typename Index>
void define_triples(nb::module_& m) {
  m.def("sort_triples", &sort_triples<Index>);
  m.def("sort_by_source", &sort_by_source<Index>, nb::arg("rows").noconvert(),
        nb::arg("cols").noconvert(), nb::arg("valid"), nb::arg("t_indptr").noconvert(),
        nb::arg("t_rows").noconvert(), nb::arg("t_cols").noconvert(),
        nb::arg("t_order").noconvert());
  m.def("source_pairs", &source_pairs<Index>);
  m.def("destination_pairs", &destination_pairs<Index>);
}

template <typename Index, int kColumns>
using Matrix = nb::ndarray<Index, nb::shape<-1, kColumns>, nb::c_contig, nb::device::cpu>;

// See edge_split.h.
template <typename Index>
void edge_split(Vector<const Index> indptr, Vector<const Index> cols, Matrix<Index, kSlotSize> ids,
                Matrix<Index, 2> places) {
  if (indptr.size() == 0) throw nb::value_error("indptr must have at least one element");
  const int64_t num_rows = static_cast<int64_t>(indptr.size()) - 1;
  const int64_t count = static_cast<int64_t>(cols.size());
  const size_t num_slots = cpu::num_slots(num_rows, count);
  if (ids.shape(0) != num_slots || places.shape(0) != num_slots)
    throw nb::value_error("ids and places must have a row for each slot");
  const nb::gil_scoped_release released;
  cpu::edge_split<Index>(indptr.data(), num_rows, cols.data(), count, ids.data(), places.data());
}

template <typename Index>
void define_edge_split(nb::module_& m) {  // a converted copy of a result would be lost
  m.def("edge_split", &edge_split<Index>, nb::arg("indptr").noconvert(),
        nb::arg("cols").noconvert(), nb::arg("ids").noconvert(), nb::arg("places").noconvert());
}

// See partition.h: both halves of a graph, of which the second may be missing; gives the parts.
template <typename Index>
void partition(Vector<const Index> indptr, Vector<const Index> cols,
               std::optional<Vector<const Index>> t_indptr,
               std::optional<Vector<const Index>> t_cols, int64_t num_parts, double most_nodes,
               double most_edges, int64_t rounds, bool refine, Vector<int32_t> parts) {
  const size_t num_nodes = parts.size();
  check_sizes({indptr.size(), t_indptr ? t_indptr->size() : indptr.size()}, num_nodes + 1,
              "indptr must have an element more than parts");
  if (num_parts < 1 || t_indptr.has_value() != t_cols.has_value())
    throw nb::value_error("there must be parts, and both arrays of the second half or none");
  const auto count = static_cast<int64_t>(num_nodes);
  const auto half = [](const Index* starts, const Vector<const Index>& nodes) {
    return cpu::Neighbors<Index>{starts, nodes.data(), static_cast<int64_t>(nodes.size())};
  };
  const auto into = half(indptr.data(), cols);
  const auto out = t_indptr ? half(t_indptr->data(), *t_cols) : half(nullptr, cols);
  const nb::gil_scoped_release released;
  check_sound(into.sound(count) && out.sound(count));
  if (refine)
    for (size_t i = 0; i < num_nodes; ++i)
      check_sound(parts.data()[i] >= 0 && parts.data()[i] < num_parts);
  cpu::partition<Index>(into, out, count, num_parts, {most_nodes, most_edges}, rounds, refine,
                        parts.data());
}

template <typename Index>
void define_partition(nb::module_& m) {  // a converted copy of the result would be lost
  m.def("partition", &partition<Index>, nb::arg("indptr").noconvert(), nb::arg("cols").noconvert(),
        nb::arg("t_indptr").none(), nb::arg("t_cols").none(), nb::arg("num_parts"),
        nb::arg("most_nodes"), nb::arg("most_edges"), nb::arg("rounds"), nb::arg("refine"),
        nb::arg("parts").noconvert());
}

template <typename Index>
using Rows = nb::ndarray<Index, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// See sample_block.h. Results are written to arrays: a converted copy would be lost.
template <typename Index>
void draw_uniform(Vector<const Index> degrees, uint32_t key, uint32_t other_key, int64_t stream,
                  bool replace, Rows<Index> offsets, Vector<Index> counts) {
  check_sizes({offsets.shape(0), counts.size()}, degrees.size(),
              "there must be offsets and a count for each row");
  const uint32_t words[] = {key, other_key};
  const nb::gil_scoped_release released;
  cpu::sample_uniform<Index>(cpu::host_threads(static_cast<int64_t>(offsets.size())),
                             {words, static_cast<uint32_t>(stream)}, degrees.data(), degrees.size(),
                             offsets.shape(1), replace, offsets.data(), counts.data());
}

template <typename Index>
void draw_weighted(Vector<const uint32_t> sums, Vector<const Index> starts,
                   Vector<const Index> degrees, uint32_t key, uint32_t other_key, int64_t stream,
                   bool replace, Rows<Index> offsets, Vector<Index> counts) {
  check_sizes({starts.size(), offsets.shape(0), counts.size()}, degrees.size(),
              "there must be a start, offsets and a count for each row");
  if (sums.size() == 0) throw nb::value_error("there must be a sum before the first edge");
  const uint32_t words[] = {key, other_key};
  const nb::gil_scoped_release released;
  cpu::sample_weighted<Index>(
      cpu::host_threads(static_cast<int64_t>(offsets.size())),
      {words, static_cast<uint32_t>(stream)},
      {sums.data(), starts.data(), degrees.data(), static_cast<int64_t>(degrees.size()),
       static_cast<int64_t>(sums.size()) - 1},
      offsets.shape(1), replace, offsets.data(), counts.data());
}

template <typename Index>
bool build_block(Vector<const Index> nodes, Vector<const Index> starts, Rows<const Index> offsets,
                 Vector<const Index> counts, Vector<const Index> whole_cols,
                 Vector<const Index> seeds, int64_t num_nodes, bool disjoint, bool tree,
                 bool ascending, Vector<Index> indptr, Vector<Index> rows, Vector<Index> cols,
                 Vector<Index> t_indptr, Vector<Index> t_rows, Vector<Index> t_cols,
                 Vector<Index> t_order, Vector<Index> edge_ids, Vector<Index> sources) {
  const size_t num_dst = nodes.size(), num_edges = rows.size(), num_src = sources.size();
  check_sizes({starts.size(), offsets.shape(0), counts.size(), seeds.size(), indptr.size() - 1},
              num_dst, "there must be a start, offsets, a count and a seed for each node");
  check_sizes({cols.size(), t_rows.size(), t_cols.size(), t_order.size(), edge_ids.size()},
              num_edges, "there must be a result for each edge");
  check_sizes({t_indptr.size() - 1, tree ? num_dst + num_edges : num_src}, num_src,
              "there must be a result for each source");
  if (num_nodes < 0 || num_src < num_dst)
    throw nb::value_error("there must be a source for each destination");
  const nb::gil_scoped_release released;
  return cpu::sample_block<Index>(
      cpu::host_threads(static_cast<int64_t>(num_edges)), tree,
      {nodes.data(), starts.data(), offsets.data(), counts.data(), whole_cols.data(),
       disjoint ? seeds.data() : nullptr, static_cast<int64_t>(num_dst),
       static_cast<int64_t>(offsets.shape(1)), static_cast<int64_t>(whole_cols.size()), num_nodes,
       ascending},
      {indptr.data(), rows.data(), cols.data(), t_indptr.data(), t_rows.data(), t_cols.data(),
       t_order.data(), edge_ids.data(), sources.data(), static_cast<int64_t>(num_edges),
       static_cast<int64_t>(num_src)});
}

template <typename Index>
void define_sampling(nb::module_& m) {
  m.def("sample_uniform", &draw_uniform<Index>, nb::arg().noconvert(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg().noconvert());
  m.def("sample_weighted", &draw_weighted<Index>, nb::arg().noconvert(), nb::arg().noconvert(),
        nb::arg().noconvert(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().noconvert(),
        nb::arg().noconvert());
  m.def("sample_block", &build_block<Index>, nb::arg().noconvert(), nb::arg().noconvert(),
        nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg().noconvert(),
        nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
        nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert());
}

// Rows as bytes; see gather_rows.h.
void fetch_rows(Rows<const uint8_t> rows, Vector<const int32_t> ids, Rows<uint8_t> out) {
  check_sizes({out.shape(0)}, ids.size(), "there must be a result for each id");
  check_sizes({out.shape(1)}, rows.shape(1), "rows and results must be of one size");
  const nb::gil_scoped_release released;
  cpu::gather_rows(cpu::host_threads(static_cast<int64_t>(out.size()) / 16), ids.data(), ids.size(),
                   rows.shape(0), reinterpret_cast<const char*>(rows.data()), rows.shape(1),
                   reinterpret_cast<char*>(out.data()));
}

// Names of cpu::InstructionSet, from the narrowest on.
constexpr const char* kInstructionSets[] = {"baseline", "AVX2", "AVX-512"};

// Those that this machine can use.
nb::list instruction_sets() {
  nb::list names;
  for (int set = 0; set <= static_cast<int>(cpu::widest_instruction_set()); ++set)
    names.append(kInstructionSets[set]);
  return names;
}

// Kernels use this one from now on, or a narrower one where they have no variant for it.
void limit_instruction_set(const std::string& name) {
  for (int set = 0; set <= static_cast<int>(cpu::widest_instruction_set()); ++set)
    if (name == kInstructionSets[set])
      return cpu::limit_instruction_set(static_cast<cpu::InstructionSet>(set));
  throw nb::value_error("no such instruction set here");
}

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
  m.def("instruction_sets", &instruction_sets);
  m.def("limit_instruction_set", &limit_instruction_set);  // for tests
  define_edge_split<int32_t>(m);
  define_edge_split<int64_t>(m);
  define_partition<int32_t>(m);
  define_partition<int64_t>(m);
  define_triples<int32_t>(m);
  define_triples<int64_t>(m);
  define_sampling<int32_t>(m);
  define_sampling<int64_t>(m);
  m.def("gather_rows", &fetch_rows, nb::arg().noconvert(), nb::arg().noconvert(),
        nb::arg().noconvert());
  m.def("targets", [] { return targets({JAX_GNN_TARGETS(JAX_GNN_TARGET)}); });
  m.attr("ffi_version") = ffi_version();
  m.attr("compiler") = JAX_GNN_COMPILER;
  m.attr("cuda_build") = JAX_GNN_CUDA_BUILD;  // "" if _cuda was built too, else why it was not
}

}  // namespace jax_gnn
