"""Attention over edges: descriptions of the ops for the shared checks, and what they promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from op_spec import Case, OpSpec
from op_suite import CoreChecks, OpSuite
from spmm_cases import Edges, graph_of, random_edges, unused

from jax_gnn import Graph, additive_attention, dot_attention, gatv2_attention

HEADS = 4  # as many as devices of the tests


# --- The plain reference -------------------------------------------------------------------------


def leaky(z: np.ndarray, slope: float = 0.2) -> np.ndarray:
    return np.where(z.real > 0, z, slope * z)


def attend(
    edges: Edges,
    score: Callable[[np.ndarray, int], np.ndarray],
    value: np.ndarray,
    edge_scale: np.ndarray | None = None,
    carried: np.ndarray | None = None,
) -> np.ndarray:
    """One destination after another; ``score(into, row)`` gives the scores of its edges."""
    rows = []
    for row in range(edges.num_dst):
        into = np.flatnonzero(edges.valid & (edges.dst == row))
        powers = np.exp(score(into, row))
        weight = powers / powers.sum(0)
        weight = weight if edge_scale is None else weight * edge_scale[into]
        values = value[edges.src[into]]
        values = values if carried is None else values + carried[into]
        weight = weight.reshape(*weight.shape, *[1] * (values.ndim - 2))
        rows.append((weight * values).sum(0) if len(into) else np.zeros(value.shape[1:]))
    shape = edges.num_dst, *value.shape[1:]
    return np.array(rows).reshape(shape) if rows else np.zeros(shape)


def over_features(terms: np.ndarray) -> np.ndarray:
    return terms.reshape(*terms.shape[:2], math.prod(terms.shape[2:])).sum(2)


def additive_reference(
    edges: Edges,
    value: np.ndarray,
    dst_score: np.ndarray,
    src_score: np.ndarray,
    edge_bias: Any = None,
    edge_scale: Any = None,
    edge_features: Any = None,
) -> np.ndarray:
    def score(into: np.ndarray, row: int) -> np.ndarray:
        z = dst_score[row] + src_score[edges.src[into]]
        return leaky(z if edge_bias is None else z + edge_bias[into])

    return attend(edges, score, value, edge_scale, edge_features)


def gatv2_reference(
    edges: Edges,
    src: np.ndarray,
    dst: np.ndarray,
    attention: np.ndarray,
    value: Any = None,
    edge_bias: Any = None,
    edge_scale: Any = None,
    edge_features: Any = None,
) -> np.ndarray:
    def score(into: np.ndarray, row: int) -> np.ndarray:
        z = dst[row] + src[edges.src[into]]
        z = z if edge_features is None else z + edge_features[into]
        s = over_features(attention * leaky(z))
        return s if edge_bias is None else s + edge_bias[into]

    return attend(edges, score, src if value is None else value, edge_scale)


def dot_reference(
    edges: Edges,
    value: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    edge_bias: Any = None,
    edge_scale: Any = None,
    edge_features: Any = None,
    scale: Any = None,
) -> np.ndarray:
    def score(into: np.ndarray, row: int) -> np.ndarray:
        keys = key[edges.src[into]]
        keys = keys if edge_features is None else keys + edge_features[into]
        depth = max(math.prod(key.shape[2:]), 1)
        s = over_features(query[row] * keys) * (depth**-0.5 if scale is None else scale)
        return s if edge_bias is None else s + edge_bias[into]

    return attend(edges, score, value, edge_scale, edge_features)


# --- Descriptions --------------------------------------------------------------------------------


def additive(graph: Graph, value: Any, dst_score: Any, src_score: Any, **options: Any) -> Any:
    return additive_attention(graph, dst_score, src_score, value, **options)


def gatv2(graph: Graph, src: Any, dst: Any, attention: Any, **options: Any) -> Any:
    return gatv2_attention(graph, dst, src, attention, **options)


def dots(graph: Graph, value: Any, query: Any, key: Any, **options: Any) -> Any:
    return dot_attention(graph, query, key, value, **options)


# What each operand has a row for, and how many axes its rows have beside the features'.
OF_DST, OF_SRC, OF_EDGE, OF_ALL = "dst", "src", "edge", "all"
OPERANDS = {
    "value": (OF_SRC, True),
    "src": (OF_SRC, True),
    "key": (OF_SRC, True),
    "src_score": (OF_SRC, False),
    "dst": (OF_DST, True),
    "query": (OF_DST, True),
    "dst_score": (OF_DST, False),
    "attention": (OF_ALL, True),
    "edge_bias": (OF_EDGE, False),
    "edge_scale": (OF_EDGE, False),
    "edge_features": (OF_EDGE, True),
    "scale": (OF_ALL, None),
}


def attention_spec(
    function: Callable[..., Any],
    reference: Callable[..., np.ndarray],
    *names: str,
) -> OpSpec:
    def by_name(tested: Callable[..., Any]) -> Callable[..., Any]:
        return lambda index, *operands: tested(index, **dict(zip(names, operands, strict=True)))

    def make_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
        edges = random_edges(rng, scenario)
        operands, padding = [], []
        for name in names:
            owner, has_features = OPERANDS[name]
            shape: tuple[int, ...] = (HEADS, *features) if has_features else (HEADS,)
            if has_features is None:
                shape = ()
            if owner == OF_ALL:
                unread = None
            elif owner == OF_EDGE:
                shape = len(edges.src), *shape
                unread = ~edges.valid.reshape(-1, *[1] * (len(shape) - 1))
            else:
                ids, size = (
                    (edges.src, edges.num_src) if owner == OF_SRC else (edges.dst, edges.num_dst)
                )
                shape = size, *shape
                unread = unused(ids[edges.valid], size, len(shape))
            operands.append(rng.normal(size=shape))
            padding.append(unread)
        return Case(graph_of(edges), edges, tuple(operands), tuple(padding))

    heads_axis = {OF_ALL: 0}
    return OpSpec(
        function=by_name(function),
        reference=by_name(reference),
        make_case=make_case,
        operands=names,
        feature_axis=tuple(
            None if name == "scale" else heads_axis.get(OPERANDS[name][0], 1) for name in names
        ),
        result_axis=1,
        composed=True,
        summed=("attention", "scale"),
        bad_arguments={},
    )


class TestAdditive(OpSuite):
    test_bad_argument = None
    spec = attention_spec(additive, additive_reference, "value", "dst_score", "src_score")


class TestAdditiveOfEdges(CoreChecks):
    spec = attention_spec(
        *(additive, additive_reference, "value", "dst_score", "src_score"),
        *("edge_bias", "edge_scale", "edge_features"),
    )


class TestAdditiveWithScale(CoreChecks):
    spec = attention_spec(
        *(additive, additive_reference, "value", "dst_score", "src_score", "edge_scale")
    )


class TestGatv2(OpSuite):
    test_bad_argument = None
    spec = attention_spec(gatv2, gatv2_reference, "src", "dst", "attention")


class TestGatv2OfEdges(CoreChecks):
    spec = attention_spec(
        *(gatv2, gatv2_reference, "src", "dst", "attention", "value"),
        *("edge_bias", "edge_scale", "edge_features"),
    )


class TestDot(OpSuite):
    test_bad_argument = None
    spec = attention_spec(dots, dot_reference, "value", "query", "key")


class TestDotOfEdges(CoreChecks):
    spec = attention_spec(
        *(dots, dot_reference, "value", "query", "key"),
        *("edge_bias", "edge_scale", "edge_features", "scale"),
    )
