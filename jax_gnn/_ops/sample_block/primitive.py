"""The two steps of a sampled layer: drawing edges, and building a block of the drawn edges.

Their kernels (``cpp/kernels/*/sample_block.*``) give the bits of plain XLA (``xla.py``); weighted
draws have none on GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jax_gnn._core.op import Bind, Call, Op, replace_items
from jax_gnn._ops.sample_block import xla
from jax_gnn._ops.sample_block.xla import (
    DrawnEdges,
    SortedSources,
    compact_draws,
    distinct_block,
    sort_sources,
    tree_block,
)

GRAPH_FIELDS = ("indptr", "rows", "cols", "t_indptr", "t_rows", "t_cols", "t_order", "edge_ids")
"""Fields of a block's :class:`Graph`, in the order of the kernel's results."""

_TILE = 1024  # ids of a thread block of the kernel
_shape: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct


class UniformOperands(NamedTuple):
    """Operands of ``sample_uniform``: ``(rows,)`` degrees, and the two words of a key."""

    degrees: Array
    key: Array


class WeightedOperands(NamedTuple):
    """Operands of ``sample_weighted``."""

    sums: Array  # (num_whole + 1,) uint32, of `jax_gnn.sampling.EdgeProbability`
    starts: Array  # (rows,), first edge of each row
    degrees: Array  # (rows,), number of edges of each row
    key: Array  # two words


class BlockOperands(NamedTuple):
    """Operands of ``sample_block``."""

    nodes: Array  # (num_dst,), ids of the destinations; -1 is padding
    starts: Array  # (num_dst,), start of each destination's edges in `cols`
    offsets: Array  # (num_dst, fanout), drawn edges, as offsets from `starts`
    counts: Array  # (num_dst,), number of valid draws, which come first
    cols: Array  # (num_whole,), sources of the sampled graph's edges
    # (num_dst,), seed of each destination, below `num_dst`, if a node is one source for each seed;
    # else None.
    seeds: Array | None = None


def _batch(bind: Bind, operands: object, batched: object, size: int) -> Any:
    """Loop over the batch: random numbers depend on a row's number, which a batch would change."""
    leaves, structure = jax.tree.flatten(operands)
    indices = [i for i, is_batched in enumerate(jax.tree.leaves(batched)) if is_batched]

    def apply(values: list[Array]) -> Any:
        return bind(jax.tree.unflatten(structure, replace_items(leaves, indices, values)))

    return jax.lax.map(apply, [leaves[i] for i in indices])


_SamplingOp = functools.partial(Op, batch=_batch, several=True)

# --- Draws ---------------------------------------------------------------------------------------


def _draw_result(
    operands: UniformOperands | WeightedOperands, *, fanout: int, **_: object
) -> list[jax.ShapeDtypeStruct]:
    num_rows, dtype = operands.degrees.shape[0], operands.degrees.dtype
    return [_shape((num_rows, fanout), dtype), _shape((num_rows,), dtype)]


def _draw_call(
    platform: str, operands: tuple[Any, ...], *, stream: int, replace: bool, **_: object
) -> Call:
    return Call([*operands], {"stream": np.int64(stream), "replace": np.bool_(replace)})


sample_uniform = _SamplingOp(
    name="sample_uniform",
    operands=UniformOperands,
    result=_draw_result,
    xla=xla.uniform,
    call=_draw_call,
)
sample_weighted = _SamplingOp(
    name="sample_weighted",
    operands=WeightedOperands,
    result=_draw_result,
    xla=xla.weighted,
    platforms=("cpu",),
    call=_draw_call,
)


# --- Blocks --------------------------------------------------------------------------------------


def block_shapes(nodes: Array, num_edges: int, num_src: int) -> list[jax.ShapeDtypeStruct]:
    num_dst, dtype = nodes.shape[0], nodes.dtype
    sizes = {"indptr": num_dst + 1, "t_indptr": num_src + 1}
    ids = [_shape((sizes.get(name, num_edges),), dtype) for name in GRAPH_FIELDS]
    return [*ids, _shape((num_src,), dtype), _shape((), np.dtype(bool))]


def _block_xla(
    *, num_nodes: int, num_edges: int, num_src: int, is_tree: bool, ascending: bool, **operands: Any
) -> list[Array]:
    nodes, starts, offsets, counts, cols, seeds = BlockOperands(**operands)
    drawn = compact_draws(starts, offsets, counts, cols, num_nodes, num_edges, ascending=ascending)
    if is_tree:
        return tree_block(nodes, drawn)
    return distinct_block(sort_sources(nodes, drawn, num_nodes, seeds), num_nodes, num_src)


def _block_call(
    platform: str,
    operands: BlockOperands,
    *,
    num_nodes: int,
    is_tree: bool,
    ascending: bool,
    **_: object,
) -> Call | None:
    seeds = operands.seeds
    # Any operand stands in for absent seeds; `disjoint` says that there are none.
    arrays: list[Any] = [*operands._replace(seeds=operands.nodes if seeds is None else seeds)]
    if any(ids.dtype != operands.nodes.dtype for ids in arrays):
        return None
    flags = {"disjoint": seeds is not None, "tree": is_tree, "ascending": ascending}
    attributes = {name: np.bool_(flag) for name, flag in flags.items()}
    return Call(arrays, {"num_nodes": np.int64(num_nodes), **attributes})


def _block_composition(
    platform: str, implementation: str | None, operands: BlockOperands, **options: Any
) -> Callable[..., list[Array]] | None:
    """Return the GPU's composition: the tree's kernel, which compacts edges, a sort, a kernel."""
    if platform != "cuda" or options["is_tree"]:
        return None
    num_nodes, num_edges, num_src = (options[n] for n in ("num_nodes", "num_edges", "num_src"))

    def composed(**operands: Any) -> list[Array]:
        drawn = BlockOperands(**operands)
        nodes, num_dst = drawn.nodes, drawn.nodes.shape[0]
        tree = {**options, "is_tree": True, "num_src": num_dst + num_edges}
        *ids, sources, _ = sample_block(*drawn._replace(seeds=None), **tree)
        graph = dict(zip(GRAPH_FIELDS, ids, strict=True))
        edges = DrawnEdges(graph["indptr"], graph["rows"], graph["edge_ids"], sources[num_dst:])
        candidates = sort_sources(nodes, edges, num_nodes, drawn.seeds)
        result: list[Array] = sample_distinct(*candidates, num_nodes=num_nodes, num_src=num_src)
        return result

    return composed


sample_block = _SamplingOp(
    name="sample_block",
    operands=BlockOperands,
    result=lambda drawn, num_edges, num_src, **_: block_shapes(drawn.nodes, num_edges, num_src),
    xla=_block_xla,
    composition=_block_composition,
    call=_block_call,
)


# The second half of a block on GPUs: drawn edges and sorted candidates to the block's arrays.


def _distinct_call(
    platform: str, operands: SortedSources, *, num_nodes: int, num_src: int
) -> Call | None:
    seeds = operands.seeds
    if seeds is not None and seeds.dtype != operands.nodes.dtype:
        return None
    num_dst, num_edges = operands.nodes.shape[0], operands.rows.shape[0]
    tiles, edge_tiles = (
        -(-size // _TILE) for size in (max(num_dst + num_edges, num_src + 1), num_edges)
    )
    # The same number as distinct_scratch of the kernel.
    scratch = 3 * tiles + num_dst + 2 * num_edges + 32 * max(edge_tiles, 1)
    arrays: list[Any] = [*operands._replace(seeds=operands.nodes if seeds is None else seeds)]
    return Call(
        arrays,
        {"num_nodes": np.int64(num_nodes), "disjoint": np.bool_(seeds is not None)},
        [_shape((scratch,), operands.nodes.dtype)],
    )


sample_distinct = _SamplingOp(
    name="sample_distinct",
    operands=SortedSources,
    result=lambda edges, num_src, **_: block_shapes(edges.nodes, edges.rows.shape[0], num_src),
    xla=lambda num_nodes, num_src, **edges: distinct_block(
        SortedSources(**edges), num_nodes, num_src
    ),
    platforms=("cuda",),
    call=_distinct_call,
)
