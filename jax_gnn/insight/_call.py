"""Calls of a model on parts of its inputs, and the explained value of its output.

The *explained value* is the number whose dependence on features and edges is attributed: an entry
of the output, a sum of entries, or a function of the output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.ids import is_traced
from jax_gnn.batches import Batch
from jax_gnn.hetero import HeteroGraph
from jax_gnn.insight._gates import Edged, edges_of, gated, values_at, without_edges

Target = int | Callable[[Any], Any] | None
Container = Edged | Batch[Any] | HeteroGraph


@jax.tree_util.register_static
class Function:
    """Function that is no pytree, as a static argument of compiled functions.

    Each attribution makes a new one, so that it compiles anew: variables that the function reads
    from outside of its arguments may have changed.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@jax.tree_util.register_static
class Option(NamedTuple):
    """Argument that is no array, such as ``deterministic=True``."""

    value: bool | int | float | str


class Call(NamedTuple):
    """Model with its arguments, and the explained value."""

    model: Any  # a pytree that is callable
    graph: Any  # the graph; for a batch, the graph that joins all graphs
    batch: Batch[Any] | None  # the batch, which the model takes in place of its graph; or None
    x: Array  # (num_nodes, *features)
    named: dict[str, Any]  # arguments by name; arguments named `edge_…` have a row for each edge
    rows: Array  # (count,), the explained rows of the output
    columns: Array | None  # (count,), the explained entry of each row; None with `select`
    select: Any  # a function from the output to the explained value, or None

    def output(
        self, x: Array | None = None, *, gate: Array | None = None, keep: Array | None = None
    ) -> Array:
        """Call the model, on other features, with gates of messages, or on the edges to keep."""
        graph, named = self.graph, self.named
        if gate is not None:
            graph = gated(graph, gate)
        if keep is not None:
            graph, source = without_edges(graph, keep)
            named = {
                name: values_at(x, source) if name.startswith("edge_") and x is not None else x
                for name, x in named.items()
            }
        named = {
            name: value.value if isinstance(value, Option) else value
            for name, value in named.items()
        }
        argument = graph if self.batch is None else replace(self.batch, graph=graph)
        return cast(Array, self.model(argument, self.x if x is None else x, **named))

    def logits(self, output: Array) -> Array:
        """Return the explained rows of an output, ``(count, columns)``."""
        output = jnp.asarray(output)
        return output.reshape(*output.shape[:1], -1)[self.rows]

    def value(
        self, x: Array | None = None, *, gate: Array | None = None, keep: Array | None = None
    ) -> Array:
        """Return the explained value; arguments are those of :meth:`output`."""
        output = self.output(x, gate=gate, keep=keep)
        if self.select is not None:
            return jnp.sum(self.select(output))
        return self.logits(output)[jnp.arange(len(self.rows)), self.columns].sum()


_output = jax.jit(Call.output)


@jax.jit
def outputs_of(call: Call, keep: Array) -> tuple[Array, Array]:
    """Return the outputs of a model on all edges, and on some."""
    return call.output(), call.output(keep=keep)


@contextlib.contextmanager
def fixed_state() -> Iterator[None]:
    """Explain the error of a model that changes its own state inside of a derivative."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "TraceContextError":  # Flax's, which is not imported here
            raise
        raise ValueError(
            "model changes what it holds when it is called, as dropout does: call model.eval() "
            f"first, got {type(error).__name__}: {error!s:.80}"
        ) from error


def prepared(
    model: Callable[..., Any],
    graph: Container,
    x: ArrayLike,
    index: ArrayLike | None,
    target: Target,
    named: dict[str, Any],
) -> tuple[Call, np.ndarray | None]:
    """Check arguments, and choose the explained entries of the output.

    Returns:
        The call, and the explained column of each row; None if ``target`` is a function.
    """
    arguments.check_callable("model", model)
    if is_traced(*jax.tree.leaves((graph, x, named))):
        raise TypeError("attributions are computed on the host: call attribute outside of jax.jit")
    batch = graph if isinstance(graph, Batch) else None
    graph = graph if batch is None else batch.graph
    x = arguments.as_array("x", x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x must be floating-point numbers, got {x.dtype}")
    if isinstance(graph, Edged):
        edges = edges_of(graph)
        for name, value in named.items():
            rows = getattr(value, "shape", ("",))[:1]
            is_of_edges = name.startswith("edge_") and value is not None
            if is_of_edges and rows != (edges.num_edges,):
                raise ValueError(
                    f"{name} must be (num_edges={edges.num_edges}, *features), in the graph's "
                    f"order, got {arguments.described(value)}"
                )
        if edges.num_src != x.shape[0]:
            raise ValueError(f"x must be (num_nodes={edges.num_src}, *features), got {x.shape}")
    # A module is a pytree, whose program is compiled once; a function becomes a static argument.
    if jax.tree_util.all_leaves([model]):
        model = Function(model)
    select = None if target is None or not callable(target) else Function(target)
    named = {
        name: Option(value) if isinstance(value, bool | int | float | str) else value
        for name, value in named.items()
    }
    call = Call(model, graph, batch, x, named, jnp.zeros(0, int), None, select)
    output = _output(call)
    if not hasattr(output, "shape"):
        if select is None:
            raise TypeError(
                "the model's output must be an array, unless target is a function of it, got "
                f"{type(output).__name__}"
            )
        return call, None
    shape = output.shape
    if select is not None:
        return call, None
    if not 1 <= len(shape) <= 2:
        raise ValueError(
            "the model's output must be (rows,) or (rows, classes), unless target is a function of "
            f"it, got shape {shape}"
        )
    if index is None:
        # Padding of a batch is no result, be it of graphs or of nodes.
        masks = () if batch is None else (batch.mask, batch.node_mask)
        valid = [mask for mask in masks if len(mask) == shape[0]]
        rows = np.flatnonzero(valid[0]) if valid else np.arange(shape[0])
    else:
        rows = arguments.check_ids("index", np.atleast_1d(arguments.to_numpy("index", index)))
        arguments.check_range("index", rows, "the rows of the output", shape[0])
    # An output of one number for each row has one column.
    table = np.asarray(output, np.float64).reshape(shape[0], -1)[rows]
    if target is None:
        columns = table.argmax(1) if table.shape[1] else np.zeros(len(rows), int)
    else:
        column = arguments.check_integer("target", target)
        if not 0 <= column < table.shape[1]:
            raise ValueError(f"target must be in [0, {table.shape[1]}), got {column}")
        columns = np.full(len(rows), column)
    return call._replace(rows=jnp.asarray(rows), columns=jnp.asarray(columns)), columns
