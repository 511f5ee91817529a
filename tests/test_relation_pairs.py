"""The (destination, relation) pairs of traced edges, by every implementation."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import emulation
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from relational_cases import check_relational, skewed_triples

import jax_gnn
from jax_gnn import RelationalGraph
from jax_gnn._ops.relation_pairs.primitive import relation_pairs


@pytest.mark.parametrize("num_relations", [1, 9, 2000])
def test_pairs_by_every_implementation(rng: np.random.Generator, num_relations: int) -> None:
    """More edges than a GPU's kernel has in one tile, some padding, of few nodes and of many."""
    num_dst = int(rng.choice([1, 5, 900]))
    src, rel, dst = skewed_triples(rng, int(rng.integers(1500)), 41, num_dst, num_relations)
    dst = np.where(rng.random(len(dst)) < 0.1, -1, dst)
    sizes = {"num_src": 41, "num_dst": num_dst, "num_relations": num_relations}
    valid = dst >= 0
    expected = src[valid], rel[valid], dst[valid], np.flatnonzero(valid)
    options = {"parts": ("to_pairs",), "validate": False}
    build = partial(RelationalGraph.from_triples, **sizes, **options)
    for implementation in (None, "xla", *(["cuda"] if emulation.WANTED else [])):
        with jax_gnn.implementation(implementation) if implementation else nullcontext():
            graph = jax.jit(build)(src, rel, dst)
            check_relational(graph, *expected)
            columns = (graph.nodes.rows, graph.edge_types)
            batch = [jnp.stack([ids, jnp.full_like(ids, -1), ids]) for ids in columns]
            # A batch of three under vmap, whose second graph has padding alone.
            room = {"num_relations": num_relations, "num_pairs": graph.num_dst_pairs}
            nodes, sizes_of_batch, *_ = jax.vmap(partial(relation_pairs, **room))(*batch)
            np.testing.assert_array_equal(nodes[2], graph.pair_dst.nodes)
            assert not sizes_of_batch[1].any()
