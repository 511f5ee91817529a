"""Segment reductions as primitives: what segment ops and sparse products are made of.

One structure of indices and a few primitives on ``(rows, features)`` arrays, closed under
differentiation:

* ``segment_reduce``, out[r] = reduce of w[e] · x[cols[e]] over the entries e of row r. As a sum or
  mean it is linear: its transpose in x is itself with the views swapped, in w it is ``sddmm``.
  Derivatives of the other reductions are written in the primitives of this list.
* ``sddmm``, w[e] = ⟨a[rows[e]], b[cols[e]]⟩. Its transposes are ``segment_reduce``.
* ``segment_reduce_jvp``, the derivative of a sum or mean where both x and w have tangents, and
  ``segment_reduce_vjp``, its transpose: both gradients from one pass over the entries.
* ``segment_select``, a sum over those entries whose message is the row's maximum: derivatives of
  maximum and minimum. Its transposes are itself with the sides swapped, and
* ``sddmm_select``, the dot of those features that are the row's maximum.
* ``segment_softmax``, and its derivative ``segment_softmax_tangent``, which is its own transpose.
* ``segment_order``, a stable sort of ids.

Where a view has no rows, the primitive is a gather: plain XLA does that.
"""

from jax_gnn.segments._batching import all_batched
from jax_gnn.segments._kernels import MAX_SIZE, narrow, workspace_of
from jax_gnn.segments._reduce import (
    gather,
    reduce_messages,
    sddmm,
    segment_reduce,
    segment_reduce_jvp,
    segment_reduce_vjp,
    total,
)
from jax_gnn.segments._select import sddmm_select, segment_select
from jax_gnn.segments._softmax import segment_softmax, segment_softmax_tangent
from jax_gnn.segments._views import edge_views, segment_order, segment_views, sort_ids

__all__ = [
    "MAX_SIZE",
    "all_batched",
    "edge_views",
    "gather",
    "narrow",
    "reduce_messages",
    "sddmm",
    "sddmm_select",
    "segment_order",
    "segment_reduce",
    "segment_reduce_jvp",
    "segment_reduce_vjp",
    "segment_select",
    "segment_softmax",
    "segment_softmax_tangent",
    "segment_views",
    "sort_ids",
    "total",
    "workspace_of",
]
