"""Fidelity: the agreement of predictions with and without the edges of an explanation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn.insight._attribute import Attribution, edge_scores
from jax_gnn.insight._call import Container, outputs_of, prepared
from jax_gnn.insight._gates import check_edged, edges_of


class Fidelity(NamedTuple):
    """Change of predictions without an explanation, and with it alone.

    Attributes:
        plus: share of rows whose predicted class changes without the edges of the explanation;
            large if they are necessary.
        minus: share of rows whose predicted class changes with these edges alone; small if they
            suffice.
        unfaithfulness: mean of ``1 - exp(-KL(p, q))``, for the probabilities p with all edges and q
            with these edges alone (Agarwal et al. 2023).
    """

    plus: float
    minus: float
    unfaithfulness: float


def fidelity(
    model: Callable[..., Any],
    graph: Container,
    x: ArrayLike,
    attribution: Attribution | ArrayLike,
    *,
    num_edges: int,
    index: ArrayLike | None = None,
    **named: Any,
) -> Fidelity:
    """Compare predictions with those without the edges of an explanation, and with these alone.

    Edges are removed, so that degrees change, too. The measures are the model fidelity of Amara et
    al. (GraphFramEx, 2022), with the names of ``torch_geometric.explain``.

    Args:
        model: the model, see :func:`attribute`; returns logits, or logarithms of probabilities,
            ``(rows, classes)``.
        graph: the graph, or a batch of graphs.
        x: ``(num_nodes, *features)``.
        attribution: an attribution of this graph, or ``(num_edges,)`` scores in the graph's order.
        num_edges: number of edges of the explanation: those with the largest scores.
        index: rows of the output; None for all but a batch's padding.
        **named: further arguments of the model, see :func:`attribute`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has the wrong shape, or the model has one output for each row.

    Example:
        >>> graph = Graph.from_edges([(0, 2), (1, 2)])
        >>> x = jnp.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
        >>> fidelity(spmm, graph, x, [0.0, 1.0], num_edges=1, index=2)[:2]
        (1.0, 0.0)
    """
    call, _ = prepared(model, graph, x, index, None, named)
    check_edged("graph must be", call.graph)
    graph = edges_of(call.graph)
    scores = edge_scores("attribution", attribution, graph)
    top = np.argsort(-scores, kind="stable")[: arguments.check_size("num_edges", num_edges)]
    is_top = np.zeros(graph.num_edges, bool)
    is_top[top] = True
    # Two runs on some edges: those of the explanation alone, and all others alone.
    with_all, with_top = map(call.logits, outputs_of(call, jnp.asarray(is_top)))
    without_top = call.logits(outputs_of(call, jnp.asarray(~is_top))[1])
    if with_all.shape[1] < 2:
        raise ValueError(f"the model must give (rows, classes), got {with_all.shape[1]} columns")
    # KL(p, q) from logarithms, which stay finite where probabilities round to 0.
    p, q = jax.nn.log_softmax(with_all), jax.nn.log_softmax(with_top)
    divergence = jnp.sum(jnp.exp(p) * (p - q), 1)
    classes, top_classes, other_classes = (
        np.asarray(logits.argmax(1)) for logits in (with_all, with_top, without_top)
    )
    return Fidelity(
        plus=float(np.mean(classes != other_classes)),
        minus=float(np.mean(classes != top_classes)),
        unfaithfulness=float(np.mean(1 - np.exp(-np.asarray(divergence)))),
    )
