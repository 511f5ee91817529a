"""Edges drawn by weight: integers in proportion to the weights of a row, and their running sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import as_signed, is_traced, namespace
from jax_gnn._core.op import align_varying
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._random import below, bits
from jax_gnn.sampling._rows import first_place

_REFINEMENTS = 3  # enough that rows of 2²⁴ edges have shares of 2⁻²⁹, whatever their weights


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeProbability:
    """How likely edges are to be drawn, prepared once for :func:`sample_neighbors`.

    The weights of a node's edges are brought to integers whose sum is below 2³², in proportion to
    2⁻²⁹ of the sum; what is positive is 1 at least. The sums are exact, whatever the number of
    edges, so that the same key draws the same edges on every device.

    Attributes:
        sums: ``(num_edges + 1,)`` uint32, the running sums of these integers modulo 2³²:
            differences within a row are exact.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 2], num_nodes=3)
        >>> EdgeProbability.from_weights(graph, [1.0, 0.0, 2.0])
        EdgeProbability(num_edges=3)
    """

    sums: Array

    @classmethod
    def from_weights(cls, graph: Graph | RelationalGraph, weights: Any) -> EdgeProbability:
        """Prepares weights; inside ``jax.jit`` as well, and in numpy for a graph of the host.

        Args:
            graph: whose edges have the weights.
            weights: ``(num_edges,)`` real numbers from 0 in the graph's order, taken in float32.
                They need not sum up to 1. An edge of weight 0 is never drawn; nor is one whose
                weight is traced and negative, NaN or infinite.

        Raises:
            TypeError: ``graph`` is something else, or ``weights`` are no real numbers.
            ValueError: there is not one weight for each edge, or one is negative, NaN or infinite.
        """
        nodes = graph.nodes if isinstance(graph, RelationalGraph) else graph
        arguments.check_instance("graph", nodes, Graph)
        nodes.check_arrays()
        return cls(prepared("weights", weights, nodes))

    @property
    def num_edges(self) -> int:
        """Number of edges, padding included."""
        return self.sums.shape[0] - 1

    def __repr__(self) -> str:
        if not getattr(self.sums, "shape", None):  # a pytree of something else than arrays
            return f"EdgeProbability({self.sums})"
        return f"EdgeProbability(num_edges={self.num_edges})"


def check_weights(name: str, weights: Any, graph: Graph) -> Any:
    """Weights of edges, those that are known from 0 and finite, as float32; in numpy if known."""
    given = arguments.to_array(name, weights)
    if not arguments.is_real(given.dtype):
        raise TypeError(f"{name} must be real numbers, got {given.dtype}")
    if given.shape != (graph.num_edges,):
        raise ValueError(f"{name} must be (num_edges={graph.num_edges},), got shape {given.shape}")
    if is_traced(given):
        return given.astype(jnp.float32)
    known = np.asarray(given)
    with np.errstate(over="ignore", invalid="ignore"):
        known = known.astype(np.float32)
    bad = np.flatnonzero(~((known >= 0) & (known < np.inf)))
    if bad.size:
        raise ValueError(
            f"{name} must be finite numbers from 0 in float32, got {name}[{bad[0]}] = "
            f"{given[bad[0]]}"
        )
    return known


def prepared(name: str, weights: Any, graph: Graph) -> Any:
    """The running sums of what is given as weights or prepared; of a graph of the host in numpy."""
    if not isinstance(weights, EdgeProbability):
        checked = check_weights(name, weights, graph)
        if namespace(graph.indptr, graph.rows) is np and not isinstance(weights, jax.Array):
            return running_sums(np.asarray(graph.indptr), np.asarray(graph.rows), checked)
        return _compiled_sums(as_signed(graph.indptr), as_signed(graph.rows), checked)
    sums = weights.sums
    if getattr(sums, "dtype", None) != np.uint32 or sums.shape != (graph.num_edges + 1,):
        raise ValueError(
            f"{name}.sums must be (num_edges + 1 = {graph.num_edges + 1},) uint32, got "
            f"{arguments.described(sums)}: prepare it for this graph"
        )
    return sums


def running_sums(indptr: Any, rows: Any, weights: Any) -> Any:
    """Running sums of integers in proportion to the weights of each row.

    By integers alone, of the weights' bits, so that no rounding depends on an order of sums. First
    all are brought below a bound that the number of edges allows; then the sums say how much room
    is left, more exactly each time. Of arrays of numpy it is one.
    """
    xp = namespace(indptr, rows, weights)
    num_rows = indptr.shape[0] - 1
    one, zero = np.uint32(1), np.uint32(0)
    words = weights.view(np.uint32)
    counts = (words >> np.uint32(31) == 0) & (words > 0) & (words < np.uint32(0x7F800000))
    counts &= (rows >= 0) & (rows < num_rows)
    words = xp.where(counts, words, zero)
    field = (words >> np.uint32(23)).astype(np.int32)
    exponents = xp.maximum(field, 1)  # a weight is a mantissa times 2^(exponent - 150)
    mantissas = (words & np.uint32(0x7FFFFF)) | xp.where(field > 0, one << np.uint32(23), zero)

    degrees = xp.maximum(indptr[1:] - indptr[:-1], 0).astype(np.uint32)
    place = xp.where(counts, rows, num_rows)
    top = _largest(exponents, place, num_rows)
    # The largest is below 2^(31 - length), and the sum below 2^31.
    scales = 7 - _length(degrees) - top

    def integers(scales: Any) -> tuple[Any, Any]:
        shifts = exponents + xp.append(scales, np.int32(0))[place]
        left, right = (xp.clip(each, 0, 31).astype(np.uint32) for each in (shifts, -shifts))
        values = mantissas << left >> right
        return values, running(xp.where(counts, values, zero))

    def running(values: Any) -> Any:
        sums = xp.cumsum(values, dtype=np.uint32)
        return xp.concatenate([xp.zeros(1, np.uint32), sums])

    bounds = xp.clip(indptr, 0, rows.shape[0])
    for _ in range(_REFINEMENTS):
        sums = integers(scales)[1]
        most = sums[bounds[1:]] - sums[bounds[:-1]] + degrees  # what was rounded off is below
        room = 31 - _length(most)
        scales = scales + xp.where(degrees > 0, xp.maximum(room, 0), 0)
    values = xp.maximum(integers(scales)[0], one)
    return running(xp.where(counts, values, zero))


_compiled_sums = jax.jit(running_sums)


def _largest(values: Any, place: Any, num_rows: int) -> Any:
    """The largest value at each place, 0 if none."""
    if namespace(values, place) is np:
        found = np.zeros(num_rows + 1, np.int32)
        np.maximum.at(found, place, values)
        return found[:num_rows]
    return jnp.zeros(num_rows, jnp.int32).at[place].max(values, mode="drop")


def _length(values: Any) -> Any:
    """How many bits integers of uint32 have."""
    if isinstance(values, np.ndarray):
        return np.frexp(values.astype(np.float64))[1].astype(np.int32)
    return 32 - jax.lax.clz(values).astype(jnp.int32)


def weighted(
    sums: Array,
    starts: Array,
    degrees: Array,
    fanout: int,
    key: tuple[Any, Any],
    stream: int,
    *,
    replace: bool,
) -> tuple[Array, Array]:
    """Draws edges of each row in proportion to their integers.

    With replacement by the inverse of the distribution, a search in the running sums. Without, one
    after another, each in proportion to what is left: the distribution of the largest exponential
    keys (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information
    Processing Letters 2006). A draw is among what the total is without the intervals of edges that
    were drawn before, and goes past those that start up to it.

    Args:
        sums: of :class:`EdgeProbability`.
        starts: ``(rows,)``, where rows start.
        degrees: ``(rows,)``, how many edges they have.
        fanout: how many are wanted of each.
        key: two words.
        stream: which numbers of the key are used.
        replace: whether an edge may be drawn again.

    Returns:
        ``(rows, fanout)`` places in the row, and how many of them count, as :func:`uniform`.
    """
    rows, dtype = jnp.arange(starts.shape[0], dtype=jnp.uint32), starts.dtype
    sums, starts, degrees, *_ = align_varying([sums, starts, degrees, *key])
    last = starts + jnp.maximum(degrees - 1, 0)
    before = sums[starts]
    total = jnp.where(degrees > 0, sums[starts + degrees] - before, 0)
    if replace:
        steps = jnp.arange(fanout, dtype=jnp.uint32)
        shape = fanout, starts.shape[0]
        steps = jnp.broadcast_to(steps[:, None], shape)
        index, first, end, offset, size = (
            jnp.broadcast_to(x, shape) for x in (rows, starts, last, before, total)
        )
        value = below(bits(key, stream, index, steps), size)
        places = first_place(first, end, lambda place: sums[place + 1] - offset > value) - first
        return places.T, jnp.where(total > 0, fanout, 0).astype(dtype)

    def draw(step: Array, state: Any) -> Any:
        places, begins, reduced, sizes, left, counts = state
        value = below(bits(key, stream, rows, step), left)
        # Passed are intervals that start up to it where all others that were drawn are cut out.
        passed = jnp.where(reduced <= value[None], sizes, 0)
        value += passed.sum(axis=0, dtype=jnp.uint32)
        place = first_place(starts, last, lambda place: sums[place + 1] - before > value)
        begin = sums[place] - before
        size = jnp.where(left > 0, sums[place + 1] - sums[place], 0)
        earlier = jnp.where(begins < begin[None], sizes, 0).sum(axis=0, dtype=jnp.uint32)
        reduced = jnp.where(begins > begin[None], reduced - size[None], reduced)
        return (
            places.at[step].set(place - starts),
            begins.at[step].set(begin),
            reduced.at[step].set(begin - earlier),
            sizes.at[step].set(size),
            left - size,
            counts + (left > 0).astype(dtype),
        )

    zeros = jnp.zeros((fanout, starts.shape[0]), jnp.uint32)
    state = [zeros.astype(dtype), zeros, zeros, zeros, total, jnp.zeros_like(degrees)]
    state = align_varying(state)  # a loop's state varies as what it becomes
    places, *_, counts = jax.lax.fori_loop(0, fanout, draw, tuple(state))
    return places.T, counts
