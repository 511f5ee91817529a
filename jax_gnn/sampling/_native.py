"""The two steps of a layer as ops: which edges are drawn, and the block that is built of these.

They have kernels (``cpp/kernels/*/sample_block.*``), of draws on a GPU only for uniform ones, which
give the bits that :mod:`jax_gnn.sampling._draw`, :mod:`jax_gnn.sampling._weights` and
:mod:`jax_gnn.sampling._blocks` do. Arrays of numpy go to the CPU's kernels, without JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.ffi import host_function
from jax_gnn._core.ids import id_count, namespace
from jax_gnn._core.op import Bind, Call, Op, define, replace_items
from jax_gnn._core.triples import empty_vector
from jax_gnn.graph import Graph
from jax_gnn.sampling import _draw, _weights
from jax_gnn.sampling._blocks import Drawn as DrawnEdges
from jax_gnn.sampling._blocks import Sorted, distinct_block, lined_up, sorted_sources, tree_block

ARRAYS = ("indptr", "rows", "cols", "t_indptr", "t_rows", "t_cols", "t_order", "edge_ids")
"""Of a block's graph, in the order in which the kernel gives them."""


class Rows(NamedTuple):
    """Operands of ``sample_uniform``: ``(rows,)``, and the two words of a key."""

    degrees: Any
    key: Any


class WeightedRows(NamedTuple):
    """Operands of ``sample_weighted``.

    Attributes:
        sums: ``(num_whole + 1,)`` uint32, of :class:`jax_gnn.sampling.EdgeProbability`.
        starts: ``(rows,)``, where rows start.
        degrees: ``(rows,)``, how many edges they have.
        key: two words.
    """

    sums: Any
    starts: Any
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
        seeds: ``(num_dst,)``, the seed of each destination, below ``num_dst``, if a node is one
            source for each of these; else None.
    """

    nodes: Any
    starts: Any
    offsets: Any
    counts: Any
    cols: Any
    seeds: Any = None


def _batch(bind: Bind, operands: Any, batched: Any, size: int) -> Any:
    """One after the other: random numbers go by an edge's place, which a batch would move."""
    del size
    leaves, tree = jax.tree.flatten(operands)
    moving = [i for i, is_batched in enumerate(jax.tree.leaves(batched)) if is_batched]

    def one(values: list[Array]) -> Any:
        return bind(jax.tree.unflatten(tree, replace_items(leaves, moving, values)))

    return jax.lax.map(one, [leaves[i] for i in moving])


# --- Draws ---------------------------------------------------------------------------------------


def _drawn_result(operands: Any, *, fanout: int, **others: Any) -> Any:
    del others
    rows, dtype = operands.degrees.shape[0], operands.degrees.dtype
    return [jax.ShapeDtypeStruct((rows, fanout), dtype), jax.ShapeDtypeStruct((rows,), dtype)]


def _uniform_xla(degrees: Array, key: Array, *, fanout: int, stream: int, replace: bool) -> Any:
    return list(_draw.uniform(degrees, fanout, (key[0], key[1]), stream, replace=replace))


def _drawn_call(platform: str, operands: Any, *, stream: int, replace: bool, **_: Any) -> Call:
    del platform
    return Call([*operands], {"stream": np.int64(stream), "replace": np.bool_(replace)})


sample_uniform = define(
    Op(
        name="sample_uniform",
        operands=Rows,
        result=_drawn_result,
        xla=_uniform_xla,
        platforms=("cpu", "cuda"),
        call=_drawn_call,
        transpose={},
        batch=_batch,
        several=True,
    )
)


def _weighted_xla(
    sums: Array, starts: Array, degrees: Array, key: Array, *, fanout: int, **options: Any
) -> Any:
    return list(_weights.weighted(sums, starts, degrees, fanout, (key[0], key[1]), **options))


sample_weighted = define(
    Op(
        name="sample_weighted",
        operands=WeightedRows,
        result=_drawn_result,
        xla=_weighted_xla,
        platforms=("cpu",),
        call=_drawn_call,
        transpose={},
        batch=_batch,
        several=True,
    )
)


def uniform(
    degrees: Any, fanout: int, key: tuple[Any, Any], stream: int, *, replace: bool
) -> tuple[Any, Any]:
    """:func:`jax_gnn.sampling._draw.uniform`, by the kernel where there is one."""
    if namespace(degrees) is np:
        return _on_host("sample_uniform", (degrees,), fanout, key, stream, replace)
    words = jnp.stack(key)
    offsets, counts = sample_uniform(degrees, words, fanout=fanout, stream=stream, replace=replace)
    return offsets, counts


def weighted(
    sums: Any,
    starts: Any,
    degrees: Any,
    fanout: int,
    key: tuple[Any, Any],
    stream: int,
    *,
    replace: bool,
) -> tuple[Any, Any]:
    """:func:`jax_gnn.sampling._weights.weighted`, by the kernel where there is one."""
    rows = sums, starts, degrees
    if namespace(*rows) is np:
        return _on_host("sample_weighted", rows, fanout, key, stream, replace)
    options: Any = {"fanout": fanout, "stream": stream, "replace": replace}
    offsets, counts = sample_weighted(*rows, jnp.stack(key), **options)
    return offsets, counts


def _on_host(
    name: str, rows: Any, fanout: int, key: tuple[Any, Any], stream: int, replace: bool
) -> tuple[Any, Any]:
    degrees = rows[-1]
    offsets = np.empty((len(degrees), fanout), degrees.dtype)
    counts = np.empty(len(degrees), degrees.dtype)
    rows = (np.ascontiguousarray(ids).view(np.ndarray) for ids in rows)
    host_function(name)(*rows, *map(int, key), stream, replace, offsets, counts)
    return offsets, counts


# --- Blocks --------------------------------------------------------------------------------------


def _block_result(operands: Drawn, *, num_edges: int, num_src: int, **others: Any) -> Any:
    del others
    return _block_shapes(operands.nodes, num_edges, num_src)


def _block_shapes(nodes: Any, num_edges: int, num_src: int) -> list[Any]:
    num_dst, dtype = nodes.shape[0], nodes.dtype
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
    seeds: Array | None,
    *,
    num_nodes: int,
    num_edges: int,
    num_src: int,
    is_tree: bool,
    ascending: bool,
) -> list[Array]:
    columns = starts, offsets, counts, cols
    drawn = lined_up(*columns, num_nodes, num_edges, ascending=ascending)
    if is_tree:
        return tree_block(nodes, drawn)
    edges = sorted_sources(nodes, drawn, num_nodes, seeds)
    return _distinct_xla(*edges, num_nodes=num_nodes, num_src=num_src)


def _block_call(
    platform: str,
    operands: Drawn,
    *,
    num_nodes: int,
    is_tree: bool,
    ascending: bool,
    **others: Any,
) -> Call | None:
    del platform, others
    *arrays, seeds = operands
    read = [*arrays, operands.nodes if seeds is None else seeds]
    if any(ids.dtype != operands.nodes.dtype for ids in read):
        return None
    flags = {"disjoint": seeds is not None, "tree": is_tree, "ascending": ascending}
    named = {name: np.bool_(flag) for name, flag in flags.items()}
    return Call(read, {"num_nodes": np.int64(num_nodes), **named})


def _block_composition(
    platform: str,
    implementation: str | None,
    operands: Drawn,
    *,
    num_nodes: int,
    num_edges: int,
    num_src: int,
    is_tree: bool,
    ascending: bool,
) -> Callable[..., list[Array]] | None:
    """On a GPU XLA's sort stands between two kernels; that of trees lines the edges up."""
    del operands
    if platform != "cuda" or is_tree:
        return None

    def composed(**operands: Any) -> list[Array]:
        drawn = Drawn(**operands)
        nodes, seeds, num_dst = drawn.nodes, drawn.seeds, drawn.nodes.shape[0]
        of_tree: Any = {"num_nodes": num_nodes, "num_edges": num_edges, "is_tree": True}
        of_tree |= {"num_src": num_dst + num_edges, "ascending": ascending}
        of_tree["implementation"] = implementation
        *ids, sources, _ = sample_block(*drawn._replace(seeds=None), **of_tree)
        found = dict(zip(ARRAYS, ids, strict=True))
        edges = DrawnEdges(found["indptr"], found["rows"], found["edge_ids"], sources[num_dst:])
        in_order = sorted_sources(nodes, edges, num_nodes, seeds)
        own: Any = {"num_nodes": num_nodes, "num_src": num_src, "implementation": implementation}
        return sample_distinct(*in_order, **own)

    return composed


sample_block = define(
    Op(
        name="sample_block",
        operands=Drawn,
        result=_block_result,
        xla=_block_xla,
        platforms=("cpu", "cuda"),
        composition=_block_composition,
        call=_block_call,
        transpose={},
        batch=_batch,
        several=True,
    )
)


# The second half of it, of edges that are lined up and sorted.


def _distinct_result(operands: Sorted, *, num_src: int, **others: Any) -> Any:
    del others
    return _block_shapes(operands.nodes, operands.rows.shape[0], num_src)


def _distinct_xla(*operands: Any, num_nodes: int, num_src: int, **named: Any) -> list[Array]:
    return distinct_block(Sorted(*operands, **named), num_nodes, num_src)


def _distinct_call(platform: str, operands: Sorted, *, num_nodes: int, num_src: int) -> Call | None:
    del platform
    *arrays, seeds = operands
    if seeds is not None and seeds.dtype != operands.nodes.dtype:
        return None
    read = [*arrays, operands.nodes if seeds is None else seeds]
    num_dst, num_edges = operands.nodes.shape[0], operands.rows.shape[0]
    tiles = [-(-size // _TILE) for size in (max(num_dst + num_edges, num_src + 1), num_edges)]
    kept = 32 * max(tiles[1], 1)
    room = 3 * tiles[0] + num_dst + 2 * num_edges + kept  # as of distinct_scratch
    flags = {"num_nodes": np.int64(num_nodes), "disjoint": np.bool_(seeds is not None)}
    return Call(read, flags, [jax.ShapeDtypeStruct((room,), operands.nodes.dtype)])


_TILE = 1024  # ids that a block of the kernel has


sample_distinct = define(
    Op(
        name="sample_distinct",
        operands=Sorted,
        result=_distinct_result,
        xla=_distinct_xla,
        platforms=("cuda",),
        call=_distinct_call,
        transpose={},
        batch=_batch,
        several=True,
    )
)


def distinct(nodes: Array, drawn: DrawnEdges, num_whole: int, num_nodes: int, num_src: int) -> Any:
    """:func:`block` of edges that are lined up, where each node is one source."""
    in_order = sorted_sources(nodes, drawn, num_nodes)
    found = sample_distinct(*in_order, num_nodes=num_nodes, num_src=num_src)
    return _of_arrays(found, jnp.asarray(num_whole, nodes.dtype))


def block(
    drawn: Drawn, num_nodes: int, num_edges: int, num_src: int, *, tree: bool, ascending: bool
) -> tuple[Graph, Any, Any]:
    """The block of what was drawn; of arrays of numpy, in numpy.

    Args:
        drawn: the edges.
        num_nodes: how many nodes the whole graph has.
        num_edges: room for edges.
        num_src: room for sources: of a tree, one for each destination and edge. Edges from nodes
            beyond it, those of the largest ids, are left out.
        tree: whether each edge has a source of its own; by default each node is one source.
        ascending: whether edges of a destination are put in the whole graph's order.

    Returns:
        The block, its sources' ids, and whether an edge was left out.
    """
    sizes: Any = {"num_nodes": num_nodes, "num_edges": num_edges, "num_src": num_src}
    if namespace(drawn.nodes, drawn.cols) is np:
        found = _host_block(drawn, **sizes, is_tree=tree, ascending=ascending)
    else:
        found = sample_block(*drawn, **sizes, is_tree=tree, ascending=ascending)
    return _of_arrays(found, id_count(drawn.cols, drawn.nodes.dtype))


def _of_arrays(found: list[Any], num_whole: Any) -> tuple[Graph, Any, Any]:
    *ids, sources, overflow = found
    return (
        Graph(**dict(zip(ARRAYS, ids, strict=True)), num_input_edges=num_whole),
        sources,
        overflow,
    )


def _host_block(
    drawn: Drawn, *, num_nodes: int, is_tree: bool, ascending: bool, **sizes: int
) -> list[Any]:
    *arrays, seeds = drawn
    arrays = [np.ascontiguousarray(ids).view(np.ndarray) for ids in arrays]
    *results, _ = _block_result(drawn, **sizes)
    found = [empty_vector(result.shape[0], result.dtype) for result in results]
    flags = num_nodes, seeds is not None, is_tree, ascending
    seeds = drawn.nodes if seeds is None else seeds
    return [*found, host_function("sample_block")(*arrays, seeds, *flags, *found)]
