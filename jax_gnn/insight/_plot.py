"""A picture of a node's neighbourhood."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from jax_gnn._core import arguments
from jax_gnn.graph import Graph
from jax_gnn.insight._attribute import Attribution
from jax_gnn.transforms import k_hop_subgraph

MOST_NODES = 2000

# Okabe and Ito's colours, which readers with colour-blindness can tell apart.
PALETTE = ("#56B4E9", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#0072B2", "#F0E442", "#999999")


def plot_neighborhood(
    graph: Graph,
    node: int,
    *,
    num_hops: int = 2,
    edges: Attribution | Any = None,
    labels: Any = None,
    names: Any = None,
    top_edges: int | None = 40,
    ax: Any = None,
) -> Any:
    """Draws what lies around a node, and which edges count. Needs matplotlib.

    Nodes lie so that distances in the picture are like those in the graph; the node itself has a
    ring. Edges into a node and back are one line. The wider and darker a line, the more it counts.

    Args:
        graph: the graph, not bipartite.
        node: the node.
        num_hops: how far from it, along edges of either direction.
        edges: an attribution to the edges of this graph, or ``(num_edges,)`` numbers in its order;
            magnitudes are drawn. None draws all edges alike.
        labels: ``(num_nodes,)`` integers, which give nodes their colours, such as classes.
        names: ``(num_nodes,)``, what to write at each node; None writes ids where they fit.
        top_edges: of ``edges`` keep so many that count most, and leave out the nodes without; None
            keeps all.
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
    score = None
    if edges is not None:
        given = edges.edges if isinstance(edges, Attribution) else edges
        if given is None:
            raise ValueError("edges must be an attribution to edges, got one without")
        values = arguments.to_numpy("edges", given)
        if values.shape != (graph.num_edges,):
            raise ValueError(
                f"edges must be (num_edges={graph.num_edges},), got shape {values.shape}"
            )
        score = np.abs(values[part.edges].astype(float))
    top_edges = None if score is None else top_edges
    nodes, pairs, strength = _lines(part.nodes, src, dst, score, top_edges)
    if len(nodes) > MOST_NODES:
        raise ValueError(
            f"num_hops={num_hops} reaches {len(nodes)} nodes, more than the {MOST_NODES} that can "
            "be seen: take fewer, or top_edges"
        )
    place = _layout(len(nodes), pairs)
    size = float(np.clip(420 / np.sqrt(max(len(nodes), 1)), 14, 170))
    if ax is None:
        # A bare Figure draws through Agg and leaves pyplot's global state alone.
        ax = Figure(figsize=(6, 5), dpi=150, layout="constrained").subplots()
    segments = place[pairs]
    shade = np.zeros(len(pairs)) if strength is None else strength / max(strength.max(), 1e-30)
    order = np.argsort(shade, kind="stable")
    grey, strong = np.array([0.82, 0.84, 0.87]), np.array([0.25, 0.25, 0.32])
    colors = grey + shade[order, None] * (strong - grey)
    widths = 0.8 + 2.2 * shade[order]
    ax.add_collection(LineCollection(segments[order], colors=colors, linewidths=widths, zorder=1))
    fill = ["#AAB2BD"] * len(nodes)
    if labels is not None:
        classes = arguments.check_ids("labels", labels)
        if classes.shape != (graph.num_nodes,):
            raise ValueError(
                f"labels must be (num_nodes={graph.num_nodes},), got shape {classes.shape}"
            )
        fill = [PALETTE[each % len(PALETTE)] for each in classes[nodes]]
    ax.scatter(*place.T, s=size, c=fill, edgecolors="white", linewidths=0.8, zorder=2)
    ax.scatter(*place[:1].T, s=2.4 * size, facecolors="none", edgecolors="black", linewidths=1.8)
    if names is None and len(nodes) <= 60:
        texts: list[str] = [str(each) for each in nodes]
    else:
        texts = [] if names is None else [str(names[each]) for each in nodes]
    for i, (text, (x, y)) in enumerate(zip(texts, place, strict=False)):
        ax.annotate(
            *(text, (x, y)),
            xytext=(0, (0.5 if i else 0.8) * np.sqrt(size) + 2),  # above the ring
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7,
            zorder=3,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
    if labels is not None:
        for each in np.unique(classes[nodes]):
            color = PALETTE[each % len(PALETTE)]
            ax.scatter([], [], s=30, color=color, label=f"class {each}")
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
    score: np.ndarray | None,
    most: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Nodes that are shown, the first one first; lines ``(lines, 2)`` between; what each counts."""
    apart = src != dst
    pairs = np.sort(np.stack([src[apart], dst[apart]], 1), 1)
    lines, which = np.unique(pairs, axis=0, return_inverse=True)
    strength = None
    if score is not None:
        strength = np.zeros(len(lines))
        np.maximum.at(strength, which.ravel(), score[apart])
    if most is None:
        return nodes, lines, strength
    kept = np.arange(len(lines))
    if strength is not None:
        kept = np.argsort(-strength, kind="stable")
    kept = kept[: arguments.check_size("top_edges", most)]
    lines = lines[kept]
    shown = np.union1d([0], lines)
    place = np.zeros(len(nodes), int)
    place[shown] = np.arange(len(shown))
    return nodes[shown], place[lines], None if strength is None else strength[kept]


def _layout(count: int, pairs: np.ndarray) -> np.ndarray:
    """Places whose distances are like those in the graph: its stress is majorized.

    Gansner, Koren and North, "Graph drawing by stress majorization", 2004. The first node is at the
    origin, and the same picture is made each time.
    """
    if count == 1:
        return np.zeros((1, 2))
    ones = np.ones(len(pairs))
    matrix = scipy.sparse.coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    far = scipy.sparse.csgraph.shortest_path(
        scipy.sparse.csr_array(matrix), directed=False, unweighted=True
    )
    inside = np.isfinite(far)
    far[~inside] = (far[inside].max(initial=1) + 1) * 1.2
    weight = 1 / np.square(np.where(far > 0, far, 1))
    np.fill_diagonal(weight, 0)
    # It begins with the plane in which squared distances vary most.
    squares = np.square(far)
    centred = squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    place = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
    place += 0.05 * np.random.default_rng(0).standard_normal(place.shape)  # nodes that coincide
    laplacian = np.diag(weight.sum(1)) - weight
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    for _ in range(100 if count <= 300 else 20):
        gap = place[:, None] - place
        length = np.sqrt(np.square(gap).sum(2))
        ratio = np.divide(weight * far, length, out=np.zeros_like(far), where=length > 1e-9)
        place = inverse @ (ratio.sum(1)[:, None] * place - ratio @ place)
    return place - place[0]
