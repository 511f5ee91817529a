"""A model with what becomes of features before it sees them: called, saved, loaded, exported."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path

import jax_gnn
from jax_gnn import Batch, Graph, Hypergraph


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Preprocessing:
    """What becomes of features, of columns first, then of rows; and of results.

    Attributes:
        mean: ``(features,)``, perhaps by type of nodes, subtracted; None: nothing is.
        std: Likewise, what columns are divided by; None: by nothing.
        rows: "row" divides each row by the sum of its absolute values.
        target: Mean and deviation of numbers that were regressed on, ``(2, numbers)``, of which
            the model gives standard scores.
    """

    mean: Array | dict[str, Array] | None = None
    std: Array | dict[str, Array] | None = None
    rows: Literal["none", "row"] = dataclasses.field(default="none", metadata={"static": True})
    target: Array | None = None

    @classmethod
    def of(cls, mean: Any = None, std: Any = None, rows: Any = "none") -> Preprocessing:
        """Checks and converts what users give.

        Raises:
            ValueError: A value is not as described.
        """
        columns = {"mean": mean, "std": std}
        made = {name: jnp.asarray(c, jnp.float32) for name, c in columns.items() if c is not None}
        shapes = {name: column.shape for name, column in made.items()}
        if any(len(shape) != 1 for shape in shapes.values()) or len({*shapes.values()}) > 1:
            raise ValueError(f"mean and std must be of shape (features,), got {shapes}")
        for name, column in made.items():
            least = 0 if name == "std" else -jnp.inf
            if not bool((jnp.isfinite(column) & (column > least)).all()):
                positive = "positive" if name == "std" else "finite"
                raise ValueError(f"{name} must be {positive} numbers, got {columns[name]!r:.200}")
        if rows not in ("none", "row"):
            raise ValueError(f"rows must be 'none' or 'row', got {rows!r}")
        return cls(**made, rows=rows)

    def as_json(self) -> dict[str, Any]:
        """What `of` takes; float32 is exact in decimals."""
        columns: dict[str, Any] = {"mean": self.mean, "std": self.std}
        lists = {name: None if each is None else each.tolist() for name, each in columns.items()}
        return lists | {"rows": self.rows}

    def __call__(self, x: Any) -> Any:
        """Features ``(nodes, features)``, perhaps by type; None where there are none stays."""
        if self.mean is self.std is None and self.rows == "none":
            return x
        if isinstance(x, dict):
            made: Any = type(x)((name, self._of(rows, name)) for name, rows in x.items())
        else:
            made = self._of(x)
        # Apart from the model: fused with it, sums might have another order.
        return jax.lax.optimization_barrier(made)

    def _of(self, x: Any, name: str = "") -> Any:
        """Features of a type of nodes, or of all."""
        if x is None:
            return None
        columns = self.mean, self.std
        mean, std = (each.get(name) if isinstance(each, dict) else each for each in columns)
        row = (1,) * (x.ndim - 1)
        if mean is not None:
            x = x - mean.astype(x.dtype).reshape(*row, -1)
        if std is not None:
            x = x / std.astype(x.dtype).reshape(*row, -1)
        if self.rows == "row":
            total = jnp.abs(x).sum(axis=-1, keepdims=True)
            x = jnp.where(total > 0, x / jnp.where(total > 0, total, 1), 0)
        return x

    def undone(self, y: Any) -> Any:
        """Results in the units of the numbers that were regressed on."""
        if self.target is None:
            return y
        mean, std = self.target.astype(y.dtype).reshape(2, *(1,) * (y.ndim - 1), -1)
        return y * std + mean


def preprocessing_of(config: Any) -> Preprocessing:
    """What becomes of features and results in a training of `settled` settings."""
    kind = getattr(config, "feature_normalization", "none")
    scaling = getattr(config, "target_scaling", None)
    target = None if scaling is None else jnp.asarray(scaling, jnp.float32)
    if kind == "standardize":
        pairs = {name: np.array(pair, np.float32) for name, pair in (config.scaling or {}).items()}
        mean, std = ({name: jnp.asarray(pair[i]) for name, pair in pairs.items()} for i in (0, 1))
        return Preprocessing(mean.get("", mean), std.get("", std), target=target)
    return Preprocessing(rows="row" if kind == "row" else "none", target=target)


preprocessed = jax.jit(lambda preprocessing, x: preprocessing(x))


@functools.partial(jax.jit, static_argnums=0)
def _apply(graphdef: Any, state: Any, preprocessing: Preprocessing, inputs: Any) -> Any:
    model = nnx.merge(graphdef, state)
    model.eval()

    def apply(inputs: dict[str, Any]) -> Any:
        named = dict(inputs)
        graph, x = named.pop("graph"), named.pop("x")
        return preprocessing.undone(model(graph, x, **named))

    graph, x = inputs["graph"], preprocessing(inputs["x"])
    inputs = inputs | {"x": x}
    if isinstance(graph, Batch) and getattr(x, "ndim", 0) == 3:  # stacked: one after another
        return jax.lax.map(apply, inputs)
    return apply(inputs)


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
        """Writes a program of `jax.export`, of preprocessing and model, and its parameters.

        Both are in one ``.npz`` file. The program is called with the dict of the parameters and
        that of `arrays`, where this package's shared library is loaded, which needs none of its
        Python: see docs/export.md. Of the same sizes its results are those of a call here, to the
        same bits.

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
        graphdef, *states = nnx.split(self.model, nnx.RngState, ...)
        keys, state = states
        kept = state, self.preprocessing or Preprocessing()
        parameters = _by_name(kept)

        # Parameters are arguments: of constants XLA would make other programs, which may round
        # otherwise.
        def program(given: dict[str, Array], arrays: dict[str, Array]) -> Any:
            state, preprocessing = _like(kept, given)
            inputs = jax.tree.unflatten(structure, [arrays[name] for name in specs])
            return _apply(graphdef, nnx.merge_state(keys, state), preprocessing, inputs)

        exported = jax.export.export(
            jax.jit(program), platforms=platforms, disabled_checks=jax_gnn.EXPORT_CHECKS
        )(parameters, specs)
        written: dict[str, Any] = {"program": np.frombuffer(exported.serialize(), np.uint8)}
        with open(path, "wb") as file:
            np.savez(file, **written | parameters)


def _by_name(tree: Any) -> dict[str, Array]:
    """Arrays of a tree as files of numpy can have them: those of other dtypes as bytes."""
    leaves, _ = tree_flatten_with_path(tree)
    arrays = {keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    return {name: x if _is_numpy(x) else _bytes(x) for name, x in arrays.items()}


def _is_numpy(x: Array) -> bool:
    return x.dtype.isbuiltin == 1


def _bytes(x: Array) -> Array:
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _like(tree: Any, named: dict[str, Array]) -> Any:
    """The inverse of `_by_name`, for arrays of the same shapes and dtypes as a tree has."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [
        x if _is_numpy(leaf) else jax.lax.bitcast_convert_type(x, leaf.dtype)
        for leaf, x in zip(leaves, named.values(), strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)


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
