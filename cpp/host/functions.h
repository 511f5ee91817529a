// Functions of jax_gnn._cpu that Python calls on numpy arrays of the host, results included: how
// they take arrays, and what defines them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>

namespace jax_gnn::host {

namespace nb = nanobind;

template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T, int kColumns>
using Matrix = nb::ndarray<T, nb::shape<-1, kColumns>, nb::c_contig, nb::device::cpu>;

// An array of exactly the declared dtype and layout: a result written to a converted copy would be
// lost, and a copy of an operand would hide its cost.
inline auto array(const char* name) { return nb::arg(name).noconvert(); }

inline void check_sizes(std::initializer_list<size_t> sizes, size_t expected, const char* message) {
  for (const size_t size : sizes)
    if (size != expected) throw nb::value_error(message);
}

inline void check_ids(bool valid) {
  if (!valid) throw nb::value_error("ids of edges are out of range, and not those of padding");
}

void define_instruction_sets(nb::module_& m);
void define_partition(nb::module_& m);
void define_sampling(nb::module_& m);
void define_sorting(nb::module_& m);

}  // namespace jax_gnn::host
