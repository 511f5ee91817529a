"""Layers over dicts by node and edge type in Flax NNX."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._base import (
    LinearOptions,
    Named,
    check_features,
    check_positive,
    end_sizes,
    finished,
    kept_options,
    linear,
)
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
from jax_gnn.hetero import EdgeType
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import RelationalPart

Across = Literal["sum", "mean", "max", "min", "concat", "stack"]


class HeteroConv(nnx.Module):
    """A convolution for each edge type, and a reduction across those into a node type.

    Relations whose convolutions are alike run as one product: those of several `SAGEConv` with sums
    or means, of equal sizes and options and without `project` and `normalize`, are a
    `jax_gnn.relational_aggregate` together. All others run one by one, on graphs of their own
    (`HeteroGraph.with_graphs`).

    Attributes:
        edge_types: The edge types, in the order of the dict.
        convolutions: Their convolutions, by edge type.

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
        self, convolutions: Mapping[EdgeType, nnx.Module], *, aggregation: Across = "sum"
    ) -> None:
        """Takes the convolutions.

        Args:
            convolutions: By edge type, such as of this library that take a `jax_gnn.Graph`. Between
                nodes of two types they get a pair of features, ``(x_src, x_dst)``; within one type
                one array, so that a `GATConv` has nodes see themselves there.
            aggregation: What becomes of the results of a destination type: "sum", "mean", "max",
                "min", "concat" of features, or "stack" of relations along the axis before those.

        Raises:
            TypeError: An edge type is not three strings.
            ValueError: There are no convolutions, or the aggregation is unknown.
        """
        check_choice("aggregation", aggregation, get_args(Across))
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
        self.convolutions = Named(convolutions)
        self.aggregation: Across = aggregation

    def __call__(
        self,
        graph: HeteroGraph,
        x_dict: Mapping[str, ArrayLike],
        arguments: Mapping[EdgeType, Mapping[str, Any]] | None = None,
    ) -> dict[str, Array]:
        """Applies the convolutions.

        Args:
            graph: The graph, with the edge types of the layer and perhaps others.
            x_dict: Features by node type, ``(nodes of the type, *batch, features)``.
            arguments: By edge type further arguments of its convolution, such as `edge_attr`; these
                run one by one.

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
        groups: dict[Any, list[EdgeType]] = {}
        for key in self.edge_types:
            kind = None if key in arguments else _kind(self.convolutions[key])
            groups.setdefault(key if kind is None else kind, []).append(key)
        summed = self.aggregation in ("sum", "mean")
        found: dict[EdgeType, Array] = {}  # a group's sum stands at its first into a type
        for keys in groups.values():
            if len(keys) == 1:
                found[keys[0]] = self._alone(graph, x, keys[0], arguments.get(keys[0], {}))
            else:
                together = self._summed if summed else self._together
                found |= together(graph, x, keys)
        results = {}
        for name in graph.node_types:
            into = [key for key in self.edge_types if key[2] == name]
            rows = [found[key] for key in into if key in found]
            if rows:
                results[name] = self._across(rows, len(into))
        return results

    def _across(self, rows: list[Array], count: int) -> Array:
        """Of results into one type; of sums, those of groups."""
        if self.aggregation == "concat":
            return jnp.concatenate(rows, -1)
        if self.aggregation == "stack":
            return jnp.stack(rows, -2)
        operation = {"max": jnp.maximum, "min": jnp.minimum}.get(self.aggregation, jnp.add)
        y = functools.reduce(operation, rows)
        return y / count if self.aggregation == "mean" else y

    def _alone(
        self, graph: HeteroGraph, x: dict[str, Array], key: EdgeType, arguments: Mapping[str, Any]
    ) -> Array:
        conv = self.convolutions[key]
        sizes = getattr(conv, "in_features", None)
        if isinstance(sizes, int | tuple):  # errors name the type
            for name, size in zip((key[0], key[2]), end_sizes(sizes), strict=True):
                check_features(x[name], len(x[name]), size, f"x_dict[{name!r}]")
        ends = x[key[0]] if key[0] == key[2] else (x[key[0]], x[key[2]])
        return conv(graph.graph(key), ends, **arguments)

    # --- Relations alike, as one product ----------------------------------------------------------

    def _operands(
        self, graph: HeteroGraph, x: dict[str, Array], keys: list[EdgeType]
    ) -> tuple[Array, Array, Array | None]:
        """Features of all nodes, weights of all relations, and factors of edges.

        Nodes and relations of no such edge type have zeros.
        """
        first = self.convolutions[keys[0]]
        width, _ = end_sizes(first.in_features)
        shapes = {key: x[key[0]].shape[1:-1] for key in keys}
        for key in keys:
            check_features(x[key[0]], len(x[key[0]]), width, f"x_dict[{key[0]!r}]")
            if shapes[key] != shapes[keys[0]]:
                raise ValueError(
                    f"x_dict[{key[0]!r}] must have the batch axes {shapes[keys[0]]} of "
                    f"{keys[0][0]!r}, got {shapes[key]}"
                )
        senders = {key[0] for key in keys}
        batch = shapes[keys[0]]
        dtype = first.dtype or jnp.result_type(*(x[n] for n in senders), first.kernel[...])
        rows = {
            name: x[name].astype(dtype) if name in senders else jnp.zeros((n, *batch, width), dtype)
            for name, n in graph.num_nodes.items()
        }
        kernels = [jnp.zeros_like(first.kernel[...])] * graph.relational.num_relations
        for key in keys:
            kernels[graph.relation(key)] = self.convolutions[key].kernel[...]
        weight = None
        if first.aggregation == "mean":
            weight = graph.relational.norm("mean")
        return graph.join(rows), jnp.stack(kernels).astype(dtype), weight

    def _finish(self, x: dict[str, Array], keys: list[EdgeType], y: Array) -> Array:
        """Adds to the sums of edges what convolutions into one type have beside."""
        name = keys[0][2]
        convs = [self.convolutions[key] for key in keys]

        def total(params: Any) -> Array:
            return functools.reduce(jnp.add, (param[...].astype(y.dtype) for param in params))

        if convs[0].root is not None:
            _, width = end_sizes(convs[0].in_features)
            dst = check_features(x[name], len(x[name]), width, f"x_dict[{name!r}]")
            root = total(conv.root.kernel for conv in convs)
            y = y + jnp.matmul(dst.astype(y.dtype), root, precision=convs[0].precision)
        return finished(y, None if convs[0].bias is None else total(conv.bias for conv in convs))

    def _summed(
        self, graph: HeteroGraph, x: dict[str, Array], keys: list[EdgeType]
    ) -> dict[EdgeType, Array]:
        """The sums of alike relations into each type, at the first of them."""
        joined, kernels, weight = self._operands(graph, x, keys)
        precision = self.convolutions[keys[0]].precision

        def aggregate(x: Array) -> Array:
            return relational_aggregate(graph.relational, x, kernels, weight, precision=precision)

        y = graph.split(over_batch(aggregate, joined))
        found = {}
        for name in {key[2]: None for key in keys}:
            into = [key for key in keys if key[2] == name]
            found[into[0]] = self._finish(x, into, y[name])
        return found

    def _together(
        self, graph: HeteroGraph, x: dict[str, Array], keys: list[EdgeType]
    ) -> dict[EdgeType, Array]:
        """The results of alike relations apart: sums by (destination, relation), one product."""
        joined, kernels, weight = self._operands(graph, x, keys)
        pairs, edges = graph.relational.pair_dst, graph.relational.to_pairs
        if pairs is None or edges is None:
            raise ValueError(
                "graph lacks the part 'to_pairs': call with_parts('to_pairs'), got "
                f"{graph.relational}"
            )
        # Rows of the results of all relations, one after another; those of no such relation drop.
        sizes = graph.num_nodes
        total = sum(sizes[key[2]] for key in keys)
        shifts = [total] * (graph.relational.num_relations + 1)
        starts, start = {}, 0
        for key in keys:
            starts[key] = start
            shifts[graph.relation(key)] = start - graph.slices[key[2]].start
            start += sizes[key[2]]
        dtype = pairs.nodes.dtype
        places = jnp.where(pairs.nodes < 0, total, pairs.nodes)
        places = places + jnp.array(shifts, dtype)[pairs.relations]

        def aggregate(x: Array) -> Array:
            sums = spmm(edges, x, weight)
            y = segment_matmul(
                *(sums, kernels, pairs.sizes),
                lhs_rows=pairs.places,
                precision=self.convolutions[keys[0]].precision,
            )
            rows = jnp.zeros((total, y.shape[1]), y.dtype)
            return rows.at[places].set(y, mode="drop", unique_indices=True)

        y = over_batch(aggregate, joined)
        found = {}
        for key in keys:
            rows = y[starts[key] : starts[key] + sizes[key[2]]]
            found[key] = self._finish(x, [key], rows)
        return found


def _kind(conv: Any) -> Any:
    """What convolutions that can run as one product have in common; None where one cannot."""
    if type(conv) is not SAGEConv or conv.aggregation == "max" or conv.project or conv.normalize:
        return None
    dtype = None if conv.dtype is None else jnp.dtype(conv.dtype)
    return (
        *(conv.aggregation, end_sizes(conv.in_features), conv.out_features, conv.root_weight),
        *(conv.use_bias, dtype, jnp.dtype(conv.param_dtype), str(conv.precision)),
    )


class HeteroLinear(nnx.Module):
    """A linear map for each type of nodes, from features of any widths: ``y_t = x_t W_t + b_t``.

    Nodes of a type without features are one-hot: they have embeddings, the rows of its ``W_t``.

    Attributes:
        layers: The maps, by type.

    Example:
        >>> layer = HeteroLinear({"author": 4, "venue": 2}, 8, rngs=nnx.Rngs(0))  # two venues
        >>> y = layer({"author": jnp.ones((3, 4)), "venue": None})
        >>> {name: rows.shape for name, rows in y.items()}
        {'author': (3, 8), 'venue': (2, 8)}
    """

    def __init__(
        self,
        in_features: Mapping[str, int],
        out_features: int,
        *,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the maps.

        Args:
            in_features: By type, features per node; of a type without features, how many nodes it
                has.
            out_features: Features per node of the output.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`.

        Raises:
            TypeError: `in_features` is no mapping.
            ValueError: A size is negative.
        """
        check_sizes("in_features", in_features)
        check_positive(out_features=out_features)
        # Initialisers divide by the size: types without nodes or features have nothing to draw.
        empty: Any = options | {"kernel_init": nnx.initializers.zeros_init()}
        self.layers = Named(
            {
                name: nnx.Linear(size, out_features, rngs=rngs, **(options if size else empty))
                for name, size in in_features.items()
            }
        )
        self.sizes = tuple(in_features.items())
        self.out_features = out_features
        self.options = kept_options(options)

    @property
    def in_features(self) -> dict[str, int]:
        """By type, as at construction."""
        return dict(self.sizes)

    def __call__(self, x_dict: Mapping[str, ArrayLike | None]) -> dict[str, Array]:
        """Applies the maps.

        Args:
            x_dict: By type ``(nodes of the type, *batch, in_features)``, or None where nodes have
                no features.

        Returns:
            By type ``(nodes of the type, *batch, out_features)``.

        Raises:
            TypeError: `x_dict` is no mapping.
            ValueError: A type is unknown or missing, or a shape does not fit; the error names the
                type.
        """
        return self.of_places(x_dict, [None] * len(self.sizes))

    def of_places(
        self, x_dict: Mapping[str, ArrayLike | None], places: Sequence[Array | None]
    ) -> dict[str, Array]:
        """The same of any rows.

        Args:
            x_dict: As of a call.
            places: For each type, where it has no features, which of its nodes the rows are of;
                None means all.

        Raises:
            TypeError: See a call.
            ValueError: Likewise.
        """
        if not isinstance(x_dict, Mapping):
            raise TypeError(f"x_dict must be a mapping by type, got {type(x_dict).__name__}")
        for name in [*x_dict, *self.in_features]:
            if name not in self.in_features:
                known = ", ".join(map(repr, self.in_features))
                raise ValueError(
                    f"x_dict has the key {name!r}, which is none of the types {known}, got "
                    f"{', '.join(map(repr, x_dict))}"
                )
            if name not in x_dict:
                raise ValueError(
                    f"x_dict lacks the type {name!r}; None stands for no features, got "
                    f"{', '.join(map(repr, x_dict))}"
                )
        return {
            name: self._of_type(name, x_dict[name], own)
            for name, own in zip(self.in_features, places, strict=True)
        }

    def _of_type(self, name: str, x: ArrayLike | None, places: Array | None) -> Array:
        layer = self.layers[name]
        if x is not None:
            x = as_array(f"x_dict[{name!r}]", x)
            rows = x.shape[0] if x.ndim else 0
            return linear(
                layer, check_features(x, rows, self.in_features[name], f"x_dict[{name!r}]")
            )
        kernel = take(layer.kernel[...], places)
        kernel = kernel if layer.dtype is None else kernel.astype(layer.dtype)
        return finished(kernel, None if layer.bias is None else layer.bias[...])


class HeteroModel(nnx.Module):
    """A model after a `HeteroLinear`: nodes of any features in, by type, or without.

    Attributes:
        input: The maps to features of one width, which a ReLU follows.
        model: A model of graphs with relations, such as `RGCN`, `RGAT` or `HGT`.
        edge_types: What its relations are, if that is known.

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

    def __init__(
        self,
        in_features: Mapping[str, int],
        model: Any,
        *,
        edge_types: Sequence[EdgeType] | None = None,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the maps.

        Args:
            in_features: See `HeteroLinear`; types in the order in which the graph has them.
            model: What follows; its `in_features` are the width.
            edge_types: What the model's relations are, in order, such as `HeteroGraph.edge_types`;
                a graph with others is an error then. None: the graph's, whatever they are called.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`.

        Raises:
            TypeError: `in_features` is no mapping.
            ValueError: A size is negative.
        """
        if not hasattr(model, "in_features"):
            raise TypeError(f"model must have in_features, got {described(model)}")
        self.input = HeteroLinear(in_features, model.in_features, rngs=rngs, **options)
        self.model = model
        self.edge_types = None if edge_types is None else tuple(map(tuple, edge_types))
        self.options = self.input.options

    @property
    def in_features(self) -> dict[str, int]:
        """By type, as at construction."""
        return self.input.in_features

    def __call__(
        self,
        graph: HeteroGraph | RelationalGraph | Blocks,
        x_dict: Mapping[str, ArrayLike | None],
        **named: Any,
    ) -> Any:
        """Applies maps and model.

        Args:
            graph: The graph, whose nodes have these types, blocks of one, or a device's part.
            x_dict: By type ``(nodes of the type, *batch, in_features)``, or None where nodes have
                no features. Of blocks, ``blocks.node_values(x_dict)``; of a part, what
                ``ShardedGraph.shard`` makes of it.
            **named: Further arguments of the model, such as `deterministic` and `rngs`.

        Returns:
            Of a `HeteroGraph`, by type ``(nodes of the type, *batch, out_features)``; else
            ``(num_nodes, *batch, out_features)``; of blocks, for the seeds; of a part, for its own
            nodes.

        Raises:
            ValueError: A type of nodes or edges is unknown, missing or not in its place (see
                `HeteroGraph.in_order`), or a shape does not fit; the error names the type.
        """
        if isinstance(graph, Blocks):
            return self.model(graph, self._of_sources(graph, x_dict), **named)
        relational = graph.relational if isinstance(graph, HeteroGraph) else graph
        y = self.model(relational, self.joined(relational, x_dict), **named)
        return graph.split(y) if isinstance(graph, HeteroGraph) else y

    def joined(self, graph: RelationalGraph, x_dict: Mapping[str, ArrayLike | None]) -> Array:
        """What the model is given: rows of all types, ``(num_nodes, *batch, width)``.

        Args:
            graph: As of a call.
            x_dict: Likewise.

        Raises:
            ValueError: See a call.
        """
        check_instance("graph", graph, RelationalGraph)
        self._check_types(graph)
        if isinstance(graph, RelationalPart):
            return self._of_part(graph, x_dict)
        rows = {name: jax.nn.relu(y) for name, y in self.input(x_dict).items()}
        names, sizes = graph.node_type_names, graph.node_type_sizes
        if names is not None and sizes is not None:
            for name, size in zip(names, sizes, strict=True):
                if len(rows[name]) != size:
                    raise ValueError(
                        f"x_dict[{name!r}] must have a row for each of {size} nodes, got "
                        f"{len(rows[name])}"
                    )
        return joined(rows)

    def _of_sources(self, blocks: Blocks, x_dict: Mapping[str, ArrayLike | None]) -> Array:
        """The same of blocks: a row for each source, by its type."""
        check_instance("graph.graphs[0]", blocks.graphs[0], RelationalGraph)
        self._check_types(blocks.graphs[0])
        places = blocks.places_of_types()
        self._check_count(len(places))
        few = zip(places, blocks.few_nodes(), strict=True)
        rows = self.input.of_places(x_dict, [None if whole else own for own, whole in few])
        return _by_places(blocks.source_rows(rows), places)

    def _of_part(self, part: RelationalPart, x_dict: Mapping[str, ArrayLike | None]) -> Array:
        """The same of a device's part: a row for each own node, by its type."""
        sizes, ids = part.whole_type_sizes or (part.num_whole_nodes,), part.node_ids[: part.num_dst]
        self._check_count(len(sizes))
        types = part.node_types if part.node_types is not None else jnp.minimum(ids, 0)
        places = [
            jnp.where(types == number, ids - sum(sizes[:number]), -1)
            for number in range(len(sizes))
        ]
        rows = self.input.of_places(x_dict, places)
        for name, y in rows.items():
            if len(y) != part.num_dst:
                raise ValueError(
                    f"x_dict[{name!r}] must have a row for each of {part.num_dst} nodes of the "
                    f"part, got {len(y)}"
                )
        return _by_places(rows, places)

    def _check_count(self, found: int) -> None:
        """Raises ValueError for another number of types of nodes than the model's."""
        if found != len(self.in_features):
            raise ValueError(
                f"graph must have the node types {(*self.in_features,)}, got {found} types"
            )

    def _check_types(self, graph: RelationalGraph) -> None:
        """Raises ValueError where types of nodes or edges are not the model's, in their order."""
        names, own = graph.node_type_names, tuple(self.in_features)
        if names is not None and names != own:
            raise ValueError(
                f"graph must have the node types {own} in that order, as graph.in_order makes it, "
                f"got {names}"
            )
        relations = tuple(each for each in graph.relation_names or () if each != "self")
        if self.edge_types is not None and relations != self.edge_types:
            raise ValueError(
                f"graph must have the edge types {self.edge_types} in that order, as "
                f"graph.in_order makes it, got {relations}"
            )


def check_sizes(name: str, sizes: Any) -> None:
    """Raises errors for what is no mapping from types to numbers."""
    if not isinstance(sizes, Mapping):
        raise TypeError(f"{name} must be a mapping by type, got {type(sizes).__name__}")
    for kind, size in sizes.items():
        if not isinstance(kind, str):
            raise TypeError(f"{name} must be by names of types, got {kind!r}")
        if size is None:
            raise TypeError(
                f"{name}[{kind!r}] must be a number, of a type without features that of its nodes, "
                "got None"
            )
        if check_integer(f"{name}[{kind!r}]", size) < 0:
            raise ValueError(f"{name}[{kind!r}] must be a number from 0, got {size!r}")


def _by_places(rows: Mapping[str, Array], places: Sequence[Array]) -> Array:
    """Rows of the types that nodes have, where their places are not negative, after a ReLU."""
    found = (
        jnp.where(row_wise(own >= 0, y), jax.nn.relu(y), 0)
        for y, own in zip(rows.values(), places, strict=True)
    )
    return functools.reduce(jnp.add, found)


def joined(x_dict: Mapping[str, Array]) -> Array:
    """Rows of all types one after another."""
    return jnp.concatenate([*x_dict.values()])
