"""The primitive of hypergraph aggregation: both linear stages in one call.

``hypergraph_aggregate`` is Y = diag(o) B diag(e) A diag(i) X + diag(s) X, where A sums nodes into
hyperedges and B hyperedges into nodes. Its transpose in X is itself with the same s, i and o
exchanged, and A and B replaced by Bᵀ and Aᵀ. Its transpose in e is the row dot of two hyperedge
sums, in the primitives of :mod:`jax_gnn._ops.segment_reduce`. The epilogue of a kernel adds a
residual and a bias and applies a ReLU. Transposes never see it: the JVP computes it in
``jax.numpy``.

Scales are vectors in the accumulator type. A single 1 stands for an absent scale (not an empty
array: the compiler of jax 0.11 crashes on those under ``shard_map``). The self scale s is a vector,
a single number for all nodes, or None. A node scale with a tangent is multiplied outside of the
primitive, so that features and scale share one call of the kernel; s X is then added outside, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, as_matrix, row_width, row_wise
from jax_gnn._core.batching import broadcast_batch, disjoint_union
from jax_gnn._core.csr import Csr, EdgeSplit, SparseMatrix
from jax_gnn._core.ffi import Platform
from jax_gnn._core.ids import MAX_SIZE, at_most
from jax_gnn._core.kernels import block_workspace, like_first, narrow_ids
from jax_gnn._core.op import Bind, Call, Op, composed_batch, composed_jvp
from jax_gnn._core.sharding import UNSPLIT, Pieces, Sharding
from jax_gnn._ops.hypergraph_aggregate import xla
from jax_gnn._ops.hypergraph_aggregate.schedule import FAMILY, team_lanes
from jax_gnn._ops.hypergraph_aggregate.xla import add_own, mask_empty, ones
from jax_gnn._ops.matrix_sharding import half_factors, local_blocks, unread
from jax_gnn._ops.segment_reduce.primitive import tangent_after, total
from jax_gnn._ops.segment_reduce.xla import epilogue


class Aggregation(NamedTuple):
    """Operands of ``hypergraph_aggregate``; matrices have row pointers and slots.

    Rules also hold in these fields abstract values, flags, or factors of axes in place of arrays.
    """

    x: Any  # features, (nodes, *features)
    node_scale_in: Any  # i, (nodes,), or a single 1
    hyperedge_scale: Any  # e, (hyperedges,), or a single 1
    node_scale_out: Any  # o, (nodes,), or a single 1
    self_scale: Any  # s, (nodes,) or (1,), or None
    to_hyperedges: SparseMatrix  # A
    to_nodes: SparseMatrix  # B
    residual: Any = None  # (nodes, features), added to the result, or None
    bias: Any = None  # (features,) in the accumulator type, added to each row, or None

    @property
    def linear(self) -> Aggregation:
        """Operands without the residual and the bias."""
        return self._replace(residual=None, bias=None)


_NODE_SCALES = "node_scale_in", "node_scale_out"


def _without_relu(bind: Bind) -> Bind:
    return replace(bind, attributes={"relu": False})


def _is_linear(bind: Bind, operands: Aggregation) -> bool:
    has_relu = bind.attributes["relu"]
    return not has_relu and operands.residual is None and operands.bias is None


def _scale_rows(x: Array, scale: Array, csr: Csr) -> Array:
    """Return ``(rows, *features)`` times ``(rows,)``; empty rows are 0, even of NaN."""
    x = jnp.where(row_wise(csr.counts == 0, x), 0, x)
    return (x.astype(scale.dtype) * row_wise(mask_empty(scale, csr), x)).astype(x.dtype)


# --- Derivatives ---------------------------------------------------------------------------------


def _jvp(bind: Bind, primals: Aggregation, tangents: Aggregation) -> tuple[Array, Array | None]:
    moving = {name for name in _NODE_SCALES if getattr(tangents, name) is not None}
    if moving:
        compose = functools.partial(_with_scales_outside, moving)
        return composed_jvp(compose, bind, primals, tangents)
    # The epilogue only adds terms and applies the ReLU, whose slope follows from its result.
    plain, linear = _without_relu(bind), primals.linear
    terms = [] if tangents.x is None else [plain(linear._replace(x=tangents.x))]
    if tangents.hyperedge_scale is not None:
        scale = tangents.hyperedge_scale
        terms.append(plain(linear._replace(hyperedge_scale=scale, self_scale=None)))
    if tangents.self_scale is not None:
        terms.append(add_own(None, primals.x, tangents.self_scale))
    terms += [term for term in (tangents.residual, tangents.bias) if term is not None]
    result = bind(primals)
    return result, tangent_after(result, terms, bind.attributes["relu"])


def _with_scales_outside(names: set[str], bind: Bind, operands: Aggregation) -> Array:
    """Aggregate with some scales outside of the primitive; the self term follows those of nodes."""
    x, one = operands.x, ones(operands.hyperedge_scale.dtype)
    inner: dict[str, Any] = dict.fromkeys(names, one)
    if "node_scale_in" in names:
        inner["x"] = _scale_rows(x, operands.node_scale_in, operands.to_hyperedges.by_col)
    if names:
        inner["self_scale"] = None
    y = _without_relu(bind)(operands.linear._replace(**inner))
    if "node_scale_out" in names:
        y = _scale_rows(y, operands.node_scale_out, operands.to_nodes.by_row)
    if names and operands.self_scale is not None:
        y = add_own(y, x, operands.self_scale)
    return _add_epilogue(bind, y, operands)


def _add_epilogue(bind: Bind, result: Array, operands: Aggregation) -> Array:
    """Apply the residual, the bias and the ReLU to the linear part of a result."""
    x, residual, bias, relu = operands.x, operands.residual, operands.bias, bind.attributes["relu"]
    return epilogue(result, x, None, None, residual, bias, relu=relu).astype(result.dtype)


def _transposed(
    bind: Bind, ct: Array, operands: Aggregation, node_scale: Array, self_scale: Array | None
) -> Array:
    """Aggregate cotangents of the receiving nodes at the sending nodes, times ``node_scale``."""
    result: Array = bind(
        operands._replace(
            x=ct,
            node_scale_in=operands.node_scale_out,
            node_scale_out=node_scale,
            self_scale=self_scale,
            to_hyperedges=operands.to_nodes.T,
            to_nodes=operands.to_hyperedges.T,
        )
    )
    return result


def _transpose_x(bind: Bind, ct: Array, operands: Aggregation) -> Array:
    return _transposed(bind, ct, operands, operands.node_scale_in, operands.self_scale)


def _transpose_scale_in(bind: Bind, ct: Array, operands: Aggregation) -> Array:
    to_sent = _transposed(bind, ct, operands, ones(operands.hyperedge_scale.dtype), None)
    return _row_dot(operands.x, to_sent, operands.to_hyperedges.by_col)


def _transpose_scale_out(bind: Bind, ct: Array, operands: Aggregation) -> Array:
    one = ones(operands.hyperedge_scale.dtype)
    y = bind(operands._replace(node_scale_out=one, self_scale=None))
    return _row_dot(ct, y, operands.to_nodes.by_row)


def _row_dot(x: Array, y: Array, csr: Csr) -> Array:
    """Return the dot product of each row of ``x`` with that of ``y``, 0 for empty rows."""
    acc = accumulator_dtype(x.dtype)
    x = jnp.where(row_wise(csr.counts == 0, x), 0, x)
    return _dots(x.astype(acc), y.astype(acc))


def _dots(x: Array, y: Array) -> Array:
    """Return ``(rows,)`` dot products of rows, over all axes of the features."""
    return jnp.sum(x * y, tuple(range(1, x.ndim)))


def _transpose_hyperedge_scale(bind: Bind, ct: Array, operands: Aggregation) -> Array:
    def sums(matrix: SparseMatrix, x: Array, scale: Array) -> Array:
        x = x.astype(accumulator_dtype(x.dtype))  # half types would lose or overflow the sums
        if scale.shape[0] == x.shape[0]:
            x = _scale_rows(x, scale, matrix.by_col)
        # Segment primitives read neither row pointers nor slots.
        by_row, by_col = (Csr(csr.rows, csr.cols, num_rows=csr.num_rows) for csr in matrix)
        return total(x, SparseMatrix(by_row, by_col))

    sent = sums(operands.to_hyperedges, operands.x, operands.node_scale_in)
    received = sums(operands.to_nodes.T, ct, operands.node_scale_out)
    return _dots(sent, received)


# --- Batching ------------------------------------------------------------------------------------


def _batch(bind: Bind, operands: Aggregation, batched: Aggregation, size: int) -> Array:
    matrices = batched.to_hyperedges, batched.to_nodes
    joins = batched.hyperedge_scale or any(jax.tree.leaves(matrices))
    names = {name for name in (*_NODE_SCALES, "self_scale") if getattr(batched, name)}
    names = set() if joins else names
    if names or not _is_linear(bind, operands):
        compose = functools.partial(_with_scales_outside, names)
        return cast(Array, composed_batch(compose, bind, operands, batched, size))
    if joins:
        return _disjoint_union(bind, operands, batched, size)
    # All examples share one hypergraph: the batch becomes an axis of the features, so that either
    # may be split over devices.
    return jnp.moveaxis(bind(operands._replace(x=jnp.moveaxis(operands.x, 0, 1))), 1, 0)


def _disjoint_union(bind: Bind, operands: Aggregation, batched: Aggregation, size: int) -> Array:
    """Join a batch of hypergraphs into one without common nodes."""
    operands = broadcast_batch(operands, batched, size)
    self_scale = operands.self_scale
    # A single 1 becomes a scale for each row of the joined hypergraph. Rows that are empty before
    # the join may hold padding after it, so that their scales must be 0 already.
    operands = operands._replace(
        node_scale_in=mask_empty(operands.node_scale_in, operands.to_hyperedges.by_col),
        hyperedge_scale=mask_empty(operands.hyperedge_scale, operands.to_hyperedges.by_row),
        node_scale_out=mask_empty(operands.node_scale_out, operands.to_nodes.by_row),
    )
    if self_scale is not None:
        operands = operands._replace(self_scale=jnp.broadcast_to(self_scale, operands.x.shape[:2]))
    return cast(Array, disjoint_union(bind, operands, jax.tree.map(lambda _: True, operands), size))


# --- Several devices -----------------------------------------------------------------------------


def _sharding(operands: Aggregation, results: object, **attributes: object) -> Sharding:
    """Split features, and blocks without common nodes: neither needs a collective."""
    # Names of axes: b blocks, n nodes and m hyperedges of a block, e and d entries of both stages.
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

    def scale(x: Array | None, axis: str) -> str | None:
        return None if x is None else UNSPLIT if x.shape[0] == 1 else axis

    features = [f"f{i}" for i in range(operands.x.ndim - 1)]
    rows = " ".join([of_nodes, *features])
    named = Aggregation(
        rows,
        scale(operands.node_scale_in, of_nodes),
        scale(operands.hyperedge_scale, of_hyperedges),
        scale(operands.node_scale_out, of_nodes),
        scale(operands.self_scale, of_nodes),
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
    return cast(Array, bind(operands))


# --- The primitive -------------------------------------------------------------------------------


def _composition(
    platform: str, implementation: str | None, operands: Aggregation, relu: bool = False
) -> Callable[..., Array] | None:
    """Return the aggregation with all axes of the features joined, as kernels take them."""
    if len(operands.x.shape) == 2:
        return None

    def joined(**arrays: Any) -> Array:
        operands = Aggregation(**arrays)
        residual, bias = operands.residual, operands.bias
        operands = operands._replace(
            x=as_matrix(operands.x),
            residual=None if residual is None else as_matrix(residual),
            bias=None if bias is None else bias.ravel(),
        )
        result = aggregate(*operands, relu=relu)
        return cast(Array, result.reshape(arrays["x"].shape))

    return joined


def _call(platform: Platform, operands: Aggregation, relu: bool = False) -> Call | None:
    x, *scales, self_scale, to_hyperedges, to_nodes, residual, bias = operands
    stages = to_hyperedges.by_row, to_nodes.by_row
    width, acc = x.shape[1], np.dtype(accumulator_dtype(x.dtype))
    hyperedges, nodes = stages[0].num_rows, stages[1].num_rows
    incidences = jax.core.max_dim(stages[0].count, stages[1].count)  # sizes may be symbolic
    schedule = FAMILY.choose(
        "hypergraph_aggregate",
        incidences=incidences,
        nodes=nodes,
        hyperedges=hyperedges,
        width=width,
        itemsize=np.dtype(x.dtype).itemsize,
    )
    blocks = [1, 1]
    if platform == "cuda":
        # CUDA kernels take int32 ids and slots.
        largest = 2 * jax.core.max_dim(nodes, hyperedges) + incidences
        if not at_most(largest, MAX_SIZE - 1):
            return None
        indices = [narrow_ids(ids, largest) for stage in stages for ids in stage.slots or ()]
        rounds = schedule.rounds, schedule.next_rounds
        itemsizes = x.dtype.itemsize, acc.itemsize
        blocks = [
            _num_blocks(stage.slots, schedule.threads // team_lanes(width, itemsize), num_rounds)
            for stage, itemsize, num_rounds in zip(stages, itemsizes, rounds, strict=True)
        ]
    else:
        indices = [ids for stage in stages for ids in (stage.indptr, stage.cols)]
    # Scratch memory: the hyperedges' sums, and the partial rows that blocks share in each stage.
    workspaces = [jax.ShapeDtypeStruct((hyperedges, width), acc)]
    workspaces += [block_workspace(num_blocks, width, acc) for num_blocks in blocks]
    attributes = {
        "threads": np.int64(schedule.threads),
        "has_own": np.bool_(self_scale is not None),
        "has_residual": np.bool_(residual is not None),
        "has_bias": np.bool_(bias is not None),
        "relu": np.bool_(relu),
    }
    # x stands for absent operands, which flags tell apart.
    epilogue_operands = [operand or x for operand in (self_scale, residual, bias)]
    return Call([x, *scales, *epilogue_operands, *indices], attributes, workspaces)


def _num_blocks(slots: EdgeSplit | None, teams: int, rounds: int) -> int:
    """Return the number of blocks of a launch: each has ``teams``, which take ``rounds`` slots."""
    assert slots is not None
    return jax.core.max_dim(-(-(slots.places.shape[0] - 1) // (max(teams, 1) * rounds)), 1)


def _flops(operands: Aggregation, **attributes: object) -> int:
    stages = operands.to_hyperedges.by_row, operands.to_nodes.by_row
    return row_width(operands.x) * sum(stage.count + stage.num_rows for stage in stages)


# Attribute: relu, whether the epilogue applies it.
aggregate = Op(
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
