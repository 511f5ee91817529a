"""A model with the preprocessing of its features: called, saved, loaded, exported."""

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
from jax.typing import ArrayLike

import flax_layers
import jax_gnn
from flax_layers._base import EDGE_ARGUMENTS, NODE_ARGUMENTS
from flax_layers.training.devices import replicate
from flax_layers.training.types import AnyStructure, ArrayByType, PyTree
from jax_gnn import Batch, Graph, Hypergraph
from jax_gnn.extend import check_flag, feature_wise
from jax_gnn.sharding import ShardedGraph

Columns = Array | dict[str, Array] | None
ColumnsLike = ArrayLike | Mapping[str, ArrayLike] | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Preprocessing:
    """Scaling of features, of columns first, then of rows; and scaling of results.

    Attributes:
        mean: ``(features,)``, subtracted from columns; a dict by type of nodes where features are
            by type; None subtracts nothing.
        std: ``(features,)``, divisors of columns; a dict by type of nodes where features are by
            type; None divides by nothing.
        rows: "row" divides each row by the sum of its absolute values; a row of zeros stays, and
            one with a number that is missing is NaN.
        target_mean: ``(targets,)``, added to the results of a model that was trained on numbers
            that were standardized; None adds nothing.
        target_per_node: Whether `target_mean` is for each node of a graph whose nodes add up, as
            atoms of a molecule do.
        target_std: ``(targets,)``, factors of results, applied before; None multiplies by nothing.
        edges: Scaling of ``edge_features``; None scales nothing.
    """

    mean: Columns = None
    std: Columns = None
    rows: Literal["none", "row"] = dataclasses.field(default="none", metadata={"static": True})
    target_mean: Array | None = None
    target_std: Array | None = None
    target_per_node: bool = dataclasses.field(default=False, metadata={"static": True})
    edges: Preprocessing | None = None

    @classmethod
    def of(
        cls,
        mean: ColumnsLike = None,
        std: ColumnsLike = None,
        rows: Literal["none", "row"] = "none",
        target_mean: ArrayLike | None = None,
        target_std: ArrayLike | None = None,
        target_per_node: bool = False,
        edges: Mapping[str, Any] | None = None,
    ) -> Preprocessing:
        """Check and convert a user's arguments.

        Raises:
            ValueError: A value is not as described.
        """
        if rows not in ("none", "row"):
            raise ValueError(f"rows must be 'none' or 'row', got {rows!r}")
        by_type = {isinstance(column, Mapping) for column in (mean, std) if column is not None}
        if len(by_type) > 1:
            raise ValueError("mean and std must be by type of nodes both, or neither")
        convert: Any = _columns_by_type if True in by_type else _columns
        targets = _columns(target_mean, target_std, "target_")
        means, stds = convert(mean, std)
        per_node = check_flag("target_per_node", target_per_node)
        of_edges = None if edges is None else cls.of(**edges)
        return cls(means, stds, rows, *targets, per_node, of_edges)

    def as_json(self) -> dict[str, object]:
        """Return the arguments of `of` as JSON values; float32 is exact in decimals."""
        values: dict[str, object] = jax.tree.map(
            lambda value: value.tolist() if hasattr(value, "tolist") else value,
            {**vars(self), "edges": None},
        )
        return values | ({} if self.edges is None else {"edges": self.edges.as_json()})

    def __call__(self, x: PyTree) -> PyTree:
        """Scale features, ``(*batch, nodes, features)`` or by type; None stays None."""
        if self.mean is self.std is None and self.rows == "none":
            return x
        scaled: PyTree
        if isinstance(x, Mapping):
            by_type = {
                name: part if part is None else self._scale(f"x[{name!r}]", part, name)
                for name, part in x.items()
            }
            # An OrderedDict keeps the order of types as a pytree, where a dict is sorted.
            scaled = OrderedDict(by_type) if isinstance(x, OrderedDict) else by_type
        else:
            scaled = jax.tree.map(lambda part: self._scale("x", part), x)
        # The barrier keeps XLA from fusing this with the model, whose sums might get another order.
        return jax.lax.optimization_barrier(scaled)

    def results(self, y: PyTree, num_nodes: Array | None = None) -> PyTree:
        """Scale results to the numbers that the model was trained on.

        `num_nodes` are those of each row, ``(*batch,)``, for a mean for each node.
        """
        if self.target_mean is self.target_std is None:
            return y
        # Each step is rounded by itself, as in programs that do not fuse them.
        y = jax.lax.optimization_barrier(y)
        if self.target_std is not None:
            y = jax.lax.optimization_barrier(y * feature_wise(self.target_std.astype(y.dtype), y))
        if self.target_mean is None:
            return y
        mean = feature_wise(self.target_mean.astype(y.dtype), y)
        if self.target_per_node:
            if num_nodes is None:
                raise ValueError("graph must be a Batch for results with a mean for each node")
            mean = jax.lax.optimization_barrier(mean * num_nodes[..., None].astype(y.dtype))
        return y + mean

    def _scale(self, label: str, x: Array, node_type: str = "") -> Array:
        """Scale the features of all nodes, or of one type; errors name them by the label."""
        columns: dict[str, Array | None] = {
            name: column.get(node_type) if isinstance(column, Mapping) else column
            for name, column in (("mean", self.mean), ("std", self.std))
        }
        for name, column in columns.items():
            if column is not None and x.shape[-1:] != column.shape:
                raise ValueError(
                    f"{label} must have {column.size} features, as {name} has, got shape {x.shape}"
                )
        if (mean := columns["mean"]) is not None:
            x = x - feature_wise(mean.astype(x.dtype), x)
        if (std := columns["std"]) is not None:
            x = x / feature_wise(std.astype(x.dtype), x)
        if self.rows == "row":
            total = jnp.abs(x).sum(axis=-1, keepdims=True)
            x = x / jnp.where(total == 0, 1, total)  # NaN stays NaN
        return x


def _columns(
    mean: ArrayLike | None, std: ArrayLike | None, prefix: str = "", suffix: str = ""
) -> tuple[Array | None, Array | None]:
    """Return means and deviations as arrays of one shape, None where they are None."""
    values = {f"{prefix}{name}{suffix}": x for name, x in (("mean", mean), ("std", std))}
    columns = {name: jnp.asarray(x, jnp.float32) for name, x in values.items() if x is not None}
    shapes = {name: column.shape for name, column in columns.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len({*shapes.values()}) > 1:
        size = "targets" if prefix else "features"
        raise ValueError(f"{' and '.join(values)} must be of shape ({size},), got {shapes}")
    means, stds = map(columns.get, values)
    for (name, x), column, lowest in zip(values.items(), (means, stds), (-jnp.inf, 0), strict=True):
        if column is not None and not bool((jnp.isfinite(column) & (column > lowest)).all()):
            kind = "finite" if lowest else "positive"
            raise ValueError(f"{name} must be {kind} numbers, got {x!r:.200}")
    return means, stds


def _columns_by_type(
    mean: Mapping[str, ArrayLike] | None, std: Mapping[str, ArrayLike] | None
) -> list[dict[str, Array]]:
    by_type: list[dict[str, Array]] = [{}, {}]
    for name in dict.fromkeys([*(mean or ()), *(std or ())]):
        pair = (mean or {}).get(name), (std or {}).get(name)
        for columns, column in zip(by_type, _columns(*pair, suffix=f"[{name!r}]"), strict=True):
            if column is not None:
                columns[name] = column
    return by_type


preprocessed = jax.jit(lambda preprocessing, x: preprocessing(x))


@functools.partial(jax.jit, static_argnums=0)
def apply_model(
    graphdef: nnx.GraphDef[Any],
    state: PyTree,
    preprocessing: Preprocessing,
    inputs: dict[str, PyTree],
) -> PyTree:
    """Return the results of a model, split by `nnx.split`, on its inputs by name."""
    # One program for preprocessing and model, which `export` writes as it is called here.
    options = dict(inputs)
    graph, x = options.pop("graph"), options.pop("x")
    model = nnx.merge(graphdef, state)
    model.eval()
    x = preprocessing(x)
    if preprocessing.edges is not None and "edge_features" in options:
        options["edge_features"] = preprocessing.edges(options["edge_features"])
    if isinstance(graph, ShardedGraph):
        y = graph.apply(lambda part, x, options: model(part, x, **options), x, options)
    elif isinstance(graph, Batch) and graph.graph_ids.ndim > 1:  # stacked batches, in turn
        y = jax.lax.map(lambda batch: model(*batch[:2], **batch[2]), (graph, x, options))
    else:
        y = model(graph, x, **options)
    return preprocessing.results(y, graph.num_nodes if isinstance(graph, Batch) else None)


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """A model that is ready to predict: the result of `jax_gnn.load`.

    Attributes:
        model: An `nnx.Module`, called with a graph and features, after `nnx.Module.eval`.
        preprocessing: Scaling of the features before the model, and of its results.
    """

    model: Any
    preprocessing: Preprocessing | None = dataclasses.field(default=None, kw_only=True)
    _sizes: dict[str, int] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __call__(
        self,
        graph: AnyStructure,
        x: ArrayByType = None,
        *,
        pad: bool | None = None,
        **named: PyTree,
    ) -> PyTree:
        """Preprocess features and apply the model, in one program.

        A program is compiled for each size of the graph. Graphs are therefore padded to powers of
        two, which changes results by rounding at most.

        Args:
            graph: Structure that the model takes, such as a `Graph`; or a `ShardedGraph`, where all
                arrays are as that gives them.
            x: Features of the nodes, as they are in the data.
            pad: Whether to pad a `Graph`, the arrays of its nodes and edges, and to cut results.
                None pads graphs of other sizes than the first one, outside of ``jax.jit``, for
                models of `flax_layers`. Results of a model of your own must not depend on nodes
                without edges, as those of norms over all nodes do.
            **named: Other arrays that the model takes, such as ``edge_weight``.

        Returns:
            Results of the model.

        Raises:
            TypeError: `pad` is set for another structure than a `Graph`, or for arguments whose
                rows are neither of nodes nor of edges.
        """
        if pad or (pad is None and self._is_of_new_size(graph, x, named)):
            padded, x, named = _padded(graph, x, named)
            results = self(padded, x, pad=False, **named)
            # On the host, as a program that cuts rows would be compiled for each size, too.
            sizes = {getattr(padded, name): getattr(graph, name) for name in _SIZES}
            return jax.tree.map(lambda y: jnp.asarray(np.asarray(y)[: sizes.get(len(y))]), results)
        graphdef, *arrays = self._parts()
        if isinstance(graph, ShardedGraph):
            arrays = replicate(arrays, graph)
        return apply_model(graphdef, *arrays, {"graph": graph, "x": x, **named})

    def _is_of_new_size(
        self, graph: AnyStructure, x: ArrayByType, named: Mapping[str, PyTree]
    ) -> bool:
        """Return whether the arguments can be padded, and the graph is no larger or smaller one."""
        kind, arrays = type(self.model), jax.tree.leaves((graph, x, named))
        if type(graph) is not Graph or getattr(flax_layers, kind.__name__, None) is not kind:
            return False
        is_traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
        if is_traced or not isinstance(x, jax.Array | np.ndarray) or named.keys() - _ROWS.keys():
            return False
        sizes = {name: getattr(graph, name) for name in _SIZES}
        self._sizes.update({} if self._sizes else sizes)
        return sizes != self._sizes

    def _parts(self) -> tuple[Any, Any, Preprocessing]:
        return *nnx.split(self.model), self.preprocessing or Preprocessing()

    @staticmethod
    def arrays(graph: AnyStructure, x: ArrayByType = None, **named: PyTree) -> dict[str, Array]:
        """Return the arrays of the arguments by name, with which an exported program is called."""
        return leaves_by_path({"graph": graph, "x": x, **named})

    def export(
        self,
        path: str | os.PathLike[str],
        graph: AnyStructure,
        x: ArrayByType = None,
        *,
        any_size: bool = False,
        platforms: Sequence[str] | None = None,
        **named: PyTree,
    ) -> None:
        """Write a program of `jax.export`, of preprocessing and model, and its parameters.

        Both are in one ``.npz`` file. The program is called with the dict of the parameters and
        that of `arrays`, where this package's shared library is loaded, which needs none of its
        Python: see docs/export.md. For the same sizes its results are those of a call here, to the
        same bits.

        Args:
            path: File to write.
            graph: Structure like those of the program's calls; only shapes and dtypes are used.
            x: Features like those of the program's calls; only shapes and dtypes are used.
            any_size: Whether the program is for any numbers of nodes and edges, 0 included, rather
                than for these. It then has the kernels for large graphs, which may add in another
                order.
            platforms: Platforms such as ``["cpu", "cuda"]``; None for the current one.
            **named: Other arrays that the model takes.

        Raises:
            TypeError: `any_size` is set for a structure that is no `Graph` or `Hypergraph`.
            ValueError: `any_size` is set for a graph in which two sizes are equal.
        """
        # Keys of dropout are constants of the program, as predictions draw nothing from them.
        inputs = {"graph": graph, "x": x, **named}
        structure = jax.tree.structure(inputs)
        sizes = _symbolic_sizes(graph) if any_size else {}
        specs = {name: _spec(array, sizes) for name, array in leaves_by_path(inputs).items()}
        graphdef, *states = nnx.split(self.model, nnx.RngState, ...)
        keys, state = states
        template = state, self.preprocessing or Preprocessing()
        parameters = {name: _as_bits(x) for name, x in leaves_by_path(template).items()}

        # Parameters are arguments: of constants XLA would make other programs, which may round
        # otherwise.
        def program(parameters: dict[str, Array], arrays: dict[str, Array]) -> PyTree:
            state, preprocessing = _restore(template, parameters)
            inputs = jax.tree.unflatten(structure, [arrays[name] for name in specs])
            return apply_model(graphdef, nnx.merge_state(keys, state), preprocessing, inputs)

        exported = jax.export.export(
            jax.jit(program), platforms=platforms, disabled_checks=jax_gnn.EXPORT_CHECKS
        )(parameters, specs)
        contents: dict[str, Any] = {"program": np.frombuffer(exported.serialize(), np.uint8)}
        with open(path, "wb") as file:
            np.savez(file, **contents | parameters)


_SIZES = "num_nodes", "num_edges"  # of a graph that is padded
# Arguments with a row for each node, or each edge, of a graph.
_ROWS = dict.fromkeys(NODE_ARGUMENTS, "num_nodes") | dict.fromkeys(EDGE_ARGUMENTS, "num_edges")


def _padded(
    graph: AnyStructure, x: ArrayByType, named: Mapping[str, PyTree]
) -> tuple[Graph, Any, dict[str, Any]]:
    """Pad a graph to powers of two, and arrays with a row for each node or edge by zeros."""
    if type(graph) is not Graph or isinstance(x, Mapping) or (unknown := named.keys() - _ROWS):
        what = type(graph).__name__ if type(graph) is not Graph else ", ".join(unknown) or "x"
        raise TypeError(f"pad must be of a jax_gnn.Graph and arrays of its rows, got {what}")
    sizes = {name: getattr(graph, name) for name in _SIZES}
    capacities = [1 << (size - 1).bit_length() for size in sizes.values()]
    capacities[1] <<= capacities[0] == capacities[1]  # results of nodes and edges differ in rows
    padded = graph.pad(**dict(zip(_SIZES, capacities, strict=True)))

    def pad_rows(rows: Any, name: str) -> Any:
        if rows is None:
            return None
        added = getattr(padded, name) - sizes[name]
        return np.pad(np.asarray(rows), [(0, added), *[(0, 0)] * (np.ndim(rows) - 1)])

    arguments = {name: pad_rows(rows, _ROWS[name]) for name, rows in named.items()}
    return padded, pad_rows(x, "num_nodes"), arguments


def leaves_by_path(tree: PyTree) -> dict[str, Array]:
    """Return the arrays of a tree by path."""
    leaves, _ = tree_flatten_with_path(tree)
    return {keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _is_numpy(x: Array) -> bool:
    return x.dtype.isbuiltin == 1


def _as_bits(x: Array) -> Array:
    """Return an array whose dtype numpy's files can hold: others, such as bfloat16, as bytes."""
    return x if _is_numpy(x) else jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _restore(template: PyTree, arrays: dict[str, Array]) -> PyTree:
    """Return a tree like the template, of arrays that `_as_bits` converted."""
    leaves, structure = jax.tree.flatten(template)
    restored = [
        x if _is_numpy(leaf) else jax.lax.bitcast_convert_type(x, leaf.dtype)
        for leaf, x in zip(leaves, arrays.values(), strict=True)
    ]
    return jax.tree.unflatten(structure, restored)


def _spec(array: Array, sizes: Mapping[int, object]) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of an argument, whose number of rows may be symbolic."""
    rows = [sizes.get(size, size) for size in array.shape[:1]]
    shape = (*rows, *array.shape[1:])
    return jax.ShapeDtypeStruct(shape, array.dtype)


def _symbolic_sizes(graph: AnyStructure) -> dict[int, Any]:
    """Return symbols for the sizes that arrays of a graph have rows for.

    `jax.export` takes a symbol for 1 at least, so symbols stand for the counts plus 1. The rows of
    pointers are as many as nodes or hyperedges, and one more.
    """
    if isinstance(graph, Graph):
        counts = {"nodes": graph.num_nodes, "edges": graph.num_edges}
        pointers = {"nodes": graph.num_nodes + 1}
    elif isinstance(graph, Hypergraph):
        names = "nodes", "hyperedges", "incidences"
        counts = {name: getattr(graph, f"num_{name}") for name in names}
        pointers = {rows: counts[rows] + 1 for rows in names[:2]}
        # An edge split has a slot for every eight incidences, and one more for each row.
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
    by_size = dict(zip(sizes.values(), symbols, strict=True))
    if len(by_size) < len(sizes):
        raise ValueError(
            f"graph must be one whose sizes differ if any_size is asked for, got {counts}"
        )
    return by_size
