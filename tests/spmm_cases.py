"""Inputs and references of spmm, for the modules that test spmm and ops built on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from op_spec import Incidence

from jax_gnn import Graph


class Edges(NamedTuple):
    """Edges, as references take them; edges with an id out of range are padding."""

    src: np.ndarray
    dst: np.ndarray
    num_src: int
    num_dst: int

    @property
    def valid(self) -> np.ndarray:
        src_in_range = (self.src >= 0) & (self.src < self.num_src)
        return src_in_range & (self.dst >= 0) & (self.dst < self.num_dst)


def random_edges(rng: np.random.Generator, scenario: str, *, square: bool = False) -> Edges:
    """In the order of a graph: by destination, then source, padding last."""
    incidence = Incidence.random(rng, scenario)
    if square:
        nodes = max(incidence.num_left, incidence.num_right)
        incidence = replace(incidence, num_left=nodes, num_right=nodes)
    # The order of edges of `Graph`, so that weights need no permutation.
    order = np.lexsort((incidence.left, incidence.right, ~incidence.valid))
    ids = (incidence.left[order], incidence.right[order])
    return Edges(*ids, incidence.num_left, incidence.num_right)


def graph_of(edges: Edges) -> Graph:
    src, dst, num_src, num_dst = edges
    return Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, validate=False)


def by_hand(edges: Edges) -> tuple[np.ndarray, ...]:
    """Operands of index_segment_reduce: edges sorted by segment, ids out of range anywhere."""
    return (
        edges.src.astype(np.int32),
        edges.dst.astype(np.int32),
        np.zeros(edges.num_dst, np.int32),  # sizes are shapes
    )


def unused(ids: np.ndarray, size: int, rank: int) -> np.ndarray:
    """Return whether each row is read by no edge."""
    return ~np.isin(np.arange(size), ids).reshape(-1, *[1] * (rank - 1))


def total(messages: np.ndarray) -> np.ndarray:
    return messages.sum(0)


def mean(messages: np.ndarray) -> np.ndarray:
    return messages.mean(0)


def spmm_reference(
    edges: Edges,
    x: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    reduce: Callable[[np.ndarray], np.ndarray] = total,
) -> np.ndarray:
    """Edge by edge, with 0 at destinations that have none."""
    result = np.zeros((edges.num_dst, *x.shape[1:]), np.result_type(x, *[weight][weight is None :]))
    if weight is not None:
        weight = weight.reshape(*weight.shape, *[1] * (x.ndim - weight.ndim))
    for row in np.unique(edges.dst[edges.valid]):
        entries = np.flatnonzero(edges.valid & (edges.dst == row))
        messages = x[edges.src[entries]]
        result[row] = reduce(messages if weight is None else weight[entries] * messages)
    return result


def keep_apart(
    edges: Edges, x: np.ndarray, weight: np.ndarray, draw: Callable[[tuple[int, ...]], np.ndarray]
) -> np.ndarray:
    """Weights, drawn again where a row's extreme messages differ by what rounding may decide.

    Messages that a half type cannot tell apart share the gradient, and the reference knows one.
    """
    weight = weight.copy()
    for row in np.unique(edges.dst[edges.valid]):
        ids = np.flatnonzero(edges.valid & (edges.dst == row))
        # Draw until the two extreme messages of each feature are well apart.
        for _ in range(100 if len(ids) > 1 else 0):
            of_row = weight[ids]
            messages = np.sort(
                of_row.reshape(*of_row.shape, *[1] * (x.ndim - weight.ndim)) * x[edges.src[ids]],
                axis=0,
            )
            pairs = messages[[0, -2]], messages[[1, -1]]
            if (pairs[1] - pairs[0] > 2**-5 * np.maximum(*np.abs(pairs))).all():
                break
            weight[ids] = draw(of_row.shape)
    return weight


def with_epilogue(
    sums: np.ndarray,
    x: np.ndarray,
    own_scale=None,
    out_scale=None,
    residual=None,
    bias=None,
    result_scale=None,
    *,
    relu: bool = False,
) -> np.ndarray:
    """Return the epilogue of `spmm`, step by step."""

    def of_rows(scale) -> Any:
        return np.reshape(scale, (-1, *[1] * (x.ndim - 1)))

    result = sums
    if own_scale is not None:
        result = result + of_rows(own_scale) * x
    if out_scale is not None:
        result = of_rows(out_scale) * result
    if residual is not None:
        result = result + residual
    if bias is not None:
        result = result + bias
    result = np.where(result.real > 0, result, 0) if relu else result
    return result if result_scale is None else of_rows(result_scale) * result
