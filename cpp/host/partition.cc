#include "../kernels/cpu/partition.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "../kernels/cpu/host_threads.h"
#include "functions.h"

namespace jax_gnn::host {
namespace {

template <typename Index>
cpu::Neighbors<Index> neighbors(const Vector<const Index>& indptr, const Vector<const Index>& nodes,
                                size_t num_nodes) {
  check_sizes({indptr.size()}, num_nodes + 1, "indptr must have an element more than parts");
  return {indptr.data(), nodes.data(), static_cast<int64_t>(nodes.size())};
}

template <typename Index>
void check_neighbors(const cpu::Neighbors<Index>& half, const Vector<int32_t>& parts,
                     int64_t num_parts, bool given) {
  check_ids(half.sound(static_cast<int64_t>(parts.size())));
  if (given)
    check_ids(std::all_of(parts.data(), parts.data() + parts.size(),
                          [&](int32_t part) { return part >= 0 && part < num_parts; }));
}

template <typename Index>
void partition(Vector<const Index> indptr, Vector<const Index> cols,
               std::optional<Vector<const Index>> t_indptr,
               std::optional<Vector<const Index>> t_cols, int64_t num_parts, double max_nodes,
               double max_edges, bool refine, Vector<int32_t> parts) {
  if (num_parts < 1 || t_indptr.has_value() != t_cols.has_value())
    throw nb::value_error("there must be parts, and both arrays of the second half or none");
  const auto count = static_cast<int64_t>(parts.size());
  const auto into = neighbors(indptr, cols, parts.size());
  const auto out = t_indptr ? neighbors(*t_indptr, *t_cols, parts.size())
                            : cpu::Neighbors<Index>{nullptr, nullptr, 0};
  const nb::gil_scoped_release without_gil;
  check_neighbors(into, parts, num_parts, refine);
  check_neighbors(out, parts, num_parts, false);
  cpu::partition<Index>(cpu::host_threads(into.count + out.count), into, out, count, num_parts,
                        {max_nodes, max_edges}, refine, parts.data());
}

template <typename Index>
void count_halo(Vector<const Index> t_indptr, Vector<const Index> t_cols, Vector<int32_t> parts,
                Vector<int64_t> counts) {
  const auto out = neighbors(t_indptr, t_cols, parts.size());
  const auto num_parts = static_cast<int64_t>(counts.size());
  const nb::gil_scoped_release without_gil;
  check_neighbors(out, parts, num_parts, true);
  cpu::count_halo<Index>(cpu::host_threads(out.count), out, static_cast<int64_t>(parts.size()),
                         parts.data(), num_parts, counts.data());
}

template <typename Index>
void define(nb::module_& m) {
  m.def("partition", &partition<Index>, array("indptr"), array("cols"), array("t_indptr").none(),
        array("t_cols").none(), nb::arg("num_parts"), nb::arg("max_nodes"), nb::arg("max_edges"),
        nb::arg("refine"), array("parts"),
        "Write the part of each node (kernels/cpu/partition.h). Without t_indptr and t_cols the "
        "graph is symmetric.");
  m.def("count_halo", &count_halo<Index>, array("t_indptr"), array("t_cols"), array("parts"),
        array("counts"), "Write the rows that each part fetches (kernels/cpu/partition.h).");
}

}  // namespace

void define_partition(nb::module_& m) {
  define<int32_t>(m);
  define<int64_t>(m);
}

}  // namespace jax_gnn::host
