#include "../kernels/cpu/partition.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "functions.h"

namespace jax_gnn::host {
namespace {

template <typename Index>
void partition(Vector<const Index> indptr, Vector<const Index> cols,
               std::optional<Vector<const Index>> t_indptr,
               std::optional<Vector<const Index>> t_cols, int64_t num_parts, double max_nodes,
               double max_edges, int64_t rounds, bool refine, Vector<int32_t> parts) {
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
  const nb::gil_scoped_release without_gil;
  check_ids(into.sound(count) && out.sound(count));
  if (refine)
    check_ids(std::all_of(parts.data(), parts.data() + num_nodes,
                          [&](int32_t part) { return part >= 0 && part < num_parts; }));
  cpu::partition<Index>(into, out, count, num_parts, {max_nodes, max_edges}, rounds, refine,
                        parts.data());
}

template <typename Index>
void define(nb::module_& m) {
  m.def("partition", &partition<Index>, array("indptr"), array("cols"), array("t_indptr").none(),
        array("t_cols").none(), nb::arg("num_parts"), nb::arg("max_nodes"), nb::arg("max_edges"),
        nb::arg("rounds"), nb::arg("refine"), array("parts"),
        "Write the part of each node (kernels/cpu/partition.h). Without t_indptr and t_cols the "
        "graph is symmetric.");
}

}  // namespace

void define_partition(nb::module_& m) {
  define<int32_t>(m);
  define<int64_t>(m);
}

}  // namespace jax_gnn::host
