"""Padded containers give every model the values and all gradients of unpadded ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import DIRECTED, GRAPH, HYPERGRAPH, LAYERS, RELATIONAL, WITH_INVERSE, WITH_SELF
from op_spec import assert_close, setting
from op_suite import IMPLEMENTATIONS
from sorted_rows import unsorted_ops

from jax_gnn import Graph, Hypergraph, RelationalGraph

RELATIONS = 3
OF_NODES = "pos", "vectors", "x0"  # named operands with a row for each node
KINDS = {
    id(GRAPH): "graph",
    id(HYPERGRAPH): "hypergraph",
    id(DIRECTED): "hypergraph",
    id(RELATIONAL): "relational",
    id(WITH_SELF): "relational",
    id(WITH_INVERSE): "inverse",
}
MODELS = {name: case for name, case in LAYERS.items() if id(case.structure) in KINDS}
every_model = pytest.mark.parametrize("name", MODELS)


class Edges(NamedTuple):
    """Edges of a graph, a hypergraph or with relations, in the order of containers."""

    src: np.ndarray
    dst: np.ndarray
    rel: np.ndarray
    nodes: int

    @classmethod
    def random(cls, rng, nodes, count) -> Edges:
        """The first half of the nodes has most edges, some have none."""
        src, dst = (np.minimum(*rng.integers(nodes, size=(2, count))) for _ in range(2))
        rel = rng.integers(RELATIONS, size=count)
        order = np.lexsort((src, rel, dst))
        return cls(src[order], dst[order], rel[order], nodes)

    def container(self, kind, new=0) -> Any:
        """Build a container, with ``new`` edges of padding, which may be traced."""
        src, dst, rel = (
            jnp.concatenate([jnp.asarray(ids), jnp.full(new, -1)]) if new else ids
            for ids in self[:3]
        )
        options: Any = {"validate": False}
        if kind == "graph":
            return Graph.from_edges(src, dst, num_nodes=self.nodes, **options)
        if kind == "hypergraph":
            # As many hyperedges as nodes, for layers that have a weight for each.
            sizes = {"num_nodes": self.nodes, "num_hyperedges": self.nodes}
            return Hypergraph.from_incidence(src, dst, **sizes, **options)
        options |= {"inverse": kind == "inverse"}
        return RelationalGraph.from_triples(src, rel, dst, self.nodes, RELATIONS, **options)


def padded(rng, container, edges) -> Any:
    """Pad each size by nothing, a few, or as many as there are."""

    def grown(size) -> int:
        # Sizes that stay, and sizes in other blocks of a kernel.
        return size + int(rng.choice([0, 1, 7, size // 2, size]))

    if isinstance(container, Graph):
        return container.pad(num_nodes=grown(edges.nodes), num_edges=grown(container.num_edges) + 1)
    if isinstance(container, Hypergraph):
        num_incidences = grown(container.num_incidences) + 1
        return container.pad(num_nodes=grown(edges.nodes), num_incidences=num_incidences)
    return container.pad(
        num_nodes=grown(edges.nodes),
        num_edges=grown(container.num_edges) + 1,
        num_src_pairs=grown(container.num_src_pairs) + 1,
        num_dst_pairs=grown(container.num_dst_pairs) + 1,
    )


class Problem:
    """A model of float64, and its gradients on containers of several sizes."""

    def __init__(self, rng, case, nodes) -> None:
        self.kind = KINDS[id(case.structure)]
        self.edges = Edges.random(rng, nodes, 4 * nodes)
        sizes = {
            "num_relations": RELATIONS * (1 + (self.kind == "inverse")),
            "num_hyperedges": nodes,
        }
        options = case.options | {name: sizes[name] for name in sizes if name in case.options}
        # float64, so that only a wrong result differs by more than rounding.
        layer = case.kind(**options, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        layer.eval()
        self.definition, self.params, self.rest = nnx.split(layer, nnx.Param, ...)
        self.features = rng.normal(size=(nodes, *case.operands[0].shape[1:]))
        self.ct = rng.normal(size=(*self.features.shape[:-1], options["out_features"]))
        lengths = {"relations": sizes["num_relations"], "edge": len(self.edges.src)}
        lengths |= dict.fromkeys(("incidence", "distance"), lengths["edge"])
        lengths |= dict.fromkeys(("hyperedge", *OF_NODES), nodes)
        self.named = {
            name: rng.uniform(0.5, 2, (lengths[name.split("_")[0]], *value.shape[1:]))
            for name, value in case.named.items()
        }

    def operands(self, container, garbage=1e3) -> tuple[Any, Any, Any]:
        """Return the differentiated operands; any sum would show the garbage in padding."""
        x = self._filled(self.features, container.num_nodes, garbage)
        edges = container.graph if isinstance(container, Hypergraph) else container
        sizes = dict.fromkeys(("edge", "incidence", "distance"), edges.num_edges)
        sizes |= dict.fromkeys(OF_NODES, container.num_nodes)
        named = {
            name: self._filled(value, sizes.get(name.split("_")[0], len(value)), garbage)
            for name, value in self.named.items()
        }
        return self.params, x, named

    @staticmethod
    def _filled(values, size, garbage) -> np.ndarray:
        new = np.full((size - len(values), *values.shape[1:]), garbage)
        return np.concatenate([values, new])

    def gradients(self, operands, container) -> Any:
        """Return the value, and the gradients to all operands."""

        def loss(operands) -> Any:
            params, x, named = operands
            y = nnx.merge(self.definition, params, self.rest)(container, x, **named)
            y = y[0] if isinstance(y, tuple) else y
            return jnp.vdot(y[: self.edges.nodes], self.ct)

        return jax.value_and_grad(loss)(operands)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
@every_model
def test_values_and_gradients(rng, name, implementation) -> None:
    with setting(implementation, "float64"):
        problem = Problem(rng, MODELS[name], int(rng.integers(150, 250)))
        container = problem.edges.container(problem.kind)
        padded_container = padded(rng, container, problem.edges)
        gradients = jax.jit(problem.gradients)
        expected = gradients(problem.operands(container), container)
        result = gradients(problem.operands(padded_container), padded_container)
        # Forward, padding may hold NaN. Gradients of parameters multiply it by zeros.
        dirty, _ = gradients(problem.operands(padded_container, np.nan), padded_container)
    np.testing.assert_allclose(dirty, expected[0], rtol=1e-9)
    leaves = jax.tree_util.tree_leaves_with_path(expected)
    # Some gradients are 0, as those of keys' biases, which move all scores alike: what is found is
    # what sums round to.
    largest = max(np.abs(want).max(initial=0) for _, want in leaves)
    for (path, want), got in zip(leaves, jax.tree.leaves(result), strict=True):
        at, want, got = jax.tree_util.keystr(path), np.atleast_1d(want), np.atleast_1d(got)
        assert (got[len(want) :] == 0).all(), f"{at} of padding"
        scale = max(np.abs(want).max(initial=0), largest / 1000)
        assert_close(got[: len(want)] / scale, want / scale, 1e-9, at)


@every_model
def test_rows_ascend(rng, name) -> None:
    """Rows ascend in a padded container of traced edges, some of which are padding."""
    with setting(None, "float64"):
        problem = Problem(rng, MODELS[name], 9)

        def gradients() -> Any:
            traced = problem.edges.container(problem.kind, new=5)
            container = padded(rng, traced, problem.edges)
            return problem.gradients(problem.operands(container), container)

        assert not unsorted_ops(gradients)
