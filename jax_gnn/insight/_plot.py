"""Picture of a node's neighborhood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn.graph import Graph
from jax_gnn.insight._attribute import Attribution, edge_scores
from jax_gnn.transforms import k_hop_subgraph

Axes: TypeAlias = Any  # of matplotlib, which is optional

MAX_NODES = 2000

# Okabe and Ito's colors, which readers with color blindness can tell apart.
PALETTE = ("#56B4E9", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#0072B2", "#F0E442", "#999999")


def plot_neighborhood(
    graph: Graph,
    node: int,
    *,
    num_hops: int = 2,
    edges: Attribution | ArrayLike | None = None,
    labels: ArrayLike | None = None,
    names: Sequence[object] | None = None,
    top_edges: int | None = 40,
    ax: Axes | None = None,
) -> Axes:
    """Draw the neighborhood of a node, and the scores of its edges. Needs matplotlib.

    Distances in the picture are like those in the graph; the node itself has a ring. Edges between
    two nodes are one line, the wider and darker the higher their score.

    Args:
        graph: the graph, not bipartite.
        node: the node.
        num_hops: maximum number of edges, of either direction, between the node and a drawn one.
        edges: an attribution to the edges of this graph, or ``(num_edges,)`` scores in its order;
            magnitudes are drawn. None draws all edges alike.
        labels: ``(num_nodes,)`` integers that color the nodes, such as classes.
        names: ``(num_nodes,)``, texts at the nodes; None writes ids if there are few nodes.
        top_edges: number of lines with the highest scores to draw, without isolated nodes; None
            draws all.
        ax: axes of matplotlib to draw on; None makes a figure.

    Returns:
        The axes: ``ax.figure.savefig(path)`` writes the picture.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: an argument has the wrong type.
        ValueError: an argument has the wrong shape, an id is out of range, or there are more than
            2,000 nodes.
    """
    try:
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure
        from matplotlib.patheffects import withStroke
    except ImportError as error:
        raise ImportError("matplotlib is not installed: pip install matplotlib") from error
    arguments.check_instance("graph", graph, Graph)
    node = arguments.check_integer("node", node)
    part = k_hop_subgraph(graph, node, num_hops, direction="both")
    count = int(part.graph.indptr[-1])
    src, dst = (np.asarray(ids)[:count] for ids in (part.graph.cols, part.graph.rows))
    scores = None
    if edges is not None:
        scores = np.abs(edge_scores("edges", edges, graph)[part.edges])
    top_edges = None if scores is None else top_edges
    nodes, pairs, line_scores = _lines(part.nodes, src, dst, scores, top_edges)
    if len(nodes) > MAX_NODES:
        raise ValueError(
            f"num_hops={num_hops} reaches {len(nodes)} nodes, more than the {MAX_NODES} that can "
            "be seen: take fewer, or top_edges"
        )
    positions = _layout(len(nodes), pairs)
    size = float(np.clip(420 / np.sqrt(max(len(nodes), 1)), 14, 170))
    if ax is None:
        # A bare Figure draws through Agg and leaves pyplot's global state alone.
        ax = Figure(figsize=(6, 5), dpi=150, layout="constrained").subplots()
    shade = np.zeros(len(pairs))
    if line_scores is not None:
        shade = line_scores / max(line_scores.max(initial=0), 1e-30)
    order = np.argsort(shade, kind="stable")  # the darkest lines are drawn last, on top
    light, dark = np.array([0.82, 0.84, 0.87]), np.array([0.25, 0.25, 0.32])
    colors = light + shade[order, None] * (dark - light)
    widths = 0.8 + 2.2 * shade[order]
    segments = positions[pairs][order]
    ax.add_collection(LineCollection(segments, colors=colors, linewidths=widths, zorder=1))
    fill = ["#AAB2BD"] * len(nodes)
    if labels is not None:
        classes = arguments.check_ids("labels", labels)
        num_nodes = graph.num_nodes
        arguments.check_shape("labels", classes, f"({num_nodes=},)", num_nodes)
        fill = [PALETTE[label % len(PALETTE)] for label in classes[nodes]]
    x, y = positions.T
    ax.scatter(x, y, s=size, c=fill, edgecolors="white", linewidths=0.8, zorder=2)
    ring: dict[str, Any] = {"facecolors": "none", "edgecolors": "black", "linewidths": 1.8}
    ax.scatter(x[:1], y[:1], s=2.4 * size, **ring)
    texts: list[str] = []
    if names is not None:
        if len(names) != (num_nodes := graph.num_nodes):
            raise ValueError(f"names must be of {num_nodes=}, got {len(names)}")
        texts = [str(names[i]) for i in nodes]
    elif len(nodes) <= 60:
        texts = [str(i) for i in nodes]
    for i, (text, position) in enumerate(zip(texts, positions, strict=False)):
        ax.annotate(
            text,
            position,
            xytext=(0, (0.5 if i else 0.8) * np.sqrt(size) + 2),  # above the ring
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7,
            zorder=3,
            parse_math=False,  # "$" is a character of names
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
    if labels is not None:
        for label in np.unique(classes[nodes]):
            color = PALETTE[label % len(PALETTE)]
            ax.scatter([], [], s=30, color=color, label=f"class {label}")
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    ax.set_title(f"node {node}, {len(nodes)} nodes", fontsize=9)
    ax.margins(0.08)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_axis_off()
    return ax


def _lines(
    nodes: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    scores: np.ndarray | None,
    max_lines: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return drawn nodes, the root first, lines ``(lines, 2)`` between them, and line scores."""
    is_line = src != dst
    pairs = np.sort(np.stack([src[is_line], dst[is_line]], 1), 1)
    lines, line_of_edge = np.unique(pairs, axis=0, return_inverse=True)
    if scores is None:
        return nodes, lines, None
    line_scores = np.zeros(len(lines))
    np.maximum.at(line_scores, line_of_edge.ravel(), scores[is_line])
    if max_lines is None:
        return nodes, lines, line_scores
    top = np.argsort(-line_scores, kind="stable")
    top = top[: arguments.check_size("top_edges", max_lines)]
    lines = lines[top]
    drawn = np.union1d([0], lines)
    new_ids = np.zeros(len(nodes), int)
    new_ids[drawn] = np.arange(len(drawn))
    return nodes[drawn], new_ids[lines], line_scores[top]


def _layout(count: int, pairs: np.ndarray) -> np.ndarray:
    """Place nodes so that their distances are like those in the graph, by stress majorization.

    Gansner, Koren and North, "Graph drawing by stress majorization", 2004. The first node is at the
    origin, and the layout of a graph is always the same.
    """
    if count == 1:
        return np.zeros((1, 2))
    entries = np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])
    matrix = scipy.sparse.coo_array(entries, shape=(count, count))
    distances = scipy.sparse.csgraph.shortest_path(
        scipy.sparse.csr_array(matrix), directed=False, unweighted=True
    )
    # Components stay apart by a little more than the longest path.
    is_finite = np.isfinite(distances)
    distances[~is_finite] = (distances[is_finite].max(initial=1) + 1) * 1.2
    weight = 1 / np.square(np.where(distances > 0, distances, 1))
    np.fill_diagonal(weight, 0)
    # Start: classical scaling, the plane in which squared distances vary most, with noise to
    # separate nodes that coincide there.
    squares = np.square(distances)
    centered = squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-centered / 2)
    positions = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
    positions += 0.05 * np.random.default_rng(0).standard_normal(positions.shape)
    # Each step minimises a quadratic majorant of the stress, which has the same Laplacian.
    inverse = np.linalg.pinv(np.diag(weight.sum(1)) - weight, hermitian=True)
    for _ in range(100 if count <= 300 else 20):
        lengths = np.sqrt(np.square(positions[:, None] - positions).sum(2))
        ratio = np.zeros_like(distances)
        np.divide(weight * distances, lengths, out=ratio, where=lengths > 1e-9)
        positions = inverse @ (ratio.sum(1)[:, None] * positions - ratio @ positions)
    return np.asarray(positions - positions[0])
