"""Sampled neighbourhoods of nodes, as inputs of a model: of a training's steps, or up to a time."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from flax_layers import gcn_norm
from flax_layers._base import inverse_root
from flax_layers.training.config.nodes import SampledConfig
from flax_layers.training.types import Model, PyTree
from jax_gnn import Graph, RelationalGraph
from jax_gnn.datasets import GraphDataset, NodeDataset, RelationalDataset
from jax_gnn.extend import take
from jax_gnn.sampling import Blocks, EdgeTime, sample_neighbors

Structure = Graph | RelationalGraph

CHUNK_EDGES = 2**20  # of an evaluation: a graph of fewer is evaluated at once
MAX_EVALUATED = 2**24  # edges of an evaluation in which all nodes see all of their past


class Past(NamedTuple):
    """Times of edges and nodes, by which a node sees the edges up to its own time alone.

    Attributes:
        edge_time: Times of the graph's edges.
        node_time: ``(num_nodes,)``, times of the nodes.
        weight_sums: ``(num_edges,)``, for each edge in the order of `edge_time` the sum of weights
            of its node's edges up to it; None for edges without weights.
        seeds: ``(chunks, chunk_size)``, the nodes that an evaluation computes; -1 is padding.
    """

    edge_time: EdgeTime
    node_time: Array
    weight_sums: Array | None
    seeds: Array

    def weighted_degrees(self, graph: Graph, nodes: Array, times: Array) -> Array:
        """Return the sum of the weights of edges into each node up to a time."""
        degrees = self.edge_time.in_degrees(graph, nodes, times)
        if self.weight_sums is None:
            return degrees.astype(float)
        final = graph.indptr[jnp.maximum(nodes, 0)] + degrees - 1
        return jnp.where(degrees > 0, take(self.weight_sums, final), 0).astype(float)


class Inputs(NamedTuple):
    """Features of a model's nodes, options of its call by edge and by node, and perhaps times."""

    x: Any
    edge_options: dict[str, Any]
    node_options: dict[str, Any]
    past: Past | None = None


def inputs_of(
    dataset: NodeDataset,
    config: SampledConfig,
    graph: Any,
    x: Any,
    *weights: Array,
    all_nodes: bool,
) -> Inputs:
    """Return the inputs of a model that is trained on batches.

    Args:
        dataset: The dataset.
        config: Settings of the training.
        graph: Its graph.
        x: Features, after the preprocessing.
        *weights: Perhaps weights of the graph's edges.
        all_nodes: Whether evaluations of nodes in the past compute all nodes, or labelled ones.
    """
    name = "edge_weight" if config.edge_in_features is None else "edge_features"
    edge_options = {name: weights[0]} if weights else {}
    if not config.edge_time:
        scales = {"node_scale": gcn_norm(graph, *weights)} if config.model == "gcn" else {}
        return Inputs(x, edge_options, scales)
    assert isinstance(dataset, GraphDataset | RelationalDataset)
    assert dataset.edge_time is not None and dataset.node_time is not None
    times = np.concatenate([dataset.edge_time, dataset.node_time])
    # Only the order of times counts, and their ranks are int32.
    ranks = np.unique(times, return_inverse=True)[1].astype(np.int32)
    edge_ranks, node_ranks = np.split(ranks, [dataset.num_edges])
    # Edges from nodes to themselves have always been there.
    edge_time = EdgeTime.from_times(graph, graph.edge_values(edge_ranks, -1))
    sums = None
    if weights and config.model == "gcn":
        totals = np.cumsum(np.asarray(weights[0], np.float64)[np.asarray(edge_time.order)])
        starts = np.asarray(graph.indptr)[np.asarray(graph.rows)]
        sums = jnp.asarray(totals - np.append(0, totals)[starts], jnp.float32)
    # Labelled nodes come first, so that their chunks are the same, whether others follow or not.
    labelled = dataset.has_label()
    groups = [np.flatnonzero(labelled)] * bool(labelled.any())
    groups += [np.flatnonzero(~labelled)] * bool(all_nodes)
    room = CHUNK_EDGES // _edges_per_seed(evaluation_fanouts(config, graph))
    size = max(min(room, len(groups[0]) if groups else 0), 1)
    seeds = [np.pad(ids, (0, -len(ids) % size), constant_values=-1) for ids in groups]
    chunks = jnp.asarray(np.concatenate(seeds).reshape(-1, size), jnp.int32)
    return Inputs(x, edge_options, {}, Past(edge_time, jnp.asarray(node_ranks), sums, chunks))


def _edges_per_seed(fanouts: tuple[int, ...]) -> int:
    return max(int(np.cumprod(fanouts, dtype=float).sum()), 1)


def _most(graph: Any) -> int:
    """Return the largest number of edges into a node, of all relations, or 1."""
    return int(np.max(getattr(graph, "nodes", graph).in_degrees(), initial=1))


def _drawn_fanouts(config: SampledConfig, graph: Any) -> tuple[int, ...]:
    """Return the edges that a step draws into each node, by layer."""
    # All edges of a node are as many as any node has.
    return tuple(_most(graph) if n < 0 else n for n in config.layer_fanouts)


def evaluation_fanouts(config: SampledConfig, graph: Structure) -> tuple[int, ...]:
    """Return the edges that an evaluation up to nodes' times draws: all if they are not too many.

    Others are those of the settings.
    """
    everything, drawn = (_most(graph),) * config.num_layers, _drawn_fanouts(config, graph)
    count = _edges_per_seed(everything)
    few = count * graph.num_dst <= MAX_EVALUATED or count <= _edges_per_seed(drawn)
    return everything if few else drawn


def evaluation_text(config: SampledConfig, graph: Structure) -> str:
    """Return what an evaluation up to nodes' times sees."""
    fanouts = evaluation_fanouts(config, graph)
    if fanouts[0] == _most(graph) and len({*fanouts}) == 1:
        return "all edges up to each node's time"
    return f"{', '.join(map(str, fanouts))} edges up to each node's time, by a fixed key"


@dataclasses.dataclass(frozen=True)
class Neighborhoods:
    """Settings of samples: edges drawn by layer, and what a model makes of the drawn ones.

    Attributes:
        fanouts: Number of edges drawn into each node, for each layer, that of the seeds first.
        disjoint: Whether neighbourhoods of two seeds share no rows.
        sums: Whether the model adds up edges, so that drawn ones count for all.
        scales: Whether the model scales nodes by their degrees, as a GCN.
    """

    fanouts: tuple[int, ...]
    disjoint: bool
    sums: bool
    scales: bool

    @classmethod
    def of(cls, config: SampledConfig, graph: Any) -> Neighborhoods:
        """Return those of a training."""
        sums = config.model in ("gcn", "gin", "gine") or getattr(config, "reduce", "") == "sum"
        return cls(_drawn_fanouts(config, graph), config.disjoint, sums, config.model == "gcn")

    def evaluating(self, config: SampledConfig, graph: Any) -> Neighborhoods:
        """Return those of an evaluation up to nodes' times."""
        return dataclasses.replace(self, fanouts=evaluation_fanouts(config, graph))

    def draw(
        self, graph: Any, seeds: Any, key: Array, past: Past | None = None, **options: Any
    ) -> Blocks:
        """Draw blocks of seeds, ``(count,)``, -1 for padding."""
        if past is not None:
            seed_time = past.node_time[jnp.maximum(seeds, 0)]
            options |= {"edge_time": past.edge_time, "seed_time": seed_time}
        return sample_neighbors(graph, seeds, self.fanouts, key, disjoint=self.disjoint, **options)

    def inputs(self, graph: Any, blocks: Blocks, seeds: Array, inputs: Inputs) -> Inputs:
        """Return the inputs of a model on blocks of seeds, from those on the graph.

        A node's sum over sampled edges is multiplied by the number of its edges for each sampled
        one, so that its mean is the sum over all edges, up to the seed's time if there are times.
        """
        x, edge_options, node_options, past = inputs
        ids = blocks.node_ids
        nodes = {name: values[jnp.maximum(ids, 0)] for name, values in node_options.items()}
        times = None
        if past is not None and blocks.seed_ids is not None:
            times = past.node_time[jnp.maximum(seeds[jnp.maximum(blocks.seed_ids, 0)], 0)]
            if self.scales:
                nodes["node_scale"] = inverse_root(past.weighted_degrees(graph, ids, times) + 1)
        edges = {
            name: tuple(block.edge_values(values) for block in blocks.graphs)
            for name, values in edge_options.items()
        }
        if self.sums:
            factors = []
            for block in blocks.graphs:
                rows = slice(block.num_dst)
                if past is not None and times is not None:
                    degrees = past.edge_time.in_degrees(graph, ids[rows], times[rows])
                else:
                    valid = jnp.maximum(ids[rows], 0)
                    degrees = graph.indptr[valid + 1] - graph.indptr[valid]
                counts = jnp.maximum(block.in_degrees(), 1)
                factors.append(take(degrees.astype(float) / counts.astype(float), block.rows))
            weights = edges.get("edge_weight", (1.0,) * len(factors))
            pairs = zip(factors, weights, strict=True)
            edges["edge_weight"] = tuple(a * jnp.asarray(b, a.dtype) for a, b in pairs)
        return Inputs(blocks.node_values(x), edges, nodes)

    def past_logits(self, model: Model, graph: Structure, inputs: Inputs) -> Array:
        """Return logits of nodes, each of which sees the edges up to its own time.

        The nodes are computed in chunks of one shape, whose edges are drawn by a fixed key.

        Returns:
            ``(num_nodes, num_classes)``, zeros for nodes that the evaluation does not compute.
        """
        past = inputs.past
        assert past is not None

        def chunk(number_and_seeds: tuple[Array, Array]) -> Array:
            number, seeds = number_and_seeds
            key = jax.random.fold_in(jax.random.key(0), number)
            blocks = self.draw(graph, seeds, key, past)
            x, edges, nodes, _ = self.inputs(graph, blocks, seeds, inputs)
            return model(blocks, x, **edges, **nodes, deterministic=True)

        rows = jax.lax.map(chunk, (jnp.arange(len(past.seeds)), past.seeds))
        rows = rows.reshape(-1, *rows.shape[2:])
        ids = jnp.where(past.seeds < 0, graph.num_dst, past.seeds).ravel()
        logits = jnp.zeros((graph.num_dst, *rows.shape[1:]), rows.dtype)
        return logits.at[ids].set(rows, mode="drop")


def predict_past(
    model: Any,
    dataset: NodeDataset,
    config: SampledConfig,
    graph: Structure,
    x: PyTree,
    *weights: Array,
) -> Array:
    """Return `Neighborhoods.past_logits` of all nodes; arguments as of `inputs_of`."""
    inputs = inputs_of(dataset, config, graph, x, *weights, all_nodes=True)
    neighborhoods = Neighborhoods.of(config, graph).evaluating(config, graph)
    graphdef, state = nnx.split(model)

    @jax.jit
    def logits(state: PyTree, graph: Structure, inputs: Inputs) -> Array:
        return neighborhoods.past_logits(nnx.merge(graphdef, state), graph, inputs)

    return logits(state, graph, inputs)
