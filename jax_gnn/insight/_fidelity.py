"""How well the edges that count most explain a prediction."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core import arguments
from jax_gnn.insight._attribute import Attribution
from jax_gnn.insight._call import outputs_of, prepared
from jax_gnn.insight._gates import Edged, edges_of


class Fidelity(NamedTuple):
    """What becomes of predictions without the explanation, and with it alone.

    Attributes:
        plus: the share of rows whose predicted class is another one without the edges that count
            most; large, if they are necessary.
        minus: the share whose class is another one with these edges alone; small, if they suffice.
        unfaithfulness: ``1 - exp(-KL(p, q))``, as a mean, of the probabilities p with all edges and
            q with these alone (Agarwal et al. 2023).
    """

    plus: float
    minus: float
    unfaithfulness: float


def fidelity(
    model: Any,
    graph: Any,
    x: Any,
    attribution: Attribution | Any,
    *,
    num_edges: int,
    index: Any = None,
    **named: Any,
) -> Fidelity:
    """Compares predictions with those without the edges that count most, and with these alone.

    Edges are removed: what a model makes of degrees changes, too. Fidelity of a model, as Amara et
    al. call it (GraphFramEx, 2022), in the words of ``torch_geometric.explain``.

    Args:
        model: as :func:`attribute` takes it; gives logits, or logarithms of probabilities,
            ``(rows, classes)``.
        graph: the graph, or a batch of graphs.
        x: ``(num_nodes, *features)``.
        attribution: of this graph, or ``(num_edges,)`` numbers, in the graph's order.
        num_edges: how many edges are the explanation, those of the largest numbers.
        index: the rows of the output; None for all.
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
    if not isinstance(call.graph, Edged):
        raise TypeError(
            "graph must be a jax_gnn.Graph, RelationalGraph or Hypergraph, got "
            f"{type(call.graph).__name__}"
        )
    graph = edges_of(call.graph)
    scores = attribution.edges if isinstance(attribution, Attribution) else attribution
    if scores is None:
        raise ValueError("attribution must have edges, got one without")
    scores = arguments.to_numpy("attribution", scores)
    if scores.shape != (graph.num_edges,):
        raise ValueError(
            f"attribution must be (num_edges={graph.num_edges},), got shape {scores.shape}"
        )
    count = int(graph.indptr[-1])
    top = np.argsort(-scores[:count], kind="stable")[: arguments.check_size("num_edges", num_edges)]
    chosen = np.zeros(graph.num_edges, bool)
    chosen[top] = True
    given, alone = map(call.logits, outputs_of(call, jnp.asarray(chosen)))
    rest = call.logits(outputs_of(call, jnp.asarray(~chosen))[1])
    if given.shape[1] < 2:
        raise ValueError(f"the model must give (rows, classes), got {given.shape[1]} columns")
    before, without, only = (np.asarray(each.argmax(1)) for each in (given, rest, alone))
    p, q = jax.nn.log_softmax(given), jax.nn.log_softmax(alone)
    divergence = jnp.sum(jnp.exp(p) * (p - q), 1)
    return Fidelity(
        float(np.mean(before != without)),
        float(np.mean(before != only)),
        float(np.mean(1 - np.exp(-np.asarray(divergence)))),
    )
