"""A model with what becomes of features before it sees them: called, saved, loaded, exported."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path

import jax_gnn
from flax_layers.training.devices import everywhere
from jax_gnn import Batch, Graph, Hypergraph
from jax_gnn.extend import feature_wise
from jax_gnn.sharding import ShardedGraph

Columns = Array | dict[str, Array] | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Preprocessing:
    """What becomes of features, of columns first, then of rows; and of results.

    Attributes:
        mean: ``(features,)``, subtracted; by type of nodes where features are; None: nothing is.
        std: ``(features,)``, what columns are divided by, likewise; None: by nothing.
        rows: "row" divides each row by the sum of its absolute values; a row of zeros stays, and
            one with a number that is missing is NaN.
        target_mean: ``(targets,)``, added to the results of a model that was trained on numbers
            that were standardized; None: nothing is.
        target_std: ``(targets,)``, what results are multiplied by before; None: by nothing.
    """

    mean: Columns = None
    std: Columns = None
    rows: Literal["none", "row"] = dataclasses.field(default="none", metadata={"static": True})
    target_mean: Array | None = None
    target_std: Array | None = None

    @classmethod
    def of(
        cls,
        mean: Any = None,
        std: Any = None,
        rows: Any = "none",
        target_mean: Any = None,
        target_std: Any = None,
    ) -> Preprocessing:
        """Checks and converts what users give.

        Raises:
            ValueError: A value is not as described.
        """
        if rows not in ("none", "row"):
            raise ValueError(f"rows must be 'none' or 'row', got {rows!r}")
        by_type = [isinstance(each, Mapping) for each in (mean, std) if each is not None]
        if not any(by_type):
            mean, std = _columns("", mean, std)
        elif all(by_type):
            mean, std = _columns_by_type(mean or {}, std or {})
        else:
            raise ValueError("mean and std must be by type of nodes both, or neither")
        targets = _columns("", target_mean, target_std, "target_")
        return cls(mean, std, rows, *targets)

    def as_json(self) -> dict[str, Any]:
        """What `of` takes; float32 is exact in decimals."""
        return jax.tree.map(
            lambda value: value.tolist() if hasattr(value, "tolist") else value, {**vars(self)}
        )

    def __call__(self, x: Any) -> Any:
        """Features ``(*batch, nodes, features)``, perhaps by type; None where there are none."""
        if self.mean is self.std is None and self.rows == "none":
            return x
        if isinstance(x, Mapping):
            of_types = {
                name: None if part is None else self._of(f"x[{name!r}]", part, *self._of_type(name))
                for name, part in x.items()
            }
            made: Any = OrderedDict(of_types) if isinstance(x, OrderedDict) else of_types
        else:
            made = jax.tree.map(lambda part: self._of("x", part, self.mean, self.std), x)
        # Apart from the model: fused with it, sums might have another order.
        return jax.lax.optimization_barrier(made)

    def results(self, y: Any) -> Any:
        """Results as the numbers are that a model was trained on."""
        if self.target_mean is self.target_std is None:
            return y
        y = jax.lax.optimization_barrier(y)
        if self.target_std is not None:
            y = jax.lax.optimization_barrier(y * feature_wise(self.target_std.astype(y.dtype), y))
        if self.target_mean is None:
            return y
        return y + feature_wise(self.target_mean.astype(y.dtype), y)

    def _of_type(self, name: str) -> list[Any]:
        both = self.mean, self.std
        return [each.get(name) if isinstance(each, Mapping) else each for each in both]

    def _of(self, where: str, x: Array, mean: Any, std: Any) -> Array:
        for name, column in (("mean", mean), ("std", std)):
            if column is not None and x.shape[-1:] != column.shape:
                raise ValueError(
                    f"{where} must have {column.size} features, as {name} has, got shape {x.shape}"
                )
        if mean is not None:
            x = x - feature_wise(mean.astype(x.dtype), x)
        if std is not None:
            x = x / feature_wise(std.astype(x.dtype), x)
        if self.rows == "row":
            total = jnp.abs(x).sum(axis=-1, keepdims=True)
            x = x / jnp.where(total == 0, 1, total)  # NaN stays NaN
        return x


def _columns(where: str, mean: Any, std: Any, prefix: str = "") -> tuple[Any, Any]:
    """Both as arrays of one shape, if they are given."""
    given = {f"{prefix}{name}{where}": x for name, x in (("mean", mean), ("std", std))}
    made = {name: jnp.asarray(x, jnp.float32) for name, x in given.items() if x is not None}
    shapes = {name: column.shape for name, column in made.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len({*shapes.values()}) > 1:
        size = "targets" if prefix else "features"
        raise ValueError(f"{' and '.join(given)} must be of shape ({size},), got {shapes}")
    mean, std = map(made.get, given)
    for (name, x), column, least in zip(given.items(), (mean, std), (-jnp.inf, 0), strict=True):
        if column is not None and not bool((jnp.isfinite(column) & (column > least)).all()):
            kind = "finite" if least else "positive"
            raise ValueError(f"{name} must be {kind} numbers, got {x!r:.200}")
    return mean, std


def _columns_by_type(mean: Mapping[str, Any], std: Mapping[str, Any]) -> tuple[Any, Any]:
    names = dict.fromkeys([*mean, *std])
    both = {name: _columns(f"[{name!r}]", mean.get(name), std.get(name)) for name in names}
    means, stds = (
        {name: pair[i] for name, pair in both.items() if pair[i] is not None} for i in range(2)
    )
    return means, stds


preprocessed = jax.jit(lambda preprocessing, x: preprocessing(x))


@functools.partial(jax.jit, static_argnums=0)
def _apply(graphdef: Any, state: Any, preprocessing: Preprocessing, inputs: Any) -> Any:
    named = dict(inputs)
    graph, x = named.pop("graph"), named.pop("x")
    model = nnx.merge(graphdef, state)
    model.eval()
    x = preprocessing(x)
    if isinstance(graph, ShardedGraph):
        y = graph.apply(lambda part, x, named: model(part, x, **named), x, named)
    elif isinstance(graph, Batch) and graph.graph_ids.ndim > 1:  # several, one after another
        y = jax.lax.map(lambda each: model(*each[:2], **each[2]), (graph, x, named))
    else:
        y = model(graph, x, **named)
    return preprocessing.results(y)


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
            graph: What the model takes, such as a `Graph`; or a `ShardedGraph`, where all arrays
                are as that gives them.
            x: Its features, as they are in the data.
            **named: Other arrays that the model takes, such as ``edge_weight``.

        Returns:
            What the model returns.
        """
        graphdef, *arrays = self._parts()
        if isinstance(graph, ShardedGraph):
            arrays = jax.device_put(arrays, everywhere(graph))
        return _apply(graphdef, *arrays, {"graph": graph, "x": x, **named})

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
            any_size: Whether it is for any numbers of nodes and edges, 0 included, rather than for
                these. Of kernels it then has those for large graphs, which may add in another
                order.
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
    """Symbols for the sizes that arrays of a graph have rows for.

    `jax.export` takes a symbol for 1 at least. The symbols are therefore the lengths of row
    pointers, one more than there are nodes or hyperedges, and the other counts plus 1.
    """
    if isinstance(graph, Graph):
        counts = {"nodes": graph.num_nodes, "edges": graph.num_edges}
        pointers = {"nodes": graph.num_nodes + 1}
    elif isinstance(graph, Hypergraph):
        names = "nodes", "hyperedges", "incidences"
        counts = {name: getattr(graph, f"num_{name}") for name in names}
        pointers = {rows: counts[rows] + 1 for rows in names[:2]}
        slots = counts["incidences"] // 8
        pointers |= {
            f"floordiv(incidences - 1, 8) + {rows}": slots + size for rows, size in pointers.items()
        }
    else:
        raise TypeError(
            f"any_size must be of a jax_gnn.Graph or jax_gnn.Hypergraph, got {type(graph).__name__}"
        )
    sizes = {f"{name} - 1": size for name, size in counts.items()} | pointers
    symbols = jax.export.symbolic_shape(", ".join(sizes))
    found = dict(zip(sizes.values(), symbols, strict=True))
    if len(found) < len(sizes):
        raise ValueError(
            f"graph must be one whose sizes differ if any_size is asked for, got {counts}"
        )
    return found
