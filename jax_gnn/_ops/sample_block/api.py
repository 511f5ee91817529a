"""Draws and blocks by the primitives; arrays of numpy go to the kernels of the CPU, without JAX."""

from __future__ import annotations

from typing import Any, TypedDict

import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import empty_vector
from jax_gnn._core.ffi import host_function
from jax_gnn._core.ids import id_count, namespace
from jax_gnn._core.op import Op
from jax_gnn._core.random_bits import KeyWords
from jax_gnn._ops.sample_block.primitive import (
    GRAPH_FIELDS,
    BlockOperands,
    block_shapes,
    sample_block,
    sample_distinct,
    sample_uniform,
    sample_weighted,
)
from jax_gnn._ops.sample_block.xla import DrawnEdges, sort_sources
from jax_gnn.graph import Graph


def _sample(
    op: Op, rows: dict[str, Array], fanout: int, key: KeyWords, stream: int, replace: bool
) -> tuple[Array, Array]:
    if namespace(*rows.values()) is not np:
        operands = *rows.values(), jnp.stack(key)
        results: list[Array] = op(*operands, fanout=fanout, stream=stream, replace=replace)
        return results[0], results[1]
    degrees: Any = rows["degrees"]
    offsets: Any = np.empty((len(degrees), fanout), degrees.dtype)
    counts: Any = np.empty(len(degrees), degrees.dtype)
    host_function(op.name)(
        **_contiguous(rows),
        key1=int(key[0]),
        key2=int(key[1]),
        stream=stream,
        replace=replace,
        offsets=offsets,
        counts=counts,
    )
    return offsets, counts


def _contiguous(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(ids).view(np.ndarray) for name, ids in arrays.items()}


def uniform(
    degrees: Array, fanout: int, key: KeyWords, stream: int, *, replace: bool
) -> tuple[Array, Array]:
    """Draw as `xla.uniform`, by the kernel if there is one."""
    return _sample(sample_uniform, {"degrees": degrees}, fanout, key, stream, replace)


def weighted(
    sums: Array,
    starts: Array,
    degrees: Array,
    fanout: int,
    key: KeyWords,
    stream: int,
    *,
    replace: bool,
) -> tuple[Array, Array]:
    """Draw as `xla.weighted`, by the kernel if there is one."""
    rows = {"sums": sums, "starts": starts, "degrees": degrees}
    return _sample(sample_weighted, rows, fanout, key, stream, replace)


# --- Blocks --------------------------------------------------------------------------------------


class BlockOptions(TypedDict):
    """Static attributes of ``sample_block``."""

    num_nodes: int  # number of nodes of the sampled graph
    num_edges: int  # room for edges
    # Room for sources: in a tree, one for each destination and edge. Edges from further nodes,
    # those of the largest ids, are left out.
    num_src: int
    is_tree: bool  # whether each edge has a source of its own; else each node is one source
    ascending: bool  # whether edges of a destination are put in the sampled graph's order


def chunk_block(
    nodes: Array, drawn: DrawnEdges, num_whole: int, num_nodes: int, num_src: int
) -> tuple[Graph, Array, Array]:
    """Return the results of :func:`block` for compact edges, where each node is one source."""
    candidates = sort_sources(nodes, drawn, num_nodes)
    arrays = sample_distinct(*candidates, num_nodes=num_nodes, num_src=num_src)
    return _as_block(arrays, jnp.asarray(num_whole, nodes.dtype))


def block(operands: BlockOperands, options: BlockOptions) -> tuple[Graph, Array, Array]:
    """Return the block of the drawn edges, its sources' ids, and whether an edge was left out."""
    num_whole = id_count(operands.cols, operands.nodes.dtype)
    if namespace(operands.nodes, operands.cols) is not np:
        return _as_block(sample_block(*operands, **options), num_whole)
    *shapes, _ = block_shapes(operands.nodes, options["num_edges"], options["num_src"])
    results: list[Any] = [empty_vector(shape.shape[0], shape.dtype) for shape in shapes]
    arrays = operands._asdict()
    arrays["whole_cols"] = arrays.pop("cols")
    arrays["seeds"] = operands.nodes if operands.seeds is None else operands.seeds
    overflow = host_function("sample_block")(
        **_contiguous(arrays),
        num_nodes=options["num_nodes"],
        disjoint=operands.seeds is not None,
        tree=options["is_tree"],
        ascending=options["ascending"],
        **dict(zip((*GRAPH_FIELDS, "sources"), results, strict=True)),
    )
    return _as_block([*results, overflow], num_whole)


def _as_block(arrays: list[Array], num_whole: Array) -> tuple[Graph, Array, Array]:
    *ids, sources, overflow = arrays
    fields: dict[str, Any] = dict(zip(GRAPH_FIELDS, ids, strict=True))
    graph = Graph(**fields, num_input_edges=num_whole)
    return graph, sources, overflow
