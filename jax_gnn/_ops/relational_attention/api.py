"""Attention of RGAT and HGT: the public functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import ffi
from jax_gnn._core.arguments import (
    check_choice,
    check_container,
    check_features,
    check_finite,
    check_flag,
    check_instance,
    check_real,
    check_size,
    precision_level,
)
from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.ffi import Implementation
from jax_gnn._core.public import public
from jax_gnn._ops.relational_attention import schedule
from jax_gnn._ops.relational_attention.methods import (
    RGATScores,
    attend_hgt,
    attend_rgat,
    choose_method,
)
from jax_gnn._ops.relational_attention.weights import HGTWeights, RelationMaps, RGATWeights
from jax_gnn.relational import RelationalGraph

Method = Literal["auto"] | schedule.Method
"""How attention over relations is computed; "auto" counts which is cheaper."""
METHODS: tuple[str, ...] = ("auto", *schedule.METHODS)
"""All methods of attention over relations."""


@public
def rgat_attention(
    graph: RelationalGraph,
    x: ArrayLike,
    weights: RGATWeights,
    *,
    x_dst: ArrayLike | None = None,
    negative_slope: float = 0.2,
    multiplicative: bool = False,
    within_relations: bool = False,
    edge_bias: ArrayLike | None = None,
    edge_scale: ArrayLike | None = None,
    method: Method = "auto",
    precision: Any = None,
    implementation: Implementation | None = None,
) -> Array:
    """Sums values under the softmax of RGAT's scores.

    ``out[i] = Σ softmax(s_e) · x[j] W_r`` over the edges ``e = (j → i)`` of relations r, for each
    head, with ``s_e = LeakyReLU(⟨x[i] W_r, a_r⟩ + ⟨x[j] W_r, a'_r⟩)`` (Busbridge et al. 2019, arXiv
    1904.05811, equations 2 to 9). Rows are multiplied once for each existing (node, relation) pair
    at one end of the edges; docs/relational.md tells how. Derivatives of any order to all
    floating-point arguments.

    Args:
        graph: the graph, with its parts ``"from_pairs"`` and ``"to_pairs"``.
        x: ``(num_src, k)``: float16, bfloat16, float32 or float64.
        weights: :meth:`RGATWeights.of` the kernel and both vectors, which one may compute once
            where they do not change.
        x_dst: ``(num_dst, k)``, of the destinations of a bipartite graph; converted to the dtype of
            ``x``. None: they are the sources.
        negative_slope: of the LeakyReLU, finite.
        multiplicative: whether scores are the product of both dots, in place of the above.
        within_relations: whether the softmax runs within each relation, else over all edges.
        edge_bias: ``(num_edges, heads)`` in the graph's order of edges
            (:meth:`RelationalGraph.edge_values`), added before the LeakyReLU, or multiplied by.
        edge_scale: ``(num_edges, heads)``, factors of the weights after the softmax.
        method: ``"source_pairs"``, ``"destination_pairs"``, or ``"auto"``: chosen by counts.
        precision: of the products, as `jax.lax.dot` takes it.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, heads, n)`` in the dtype of ``x``. Nodes without edges get 0.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, the slope is not finite, the graph lacks a
            part that the method goes through, or it is bipartite and there is no ``x_dst``.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1], [0, 1], [2, 2], num_nodes=3)
        >>> zeros = jnp.zeros((2, 1, 1))
        >>> weights = RGATWeights.of(jnp.ones((2, 1, 1)), zeros, zeros)
        >>> rgat_attention(graph, jnp.array([[1.0], [2.0], [4.0]]), weights).ravel()
        Array([0. , 0. , 1.5], dtype=float32)
    """
    graph = check_container("graph", graph, RelationalGraph)
    x = _check_nodes("x", x, "num_src", graph.num_src)
    if x_dst is None:
        if graph.num_src != graph.num_dst:
            raise ValueError(f"x_dst must be given for a bipartite graph, got None and {graph}")
        x_dst = x
    else:
        x_dst = _check_nodes("x_dst", x_dst, "num_dst", graph.num_dst).astype(x.dtype)
    check_instance("weights", weights, RGATWeights)
    kernel, (_, heads, width) = weights.kernel, weights.src.shape
    if kernel.shape[:2] != (graph.num_relations, x.shape[1]):
        raise ValueError(
            f"weights must be of num_relations={graph.num_relations} and the {x.shape[1]} features "
            f"of x, got a kernel of shape {kernel.shape}"
        )
    if x_dst.shape[1] != x.shape[1]:
        raise ValueError(f"x_dst must have the {x.shape[1]} features of x, got shape {x_dst.shape}")
    slope = check_finite("negative_slope", negative_slope)

    def of_edges(name: str, values: ArrayLike | None) -> Array | None:
        if values is None:
            return None
        found = check_real(name, values)
        if found.shape != (graph.num_edges, heads):
            raise ValueError(
                f"{name} must be (num_edges={graph.num_edges}, heads={heads}), got shape "
                f"{found.shape}"
            )
        return found.astype(accumulator_dtype(x.dtype))

    nodes, acc = graph.nodes, accumulator_dtype(x.dtype)
    graph, scale = graph._gated(of_edges("edge_scale", edge_scale), acc, heads)
    scores = RGATScores(
        check_flag("multiplicative", multiplicative),
        slope,
        of_edges("edge_bias", edge_bias),
        check_flag("within_relations", within_relations),
        scale,
    )
    check_choice("method", method, METHODS)
    ffi.check_implementation(implementation)
    chosen = choose_method(graph, method, kernel, heads, dots=False)
    with ffi.chosen_implementation(implementation or ffi.chosen_implementation.value):
        y = attend_rgat(
            *(graph, x, x_dst, RGATWeights(*(each.astype(x.dtype) for each in weights)), scores),
            method=chosen,
            precision=precision_level(precision),
        )
    nodes._note("attention", lambda: _rgat_shares(graph, x, x_dst, weights, scores))
    return y.reshape(len(y), heads, width)


def _shares(total: Callable[[Array], Array], scale: Array | None, like: Array) -> Array:
    """``(num_edges, heads)``, what edges are weighed by: the gradient to factors of a sum of ones.

    Args:
        total: that sum, by the factors.
        scale: factors that there are, or None.
        like: of the shape of the factors.
    """
    found = jax.grad(total)(jnp.ones_like(like))
    return found if scale is None else found * scale


def _rgat_shares(
    graph: RelationalGraph, x: Array, x_dst: Array, weights: RGATWeights, scores: RGATScores
) -> Array:
    """A feature more makes values 1, and no difference to scores."""
    relations, k, _ = weights.kernel.shape
    heads, scale = weights.src.shape[1], scores.edge_scale
    kernel = jnp.zeros((relations, k + 1, heads), x.dtype).at[:, k].set(1)
    both, dst = (
        jnp.pad(each.astype(x.dtype), ((0, 0), (0, 0), (0, 1)))
        for each in (weights.both, weights.dst)
    )
    ones = RGATWeights(kernel, jnp.zeros((relations, heads, 1), x.dtype), dst, both)
    x, x_dst = (jnp.pad(each, ((0, 0), (0, 1)), constant_values=1) for each in (x, x_dst))

    def total(scale: Array) -> Array:
        given = scores._replace(edge_scale=scale)
        return attend_rgat(
            *(graph, x, x_dst, ones, given),
            method="destination_pairs",
            precision=precision_level(None),
        ).sum()

    return _shares(total, scale, jnp.zeros((graph.num_edges, heads), accumulator_dtype(x.dtype)))


@public
def hgt_attention(
    graph: RelationalGraph,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    weights: HGTWeights,
    *,
    heads: int,
    made_query: ArrayLike | None = None,
    keys_take_queries: bool = False,
    method: Method = "auto",
    precision: Any = None,
    implementation: Implementation | None = None,
) -> Array:
    """Sums values under the softmax of HGT's scores.

    ``out[i] = Σ softmax(⟨query[i], key[j] A_r⟩ μ_r / √d) · value[j] M_r`` over the edges
    ``e = (j → i)`` of relations r, for each head (Hu et al. 2020, arXiv 2003.01332, equations 3 to
    5). Rows are multiplied once for each existing (node, relation) pair at one end of the edges.
    Derivatives of any order to all floating-point arguments.

    Args:
        graph: the graph, with the part ``"from_pairs"`` or ``"to_pairs"``.
        query: ``(num_dst, heads · d)``, of destinations; or ``(num_dst, j)`` where
            ``weights.query`` maps j features.
        key: ``(num_src, heads · d)``, of sources; likewise by ``weights.key``.
        value: likewise by ``weights.value``; the same array as ``key`` where they are one.
        weights: :meth:`HGTWeights.of` the maps of relations, or these multiplied with maps of
            nodes.
        heads: number of heads.
        made_query: ``(num_dst, heads · d)``, what ``query`` is by the nodes' own map, where
            ``weights`` have that map, too: it meets keys that are made by source pair. None:
            ``query``.
        keys_take_queries: whether by source pair keys are multiplied with the maps of queries, too,
            so that they meet ``query`` as it is: of one head, without biases.
        method: ``"source_pairs"``, ``"destination_pairs"``, or ``"auto"``: chosen by counts.
        precision: of the products, as `jax.lax.dot` takes it.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, heads, d)`` in the dtype of ``value``. Nodes without edges get 0.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or the graph lacks a part that the method goes
            through.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1], [0, 1], [2, 2], num_nodes=3)
        >>> x, maps = jnp.array([[1.0], [2.0], [0.0]]), jnp.ones((2, 1, 1, 1))
        >>> hgt_attention(graph, x, x, x, HGTWeights.of(maps, maps), heads=1).ravel()
        Array([0. , 0. , 1.5], dtype=float32)
    """
    same = key is value
    graph = check_container("graph", graph, RelationalGraph)
    src, dst = ("num_src", graph.num_src), ("num_dst", graph.num_dst)
    value = _check_nodes("value", value, *src)
    key = value if same else _check_nodes("key", key, *src).astype(value.dtype)
    query = _check_nodes("query", query, *dst).astype(value.dtype)
    check_instance("weights", weights, HGTWeights)
    if check_size("heads", heads) == 0:
        raise ValueError("heads must be positive, got 0")
    kernel = weights.value.kernel
    if kernel.shape[0] != graph.num_relations:
        raise ValueError(
            f"weights must be of num_relations={graph.num_relations}, got a kernel of shape "
            f"{kernel.shape}"
        )
    width = kernel.shape[2]
    named = {"query": (query, weights.query), "key": (key, weights.key)}
    for name, (x, rows) in (named | {"value": (value, weights.value)}).items():
        if x.shape[1] not in (rows.kernel.shape[1], heads * rows.kernel.shape[1]):
            raise ValueError(
                f"{name} must have the {rows.kernel.shape[1]} features that weights.{name} maps, "
                f"or those of all heads, got shape {x.shape}"
            )
    check_choice("method", method, METHODS)
    ffi.check_implementation(implementation)
    nodes, acc = graph.nodes, accumulator_dtype(value.dtype)
    graph, scale = graph._gated(None, acc, heads)
    chosen = choose_method(graph, method, kernel, heads, dots=True)
    made = query if made_query is None else _check_nodes("made_query", made_query, *dst)
    options: Any = {
        "heads": heads,
        "method": chosen,
        "precision": precision_level(precision),
        "made": not check_flag("keys_take_queries", keys_take_queries),
    }
    asking = made.astype(value.dtype) if chosen == "source_pairs" else query
    with ffi.chosen_implementation(implementation or ffi.chosen_implementation.value):
        y = attend_hgt(graph, key, value, asking, weights, scale=scale, **options)

    def weights_of_edges() -> Array:
        ones = jnp.ones((graph.num_src, 1), value.dtype)
        maps = RelationMaps(jnp.ones((graph.num_relations, 1, heads), value.dtype))

        def total(scale: Array) -> Array:
            of_ones = weights._replace(value=maps)
            return attend_hgt(graph, key, ones, asking, of_ones, scale=scale, **options).sum()

        return _shares(total, scale, jnp.zeros((graph.num_edges, heads), acc))

    nodes._note("attention", weights_of_edges)
    return y.reshape(len(y), heads, width // heads)


def _check_nodes(name: str, x: ArrayLike, size_name: str, size: int) -> Array:
    x = check_features(name, x, size_name, size)
    if x.ndim != 2:
        raise ValueError(f"{name} must be ({size_name}={size}, features), got {x.shape}")
    return x
