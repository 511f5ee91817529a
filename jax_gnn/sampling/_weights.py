"""Weighted draws: integers in proportion to the weights of a node's edges, and their prefix sums.

The *share* of an edge is its integer; the shares of a node's edges sum to less than 2³².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.ids import as_signed, is_traced, namespace
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._rows import check_edges

_REFINEMENTS = 3  # enough that rows of 2²⁴ edges have shares of 2⁻²⁹, whatever their weights
_SIGN_BIT, _MANTISSA_BITS = np.uint32(31), np.uint32(23)  # of a float32


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeProbability:
    """Probabilities of drawing edges, prepared once for :func:`sample_neighbors`.

    The weights of a node's edges become integers, in proportion to 2⁻²⁹ of their sum, which is
    below 2³²; positive weights become 1 at least. Prefix sums of integers are exact, whatever the
    number of edges, so that the same key draws the same edges on every device.

    Attributes:
        sums: ``(num_edges + 1,)`` uint32, prefix sums of these integers modulo 2³²: differences
            within a node's edges are exact.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 2], num_nodes=3)
        >>> EdgeProbability.from_weights(graph, [1.0, 0.0, 2.0])
        EdgeProbability(num_edges=3)
    """

    sums: Array

    @classmethod
    def from_weights(
        cls, graph: Graph | RelationalGraph, weights: ArrayLike | Sequence[float]
    ) -> EdgeProbability:
        """Prepare weights; inside ``jax.jit`` as well, and in numpy for a graph of the host.

        Args:
            graph: the graph of the edges.
            weights: ``(num_edges,)`` real numbers from 0 in the graph's order, taken in float32.
                They need not sum to 1. An edge of weight 0 is never drawn; nor is one whose weight
                is traced and negative, NaN or infinite.

        Raises:
            TypeError: ``graph`` is something else, or ``weights`` are no real numbers.
            ValueError: The shape does not fit, or a weight is negative, NaN or infinite.
        """
        return edge_probability("weights", weights, check_edges(graph))

    @property
    def num_edges(self) -> int:
        """Number of edges, padding included."""
        return int(self.sums.shape[0]) - 1

    def __repr__(self) -> str:
        if not getattr(self.sums, "shape", None):  # a pytree of something else than arrays
            return f"EdgeProbability({self.sums})"
        return f"EdgeProbability(num_edges={self.num_edges})"


def edge_probability(name: str, weights: object, graph: Graph) -> EdgeProbability:
    """Return probabilities from weights or prepared ones; in numpy if the graph is."""
    if not isinstance(weights, EdgeProbability):
        checked = _check_weights(name, weights, graph)
        if namespace(graph.indptr, graph.rows) is np and not isinstance(weights, jax.Array):
            sums = prefix_sums(np.asarray(graph.indptr), np.asarray(graph.rows), checked)
        else:
            sums = _compiled_sums(as_signed(graph.indptr), as_signed(graph.rows), checked)
        return EdgeProbability(sums)
    sums = weights.sums
    if getattr(sums, "dtype", None) != np.uint32 or sums.shape != (graph.num_edges + 1,):
        raise ValueError(
            f"{name}.sums must be (num_edges + 1 = {graph.num_edges + 1},) uint32, got "
            f"{getattr(sums, 'dtype', type(sums).__name__)} of shape "
            f"{getattr(sums, 'shape', None)}: prepare it for this graph"
        )
    return weights


def _check_weights(name: str, weights: object, graph: Graph) -> Array:
    """Return weights of edges as float32; concrete ones must be finite and from 0."""
    array = arguments.check_real_vector(name, weights, "num_edges", graph.num_edges)
    if is_traced(array):
        return array.astype(jnp.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        concrete = np.asarray(array).astype(np.float32)
    bad = np.flatnonzero(~((concrete >= 0) & (concrete < np.inf)))
    if bad.size:
        raise ValueError(
            f"{name} must be finite numbers from 0 in float32, got {name}[{bad[0]}] = "
            f"{array[bad[0]]}"
        )
    return concrete  # type: ignore[return-value]


def prefix_sums(
    indptr: Array | np.ndarray, rows: Array | np.ndarray, weights: Array | np.ndarray
) -> Array:
    """Return prefix sums, ``(num_edges + 1,)`` uint32, of the shares of the edges of each row.

    Shares are computed from the bits of the weights in integer arithmetic, so that no rounding
    depends on an order of summation.
    """
    xp = namespace(indptr, rows, weights)
    num_rows = indptr.shape[0] - 1
    zero = np.uint32(0)
    words = weights.view(np.uint32)
    # Positive finite weights of edges that have a row; all others get no share.
    valid = (words >> _SIGN_BIT == 0) & (words > 0) & (words < np.uint32(0x7F800000))
    valid &= (rows >= 0) & (rows < num_rows)
    words = xp.where(valid, words, zero)
    field = (words >> _MANTISSA_BITS).astype(np.int32)
    exponents = xp.maximum(field, 1)  # a weight is a mantissa times 2^(exponent - 150)
    mantissas = (words & np.uint32(0x7FFFFF)) | xp.where(
        field > 0, np.uint32(1) << _MANTISSA_BITS, zero
    )

    degrees = xp.maximum(indptr[1:] - indptr[:-1], 0).astype(np.uint32)
    place = xp.where(valid, rows, num_rows)
    # The first scales bound each share by 2^(31 - bit_length(degree)), hence a row's sum by 2^31.
    scales = 7 - _bit_length(degrees) - _row_maximum(exponents, place, num_rows)

    def shares_of(scales: Array) -> Array:
        shifts = exponents + xp.append(scales, np.int32(0))[place]
        up, down = (xp.clip(shift, 0, 31).astype(np.uint32) for shift in (shifts, -shifts))
        shares: Array = mantissas << up >> down
        return shares

    def sums_of(shares: Array) -> Array:
        sums = xp.cumsum(xp.where(valid, shares, zero), dtype=np.uint32)
        result: Array = xp.concatenate([xp.zeros(1, np.uint32), sums])
        return result

    # Sums that leave upper bits unused raise the row's scale: more exact each time.
    bounds = xp.clip(indptr, 0, rows.shape[0])
    for _ in range(_REFINEMENTS):
        sums = sums_of(shares_of(scales))
        limits = sums[bounds[1:]] - sums[bounds[:-1]] + degrees  # at most 1 is rounded off a share
        unused_bits = 31 - _bit_length(limits)
        scales = scales + xp.where(degrees > 0, xp.maximum(unused_bits, 0), 0)
    return sums_of(xp.maximum(shares_of(scales), np.uint32(1)))


_compiled_sums = jit()(prefix_sums)


def _row_maximum(values: Array, rows: Array, num_rows: int) -> Array:
    """Return the largest value of each row, 0 for empty rows."""
    if namespace(values, rows) is np:
        result = np.zeros(num_rows + 1, np.int32)
        np.maximum.at(result, rows, values)
        return result[:num_rows]  # type: ignore[return-value]
    return jnp.zeros(num_rows, jnp.int32).at[rows].max(values, mode="drop")


def _bit_length(values: Array) -> Array:
    """Return the number of bits of uint32 integers."""
    if isinstance(values, np.ndarray):
        return np.frexp(values.astype(np.float64))[1].astype(np.int32)
    return 32 - jax.lax.clz(values).astype(jnp.int32)
