"""The two steps of a layer as ops: which edges are drawn, and the block that is built of these.

On a CPU both have kernels (``cpp/kernels/cpu/sample_block.cc``), which give the bits that
:mod:`jax_gnn.sampling._draw` and :mod:`jax_gnn.sampling._blocks` do. Whatever draws edges, by
weight or by time, comes to the second one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.op import Bind, Call, Op, define, replaced
from jax_gnn.graph import Graph
from jax_gnn.sampling import _draw
from jax_gnn.sampling._blocks import distinct_block, lined_up, tree_block

ARRAYS = ("indptr", "rows", "cols", "t_indptr", "t_rows", "t_cols", "t_order", "edge_ids")
"""Of a block's graph, in the order in which the kernel gives them."""


class Rows(NamedTuple):
    """Operands of ``sample_uniform``: ``(rows,)``, and the two words of a key."""

    degrees: Any
    key: Any


class Drawn(NamedTuple):
    """Operands of ``sample_block``.

    Attributes:
        nodes: ``(num_dst,)``, the destinations' ids; -1 is padding.
        starts: ``(num_dst,)``, where their edges start in ``cols``.
        offsets: ``(num_dst, fanout)``, which of these were drawn.
        counts: ``(num_dst,)``, how many of them count, the first ones.
        cols: ``(num_whole,)``, the sources of the whole graph's edges.
    """

    nodes: Any
    starts: Any
    offsets: Any
    counts: Any
    cols: Any


def _batch(bind: Bind, operands: Any, batched: Any, size: int) -> Any:
    """One after the other: random numbers go by an edge's place, which a batch would move."""
    del size
    leaves, tree = jax.tree.flatten(operands)
    moving = [i for i, is_batched in enumerate(jax.tree.leaves(batched)) if is_batched]

    def one(values: list[Array]) -> Any:
        return bind(jax.tree.unflatten(tree, replaced(leaves, moving, values)))

    return jax.lax.map(one, [leaves[i] for i in moving])


# --- Draws ---------------------------------------------------------------------------------------


def _uniform_result(operands: Rows, *, fanout: int, **others: Any) -> Any:
    del others
    rows, dtype = operands.degrees.shape[0], operands.degrees.dtype
    return [jax.ShapeDtypeStruct((rows, fanout), dtype), jax.ShapeDtypeStruct((rows,), dtype)]


def _uniform_xla(degrees: Array, key: Array, *, fanout: int, stream: int, replace: bool) -> Any:
    return list(_draw.uniform(degrees, fanout, (key[0], key[1]), stream, replace=replace))


def _uniform_call(platform: str, operands: Rows, *, stream: int, replace: bool, **_: Any) -> Call:
    del platform
    return Call([*operands], {"stream": np.int64(stream), "replace": np.bool_(replace)})


sample_uniform = define(
    Op(
        name="sample_uniform",
        operands=Rows,
        result=_uniform_result,
        xla=_uniform_xla,
        platforms=("cpu",),
        call=_uniform_call,
        transpose={},
        batch=_batch,
        several=True,
    )
)


def uniform(
    degrees: Array, fanout: int, key: tuple[Any, Any], stream: int, *, replace: bool
) -> tuple[Array, Array]:
    """:func:`jax_gnn.sampling._draw.uniform`, by the kernel where there is one."""
    words = jnp.stack(key)
    offsets, counts = sample_uniform(degrees, words, fanout=fanout, stream=stream, replace=replace)
    return offsets, counts


# --- Blocks --------------------------------------------------------------------------------------


def _block_result(operands: Drawn, *, num_edges: int, num_src: int, **others: Any) -> Any:
    del others
    num_dst, dtype = operands.nodes.shape[0], operands.nodes.dtype
    sizes = {"indptr": num_dst + 1, "t_indptr": num_src + 1}
    ids = [jax.ShapeDtypeStruct((sizes.get(name, num_edges),), dtype) for name in ARRAYS]
    sources = jax.ShapeDtypeStruct((num_src,), dtype)
    return [*ids, sources, jax.ShapeDtypeStruct((), np.dtype(bool))]


def _block_xla(
    nodes: Array,
    starts: Array,
    offsets: Array,
    counts: Array,
    cols: Array,
    *,
    num_nodes: int,
    num_edges: int,
    num_src: int,
    is_tree: bool,
) -> list[Array]:
    drawn, num_whole = lined_up(starts, offsets, counts, cols, num_nodes, num_edges), cols.shape[0]
    overflow = jnp.zeros((), bool)
    if is_tree:
        graph, sources = tree_block(nodes, drawn, num_whole)
    else:
        graph, sources, overflow = distinct_block(nodes, drawn, num_whole, num_nodes, num_src)
    return [*(getattr(graph, name).astype(nodes.dtype) for name in ARRAYS), sources, overflow]


def _block_call(
    platform: str, operands: Drawn, *, num_nodes: int, is_tree: bool, **others: Any
) -> Call | None:
    del platform, others
    if any(ids.dtype != operands.nodes.dtype for ids in operands):
        return None
    return Call([*operands], {"num_nodes": np.int64(num_nodes), "tree": np.bool_(is_tree)})


sample_block = define(
    Op(
        name="sample_block",
        operands=Drawn,
        result=_block_result,
        xla=_block_xla,
        platforms=("cpu",),
        call=_block_call,
        transpose={},
        batch=_batch,
        several=True,
    )
)


def block(
    drawn: Drawn,
    num_nodes: int,
    num_edges: int,
    num_src: int,
    *,
    tree: bool,
    seeds: Array | None = None,
) -> tuple[Graph, Array, Array]:
    """The block of what was drawn.

    Args:
        drawn: the edges.
        num_nodes: how many nodes the whole graph has.
        num_edges: room for edges.
        num_src: room for sources: of a tree, one for each destination and edge. Edges from nodes
            beyond it, those of the largest ids, are left out.
        tree: whether each edge has a source of its own; by default each node is one source.
        seeds: ``(num_dst,)``, if a node is one source for each seed of those that reach it; there
            is no kernel.

    Returns:
        The block, its sources' ids, and whether an edge was left out.
    """
    if seeds is not None:
        edges = lined_up(*drawn[1:], num_nodes, num_edges)
        return distinct_block(drawn.nodes, edges, drawn.cols.shape[0], num_nodes, num_src, seeds)
    sizes: Any = {"num_nodes": num_nodes, "num_edges": num_edges, "num_src": num_src}
    *ids, sources, overflow = sample_block(*drawn, **sizes, is_tree=tree)
    num_whole = jnp.asarray(drawn.cols.shape[0], drawn.nodes.dtype)
    graph = Graph(**dict(zip(ARRAYS, ids, strict=True)), num_input_edges=num_whole)
    return graph, sources, overflow
