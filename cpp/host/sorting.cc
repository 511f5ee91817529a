#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "../kernels/cpu/edge_split.h"
#include "../kernels/cpu/host_threads.h"
#include "../kernels/cpu/sort_triples.h"
#include "functions.h"

namespace jax_gnn::host {
namespace {

template <typename Index>
void sort_triples(Vector<const int64_t> src, std::optional<Vector<const int64_t>> rel,
                  Vector<const int64_t> dst, int64_t num_relations, bool inverse, bool loops,
                  Vector<Index> indptr, Vector<Index> rows, Vector<Index> cols,
                  Vector<Index> t_indptr, Vector<Index> t_rows, Vector<Index> t_cols,
                  Vector<Index> t_order, Vector<Index> edge_ids,
                  std::optional<Vector<Index>> types) {
  check_sizes({rel ? rel->size() : src.size(), dst.size()}, src.size(),
              "triples must have three ids each");
  if (indptr.size() == 0 || t_indptr.size() == 0)
    throw nb::value_error("indptr must have at least one element");
  const auto num_dst = static_cast<int64_t>(indptr.size()) - 1;
  const auto num_src = static_cast<int64_t>(t_indptr.size()) - 1;
  if (num_relations < 0 || ((inverse || loops) && num_src != num_dst))
    throw nb::value_error("inverse edges and loops want as many sources as destinations");
  const cpu::Triples triples{src.data(),    rel ? rel->data() : nullptr,
                             dst.data(),    static_cast<int64_t>(src.size()),
                             num_src,       num_dst,
                             num_relations, inverse,
                             loops};
  const auto total = static_cast<size_t>(triples.total());
  check_sizes({rows.size(), cols.size(), t_rows.size(), t_cols.size(), t_order.size(),
               edge_ids.size(), types ? types->size() : total},
              total, "there must be a result for each edge");
  const nb::gil_scoped_release without_gil;
  cpu::sort_triples<Index>(
      cpu::host_threads(triples.total()), triples,
      {indptr.data(), rows.data(), cols.data(), types ? types->data() : nullptr, edge_ids.data(),
       t_indptr.data(), t_rows.data(), t_cols.data(), t_order.data()});
}

template <typename Index>
void sort_by_source(Vector<Index> rows, Vector<Index> cols, int64_t num_valid,
                    Vector<Index> t_indptr, Vector<Index> t_rows, Vector<Index> t_cols,
                    Vector<Index> t_order) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t num_src = static_cast<int64_t>(t_indptr.size()) - 1;
  check_sizes({cols.size(), t_rows.size(), t_cols.size(), t_order.size()}, rows.size(),
              "there must be a result for each edge");
  const nb::gil_scoped_release without_gil;
  check_ids(num_src >= 0 && num_valid >= 0 && num_valid <= count &&
            std::all_of(cols.data(), cols.data() + std::clamp<int64_t>(num_valid, 0, count),
                        [&](Index id) { return id >= 0 && id < num_src; }));
  cpu::sort_by_source<Index>(cpu::host_threads(num_valid), count, num_valid, num_src,
                             {nullptr, rows.data(), cols.data(), nullptr, nullptr, t_indptr.data(),
                              t_rows.data(), t_cols.data(), t_order.data()});
}

// The edges and pairs of source_pairs and destination_pairs, checked for sizes.
template <typename Index>
cpu::SortedEdges<Index> sorted_edges(const Vector<const Index>& rows,
                                     const Vector<const Index>& cols,
                                     const Vector<const Index>& types, int64_t num_valid,
                                     int64_t num_src, int64_t num_dst, const Vector<Index>& sizes) {
  check_sizes({cols.size(), types.size()}, rows.size(), "there must be one id for each edge");
  return {rows.data(), cols.data(), types.data(), static_cast<int64_t>(rows.size()),
          num_valid,   num_src,     num_dst,      static_cast<int64_t>(sizes.size())};
}

template <typename Index>
cpu::NodePairs<Index> node_pairs(const Vector<Index>& nodes, const Vector<Index>& sizes,
                                 const Vector<Index>& sorted_nodes, const Vector<Index>& order,
                                 const Vector<Index>& places, size_t count) {
  check_sizes({nodes.size(), sorted_nodes.size(), order.size(), places.size()}, count,
              "there must be room for a pair for each edge");
  return {nodes.data(), sizes.data(), sorted_nodes.data(), order.data(), places.data()};
}

template <typename Index>
int64_t source_pairs(Vector<const Index> edge_rows, Vector<const Index> edge_cols,
                     Vector<const Index> edge_types, int64_t num_valid, int64_t num_src,
                     int64_t num_dst, Vector<Index> nodes, Vector<Index> sizes,
                     Vector<Index> sorted_nodes, Vector<Index> order, Vector<Index> places,
                     Vector<Index> cols, Vector<Index> t_indptr, Vector<Index> t_rows,
                     Vector<Index> t_cols, Vector<Index> t_order) {
  const auto edges =
      sorted_edges<Index>(edge_rows, edge_cols, edge_types, num_valid, num_src, num_dst, sizes);
  const size_t count = edge_rows.size();
  const auto pairs = node_pairs<Index>(nodes, sizes, sorted_nodes, order, places, count);
  check_sizes({cols.size(), t_indptr.size() - 1, t_rows.size(), t_cols.size(), t_order.size()},
              count, "there must be a result for each edge");
  const nb::gil_scoped_release without_gil;
  check_ids(edges.sound());
  return cpu::source_pairs<Index>(cpu::host_threads(edges.valid), edges, pairs, cols.data(),
                                  t_indptr.data(), t_rows.data(), t_cols.data(), t_order.data());
}

template <typename Index>
int64_t destination_pairs(Vector<const Index> edge_rows, Vector<const Index> edge_cols,
                          Vector<const Index> edge_types, int64_t num_valid, int64_t num_src,
                          int64_t num_dst, Vector<Index> nodes, Vector<Index> sizes,
                          Vector<Index> sorted_nodes, Vector<Index> order, Vector<Index> places,
                          Vector<Index> indptr, Vector<Index> rows, Vector<Index> t_cols) {
  const auto edges =
      sorted_edges<Index>(edge_rows, edge_cols, edge_types, num_valid, num_src, num_dst, sizes);
  const size_t count = edge_rows.size();
  const auto pairs = node_pairs<Index>(nodes, sizes, sorted_nodes, order, places, count);
  check_sizes({indptr.size() - 1, rows.size(), t_cols.size()}, count,
              "there must be a result for each edge");
  const nb::gil_scoped_release without_gil;
  check_ids(edges.sound());
  return cpu::destination_pairs<Index>(cpu::host_threads(edges.valid), edges, pairs, indptr.data(),
                                       rows.data(), t_cols.data());
}

template <typename Index>
void edge_split(Vector<const Index> indptr, Vector<const Index> cols, Matrix<Index, kSlotSize> ids,
                Matrix<Index, 2> places) {
  if (indptr.size() == 0) throw nb::value_error("indptr must have at least one element");
  const int64_t num_rows = static_cast<int64_t>(indptr.size()) - 1;
  const int64_t count = static_cast<int64_t>(cols.size());
  const size_t num_slots = cpu::num_slots(num_rows, count);
  if (ids.shape(0) != num_slots || places.shape(0) != num_slots)
    throw nb::value_error("ids and places must have a row for each slot");
  const nb::gil_scoped_release without_gil;
  cpu::edge_split<Index>(indptr.data(), num_rows, cols.data(), count, ids.data(), places.data());
}

template <typename Index>
void define(nb::module_& m) {
  m.def("sort_triples", &sort_triples<Index>, array("src"), array("rel").none(), array("dst"),
        nb::arg("num_relations"), nb::arg("inverse"), nb::arg("loops"), array("indptr"),
        array("rows"), array("cols"), array("t_indptr"), array("t_rows"), array("t_cols"),
        array("t_order"), array("edge_ids"), array("types").none(),
        "Sort edges by both ends (kernels/cpu/sort_triples.h). Without rel there are no types.");
  m.def("sort_by_source", &sort_by_source<Index>, array("rows"), array("cols"),
        nb::arg("num_valid"), array("t_indptr"), array("t_rows"), array("t_cols"), array("t_order"),
        "Sort by source the edges that are sorted by destination.");
  m.def("source_pairs", &source_pairs<Index>, array("edge_rows"), array("edge_cols"),
        array("edge_types"), nb::arg("num_valid"), nb::arg("num_src"), nb::arg("num_dst"),
        array("nodes"), array("sizes"), array("sorted_nodes"), array("order"), array("places"),
        array("cols"), array("t_indptr"), array("t_rows"), array("t_cols"), array("t_order"),
        "Number the (source, relation) pairs by relation, and sort the edges out of them; return "
        "the number of pairs.");
  m.def("destination_pairs", &destination_pairs<Index>, array("edge_rows"), array("edge_cols"),
        array("edge_types"), nb::arg("num_valid"), nb::arg("num_src"), nb::arg("num_dst"),
        array("nodes"), array("sizes"), array("sorted_nodes"), array("order"), array("places"),
        array("indptr"), array("rows"), array("t_cols"),
        "Number the (destination, relation) pairs by destination, and sort the edges into them; "
        "return the number of pairs.");
  m.def("edge_split", &edge_split<Index>, array("indptr"), array("cols"), array("ids"),
        array("places"), "Cut the rows of a CSR matrix into slots (kernels/cpu/edge_split.h).");
}

}  // namespace

void define_sorting(nb::module_& m) {
  define<int32_t>(m);
  define<int64_t>(m);
}

}  // namespace jax_gnn::host
