"""Layers over dicts by node and edge type in Flax NNX."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory
from flax_layers.graph import SAGEConv
from flax_layers.relational import over_batch
from jax_gnn import HeteroGraph, RelationalGraph, relational_aggregate, segment_matmul, spmm
from jax_gnn.extend import (
    as_array,
    check_choice,
    check_instance,
    check_integer,
    described,
    row_wise,
    take,
)
from jax_gnn.relational import EdgeType
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import RelationalPart

Across = Literal["sum", "mean", "max", "min", "concat", "stack"]


class HeteroConv(nnx.Module):
    """Convolution for each edge type, and a reduction of the results for each node type.

    Several `SAGEConv` with sums or means, of equal sizes and options and without `project` and
    `l2_normalize`, run together as a `jax_gnn.relational_aggregate`. Other convolutions run one by
    one, on a graph for each edge type (`HeteroGraph.with_graphs`).

    Attributes:
        edge_types: Edge types, in the order of the dict.
        convolutions: Convolutions by edge type.
        reduce: Reduction of the results of a destination type.

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1], [0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}, inverse=True)
        >>> rngs = nnx.Rngs(0)
        >>> conv = HeteroConv({key: SAGEConv((4, 4), 8, rngs=rngs) for key in graph.edge_types})
        >>> y = conv(graph, {"author": jnp.ones((2, 4)), "paper": jnp.ones((3, 4))})
        >>> {name: rows.shape for name, rows in y.items()}
        {'author': (2, 8), 'paper': (3, 8)}
    """

    def __init__(
        self, convolutions: Mapping[EdgeType, nnx.Module], *, reduce: Across = "sum"
    ) -> None:
        """Take the convolutions.

        Args:
            convolutions: Convolutions by edge type, such as those of this library that take a
                `jax_gnn.Graph`. Between nodes of two types they get a pair of features,
                ``(x_src, x_dst)``; within one type one array, so that nodes attend to themselves in
                a `GATConv`.
            reduce: Reduction of the results of a destination type: "sum", "mean", "max",
                "min", "concat" of features, or "stack" of relations along the axis before the
                features.

        Raises:
            TypeError: An edge type is not three strings.
            ValueError: There are no convolutions, or the aggregation is unknown.
        """
        check_choice("reduce", reduce, get_args(Across))
        if not isinstance(convolutions, Mapping):
            raise TypeError(
                f"convolutions must be a mapping by edge type, got {type(convolutions).__name__}"
            )
        if not convolutions:
            raise ValueError("convolutions must not be empty, got none")
        for key in convolutions:
            if not isinstance(key, tuple) or [type(part) for part in key] != [str, str, str]:
                raise TypeError(
                    "convolutions must be by (source type, relation, destination type), got "
                    f"{key!r}"
                )
        self.edge_types = tuple(convolutions)
        self.convolutions = base.Named(convolutions)
        self.reduce: Across = reduce

    def __call__(
        self,
        graph: HeteroGraph,
        x_dict: Mapping[str, ArrayLike],
        arguments: Mapping[EdgeType, Mapping[str, object]] | None = None,
    ) -> dict[str, Array]:
        """Apply the convolutions.

        Args:
            graph: Graph with the edge types of the layer and perhaps others.
            x_dict: Features by node type, ``(nodes of the type, *batch, features)``.
            arguments: Further arguments of convolutions by edge type, such as `edge_features`;
                these convolutions run one by one.

        Returns:
            By destination type ``(nodes of the type, *batch, out_features)``.

        Raises:
            ValueError: An edge type or a node type is unknown, features are missing for a type that
                a convolution needs, a relation lacks a graph of its own, or a shape does not fit;
                the error names the type.
        """
        check_instance("graph", graph, HeteroGraph)
        x = graph.check_features(x_dict)
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, Mapping):
            raise TypeError(
                f"arguments must be a mapping by edge type, got {type(arguments).__name__}"
            )
        for key in arguments:
            if key not in self.edge_types:
                raise ValueError(
                    f"arguments has {key!r}, which is none of the layer's edge types, got "
                    f"{', '.join(map(str, arguments))}"
                )
        for key in self.edge_types:
            graph.relation(key)
            for name in (key[0], key[2]):
                if name not in x:
                    raise ValueError(
                        f"x_dict lacks the type {name!r}, which {key!r} needs, got "
                        f"{', '.join(map(repr, x))}"
                    )
        # Convolutions of one group have equal options, and run as one product.
        groups: dict[Hashable, list[EdgeType]] = {}
        for key in self.edge_types:
            options = None if key in arguments else _joint_options(self.convolutions[key])
            groups.setdefault(key if options is None else options, []).append(key)
        # Results by edge type. The sum of a group into a type stands at its first edge type.
        results: dict[EdgeType, Array] = {}
        for keys in groups.values():
            if len(keys) == 1:
                results[keys[0]] = self._convolve(graph, x, keys[0], arguments.get(keys[0], {}))
            elif self.reduce in ("sum", "mean"):
                results |= self._joint_sums(graph, x, keys)
            else:
                results |= self._joint_results(graph, x, keys)
        y = {}
        for name in graph.node_types:
            keys = [key for key in self.edge_types if key[2] == name]
            rows = [results[key] for key in keys if key in results]
            if rows:
                y[name] = self._reduce(rows, len(keys))
        return y

    def _reduce(self, rows: list[Array], count: int) -> Array:
        """Reduce the results, or the sums of groups, of `count` relations into one type."""
        if self.reduce == "concat":
            return jnp.concatenate(rows, -1)
        if self.reduce == "stack":
            return jnp.stack(rows, -2)
        operation = {"max": jnp.maximum, "min": jnp.minimum}.get(self.reduce, jnp.add)
        y = functools.reduce(operation, rows)
        return y / count if self.reduce == "mean" else y

    def _convolve(
        self,
        graph: HeteroGraph,
        x: dict[str, Array],
        key: EdgeType,
        arguments: Mapping[str, object],
    ) -> Array:
        conv = self.convolutions[key]
        sizes = getattr(conv, "in_features", None)
        if isinstance(sizes, int | tuple):  # errors name the type
            for name, size in zip((key[0], key[2]), base.endpoint_sizes(sizes), strict=True):
                base.check_features(x[name], len(x[name]), size, f"x_dict[{name!r}]")
        # Within one type an array, so that convolutions see nodes that are their own neighbours.
        features = x[key[0]] if key[0] == key[2] else (x[key[0]], x[key[2]])
        return conv(graph.graph(key), features, **arguments)

    # --- Several relations as one product ---------------------------------------------------------

    def _joint_operands(
        self, graph: HeteroGraph, x: dict[str, Array], keys: list[EdgeType]
    ) -> tuple[Array, Array, Array | None]:
        """Return features of all nodes, weights of all relations, and factors of edges.

        Nodes and relations outside the group have zeros.
        """
        first = self.convolutions[keys[0]]
        width, _ = base.endpoint_sizes(first.in_features)
        batch = x[keys[0][0]].shape[1:-1]
        for key in keys:
            base.check_features(x[key[0]], len(x[key[0]]), width, f"x_dict[{key[0]!r}]")
            if x[key[0]].shape[1:-1] != batch:
                raise ValueError(
                    f"x_dict[{key[0]!r}] must have the batch axes {batch} of "
                    f"{keys[0][0]!r}, got {x[key[0]].shape[1:-1]}"
                )
        senders = {key[0] for key in keys}
        dtype = first.dtype or jnp.result_type(*(x[n] for n in senders), first.kernel[...])
        rows = {
            name: x[name].astype(dtype) if name in senders else jnp.zeros((n, *batch, width), dtype)
            for name, n in graph.num_nodes.items()
        }
        # Zero weights take relations outside the group out of the sum.
        kernels = [jnp.zeros_like(first.kernel[...])] * graph.relational.num_relations
        for key in keys:
            kernels[graph.relation(key)] = self.convolutions[key].kernel[...]
        weight = graph.relational.norm("mean") if first.reduce == "mean" else None
        return graph.join(rows), jnp.stack(kernels).astype(dtype), weight

    def _add_self_terms(self, x: dict[str, Array], keys: list[EdgeType], y: Array) -> Array:
        """Add root terms and biases of convolutions into one type to the sums over edges."""
        name = keys[0][2]
        convs = [self.convolutions[key] for key in keys]
        first = convs[0]

        def total(params: Iterable[nnx.Param[Array]]) -> Array:
            return functools.reduce(jnp.add, (param[...].astype(y.dtype) for param in params))

        if first.root is not None:
            _, width = base.endpoint_sizes(first.in_features)
            dst = base.check_features(x[name], len(x[name]), width, f"x_dict[{name!r}]")
            root = total(conv.root.kernel for conv in convs)
            y = y + jnp.matmul(dst.astype(y.dtype), root, precision=first.precision)
        return base.finished(y, None if first.bias is None else total(conv.bias for conv in convs))

    def _joint_sums(
        self, graph: HeteroGraph, x: dict[str, Array], keys: list[EdgeType]
    ) -> dict[EdgeType, Array]:
        """Return the sums of a group into each type, at the first of its edge types."""
        features, kernels, weight = self._joint_operands(graph, x, keys)
        # All relations of the group are one sum, whose rows are those of all types together.
        precision = self.convolutions[keys[0]].precision
        rows = relational_aggregate(
            graph.relational, features, kernels, weight, precision=precision
        )
        y = graph.split(rows)
        sums = {}
        for name in {key[2]: None for key in keys}:
            type_keys = [key for key in keys if key[2] == name]
            sums[type_keys[0]] = self._add_self_terms(x, type_keys, y[name])
        return sums

    def _joint_results(
        self, graph: HeteroGraph, x: dict[str, Array], keys: list[EdgeType]
    ) -> dict[EdgeType, Array]:
        """Return the result of each edge type of a group.

        Sums by (destination, relation) pair go through one product, and are scattered to rows of
        the results of all relations, one relation after another.
        """
        features, kernels, weight = self._joint_operands(graph, x, keys)
        pairs, edges = graph.relational.pair_dst, graph.relational.to_pairs
        if pairs is None or edges is None:
            raise ValueError(
                "graph lacks the part 'to_pairs': call with_parts('to_pairs'), got "
                f"{graph.relational}"
            )
        sizes = graph.num_nodes
        num_result_rows = sum(sizes[key[2]] for key in keys)
        # A shift by `num_result_rows` leaves the array, so that rows of other relations drop.
        shifts = [num_result_rows] * (graph.relational.num_relations + 1)
        starts, start = {}, 0
        for key in keys:
            starts[key] = start
            shifts[graph.relation(key)] = start - graph.slices[key[2]].start
            start += sizes[key[2]]
        positions = jnp.where(pairs.nodes < 0, num_result_rows, pairs.nodes)
        positions = positions + jnp.array(shifts, pairs.nodes.dtype)[pairs.relations]
        precision = self.convolutions[keys[0]].precision

        def aggregate(x: Array) -> Array:
            sums = spmm(edges, x, weight)
            y = segment_matmul(
                sums, kernels, pairs.sizes, lhs_rows=pairs.places, precision=precision
            )
            rows = jnp.zeros((num_result_rows, y.shape[1]), y.dtype)
            return rows.at[positions].set(y, mode="drop", unique_indices=True)

        y = over_batch(aggregate, features)
        return {
            key: self._add_self_terms(x, [key], y[start : start + sizes[key[2]]])
            for key, start in starts.items()
        }


def _joint_options(conv: nnx.Module) -> Hashable:
    """Return the options that convolutions of one product share; None if one cannot be joined."""
    if type(conv) is not SAGEConv or conv.reduce == "max" or conv.project or conv.l2_normalize:
        return None
    return (
        conv.reduce,
        base.endpoint_sizes(conv.in_features),
        conv.out_features,
        conv.self_weight,
        conv.use_bias,
        None if conv.dtype is None else jnp.dtype(conv.dtype),
        jnp.dtype(conv.param_dtype),
        str(conv.precision),
    )


class HeteroLinear(LinearOptions):
    """Linear map for each type of nodes, from features of any widths: ``y_t = x_t W_t + b_t``.

    Nodes of a type without features are one-hot: they have embeddings, the rows of its ``W_t``.

    Attributes:
        in_features: Features per node by type; for a type without features, its number of nodes.
        out_features: Features per node of the output.
        layers: Maps by type.

    Example:
        >>> layer = HeteroLinear({"author": 4, "venue": 2}, 8, rngs=nnx.Rngs(0))  # two venues
        >>> y = layer({"author": jnp.ones((3, 4)), "venue": None})
        >>> {name: rows.shape for name, rows in y.items()}
        {'author': (3, 8), 'venue': (2, 8)}
    """

    in_features: Mapping[str, int] = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_sizes("in_features", self.in_features)
        self.in_features = base.Sizes(self.in_features)
        # Initializers divide by the size, which is 0 for types without nodes or features.
        empty = factory._replace(kernel_init=nnx.initializers.zeros_init())
        self.layers = base.Named(
            {
                name: (factory if size else empty).linear(size, self.out_features)
                for name, size in self.in_features.items()
            }
        )

    def __call__(self, x_dict: Mapping[str, ArrayLike | None]) -> dict[str, Array]:
        """Apply the maps.

        Args:
            x_dict: Features by type, ``(nodes of the type, *batch, in_features)``, or None for
                nodes without features.

        Returns:
            By type ``(nodes of the type, *batch, out_features)``.

        Raises:
            TypeError: `x_dict` is no mapping.
            ValueError: A type is unknown or missing, or a shape does not fit; the error names the
                type.
        """
        return self.of_places(x_dict, [None] * len(self.in_features))

    def of_places(
        self, x_dict: Mapping[str, ArrayLike | None], places: Sequence[Array | None]
    ) -> dict[str, Array]:
        """Apply the maps to features of any nodes.

        Args:
            x_dict: Features by type, as in a call.
            places: Positions of the rows' nodes within their type, used for types without features;
                None means all nodes.
        """
        if not isinstance(x_dict, Mapping):
            raise TypeError(f"x_dict must be a mapping by type, got {type(x_dict).__name__}")
        base.check_types("x_dict", x_dict, self.in_features, note="; None stands for no features")
        return {
            name: self._map(name, x_dict[name], positions)
            for name, positions in zip(self.in_features, places, strict=True)
        }

    def _map(self, name: str, x: ArrayLike | None, positions: Array | None) -> Array:
        """Apply the map of one type, or select its rows for nodes without features."""
        layer = self.layers[name]
        if x is not None:
            x = as_array(f"x_dict[{name!r}]", x)
            rows = x.shape[0] if x.ndim else 0
            x = base.check_features(x, rows, self.in_features[name], f"x_dict[{name!r}]")
            return base.linear(layer, x)
        # One-hot features times a kernel are its rows.
        kernel = take(layer.kernel[...], positions)
        kernel = kernel if layer.dtype is None else kernel.astype(layer.dtype)
        return base.finished(kernel, base.parameter_value(layer.bias))


class HeteroModel(LinearOptions):
    """Model after a `HeteroLinear`, whose nodes have features of any widths by type, or none.

    Attributes:
        in_features: Features per node by type, as in `HeteroLinear`, in the graph's order of types.
        input: Maps to features of one width, which a ReLU follows.
        model: Model of graphs with relations, such as `RGCN`, `RGAT` or `HGT`; its `in_features`
            are the width.
        edge_types: Edge types that the model's relations stand for, in order, such as
            `HeteroGraph.edge_types`; a graph with other edge types is an error then. None accepts
            relations of any names.

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1], [0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}, inverse=True)
        >>> rngs = nnx.Rngs(0)
        >>> rgcn = RGCN(8, 8, 2, num_relations=2, rngs=rngs)
        >>> model = HeteroModel({"author": 4, "paper": 3}, rgcn, rngs=rngs)  # three papers
        >>> y = model(graph, {"author": jnp.ones((2, 4)), "paper": None}, deterministic=True)
        >>> {name: rows.shape for name, rows in y.items()}
        {'author': (2, 2), 'paper': (3, 2)}
    """

    in_features: Mapping[str, int] = field(kw_only=False)
    model: Any = field(kw_only=False)
    edge_types: Sequence[EdgeType] | None = None

    def _make_parameters(self, factory: ParameterFactory) -> None:
        if not hasattr(self.model, "in_features"):
            raise TypeError(f"model must have in_features, got {described(self.model)}")
        self.input = HeteroLinear(self.in_features, self.model.in_features, **factory._asdict())
        self.in_features = self.input.in_features
        if self.edge_types is not None:
            self.edge_types = tuple((src, name, dst) for src, name, dst in self.edge_types)

    def __call__(
        self,
        graph: HeteroGraph | RelationalGraph | Blocks,
        x_dict: Mapping[str, ArrayLike | None],
        **named: object,
    ) -> Any:
        """Apply maps and model.

        Args:
            graph: Graph whose nodes have these types, blocks of one, or a device's part.
            x_dict: Features by type, ``(nodes of the type, *batch, in_features)``, or None for
                nodes without features. For blocks, ``blocks.node_values(x_dict)``; for a part, the
                result of ``ShardedGraph.shard``.
            **named: Further arguments of the model, such as `deterministic` and `rngs`.

        Returns:
            For a `HeteroGraph`, by type ``(nodes of the type, *batch, out_features)``; else
            ``(num_nodes, *batch, out_features)``; for blocks, rows of the seeds; for a part, rows
            of its local nodes.

        Raises:
            ValueError: A type of nodes or edges is unknown, missing or out of order (see
                `HeteroGraph.in_order`), or a shape does not fit; the error names the type.
        """
        if isinstance(graph, Blocks):
            return self.model(graph, self._map_sources(graph, x_dict), **named)
        relational = graph.relational if isinstance(graph, HeteroGraph) else graph
        y = self.model(relational, self.joined(relational, x_dict), **named)
        return graph.split(y) if isinstance(graph, HeteroGraph) else y

    def joined(self, graph: RelationalGraph, x_dict: Mapping[str, ArrayLike | None]) -> Array:
        """Return the model's input: rows of all types, ``(num_nodes, *batch, width)``.

        Args:
            graph: The graph, or a device's part.
            x_dict: Features by type, as in a call.
        """
        check_instance("graph", graph, RelationalGraph)
        self._check_types(graph)
        if isinstance(graph, RelationalPart):
            return self._map_part(graph, x_dict)
        # Nodes are numbered type by type, in the order of the maps.
        rows = {name: jax.nn.relu(y) for name, y in self.input(x_dict).items()}
        names, sizes = graph.node_type_names, graph.node_type_sizes
        if names is not None and sizes is not None:
            for name, size in zip(names, sizes, strict=True):
                if len(rows[name]) != size:
                    raise ValueError(
                        f"x_dict[{name!r}] must have a row for each of {size} nodes, got "
                        f"{len(rows[name])}"
                    )
        return jnp.concatenate([*rows.values()])

    def _map_sources(self, blocks: Blocks, x_dict: Mapping[str, ArrayLike | None]) -> Array:
        """Return a row for each source of the first block, by its type."""
        check_instance("graph.graphs[0]", blocks.graphs[0], RelationalGraph)
        self._check_types(blocks.graphs[0])
        positions = blocks.places_of_types()
        self._check_count(len(positions))
        # A small type is mapped whole, and then selected from.
        maps_all = blocks.few_nodes()
        rows = self.input.of_places(
            x_dict,
            [None if is_small else p for p, is_small in zip(positions, maps_all, strict=True)],
        )
        return _merge_types(blocks.source_rows(rows), positions)

    def _map_part(self, part: RelationalPart, x_dict: Mapping[str, ArrayLike | None]) -> Array:
        """Return a row for each local node of a device's part, by its type."""
        sizes, ids = part.whole_type_sizes or (part.num_whole_nodes,), part.node_ids[: part.num_dst]
        self._check_count(len(sizes))
        types = part.node_types if part.node_types is not None else jnp.minimum(ids, 0)
        # Positions within the type, -1 for nodes of other types.
        positions = [
            jnp.where(types == number, ids - sum(sizes[:number]), -1)
            for number in range(len(sizes))
        ]
        rows = self.input.of_places(x_dict, positions)
        for name, y in rows.items():
            if len(y) != part.num_dst:
                raise ValueError(
                    f"x_dict[{name!r}] must have a row for each of {part.num_dst} nodes of the "
                    f"part, got {len(y)}"
                )
        return _merge_types(rows, positions)

    def _check_count(self, num_types: int) -> None:
        """Raise ValueError for another number of node types than the model's."""
        if num_types != len(self.in_features):
            raise ValueError(
                f"graph must have the node types {(*self.in_features,)}, got {num_types} types"
            )

    def _check_types(self, graph: RelationalGraph) -> None:
        """Raise ValueError for node or edge types other than the model's, or in another order."""
        names, node_types = graph.node_type_names, tuple(self.in_features)
        if names is not None and names != node_types:
            raise ValueError(
                f"graph must have the node types {node_types} in that order, as graph.in_order "
                f"makes it, got {names}"
            )
        relations = tuple(name for name in graph.relation_names or () if name != "self")
        if self.edge_types is not None and relations != self.edge_types:
            raise ValueError(
                f"graph must have the edge types {self.edge_types} in that order, as "
                f"graph.in_order makes it, got {relations}"
            )


def check_sizes(name: str, sizes: object) -> None:
    """Raise errors for sizes that are no mapping from node types to numbers."""
    if not isinstance(sizes, Mapping):
        raise TypeError(f"{name} must be a mapping by type, got {type(sizes).__name__}")
    for key, size in sizes.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} must be by names of types, got {key!r}")
        if size is None:
            raise TypeError(
                f"{name}[{key!r}] must be a number, of a type without features that of its nodes, "
                "got None"
            )
        if check_integer(f"{name}[{key!r}]", size) < 0:
            raise ValueError(f"{name}[{key!r}] must be a number from 0, got {size!r}")


def _merge_types(rows: Mapping[str, Array], positions: Sequence[Array]) -> Array:
    """Return each node's row of its type, after a ReLU; its positions in other types are -1."""
    terms = (
        jnp.where(row_wise(p >= 0, y), jax.nn.relu(y), 0)
        for y, p in zip(rows.values(), positions, strict=True)
    )
    return functools.reduce(jnp.add, terms)
