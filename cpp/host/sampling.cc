#include <cstdint>

#include "../kernels/cpu/gather_rows.h"
#include "../kernels/cpu/host_threads.h"
#include "../kernels/cpu/sample_block.h"
#include "functions.h"

namespace jax_gnn::host {
namespace {

template <typename Index>
void sample_uniform(Vector<const Index> degrees, uint32_t key1, uint32_t key2, int64_t stream,
                    bool replace, Rows<Index> offsets, Vector<Index> counts) {
  check_sizes({offsets.shape(0), counts.size()}, degrees.size(),
              "there must be offsets and a count for each row");
  const uint32_t key[] = {key1, key2};
  const nb::gil_scoped_release without_gil;
  cpu::sample_uniform<Index>(cpu::host_threads(static_cast<int64_t>(offsets.size())),
                             {key, static_cast<uint32_t>(stream)}, degrees.data(), degrees.size(),
                             offsets.shape(1), replace, offsets.data(), counts.data());
}

template <typename Index>
void sample_weighted(Vector<const uint32_t> sums, Vector<const Index> starts,
                     Vector<const Index> degrees, uint32_t key1, uint32_t key2, int64_t stream,
                     bool replace, Rows<Index> offsets, Vector<Index> counts) {
  check_sizes({starts.size(), offsets.shape(0), counts.size()}, degrees.size(),
              "there must be a start, offsets and a count for each row");
  if (sums.size() == 0) throw nb::value_error("there must be a sum before the first edge");
  const uint32_t key[] = {key1, key2};
  const nb::gil_scoped_release without_gil;
  cpu::sample_weighted<Index>(
      cpu::host_threads(static_cast<int64_t>(offsets.size())), {key, static_cast<uint32_t>(stream)},
      {sums.data(), starts.data(), degrees.data(), static_cast<int64_t>(degrees.size()),
       static_cast<int64_t>(sums.size()) - 1},
      offsets.shape(1), replace, offsets.data(), counts.data());
}

template <typename Index>
bool sample_block(Vector<const Index> nodes, Vector<const Index> starts, Rows<const Index> offsets,
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
  const nb::gil_scoped_release without_gil;
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

void gather_rows(Rows<const uint8_t> rows, Vector<const int32_t> ids, Rows<uint8_t> out) {
  check_sizes({out.shape(0)}, ids.size(), "there must be a result for each id");
  check_sizes({out.shape(1)}, rows.shape(1), "rows and results must be of one size");
  const nb::gil_scoped_release without_gil;
  cpu::gather_rows(cpu::host_threads(static_cast<int64_t>(out.size()) / 16), ids.data(), ids.size(),
                   rows.shape(0), reinterpret_cast<const char*>(rows.data()), rows.shape(1),
                   reinterpret_cast<char*>(out.data()));
}

template <typename Index>
void define(nb::module_& m) {
  m.def("sample_uniform", &sample_uniform<Index>, array("degrees"), nb::arg("key1"),
        nb::arg("key2"), nb::arg("stream"), nb::arg("replace"), array("offsets"), array("counts"),
        "Draw edges of each row, all equally likely (kernels/cpu/sample_block.h).");
  m.def("sample_weighted", &sample_weighted<Index>, array("sums"), array("starts"),
        array("degrees"), nb::arg("key1"), nb::arg("key2"), nb::arg("stream"), nb::arg("replace"),
        array("offsets"), array("counts"),
        "Draw edges of each row in proportion to their weights (kernels/cpu/sample_block.h).");
  m.def("sample_block", &sample_block<Index>, array("nodes"), array("starts"), array("offsets"),
        array("counts"), array("whole_cols"), array("seeds"), nb::arg("num_nodes"),
        nb::arg("disjoint"), nb::arg("tree"), nb::arg("ascending"), array("indptr"), array("rows"),
        array("cols"), array("t_indptr"), array("t_rows"), array("t_cols"), array("t_order"),
        array("edge_ids"), array("sources"),
        "Build the block of drawn edges; return whether some were left out "
        "(kernels/sample_block.h).");
}

}  // namespace

void define_sampling(nb::module_& m) {
  define<int32_t>(m);
  define<int64_t>(m);
  m.def("gather_rows", &gather_rows, array("rows"), array("ids"), array("out"),
        "Copy the rows that ids name, as bytes; ids out of range give zeros.");
}

}  // namespace jax_gnn::host
