"""Attention of RGAT and HGT: the public functions and their parsed arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import jax
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.public import Implementation, public
from jax_gnn._core.shapes import Float, Real
from jax_gnn._ops.relational_attention import schedule
from jax_gnn._ops.relational_attention.methods import (
    RGATScores,
    attend_hgt,
    attend_rgat,
    choose_method,
)
from jax_gnn._ops.relational_attention.weights import HGTWeights, RGATWeights
from jax_gnn.relational import RelationalGraph

Method = Literal["auto"] | schedule.Method
"""Method of attention over relations; "auto" chooses by counts."""


@public
def rgat_attention(
    graph: RelationalGraph,
    x: Float[ArrayLike, "num_src k"],
    weights: RGATWeights,
    *,
    x_dst: Float[ArrayLike, "num_dst k"] | None = None,
    negative_slope: float = 0.2,
    multiplicative: bool = False,
    within_relations: bool = False,
    edge_bias: Real[ArrayLike, "num_edges heads"] | None = None,
    edge_scale: Real[ArrayLike, "num_edges heads"] | None = None,
    method: Method = "auto",
    precision: jax.lax.PrecisionLike = None,
    implementation: Implementation | None = None,
) -> Float[Array, "num_dst heads n"]:
    """Sum values under the softmax of RGAT's scores.

    ``out[i] = Σ softmax(s_e) · x[j] W_r`` over the edges ``e = (j → i)`` of relations r, for each
    head, with ``s_e = LeakyReLU(⟨x[i] W_r, a_r⟩ + ⟨x[j] W_r, a'_r⟩)`` (Busbridge et al. 2019, arXiv
    1904.05811, equations 2 to 9). Rows are multiplied once for each existing (node, relation) pair
    at one end of the edges (docs/relational.md). Derivatives of any order to all
    floating-point arguments.

    Args:
        graph: the graph, with its parts ``"from_pairs"`` and ``"to_pairs"``.
        x: ``(num_src, k)``: float16, bfloat16, float32 or float64.
        weights: :meth:`RGATWeights.of` the kernel and both vectors; compute it once if they do not
            change.
        x_dst: ``(num_dst, k)`` features of the destinations of a bipartite graph; converted to the
            dtype of ``x``. None: destinations are the sources.
        negative_slope: slope of the LeakyReLU below 0, finite.
        multiplicative: whether scores are the products of both dots, in place of the LeakyReLU.
        within_relations: whether the softmax runs within each relation, else over all edges.
        edge_bias: ``(num_edges, heads)`` in the graph's order of edges
            (:meth:`RelationalGraph.edge_values`): a term before the LeakyReLU, or a factor of the
            multiplicative score.
        edge_scale: ``(num_edges, heads)`` factors of the weights after the softmax.
        method: ``"source_pairs"``, ``"destination_pairs"``, or ``"auto"``: chosen by counts.
        precision: precision of products, as in `jax.lax.dot`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, heads, n)`` in the dtype of ``x``. Nodes without edges get 0.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, the slope is not finite, the graph lacks a
            part that the method needs, or it is bipartite and ``x_dst`` is None.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1], [0, 1], [2, 2], num_nodes=3)
        >>> zeros = jnp.zeros((2, 1, 1))
        >>> weights = RGATWeights.of(jnp.ones((2, 1, 1)), zeros, zeros)
        >>> rgat_attention(graph, jnp.array([[1.0], [2.0], [4.0]]), weights).ravel()
        Array([0. , 0. , 1.5], dtype=float32)
    """
    graph = arguments.check_container("graph", graph, RelationalGraph)
    x = _check_nodes("x", x, "num_src", graph.num_src)
    acc = accumulator_dtype(x.dtype)
    if x_dst is None and graph.num_src != graph.num_dst:
        raise ValueError(f"x_dst must be given for a bipartite graph, got None and {graph}")
    if x_dst is not None:
        x_dst = _check_nodes("x_dst", x_dst, "num_dst", graph.num_dst).astype(x.dtype)
    arguments.check_instance("weights", weights, RGATWeights)
    heads = weights.src.shape[1]
    if weights.kernel.shape[:2] != (graph.num_relations, x.shape[1]):
        raise ValueError(
            f"weights must be of num_relations={graph.num_relations} and the {x.shape[1]} features "
            f"of x, got a kernel of shape {weights.kernel.shape}"
        )
    if x_dst is not None and x_dst.shape[1] != x.shape[1]:
        raise ValueError(f"x_dst must have the {x.shape[1]} features of x, got shape {x_dst.shape}")
    slope = arguments.check_finite("negative_slope", negative_slope)
    size = graph.num_edges, heads
    # Gates of the graph become factors after the softmax.
    plain_graph, scale = graph._gated(
        _check_edges("edge_scale", edge_scale, *size, acc), acc, heads
    )
    scores = RGATScores(
        arguments.check_flag("multiplicative", multiplicative),
        slope,
        _check_edges("edge_bias", edge_bias, *size, acc),
        arguments.check_flag("within_relations", within_relations),
        scale,
    )
    attend = functools.partial(
        attend_rgat,
        plain_graph,
        x,
        x if x_dst is None else x_dst,
        RGATWeights(*(array.astype(x.dtype) for array in weights)),
        scores,
        method=choose_method(plain_graph, method, weights.kernel, heads, dots=False),
        precision=arguments.precision_level(precision),
    )
    y = attend()
    # Weights of edges are computed only if someone asks for them.
    graph.nodes._note("attention", functools.partial(attend, returns_weights=True))
    return y.reshape(len(y), heads, weights.src.shape[2])


@public
def hgt_attention(
    graph: RelationalGraph,
    query: Float[ArrayLike, "num_dst query_features"],
    key: Float[ArrayLike, "num_src key_features"],
    value: Float[ArrayLike, "num_src value_features"],
    weights: HGTWeights,
    *,
    heads: int,
    pair_query: Float[ArrayLike, "num_dst pair_features"] | Callable[[], Array] | None = None,
    fold_query_into_key: bool = False,
    method: Method = "auto",
    precision: jax.lax.PrecisionLike = None,
    implementation: Implementation | None = None,
) -> Float[Array, "num_dst heads d"]:
    """Sum values under the softmax of HGT's scores.

    ``out[i] = Σ softmax(⟨query[i], key[j] A_r⟩ μ_r / √d) · value[j] M_r`` over the edges
    ``e = (j → i)`` of relations r, for each head (Hu et al. 2020, arXiv 2003.01332, equations 3 to
    5). Rows are multiplied once for each existing (node, relation) pair at one end of the edges.
    Derivatives of any order to all floating-point arguments.

    Args:
        graph: the graph, with the part ``"from_pairs"`` or ``"to_pairs"``.
        query: ``(num_dst, heads · d)`` queries of destinations; or ``(num_dst, j)`` features, if
            ``weights.query`` maps j features.
        key: ``(num_src, heads · d)`` keys of sources; or ``(num_src, j)`` features, if
            ``weights.key`` maps j features.
        value: ``(num_src, heads · d)`` values of sources, or features that ``weights.value`` maps;
            the same array as ``key`` where both are equal.
        weights: :meth:`HGTWeights.of` the maps of relations, or products of these with maps of
            nodes.
        heads: number of heads.
        pair_query: ``(num_dst, heads · d)`` queries of destinations, for keys by source pair, where
            ``query`` is features since ``weights`` includes the map of nodes; or a function that
            returns them, called only if they are needed. None: ``query``.
        fold_query_into_key: whether keys by source pair are multiplied with the maps of queries, so
            that scores are their dots with the features ``query``: of one head, without biases.
        method: ``"source_pairs"``, ``"destination_pairs"``, or ``"auto"``: chosen by counts.
        precision: precision of products, as in `jax.lax.dot`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, heads, d)`` in the dtype of ``value``. Nodes without edges get 0.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or the graph lacks a part that the method
            needs.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1], [0, 1], [2, 2], num_nodes=3)
        >>> x, maps = jnp.array([[1.0], [2.0], [0.0]]), jnp.ones((2, 1, 1, 1))
        >>> hgt_attention(graph, x, x, x, HGTWeights.of(maps, maps), heads=1).ravel()
        Array([0. , 0. , 1.5], dtype=float32)
    """
    key_is_value = key is value
    graph = arguments.check_container("graph", graph, RelationalGraph)
    src, dst = ("num_src", graph.num_src), ("num_dst", graph.num_dst)
    value = _check_nodes("value", value, *src)
    key = value if key_is_value else _check_nodes("key", key, *src).astype(value.dtype)
    query = _check_nodes("query", query, *dst).astype(value.dtype)
    arguments.check_instance("weights", weights, HGTWeights)
    if arguments.check_size("heads", heads) == 0:
        raise ValueError("heads must be positive, got 0")
    kernel = weights.value.kernel
    if kernel.shape[0] != graph.num_relations:
        raise ValueError(
            f"weights must be of num_relations={graph.num_relations}, got a kernel of shape "
            f"{kernel.shape}"
        )
    for name, x, maps in (
        ("query", query, weights.query),
        ("key", key, weights.key),
        ("value", value, weights.value),
    ):
        width = maps.kernel.shape[1]
        if x.shape[1] not in (width, heads * width):
            raise ValueError(
                f"{name} must have the {width} features that weights.{name} maps, or those of all "
                f"heads, got shape {x.shape}"
            )
    plain_graph, scale = graph._gated(None, accumulator_dtype(value.dtype), heads)
    chosen = choose_method(plain_graph, method, kernel, heads, dots=True)
    if callable(pair_query):
        pair_query = pair_query() if chosen == "source_pairs" else None
    if pair_query is not None:
        pair_query = _check_nodes("pair_query", pair_query, *dst).astype(value.dtype)
    attend = functools.partial(
        attend_hgt,
        plain_graph,
        key,
        value,
        query if pair_query is None or chosen != "source_pairs" else pair_query,
        weights,
        scale,
        heads=heads,
        method=chosen,
        precision=arguments.precision_level(precision),
        maps_keys=not arguments.check_flag("fold_query_into_key", fold_query_into_key),
    )
    y = attend()
    graph.nodes._note("attention", functools.partial(attend, returns_weights=True))
    return y.reshape(len(y), heads, kernel.shape[2] // heads)


# --- Checks --------------------------------------------------------------------------------------


def _check_nodes(name: str, x: ArrayLike, size_name: str, size: int) -> Array:
    x = arguments.check_features(name, x, size_name, size)
    if x.ndim != 2:
        raise ValueError(f"{name} must be ({size_name}={size}, features), got {x.shape}")
    return x


def _check_edges(
    name: str, values: ArrayLike | None, num_edges: int, heads: int, acc: DTypeLike
) -> Array | None:
    if values is None:
        return None
    values = arguments.check_real(name, values)
    axes = f"(num_edges={num_edges}, heads={heads})"
    arguments.check_shape(name, values, axes, num_edges, heads)
    return values.astype(acc)
