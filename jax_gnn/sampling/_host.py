"""The same sampler on arrays of the host: numpy in, numpy out, and no device is asked."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_gnn._core.ffi import host_function
from jax_gnn._core.ids import PADDING, in_range
from jax_gnn._core.triples import empty_vector
from jax_gnn.graph import Graph
from jax_gnn.sampling._blocks import Blocks, seeds_of_sources
from jax_gnn.sampling._native import ARRAYS
from jax_gnn.sampling._random import key_words
from jax_gnn.sampling._rows import row_bounds


def host_words(name: str, key: Any) -> tuple[int, int]:
    """The two words of a key: of ``jax.random``, or uint32 of numpy, which no device is asked for.

    Raises:
        TypeError: it is no key.
        ValueError: it is several keys of ``jax.random``.
    """
    if isinstance(key, jax.Array):
        return tuple(int(word) for word in key_words(name, key))  # type: ignore[return-value]
    if not (isinstance(key, np.ndarray) and key.dtype == np.uint32 and key.shape == (2,)):
        given = f"{key.dtype} of shape {key.shape}" if hasattr(key, "dtype") else type(key).__name__
        raise TypeError(f"{name} must be a key of jax.random or (2,) uint32, got {given}")
    return int(key[0]), int(key[1])


def sample(
    indptr: Any,
    cols: Any,
    seeds: Any,
    key: tuple[int, int],
    fanouts: tuple[int, ...],
    replace: bool,
    tree: bool,
    sizes: tuple[tuple[int, int], ...],
) -> Blocks:
    """What ``_sample`` of :mod:`jax_gnn.sampling._neighbors` gives, in compiled threads."""
    num_nodes, dtype = indptr.shape[0] - 1, indptr.dtype
    # A subclass of arrays, a memory map, would be one after every step.
    indptr, cols = (np.ascontiguousarray(ids).view(np.ndarray) for ids in (indptr, cols))
    num_whole: Any = np.asarray(cols.shape[0], dtype)
    nodes: Any = np.where(in_range(seeds, num_nodes), seeds, PADDING).astype(dtype)
    owners: Any = None
    if tree:
        owners = np.where(nodes < 0, PADDING, np.arange(len(nodes), dtype=dtype))
    overflow = False
    graphs: list[Graph] = []
    for layer, (fanout, (num_edges, num_src)) in enumerate(zip(fanouts, sizes, strict=True)):
        num_dst = nodes.shape[0]
        starts, degrees = row_bounds(indptr, nodes, cols.shape[0])
        offsets, counts = np.empty((num_dst, fanout), dtype), np.empty(num_dst, dtype)
        host_function("sample_uniform")(degrees, *key, layer, replace, offsets, counts)
        lengths = {"indptr": num_dst + 1, "t_indptr": num_src + 1}
        arrays: Any = {name: empty_vector(lengths.get(name, num_edges), dtype) for name in ARRAYS}
        sources = empty_vector(num_src, dtype)
        overflow |= host_function("sample_block")(
            *(nodes, starts, offsets, counts, cols, num_nodes, tree),
            *arrays.values(),
            sources,
        )
        graph = Graph(**arrays, num_input_edges=num_whole)
        owners = seeds_of_sources(graph, owners) if tree else None
        graphs.insert(0, graph)
        nodes = sources
    left_out: Any = np.asarray(overflow)
    return Blocks(tuple(graphs), nodes, left_out, owners)
