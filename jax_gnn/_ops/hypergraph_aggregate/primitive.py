"""The primitive of hypergraph aggregation: both linear stages in one call.

``hypergraph_aggregate``, Y = diag(o) B diag(e) A diag(i) X + diag(s) X, where A sums nodes into
hyperedges and B hyperedges into nodes. Its transpose in X is itself with i and o, and Aᵀ and Bᵀ, in
each other's place, and the same s; in e it is the row dot of two hyperedge sums, in the primitives
of :mod:`jax_gnn._ops.segment_reduce`. Kernels may go on with a residual, a bias and a ReLU, which
the transposes never see: the derivative has them in ``jax.numpy``.

Scales are vectors in the accumulator type; where there is none, a single 1 stands for it (not an
empty array: the compiler of jax 0.11 crashes on those under ``shard_map``). The own scale s is a
vector, a single number for all nodes, or None. A node scale that is itself differentiated is taken
out of the primitive and multiplied in ``jax.numpy``, so that features and scale share one call of
the kernel; s X is then added there, too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, as_matrix, row_width, row_wise
from jax_gnn._core.batching import broadcast_batch, disjoint_union
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ffi import Platform
from jax_gnn._core.ids import MAX_SIZE, at_most
from jax_gnn._core.kernels import block_workspace, like_first, narrow_ids
from jax_gnn._core.op import Bind, Call, Op, composed_jvp, define
from jax_gnn._core.pieces import half_factors, local_blocks, unread
from jax_gnn._core.sharding import UNSPLIT, Pieces, Sharding
from jax_gnn._ops.hypergraph_aggregate import xla
from jax_gnn._ops.hypergraph_aggregate.schedule import FAMILY, team_lanes
from jax_gnn._ops.hypergraph_aggregate.xla import add_own, mask_empty, ones
from jax_gnn._ops.segment_reduce.primitive import tangent_after, total
from jax_gnn._ops.segment_reduce.xla import epilogue


class Aggregation(NamedTuple):
    """Operands of ``hypergraph_aggregate``; matrices with row pointers and slots.

    Attributes:
        x: ``(nodes, *features)``.
        node_scale_in: ``(nodes,)`` i, or a single 1.
        hyperedge_scale: ``(hyperedges,)`` e, likewise.
        node_scale_out: ``(nodes,)`` o, likewise.
        own_scale: ``(nodes,)`` or ``(1,)`` s, or None.
        to_hyperedges: A.
        to_nodes: B.
        residual: ``(nodes, features)``, added to the result, or None.
        bias: ``(features,)`` in the accumulator type, likewise.
    """

    x: Any
    node_scale_in: Any
    hyperedge_scale: Any
    node_scale_out: Any
    own_scale: Any
    to_hyperedges: SparseMatrix
    to_nodes: SparseMatrix
    residual: Any = None
    bias: Any = None

    @property
    def linear(self) -> Aggregation:
        """Without what makes it not linear in the features."""
        return self._replace(residual=None, bias=None)


def _relu(bind: Bind) -> bool:
    return bind.attributes.get("relu", False)


def _plain(bind: Bind) -> Bind:
    """The primitive without the ReLU."""
    return replace(bind, attributes={})


def _is_linear(bind: Bind, operands: Aggregation) -> bool:
    return not _relu(bind) and operands.residual is None and operands.bias is None


def _scale_rows(x: Array, scale: Array, csr: Csr) -> Array:
    """``(rows, *features)`` times ``(rows,)``; empty rows are 0, whatever both hold there."""
    x = jnp.where(row_wise(csr.counts == 0, x), 0, x)
    return (x.astype(scale.dtype) * row_wise(mask_empty(scale, csr), x)).astype(x.dtype)


# --- Derivatives ---------------------------------------------------------------------------------


def _pull_out(
    x: Array, dx: Array | None, scale: Array, dscale: Array | None, csr: Csr
) -> tuple[Array, Array | None, Array]:
    """Multiplies features and tangent by a scale that has a tangent; ones are left as scale."""
    if dscale is None:
        return x, dx, scale
    terms = [_scale_rows(x, dscale, csr)]
    terms += [] if dx is None else [_scale_rows(dx, scale, csr)]
    return _scale_rows(x, scale, csr), functools.reduce(operator.add, terms), ones(scale.dtype)


def _jvp(bind: Bind, primals: Aggregation, tangents: Aggregation) -> tuple[Array, Array | None]:
    if not _is_linear(bind, primals):
        return _epilogue_jvp(bind, primals, tangents)
    x, own_scale, scale_out = primals.x, primals.own_scale, primals.node_scale_out
    d_in, d_out = tangents.node_scale_in, tangents.node_scale_out
    is_inside = d_in is None and d_out is None
    inner_x, inner_dx, scale_in = _pull_out(
        x, tangents.x, primals.node_scale_in, d_in, primals.to_hyperedges.by_col
    )
    inner = primals._replace(
        x=inner_x,
        node_scale_in=scale_in,
        node_scale_out=scale_out if d_out is None else ones(scale_out.dtype),
        own_scale=own_scale if is_inside else None,
    )
    y = bind(inner)
    terms = _terms(bind, inner, inner_dx, tangents.hyperedge_scale)
    dy = functools.reduce(operator.add, terms) if terms else None
    y, dy, _ = _pull_out(y, dy, scale_out, d_out, primals.to_nodes.by_row)
    if own_scale is not None and not is_inside:
        y = add_own(y, x, own_scale)
        dy = dy if tangents.x is None else add_own(dy, tangents.x, own_scale)
    return y, dy if tangents.own_scale is None else add_own(dy, x, tangents.own_scale)


def _terms(
    bind: Bind, operands: Aggregation, dx: Array | None, d_edge: Array | None
) -> list[Array]:
    """The derivatives in the direction of features and of scales of hyperedges."""
    terms = [] if dx is None else [bind(operands._replace(x=dx))]
    if d_edge is not None:
        terms.append(bind(operands._replace(hyperedge_scale=d_edge, own_scale=None)))
    return terms


def _epilogue_jvp(
    bind: Bind, primals: Aggregation, tangents: Aggregation
) -> tuple[Array, Array | None]:
    plain = _plain(bind)
    if tangents.node_scale_in is not None or tangents.node_scale_out is not None:
        return composed_jvp(
            lambda operands: _finished(bind, plain(operands.linear), operands), primals, tangents
        )
    # Behind the sums only additions and the ReLU, whose slope its result tells.
    terms = _terms(plain, primals.linear, tangents.x, tangents.hyperedge_scale)
    if tangents.own_scale is not None:
        terms.append(add_own(None, primals.x, tangents.own_scale))
    terms += [each for each in (tangents.residual, tangents.bias) if each is not None]
    result = bind(primals)
    return result, tangent_after(result, terms, _relu(bind))


def _finished(bind: Bind, result: Array, operands: Aggregation) -> Array:
    """What makes it not linear, for a result that is."""
    last = None, None, operands.residual, operands.bias
    return epilogue(result, operands.x, *last, relu=_relu(bind)).astype(result.dtype)


def _backward(
    bind: Bind, ct: Array, operands: Aggregation, last_scale: Array, own_scale: Array | None
) -> Array:
    """The aggregation that leads back to the nodes that sent."""
    back = operands._replace(
        x=ct,
        node_scale_in=operands.node_scale_out,
        node_scale_out=last_scale,
        own_scale=own_scale,
        to_hyperedges=operands.to_nodes.T,
        to_nodes=operands.to_hyperedges.T,
    )
    return bind(back)


def _transpose_x(bind: Bind, ct: Array, operands: Aggregation) -> Array:
    return _backward(bind, ct, operands, operands.node_scale_in, operands.own_scale)


def _transpose_scale_in(bind: Bind, ct: Array, operands: Aggregation) -> Array:
    other = _backward(bind, ct, operands, ones(operands.hyperedge_scale.dtype), None)
    return _row_dot(operands.x, other, operands.to_hyperedges.by_col)


def _transpose_scale_out(bind: Bind, ct: Array, operands: Aggregation) -> Array:
    one = ones(operands.hyperedge_scale.dtype)
    y = bind(operands._replace(node_scale_out=one, own_scale=None))
    return _row_dot(ct, y, operands.to_nodes.by_row)


def _row_dot(x: Array, y: Array, csr: Csr) -> Array:
    acc = accumulator_dtype(x.dtype)
    x = jnp.where(row_wise(csr.counts == 0, x), 0, x)
    return _dots(x.astype(acc), y.astype(acc))


def _dots(x: Array, y: Array) -> Array:
    """``(rows,)``, the dot product of each row of ``x`` with that of ``y``."""
    return jnp.sum(x * y, tuple(range(1, x.ndim)))


def _transpose_hyperedge_scale(bind: Bind, ct: Array, operands: Aggregation) -> Array:
    def sums(matrix: SparseMatrix, x: Array, scale: Array) -> Array:
        x = x.astype(accumulator_dtype(x.dtype))  # half types would lose or overflow the sums
        if scale.shape[0] == x.shape[0]:
            x = _scale_rows(x, scale, matrix.by_col)
        return total(x, _bare(matrix), bind.implementation)

    sent = sums(operands.to_hyperedges, operands.x, operands.node_scale_in)
    received = sums(operands.to_nodes.T, ct, operands.node_scale_out)
    return _dots(sent, received)


def _bare(matrix: SparseMatrix) -> SparseMatrix:
    """Without row pointers and slots, which the primitives of segments do not read."""
    return SparseMatrix(*(Csr(each.rows, each.cols, num_rows=each.num_rows) for each in matrix))


# --- Batching ------------------------------------------------------------------------------------


def _batch(bind: Bind, operands: Aggregation, batched: Aggregation, size: int) -> Array:
    if _is_linear(bind, operands):
        return _batch_linear(bind, operands, batched, size)
    plain, linear, are_batched = _plain(bind), operands.linear, batched.linear
    if any(jax.tree.leaves(are_batched)):
        result = _batch_linear(plain, linear, are_batched, size)
    else:
        result = jnp.broadcast_to((once := plain(linear)), (size, *once.shape))
    axes = [0 if each else None for each in (batched.residual, batched.bias)]

    def finish(result: Array, residual: Array | None, bias: Array | None) -> Array:
        return _finished(bind, result, operands._replace(residual=residual, bias=bias))

    return jax.vmap(finish, (0, *axes))(result, operands.residual, operands.bias)


def _batch_linear(bind: Bind, operands: Aggregation, batched: Aggregation, size: int) -> Array:
    matrices = batched.to_hyperedges, batched.to_nodes
    if batched.hyperedge_scale or any(jax.tree.leaves(matrices)):
        return _disjoint_union(bind, operands, batched, size)
    x, own_scale, dtype = operands.x, operands.own_scale, operands.hyperedge_scale.dtype
    in_batched, out_batched = batched.node_scale_in, batched.node_scale_out
    if own_scale is not None and (in_batched or out_batched or batched.own_scale):
        without, are_batched = operands._replace(own_scale=None), batched._replace(own_scale=None)
        y = _batch_linear(bind, without, are_batched, size)
        batches = any(jax.tree.leaves(are_batched)), batched.x, batched.own_scale
        axes = [0 if is_batched else None for is_batched in batches]
        return jax.vmap(add_own, axes)(y, x, own_scale)
    # One hypergraph for all: the batch is an axis of the features, so that either may be split over
    # devices. Batched node scales go outside.
    x_batched, inner = batched.x, operands
    if in_batched:
        scale = functools.partial(_scale_rows, csr=operands.to_hyperedges.by_col)
        x = jax.vmap(scale, (0 if batched.x else None, 0))(x, operands.node_scale_in)
        x_batched, inner = True, inner._replace(node_scale_in=ones(dtype))
    if out_batched:
        inner = inner._replace(node_scale_out=ones(dtype))
    if x_batched:
        x = jnp.moveaxis(x, 0, 1)
    y = bind(inner._replace(x=x))
    if x_batched:
        y = jnp.moveaxis(y, 1, 0)
    if out_batched:
        scale = functools.partial(_scale_rows, csr=operands.to_nodes.by_row)
        y = jax.vmap(scale, (0 if x_batched else None, 0))(y, operands.node_scale_out)
    return y


def _disjoint_union(bind: Bind, operands: Aggregation, batched: Aggregation, size: int) -> Array:
    """Joins a batch of hypergraphs to one without common nodes."""
    operands = broadcast_batch(operands, batched, size)
    own_scale = operands.own_scale
    # A single 1 becomes a scale for each row, of which the joined hypergraph has more; rows that
    # are empty now may get padding and not seem so then.
    operands = operands._replace(
        node_scale_in=mask_empty(operands.node_scale_in, operands.to_hyperedges.by_col),
        hyperedge_scale=mask_empty(operands.hyperedge_scale, operands.to_hyperedges.by_row),
        node_scale_out=mask_empty(operands.node_scale_out, operands.to_nodes.by_row),
    )
    if own_scale is not None:
        operands = operands._replace(own_scale=jnp.broadcast_to(own_scale, operands.x.shape[:2]))
    return disjoint_union(bind, operands, jax.tree.map(lambda _: True, operands), size)


# --- Several devices -----------------------------------------------------------------------------


def _sharding(operands: Aggregation, results: Any, **attributes: Any) -> Sharding:
    """Features and blocks without a collective."""
    del results, attributes
    stages = {"e": operands.to_hyperedges, "d": operands.to_nodes}
    nodes, blocks = operands.x.shape[0], operands.to_nodes.by_row.blocks
    hyperedges = operands.to_hyperedges.by_row.num_rows
    sizes = {"b": blocks, "n": nodes // blocks, "m": hyperedges // blocks}
    of_nodes, of_hyperedges = ("(b n)", "(b m)") if blocks > 1 else (UNSPLIT, UNSPLIT)
    halves: list[SparseMatrix] = []
    for name, matrix in stages.items():
        csr, slots = matrix.by_row, f"{name}s"
        sizes |= {name: csr.count // blocks}
        sizes |= {slots: csr.slots.places.shape[0] // blocks} if csr.slots is not None else {}
        entries = f"(b {name})" if blocks > 1 else UNSPLIT
        halves.append(SparseMatrix(half_factors(csr, entries, slots), unread(matrix.by_col)))

    def scale(x: Any, axis: str) -> str | None:
        return None if x is None else UNSPLIT if x.shape[0] == 1 else axis

    features = [f"f{i}" for i in range(operands.x.ndim - 1)]
    rows = " ".join([of_nodes, *features])
    named = Aggregation(
        rows,
        scale(operands.node_scale_in, of_nodes),
        scale(operands.hyperedge_scale, of_hyperedges),
        scale(operands.node_scale_out, of_nodes),
        scale(operands.own_scale, of_nodes),
        halves[0],
        halves[1],
        None if operands.residual is None else rows,
        None if operands.bias is None else " ".join(features),
    )
    return Sharding(jax.tree.leaves(named), [rows], _local, sizes)


def _local(bind: Bind, operands: Aggregation, pieces: Pieces) -> Array:
    if "b" in pieces:
        matrices = operands.to_hyperedges, operands.to_nodes
        first, second = (local_blocks(matrix, pieces["b"]) for matrix in matrices)
        operands = operands._replace(to_hyperedges=first, to_nodes=second)
    return bind(operands)


# --- The primitive -------------------------------------------------------------------------------


def _composition(
    platform: str, implementation: str | None, operands: Aggregation, relu: bool = False
) -> Callable[..., Array] | None:
    """Return the aggregation with all axes of the features joined, as kernels take them."""
    del platform
    if len(operands.x.shape) == 2:
        return None

    def joined(x: Array, residual: Array | None, bias: Array | None, **others: Any) -> Array:
        residual = None if residual is None else as_matrix(residual)
        bias = None if bias is None else bias.ravel()
        operands = Aggregation(x=as_matrix(x), residual=residual, bias=bias, **others)
        options = {"relu": True} if relu else {}
        return aggregate(*operands, implementation=implementation, **options).reshape(x.shape)

    return joined


def _call(platform: Platform, operands: Aggregation, relu: bool = False) -> Call | None:
    x, *scales, own_scale, to_hyperedges, to_nodes, residual, bias = operands
    stages = to_hyperedges.by_row, to_nodes.by_row
    width, acc = x.shape[1], np.dtype(accumulator_dtype(x.dtype))
    hyperedges, nodes = (stage.num_rows for stage in stages)
    # Not max, as sizes may be symbolic.
    incidences = functools.reduce(jax.core.max_dim, (stage.count for stage in stages))
    chosen = FAMILY.choose(
        "hypergraph_aggregate",
        incidences=incidences,
        nodes=nodes,
        hyperedges=hyperedges,
        width=width,
        itemsize=np.dtype(x.dtype).itemsize,
    )
    blocks = [1, 1]
    if platform == "cuda":
        # Kernels take int32 ids and places there.
        largest = 2 * jax.core.max_dim(nodes, hyperedges) + incidences
        if not at_most(largest, MAX_SIZE - 1):
            return None
        indices = [narrow_ids(ids, largest) for stage in stages for ids in stage.slots or ()]
        rounds = chosen.rounds, chosen.next_rounds
        blocks = [
            _blocks(stage.slots, chosen.threads // team_lanes(width, itemsize), most)
            for stage, itemsize, most in zip(
                stages, (x.dtype.itemsize, acc.itemsize), rounds, strict=True
            )
        ]
    else:
        indices = [ids for stage in stages for ids in (stage.indptr, stage.cols)]
    workspaces = [jax.ShapeDtypeStruct((hyperedges, width), acc)]
    workspaces += [block_workspace(each, width, acc) for each in blocks]
    attributes = {
        "threads": np.int64(chosen.threads),
        "has_own": np.bool_(own_scale is not None),
        "has_residual": np.bool_(residual is not None),
        "has_bias": np.bool_(bias is not None),
        "relu": np.bool_(relu),
    }
    last = (each or x for each in (own_scale, residual, bias))
    return Call([x, *scales, *last, *indices], attributes, workspaces)


def _blocks(slots: Any, teams: int, rounds: int) -> int:
    """Of a launch, of so many teams that take so many slots each."""
    return jax.core.max_dim(-(-(slots.places.shape[0] - 1) // (max(teams, 1) * rounds)), 1)


def _flops(operands: Aggregation, **attributes: Any) -> int:
    del attributes
    stages = operands.to_hyperedges.by_row, operands.to_nodes.by_row
    return row_width(operands.x) * sum(stage.count + stage.num_rows for stage in stages)


# Attributes: relu, where there is one.
aggregate = define(
    Op(
        name="hypergraph_aggregate",
        operands=Aggregation,
        result=like_first,
        xla=xla.hypergraph_aggregate,
        call=_call,
        composition=_composition,
        jvp=_jvp,
        transpose={
            "x": _transpose_x,
            "node_scale_in": _transpose_scale_in,
            "hyperedge_scale": _transpose_hyperedge_scale,
            "node_scale_out": _transpose_scale_out,
        },
        batch=_batch,
        flops=_flops,
        family=FAMILY,
        sharding=_sharding,
    )
)
