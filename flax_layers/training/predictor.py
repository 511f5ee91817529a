"""A model with what becomes of features before it sees them: called, saved, loaded, exported."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path

import jax_gnn
from jax_gnn import Graph, Hypergraph


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Preprocessing:
    """What becomes of features: of columns first, then of rows.

    Attributes:
        mean: ``(features,)``, subtracted; None: nothing is.
        std: ``(features,)``, what columns are divided by; None: by nothing.
        rows: "row" divides each row by the sum of its absolute values.
    """

    mean: Array | None = None
    std: Array | None = None
    rows: Literal["none", "row"] = dataclasses.field(default="none", metadata={"static": True})

    def __call__(self, x: Any) -> Any:
        """Features ``(nodes, features)``, perhaps by type; None where there are none stays."""
        if self.mean is self.std is None and self.rows == "none":
            return x
        # Apart from the model: fused with it, sums might have another order.
        return jax.lax.optimization_barrier(jax.tree.map(self._of, x))

    def _of(self, x: Array) -> Array:
        if self.mean is not None:
            x = x - self.mean.astype(x.dtype)
        if self.std is not None:
            x = x / self.std.astype(x.dtype)
        if self.rows == "row":
            total = jnp.abs(x).sum(axis=1, keepdims=True)
            x = jnp.where(total > 0, x / jnp.where(total > 0, total, 1), 0)
        return x


preprocessed = jax.jit(lambda preprocessing, x: preprocessing(x))


@functools.partial(jax.jit, static_argnums=0)
def _apply(graphdef: Any, state: Any, preprocessing: Preprocessing, inputs: Any) -> Any:
    named = dict(inputs)
    graph, x = named.pop("graph"), named.pop("x")
    model = nnx.merge(graphdef, state)
    model.eval()
    return model(graph, preprocessing(x), **named)


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """A model that is ready to predict: what `jax_gnn.load` returns.

    Attributes:
        model: An `nnx.Module`, called with a graph and features, after `nnx.Module.eval`.
        preprocessing: What becomes of the features before.
    """

    model: Any
    preprocessing: Preprocessing | None = dataclasses.field(default=None, kw_only=True)

    def __call__(self, graph: Any, x: Any = None, **named: Any) -> Any:
        """Preprocesses features and applies the model, in one program.

        Args:
            graph: What the model takes, such as a `Graph`.
            x: Its features, as they are in the data.
            **named: Other arrays that the model takes, such as ``edge_weight``.

        Returns:
            What the model returns.
        """
        return _apply(*self._parts(), {"graph": graph, "x": x, **named})

    def _parts(self) -> tuple[Any, Any, Preprocessing]:
        return *nnx.split(self.model), self.preprocessing or Preprocessing()

    @staticmethod
    def arrays(graph: Any, x: Any = None, **named: Any) -> dict[str, Any]:
        """What a program that `export` wrote is called with: the arguments' arrays, by name."""
        leaves, _ = tree_flatten_with_path({"graph": graph, "x": x, **named})
        return {keystr(path, simple=True, separator="."): array for path, array in leaves}

    def export(
        self,
        path: str | os.PathLike[str],
        graph: Any,
        x: Any = None,
        *,
        any_size: bool = False,
        platforms: Sequence[str] | None = None,
        **named: Any,
    ) -> None:
        """Writes a program, with parameters and preprocessing, that `jax.export` reads.

        It takes one dict, that of `arrays`, and runs where this package's shared library is
        loaded, which needs none of its Python: see docs/export.md. Of the same sizes its results
        are those of a call here, to the same bits.

        Args:
            path: The file.
            graph: One as the program will be called with; only shapes and dtypes are looked at.
            x: Likewise, as is the rest.
            any_size: Whether it is for any numbers of nodes and edges, rather than for these. Of
                kernels it then has those for large graphs, which may add in another order.
            platforms: Such as ``["cpu", "cuda"]``; None for that at hand.
            **named: Other arrays that the model takes.

        Raises:
            TypeError: `any_size` of what is no `Graph` or `Hypergraph`.
            ValueError: `any_size` of a graph in which two numbers are the same.
        """
        inputs = {"graph": graph, "x": x, **named}
        structure = jax.tree.structure(inputs)
        sizes = _sizes(graph) if any_size else {}
        specs = {name: _spec(array, sizes) for name, array in self.arrays(**inputs).items()}
        graphdef, state, preprocessing = self._parts()

        def program(arrays: dict[str, Array]) -> Any:
            inputs = jax.tree.unflatten(structure, [arrays[name] for name in specs])
            # Constants that are not folded, as that may round otherwise.
            kept = jax.lax.optimization_barrier((state, preprocessing))
            return _apply(graphdef, *kept, inputs)

        exported = jax.export.export(
            jax.jit(program), platforms=platforms, disabled_checks=jax_gnn.EXPORT_CHECKS
        )(specs)
        Path(path).write_bytes(exported.serialize())


def _spec(array: Any, sizes: dict[int, Any]) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an argument, whose rows may be of a size that is not fixed."""
    rows = [sizes.get(size, size) for size in array.shape[:1]]
    return jax.ShapeDtypeStruct((*rows, *array.shape[1:]), array.dtype)


def _sizes(graph: Any) -> dict[int, Any]:
    """Symbols for the sizes that arrays of a graph have rows for."""
    if isinstance(graph, Graph):
        counts = {"nodes": graph.num_nodes, "edges": graph.num_edges}
        made = {"nodes + 1": graph.num_nodes + 1}
    elif isinstance(graph, Hypergraph):
        names = "nodes", "hyperedges", "incidences"
        counts = {name: getattr(graph, f"num_{name}") for name in names}
        made = {f"{rows} + 1": counts[rows] + 1 for rows in names[:2]} | {
            f"floordiv(incidences, 8) + {rows} + 1": counts["incidences"] // 8 + counts[rows] + 1
            for rows in names[:2]
        }
    else:
        raise TypeError(
            f"any_size must be of a jax_gnn.Graph or jax_gnn.Hypergraph, got {type(graph).__name__}"
        )
    made = counts | made
    symbols = jax.export.symbolic_shape(", ".join(made))
    found = dict(zip(made.values(), symbols, strict=True))
    if len(found) < len(made):
        raise ValueError(
            f"graph must be one whose sizes differ if any_size is asked for, got {counts}"
        )
    return found
