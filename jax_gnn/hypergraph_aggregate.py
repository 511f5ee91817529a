"""Hypergraph aggregation: node features to hyperedges and back to nodes in one call.

Two primitives, closed under differentiation:

* ``hypergraph_aggregate``, Y = diag(o) H diag(e) Hᵀ diag(i) X. Its transpose in X is itself with i
  and o swapped, in e it is
* ``hyperedge_dot``, w[h] = ⟨Σ_{v ∈ h} a[v] X[v], Σ_{v ∈ h} b[v] Y[v]⟩, whose transposes in X and Y
  are the first.

Scales are vectors in the accumulator type; where there is none, a single 1 stands for it (not an
empty array: the compiler of jax 0.11 crashes on those under ``shard_map``). A node scale that is
itself differentiated is taken out of the primitive and multiplied in ``jax.numpy``, so that
features and scale share one call of the kernel.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import _ffi
from jax_gnn._index import row_ids
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.views import accumulator_dtype, take

Normalization = Literal["symmetric", "row"]
Reduce = Literal["sum", "mean"]


def hypergraph_aggregate(
    hypergraph: Hypergraph,
    x: Array,
    hyperedge_weight: Array | None = None,
    *,
    node_scale_in: Array | None = None,
    node_scale_out: Array | None = None,
    hyperedge_scale: Array | None = None,
    normalization: Normalization | None = None,
    hyperedge_reduce: Reduce = "sum",
    node_reduce: Reduce = "sum",
    implementation: _ffi.Implementation | None = None,
) -> Array:
    """Sums node features over hyperedges, and the hyperedges' sums over nodes.

    Computes ``Y = Dv_out H (W De) Hᵀ Dv_in X`` (HyperGef, equation 5 and listing 3) with the
    incidence matrix H and the diagonal matrices of ``node_scale_out``, ``hyperedge_weight``,
    ``hyperedge_scale`` and ``node_scale_in``. All factors are optional and multiply with those of
    the other options. Linear in ``x`` and in each given factor, with exact derivatives of any order
    to all of them; holds one ``num_hyperedges × features`` intermediate.

    Args:
        hypergraph: the hypergraph.
        x: ``(num_nodes, *features)`` node features: float16, bfloat16, float32 or float64.
        hyperedge_weight: ``(num_hyperedges,)`` W, the hyperedges' weights.
        node_scale_in: ``(num_nodes,)`` Dv_in, multiplies the features before the first sum.
        node_scale_out: ``(num_nodes,)`` Dv_out, multiplies the result.
        hyperedge_scale: ``(num_hyperedges,)`` De, multiplies the hyperedges' features.
        normalization: ``"symmetric"`` for HGNN's ``Dv^-1/2 H W De^-1 Hᵀ Dv^-1/2`` (Feng et al.
            2019, arXiv 1809.09401, equation 10), ``"row"`` for ``Dv^-1 H W De^-1 Hᵀ`` (Bai et al.
            2021; HGNN+). De are the sizes of the hyperedges, Dv the nodes' sums of
            ``hyperedge_weight``, which should not be negative then; where a degree is 0 its inverse
            counts as 0. As Dv depends on the weights, so does their gradient.
        hyperedge_reduce: ``"mean"`` divides each hyperedge's sum by its number of nodes.
        node_reduce: ``"mean"`` divides each node's sum by its number of hyperedges.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_nodes, *features)`` in the dtype of ``x``; half types accumulate in float32. Isolated
        nodes get zeros.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or options exclude each other.
    """
    _check_hypergraph(hypergraph)
    x = _check_features(x, hypergraph.num_nodes)
    acc = accumulator_dtype(x.dtype)
    nodes, hyperedges = (
        ("num_nodes", hypergraph.num_nodes),
        ("num_hyperedges", hypergraph.num_hyperedges),
    )
    weight = _check_scale("hyperedge_weight", hyperedge_weight, *hyperedges, acc)
    scale_in = [_check_scale("node_scale_in", node_scale_in, *nodes, acc)]
    scale_out = [_check_scale("node_scale_out", node_scale_out, *nodes, acc)]
    scale_edge = [weight, _check_scale("hyperedge_scale", hyperedge_scale, *hyperedges, acc)]
    _check_choice("hyperedge_reduce", hyperedge_reduce, get_args(Reduce))
    _check_choice("node_reduce", node_reduce, get_args(Reduce))
    _check_choice("normalization", normalization, (None, *get_args(Normalization)))
    if normalization is not None:
        if (hyperedge_reduce, node_reduce) != ("sum", "sum"):
            raise ValueError(
                f"normalization={normalization!r} divides by the degrees already: "
                "hyperedge_reduce and node_reduce must be 'sum' with it"
            )
        degrees = _weighted_degrees(hypergraph, weight, acc, implementation)
        if normalization == "symmetric":
            scale_in.append(_power(degrees, -0.5))
            scale_out.append(scale_in[-1])
        else:
            scale_out.append(_power(degrees, -1.0))
    if normalization is not None or hyperedge_reduce == "mean":
        scale_edge.append(_power(hypergraph.hyperedge_degrees().astype(acc), -1.0))
    if node_reduce == "mean":
        scale_out.append(_power(hypergraph.node_degrees().astype(acc), -1.0))
    y = _aggregate(
        x.reshape(x.shape[0], math.prod(x.shape[1:])),
        _product(scale_in, hypergraph.node_indptr, acc),
        _product(scale_edge, hypergraph.hyperedge_indptr, acc),
        _product(scale_out, hypergraph.node_indptr, acc),
        *_index_arrays(hypergraph),
        implementation=implementation,
    )
    return y.reshape(x.shape)


# --- Arguments -----------------------------------------------------------------------------------


def _index_arrays(hypergraph: Hypergraph) -> tuple[Array, Array, Array, Array]:
    return (
        hypergraph.hyperedge_indptr,
        hypergraph.hyperedge_nodes,
        hypergraph.node_indptr,
        hypergraph.node_hyperedges,
    )


def _check_hypergraph(hypergraph: Hypergraph) -> None:
    if not isinstance(hypergraph, Hypergraph):
        raise TypeError(f"hypergraph must be a jax_gnn.Hypergraph, got {type(hypergraph).__name__}")
    arrays = dict(zip((f.name for f in fields(hypergraph)), _index_arrays(hypergraph), strict=True))
    for name, array in arrays.items():
        if not isinstance(array, jax.Array | np.ndarray) or array.dtype not in (np.int32, np.int64):
            kind = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"hypergraph.{name} must be an int32 or int64 array, got {kind}")
        if array.ndim != 1:
            raise ValueError(f"hypergraph.{name} must be one-dimensional, got shape {array.shape}")
        if "indptr" in name and array.shape[0] == 0:
            raise ValueError(f"hypergraph.{name} must have at least one element")
    if len({array.dtype for array in arrays.values()}) > 1:
        dtypes = ", ".join(f"{name}: {array.dtype}" for name, array in arrays.items())
        raise TypeError(f"the arrays of the hypergraph must have one dtype, got {dtypes}")


def _check_features(x: Any, num_nodes: int) -> Array:
    x = jnp.asarray(x)
    if x.dtype not in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64):
        raise TypeError(f"x must be float16, bfloat16, float32 or float64, got {x.dtype}")
    if x.ndim == 0 or x.shape[0] != num_nodes:
        raise ValueError(f"x must be (num_nodes={num_nodes}, *features), got shape {x.shape}")
    return x


def _check_scale(name: str, scale: Any, size_name: str, size: int, acc: Any) -> Array | None:
    if scale is None:
        return None
    scale = jnp.asarray(scale)
    if not (jnp.issubdtype(scale.dtype, jnp.floating) or jnp.issubdtype(scale.dtype, jnp.integer)):
        raise TypeError(f"{name} must be real numbers, got {scale.dtype}")
    if scale.shape != (size,):
        raise ValueError(f"{name} must be ({size_name}={size},), got shape {scale.shape}")
    return scale.astype(acc)


def _check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _product(scales: Sequence[Array | None], indptr: Array, acc: Any) -> Array:
    given = [scale for scale in scales if scale is not None]
    if len(given) > 1:  # what an empty row's factor is must not reach the gradients to the others
        given = [_mask_empty(scale, indptr) for scale in given]
    return functools.reduce(operator.mul, given) if given else _ones(acc)


def _ones(acc: Any) -> Array:
    return jnp.ones((1,), acc)


def _mask_empty(scale: Array, indptr: Array) -> Array:
    """The scale of an empty row may be anything, as 1 / degree is: makes it 0."""
    return jnp.where(jnp.diff(indptr) == 0, 0, scale)


def _power(degrees: Array, exponent: float) -> Array:
    """``degrees ** exponent``, 0 where a degree is 0, with gradients that stay finite there."""
    positive = degrees > 0
    return jnp.where(positive, jnp.where(positive, degrees, 1) ** exponent, 0)


def _weighted_degrees(
    hypergraph: Hypergraph, weight: Array | None, acc: Any, implementation: Any
) -> Array:
    """Each node's sum of its hyperedges' weights."""
    if weight is None:
        return hypergraph.node_degrees().astype(acc)
    # H w = H diag(w / d) Hᵀ 1 with the sizes d of the hyperedges, so that the aggregation serves
    # here too.
    share = weight * _power(hypergraph.hyperedge_degrees().astype(acc), -1.0)
    ones = jnp.ones((hypergraph.num_nodes, 1), acc)
    arrays = _index_arrays(hypergraph)
    return _aggregate(ones, _ones(acc), share, _ones(acc), *arrays, implementation=implementation)[
        :, 0
    ]


# --- Plain XLA -----------------------------------------------------------------------------------


def _gather_reduce(
    indptr: Array, indices: Array, x: Array, col_scale: Array, row_scale: Array
) -> Array:
    """``row_scale[r] · Σ col_scale[c] · x[c]`` over the columns c of row r."""
    num_rows = indptr.shape[0] - 1
    messages = take(x, indices)
    if col_scale.shape[0] == x.shape[0]:
        messages *= take(col_scale, indices)[:, None]
    rows = row_ids(indptr, indices.shape[0])
    rows = jnp.where(rows < 0, num_rows, rows)  # out of range: dropped
    sums = jax.ops.segment_sum(messages, rows, num_rows, indices_are_sorted=True)
    return sums * _mask_empty(row_scale, indptr)[:, None]


def _aggregate_xla(
    x: Array,
    node_scale_in: Array,
    hyperedge_scale: Array,
    node_scale_out: Array,
    hyperedge_indptr: Array,
    hyperedge_nodes: Array,
    node_indptr: Array,
    node_hyperedges: Array,
) -> Array:
    wide = x.astype(accumulator_dtype(x.dtype))
    h = _gather_reduce(hyperedge_indptr, hyperedge_nodes, wide, node_scale_in, hyperedge_scale)
    y = _gather_reduce(node_indptr, node_hyperedges, h, _ones(h.dtype), node_scale_out)
    return y.astype(x.dtype)


def _dot_xla(
    x: Array,
    x_scale: Array,
    y: Array,
    y_scale: Array,
    hyperedge_indptr: Array,
    hyperedge_nodes: Array,
    node_indptr: Array,
    node_hyperedges: Array,
) -> Array:
    del node_indptr, node_hyperedges  # for the transposes
    acc = accumulator_dtype(x.dtype)
    reduce = functools.partial(_gather_reduce, hyperedge_indptr, hyperedge_nodes)
    return jnp.sum(
        reduce(x.astype(acc), x_scale, _ones(acc)) * reduce(y.astype(acc), y_scale, _ones(acc)), 1
    )


# --- Derivatives ---------------------------------------------------------------------------------


def _scale_rows(x: Array, scale: Array) -> Array:
    return (x * scale[..., None]).astype(x.dtype)


def _pull_out(
    x: Array, dx: Array | None, scale: Array, dscale: Array | None, node_indptr: Array
) -> tuple[Array, Array | None, Array]:
    """Multiplies features and tangent by a scale that has a tangent; ones are left as scale."""
    if dscale is None:
        return x, dx, scale
    # Isolated nodes take no part, whatever their features and scales hold.
    x = jnp.where((jnp.diff(node_indptr) == 0)[:, None], 0, x)
    scale = _mask_empty(scale, node_indptr)
    terms = [_scale_rows(x, dscale)] + ([] if dx is None else [_scale_rows(dx, scale)])
    return _scale_rows(x, scale), functools.reduce(operator.add, terms), _ones(scale.dtype)


def _aggregate_jvp(
    bind: _ffi.Bind, primals: Sequence[Array], tangents: Sequence[Array | None]
) -> tuple[Array, Array | None]:
    x, scale_in, scale_edge, scale_out, *index = primals
    dx, dscale_in, dscale_edge, dscale_out, *_ = tangents
    x, dx, scale_in = _pull_out(x, dx, scale_in, dscale_in, index[2])
    inner_scale_out = scale_out if dscale_out is None else _ones(scale_out.dtype)
    inner = (x, scale_in, scale_edge, inner_scale_out, *index)
    if dx is None and dscale_edge is None:
        y, dy = bind(*inner), None
    else:
        y, dy = _ffi.multilinear_jvp((0, 2), bind, inner, (dx, None, dscale_edge, None))
    y, dy, _ = _pull_out(y, dy, scale_out, dscale_out, index[2])
    assert dy is not None  # JAX asks for derivatives only where there is a tangent
    return y, dy


def _dot_jvp(
    bind: _ffi.Bind, primals: Sequence[Array], tangents: Sequence[Array | None]
) -> tuple[Array, Array | None]:
    x, x_scale, y, y_scale, *index = primals
    dx, dx_scale, dy, dy_scale, *_ = tangents
    x, dx, x_scale = _pull_out(x, dx, x_scale, dx_scale, index[2])
    y, dy, y_scale = _pull_out(y, dy, y_scale, dy_scale, index[2])
    return _ffi.multilinear_jvp(
        (0, 2), bind, (x, x_scale, y, y_scale, *index), (dx, None, dy, None)
    )


def _aggregate_transpose_x(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, scale_in, scale_edge, scale_out, *index = operands
    return bind(ct, scale_out, scale_edge, scale_in, *index)


def _aggregate_transpose_scale(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, scale_in, _, scale_out, *index = operands
    return _dot(x, scale_in, ct, scale_out, *index, implementation=bind.implementation)


def _aggregate_transpose_scale_in(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, _, scale_edge, scale_out, *index = operands
    ones = _ones(scale_edge.dtype)
    return _row_dot(x, bind(ct, scale_out, scale_edge, ones, *index), index[2])


def _aggregate_transpose_scale_out(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, scale_in, scale_edge, _, *index = operands
    ones = _ones(scale_edge.dtype)
    return _row_dot(ct, bind(x, scale_in, scale_edge, ones, *index), index[2])


def _row_dot(x: Array, y: Array, node_indptr: Array) -> Array:
    acc = accumulator_dtype(x.dtype)
    return _mask_empty(jnp.sum(x.astype(acc) * y.astype(acc), 1), node_indptr)


def _dot_transpose_x(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, x_scale, y, y_scale, *index = operands
    return _aggregate(y, y_scale, ct, x_scale, *index, implementation=bind.implementation)


def _dot_transpose_x_scale(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, _, y, y_scale, *index = operands
    ones = _ones(ct.dtype)
    other = _aggregate(y, y_scale, ct, ones, *index, implementation=bind.implementation)
    return _row_dot(x, other, index[2])


def _sides_swapped(
    rule: Callable[[_ffi.Bind, Array, Sequence[Any]], Array],
) -> Callable[[_ffi.Bind, Array, Sequence[Any]], Array]:
    """The rule for y or its scale, from that for x or its scale: the dot is symmetric."""

    def swapped(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
        x, x_scale, y, y_scale, *index = operands
        return rule(bind, ct, (y, y_scale, x, x_scale, *index))

    return swapped


# --- Batching ------------------------------------------------------------------------------------


def _aggregate_batch(
    bind: _ffi.Bind, operands: Sequence[Array], batched: Sequence[bool], size: int
) -> Array:
    x, scale_in, scale_edge, scale_out, *index = operands
    x_batched, in_batched, edge_batched, out_batched, *index_batched = batched
    if edge_batched or any(index_batched):
        return _disjoint_union({2}, bind, operands, batched, size)
    # One hypergraph for all: the batch joins the features, and batched node scales go outside.
    if in_batched:
        x, scale_in, x_batched = _scale_rows(x, scale_in), _ones(scale_in.dtype), True
    inner_scale_out = _ones(scale_out.dtype) if out_batched else scale_out
    if x_batched:
        nodes, features = x.shape[1:]
        folded = jnp.moveaxis(x, 0, 1).reshape(nodes, size * features)
        y = bind(folded, scale_in, scale_edge, inner_scale_out, *index)
        y = jnp.moveaxis(y.reshape(nodes, size, features), 1, 0)
    else:
        y = bind(x, scale_in, scale_edge, inner_scale_out, *index)
    return _scale_rows(y, _mask_empty(scale_out, index[2])) if out_batched else y


def _disjoint_union(
    of_hyperedges: set[int],
    bind: _ffi.Bind,
    operands: Sequence[Array],
    batched: Sequence[bool],
    size: int,
) -> Array:
    """Joins a batch of hypergraphs to one without common nodes, and applies a primitive to that.

    The operands at ``of_hyperedges`` have a row for each hyperedge, the other values for each node.
    """
    *values, hyperedge_indptr, hyperedge_nodes, node_indptr, node_hyperedges = (
        operand if is_batched else jnp.broadcast_to(operand, (size, *operand.shape))
        for operand, is_batched in zip(operands, batched, strict=True)
    )
    num_nodes, num_hyperedges = node_indptr.shape[1] - 1, hyperedge_indptr.shape[1] - 1
    if size * max(num_nodes, num_hyperedges, node_hyperedges.shape[1]) > _max_id(node_indptr):
        stacked = (*values, hyperedge_indptr, hyperedge_nodes, node_indptr, node_hyperedges)
        return jax.lax.map(lambda one: bind(*one), stacked)
    for i, value in enumerate(values):
        if value.ndim == 2:
            # A scale: a single 1 becomes one for each row, of which the joined hypergraph has more,
            # and rows that are empty now may get padding and not seem so then.
            indptr = hyperedge_indptr if i in of_hyperedges else node_indptr
            values[i] = _mask_empty(value, indptr)
    joined = bind(
        *(value.reshape(-1, *value.shape[2:]) for value in values),
        *_join_csr(hyperedge_indptr, hyperedge_nodes, num_nodes),
        *_join_csr(node_indptr, node_hyperedges, num_hyperedges),
    )
    return joined.reshape(size, -1, *joined.shape[1:])


def _max_id(indices: Array) -> int:
    return int(jnp.iinfo(indices.dtype).max)


def _join_csr(indptr: Array, indices: Array, num_cols: int) -> tuple[Array, Array]:
    """Block-diagonal CSR of a batch: ``(size, rows + 1)``, ``(size, entries)`` to one of each."""
    size, entries = indices.shape
    batch = jnp.arange(size, dtype=indptr.dtype)[:, None]
    position = jnp.arange(entries, dtype=indptr.dtype)
    # The last row of each block runs on over the block's padding: make sure that it is recognised
    # as such.
    valid = (indices >= 0) & (indices < num_cols) & (position < indptr[:, -1:])
    starts = (indptr[:, :-1] + batch * entries).ravel()
    end = jnp.full((1,), size * entries, indptr.dtype)
    return jnp.concatenate([starts, end]), jnp.where(valid, indices + batch * num_cols, -1).ravel()


# --- Primitives ----------------------------------------------------------------------------------


def _aggregate_result(x: Any, *others: Any) -> jax.ShapeDtypeStruct:
    del others
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _aggregate_call(platform: _ffi.Platform, x: Any, *others: Any) -> _ffi.Call:
    del platform  # both want the hyperedges' features as workspace
    hyperedge_indptr = others[3]
    shape = (hyperedge_indptr.shape[0] - 1, x.shape[1])
    workspace = jax.ShapeDtypeStruct(shape, accumulator_dtype(x.dtype))
    return _ffi.Call((x, *others), workspaces=[workspace])


def _dot_result(x: Any, *others: Any) -> jax.ShapeDtypeStruct:
    hyperedge_indptr = others[3]
    return jax.ShapeDtypeStruct((hyperedge_indptr.shape[0] - 1,), accumulator_dtype(x.dtype))


_aggregate = _ffi.define_primitive(
    "hypergraph_aggregate",
    _ffi.Rules(
        result=_aggregate_result,
        xla=_aggregate_xla,
        call=_aggregate_call,
        jvp=_aggregate_jvp,
        transpose={
            0: _aggregate_transpose_x,
            1: _aggregate_transpose_scale_in,
            2: _aggregate_transpose_scale,
            3: _aggregate_transpose_scale_out,
        },
        batch=_aggregate_batch,
    ),
)
_dot = _ffi.define_primitive(
    "hyperedge_dot",
    _ffi.Rules(
        result=_dot_result,
        xla=_dot_xla,
        jvp=_dot_jvp,
        transpose={
            0: _dot_transpose_x,
            1: _dot_transpose_x_scale,
            2: _sides_swapped(_dot_transpose_x),
            3: _sides_swapped(_dot_transpose_x_scale),
        },
        batch=functools.partial(_disjoint_union, set()),
    ),
)
