// Handler of pairs of rows and relations: see ../kernels/relation_pairs.h.
#pragma once

#include "../kernels/relation_pairs.h"
#include "checks.h"
#include "segments.h"

namespace jax_gnn {

template <typename Backend>
ffi::Error relation_pairs(typename Backend::Context context, Buffer rows, Buffer types,
                          ResultBuffer nodes, ResultBuffer sizes, ResultBuffer sorted_nodes,
                          ResultBuffer order, ResultBuffer places, ResultBuffer indptr,
                          ResultBuffer numbers, ResultBuffer scratch) {
  const ffi::DataType dtype = rows.element_type();
  const auto size_of = [](const Buffer& buffer) {
    return static_cast<int64_t>(buffer.element_count());
  };
  const int64_t num_edges = size_of(rows), num_relations = size_of(*sizes);
  const int64_t num_pairs = size_of(*nodes);
  const int64_t room = Backend::relation_pairs_scratch(num_edges, num_relations, num_pairs);
  bool good = is_index(rows, num_edges, dtype) && is_index(types, num_edges, dtype) &&
              is_index(*sizes, num_relations, dtype) && is_index(*indptr, num_pairs + 1, dtype) &&
              is_index(*numbers, num_edges, dtype) && is_index(*scratch, room, dtype);
  for (auto ids : {nodes, sorted_nodes, order, places})
    good = good && is_index(*ids, num_pairs, dtype);
  if (!good) return invalid("the edges or their pairs have the wrong shapes or dtypes");
  return dispatch_index(dtype, [&](auto index) {
    using Index = typename decltype(index)::type;
    const TypedRows<Index> edges{data<const Index>(rows), data<const Index>(types), num_edges,
                                 num_relations};
    const RelationPairs<Index> pairs{
        data<Index>(*nodes),  data<Index>(*sizes),  data<Index>(*sorted_nodes), data<Index>(*order),
        data<Index>(*places), data<Index>(*indptr), data<Index>(*numbers),      num_pairs};
    return Backend::relation_pairs(context, edges, pairs, data<Index>(*scratch));
  });
}

}  // namespace jax_gnn
