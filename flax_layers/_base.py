"""Base classes of convolutions and models, and the checks and products that layers share."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypedDict, TypeVar, Unpack, get_args

import jax
import jax.export
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike, DTypeLike

from flax_layers._declaration import (
    LinearOptions,
    ParameterFactory,
    check_positive,
    option_names,
    option_values,
)
from jax_gnn import Graph, Hypergraph, RelationalGraph, hypergraph_aggregate, segment_matmul, spmm
from jax_gnn.extend import (
    accumulator_dtype,
    as_array,
    check_callable,
    check_choice,
    check_instance,
    check_real,
    feature_wise,
    row_matmul,
    row_wise,
)
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import HostRows, HypergraphPart, Part, RelationalPart

T = TypeVar("T")

Activation = Literal["relu"]
"""Activations that kernels apply to the result of a convolution."""

NodeFeatures = ArrayLike | HostRows | tuple[ArrayLike, ArrayLike]
"""Features of nodes, or a pair for the sources and the destinations of a bipartite graph."""

AnyGraph = Graph | RelationalGraph
Structure = Graph | RelationalGraph | Hypergraph | HypergraphPart

DropoutKeys = nnx.Rngs | nnx.RngStream | Array | None
"""Randomness of a dropout: streams, or one key."""


class DropoutCall(TypedDict, total=False):
    """Arguments of the calls of dropouts and of models that have some.

    Attributes:
        deterministic: Whether nothing is dropped; None leaves it to `train()` and `eval()`.
        rngs: Randomness of the masks; None means the stream given at construction.
    """

    deterministic: bool | None
    rngs: DropoutKeys


class Convolution(LinearOptions):
    """Base of convolutions with one linear map, before or after their aggregation.

    Calls raise ValueError if a shape does not fit the layer or the graph, as those of all layers.

    Attributes:
        in_features: Features per node of the input.
        out_features: Features per node of the output.
        kernel: Weights of the linear map, ``(in_features, width)``.
        bias: Biases, ``(width,)``, or None without a bias.
        structure: Class of the graphs that calls take.
        has_activation: Whether calls take `activation`.
        takes_parts: Whether calls take a `HypergraphPart`.
    """

    structure: ClassVar[type[Graph | Hypergraph]] = Hypergraph
    has_activation: ClassVar[bool] = False
    takes_parts: ClassVar[bool] = False

    in_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)
    kernel: nnx.Param[Array] = field(init=False)
    bias: nnx.Param[Array] | None = field(init=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        self.kernel = factory.kernel(self.in_features, self.out_features)
        self.bias = factory.bias(self.out_features)

    def _operands(
        self, x: ArrayLike | HostRows, graph: Structure
    ) -> tuple[Array, Array, Array | None]:
        """Check graph and x; return x, kernel and bias in the dtype of the computation."""
        check_structure(self.structure.__name__.lower(), graph, self)
        if isinstance(graph, Graph):
            x = check_sources(graph, x, self.in_features)
        else:
            x = check_features(x, graph.num_nodes, self.in_features)
        return promote((x, self.kernel[...], parameter_value(self.bias)), self.dtype)

    def _product(
        self,
        x: Array | HostRows,
        kernel: Array,
        *,
        scale: Array | None = None,
        bias: Array | None = None,
        activation: Activation | None = None,
    ) -> Array:
        """Return `product` in the precision of the layer."""
        return product(x, kernel, self.precision, scale=scale, bias=bias, activation=activation)

    def _aggregate_narrow(
        self,
        aggregate: Callable[..., Array],
        x: Array,
        kernel: Array,
        bias: Array | None = None,
        activation: Activation | None = None,
        *,
        graph: Graph | None = None,
    ) -> Array:
        """Return ``activation(aggregate(x) @ kernel + bias)`` of a linear aggregation, as `spmm`.

        Aggregates on the narrower side of the kernel, except on sampled blocks; if it comes last,
        bias and activation are fused into it.
        """
        # A linear aggregation commutes with the map, so that either may come first.
        is_narrow = kernel.shape[0] < kernel.shape[1]
        if is_narrow if graph is None else aggregates_first(graph, *kernel.shape, x=x):
            return self._product(aggregate(x), kernel, bias=bias, activation=activation)
        y, halo = self._product_with_halo(graph, x, kernel)
        return aggregate(y, **halo, **epilogue(y, bias, activation))

    def _product_with_halo(
        self, graph: Graph | None, x: Array | HostRows, kernel: Array, *, scale: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Return the product, and for `Part.aggregate` the rows that other devices wait for.

        On a device's part, those rows are multiplied and sent first, so that the transfer overlaps
        with the product of all rows.
        """

        def halo_product(x: Array, *scale: Array) -> Array:
            # Without the barrier XLA merges this product with that of all rows.
            separate_kernel = jax.lax.optimization_barrier(kernel)
            return self._product(x, separate_kernel, scale=scale[0] if scale else None)

        sent = None
        if isinstance(graph, Part) and not isinstance(x, HostRows):
            operands = (x,) if scale is None else (x, scale)
            if all(operand.shape[0] == graph.num_dst for operand in operands):
                sent = graph.ahead(halo_product, *operands)
        y = self._product(x, kernel, scale=scale)
        return y, {} if sent is None else {"sent": sent}


class Stack(LinearOptions):
    """Base of the models: convolutions ``conv1``, ``conv2``, … with ReLU and dropout between them.

    A model declares the fields of its convolution, too, and hands them on by name. Its call takes
    the arguments of its convolution's call.

    Attributes:
        in_features: Features per node of the input.
        hidden_features: Features per node between the convolutions.
        out_features: Features per node of the output, the number of classes.
        num_layers: Number of convolutions.
        dropout_rate: Share of hidden activations dropped in training, in [0, 1].
        input_dropout_rate: Share of input features dropped in training, in [0, 1].
        convolution: Class of the convolutions.
        dropout_in_convolutions: Whether calls of convolutions take `deterministic` and `rngs`.
        output: Linear map after the last convolution, ReLU and dropout; None without.
    """

    convolution: ClassVar[type[Any]]
    dropout_in_convolutions: ClassVar[bool] = False

    in_features: int = field(kw_only=False)
    hidden_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)
    num_layers: int = 3
    dropout_rate: float = 0.5
    input_dropout_rate: float = 0.0

    def _make_parameters(self, factory: ParameterFactory) -> None:
        """Check the heads and make the layers."""
        # Convolutions check their own sizes; this error names the argument of the model.
        if self.num_layers > 1 and getattr(self, "concat", True):
            check_heads(getattr(self, "heads", 1), self.hidden_features, "hidden_features")
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)
        self.input_dropout = nnx.Dropout(self.input_dropout_rate, rngs=factory.rngs)
        self.output: nnx.Linear | None = nnx.data(None)
        self._make_layers(factory)

    def _make_layers(self, factory: ParameterFactory) -> None:
        """Make the convolutions, and in some models maps before and after them."""
        hidden = [self.hidden_features] * (self.num_layers - 1)
        widths = [self.in_features, *hidden, self.out_features]
        for number, sizes in enumerate(pairwise(widths), start=1):
            self._make_convolution(number, *sizes, factory=factory)

    def _make_convolution(self, number: int, *sizes: int, factory: ParameterFactory) -> None:
        """Make convolution `number` of these sizes, with the model's values of its options."""
        # Fields of the model and arguments for parameters, of which the convolution's are taken.
        values = option_values(self) | factory._asdict() | self._overrides(number)
        options = {name: values[name] for name in option_names(self.convolution) if name in values}
        setattr(self, f"conv{number}", self.convolution(*sizes, **options))

    def _overrides(self, number: int) -> dict[str, Any]:
        """Return options of convolution `number` that differ from those of the model."""
        del number
        return {}

    @property
    def convolutions(self) -> list[Any]:
        """Convolutions in order."""
        return [getattr(self, f"conv{number}") for number in range(1, self.num_layers + 1)]

    def __call__(
        self,
        graph: Structure | Blocks,
        x: ArrayLike | None,
        *arguments: object,
        deterministic: bool | None = None,
        rngs: DropoutKeys = None,
        **named: object,
    ) -> Array:
        """Compute one row of outputs (logits) per node.

        Args:
            graph: Graph or hypergraph. Models of graphs take `jax_gnn.sampling.Blocks`, too, one
                for each layer.
            x: Node features, ``(num_nodes, *batch, in_features)``; for blocks, features of the
                sources of the first block.
            *arguments: Further arguments of the convolutions' calls, such as weights. For blocks,
                edge values are a tuple, one for each block, or those of the whole graph in its
                order; node values belong to the sources of the first block.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
            **named: Further arguments of the convolutions' calls, by name.

        Returns:
            ``(num_nodes, *batch, out_features)``; for blocks, rows of the seeds.

        Raises:
            ValueError: A shape does not fit a layer or the graph, or the numbers of blocks and
                layers differ.
        """
        calls = self._calls(graph, arguments, named)
        dropout = dropout_arguments(deterministic, rngs)
        # The loop over layers: convolution, activation, dropout; a map at the end if there is one.
        convolution_dropout: Mapping[str, object] = dropout if self.dropout_in_convolutions else {}
        y: Any = self._input(x, **dropout)
        for number, (structure, arguments, named) in enumerate(calls, start=1):
            is_last = number == self.num_layers and self.output is None
            convolve = self._convolve if is_last else self._convolve_and_relu
            y = convolve(number, structure, y, *arguments, **named, **convolution_dropout)
            if not is_last:
                y = self.dropout(y, **dropout)
        return y if self.output is None else linear(self.output, y)

    def _calls(
        self, graph: Structure | Blocks, arguments: tuple[object, ...], named: dict[str, object]
    ) -> list[tuple[Any, tuple[object, ...], dict[str, object]]]:
        """Return graph and arguments of each convolution's call, which differ for blocks only."""
        structure = self.convolution.structure
        if not isinstance(graph, Blocks) or structure is Hypergraph:
            check_structure("graph", graph, self.convolution)
            return [(graph, arguments, named)] * self.num_layers
        if len(graph.graphs) != self.num_layers:
            raise ValueError(
                f"graph must be blocks for num_layers = {self.num_layers}, got {len(graph.graphs)}"
            )
        # Arguments by name, without self, the graph and x.
        call = inspect.signature(self.convolution.__call__)
        bound = call.bind_partial(self, graph, None, *arguments, **named).arguments
        values = dict([*bound.items()][3:])
        calls: list[tuple[Any, tuple[object, ...], dict[str, object]]] = []
        for number, block in enumerate(graph.graphs):
            check_instance(f"graph.graphs[{number}]", block, structure)
            block_values = {
                name: block_argument(name, value, graph, number) for name, value in values.items()
            }
            calls.append((block, (), block_values))
        return calls

    def _input(self, x: Any, **dropout: Unpack[DropoutCall]) -> Any:
        """Return the input of the first convolution: features after dropout."""
        if isinstance(x, HostRows):
            if self.input_dropout_rate:
                raise ValueError(
                    "input_dropout_rate must be 0 for rows of the host, got "
                    f"{self.input_dropout_rate}"
                )
            return x
        return self.input_dropout(as_array("x", x), **dropout)

    def _convolve(
        self, number: int, graph: Structure, x: Array, *arguments: object, **named: object
    ) -> Array:
        return getattr(self, f"conv{number}")(graph, x, *arguments, **named)

    def _convolve_and_relu(self, *arguments: Any, **named: Any) -> Array:
        """Convolve and activate, in one kernel if the convolution can apply the ReLU."""
        if getattr(self.convolution, "has_activation", False):
            return self._convolve(*arguments, **named, activation="relu")
        return self._activate(self._convolve(*arguments, **named))

    def _activate(self, y: Array) -> Array:
        """Apply the function between the convolutions."""
        return jax.nn.relu(y)


class TwoLayerStack(Stack):
    """Stack of two convolutions by default."""

    num_layers: int = 2


EDGE_ARGUMENTS, NODE_ARGUMENTS = ("edge_weight", "edge_features"), ("node_scale", "node_types")


def block_argument(name: str, values: Any, blocks: Blocks, number: int) -> Any:
    """Return the rows of an argument of a model's call that belong to block `number`."""
    # Edge values are reordered or picked by block. The sources of a block are the first sources of
    # the block before, so that node values are prefixes.
    block, count = blocks.graphs[number], len(blocks.graphs)
    if values is None:
        return None
    if name in EDGE_ARGUMENTS and not isinstance(values, tuple):
        return block.edge_values(values)
    if name in EDGE_ARGUMENTS:
        if len(values) != count:
            raise ValueError(f"{name} must be one for each of {count} blocks, got {len(values)}")
        return values[number]
    if name in NODE_ARGUMENTS:
        values = check_vector(name, values, "graphs[0].num_src", blocks.graphs[0].num_src)
        return values[: block.num_src]
    return values


def dropout_arguments(deterministic: bool | None = None, rngs: DropoutKeys = None) -> DropoutCall:
    """Return arguments for several dropouts, which draw different masks from a single key."""
    if isinstance(rngs, Array):
        rngs = nnx.Rngs(dropout=rngs)
    return {"deterministic": deterministic, "rngs": rngs}


def parameter_value(param: nnx.Param[Array] | None) -> Array | None:
    """Return the array of an optional parameter."""
    return None if param is None else param[...]


# --- Products and epilogues ----------------------------------------------------------------------


def check_activation(activation: object) -> None:
    """Raise ValueError for an activation that convolutions do not apply."""
    check_choice("activation", activation, (None, *get_args(Activation)))


def epilogue(x: Array, bias: Array | None, activation: Activation | None) -> dict[str, Any]:
    """Return bias and activation as arguments of an aggregation of x, fused into its kernel."""
    steps: dict[str, Any] = {} if activation is None else {"activation": activation}
    if bias is not None:
        steps["bias"] = jnp.broadcast_to(bias, x.shape[1:])
    return steps


def aggregates_first(
    graph: Graph, in_features: int, out_features: int, *, x: Array | HostRows
) -> bool:
    """Return whether rows are summed over edges before their map, not after it.

    Summing first moves `in_features` numbers per edge and destination, and maps the destinations.
    Mapping first moves `out_features` numbers, and maps the sources. With equally many sources and
    destinations the narrower side of the map wins. A sampled block has many more sources, so the
    sum mostly comes first. Rows of the host are never on the device all at once, and are mapped
    first.
    """
    if isinstance(x, HostRows):
        return False
    sizes = edges, sources, destinations = graph.num_edges, num_rows(graph), graph.num_dst
    if sources == destinations or any(map(jax.export.is_symbolic_dim, sizes)):
        return in_features < out_features
    extra_sums = (edges + destinations) * (in_features - out_features)
    return extra_sums < (sources - destinations) * (in_features + out_features)


def promote(values: tuple[Any, ...], dtype: DTypeLike | None) -> Any:
    """Return the values in one dtype, as `promote_dtype` does; rows of the host, too."""
    if not any(isinstance(value, HostRows) for value in values):
        return dtypes.promote_dtype(values, dtype=dtype)
    dtype = promoted_dtype(*values, dtype=dtype)
    return tuple(None if value is None else value.astype(dtype) for value in values)


def promoted_dtype(*values: Array | HostRows | None, dtype: DTypeLike | None) -> Any:
    """Return the dtype of the computation, as `canonicalize_dtype` does."""
    # NNX reads dtypes of arrays only, so that an empty array stands for rows of the host.
    arrays = [jnp.zeros(0, x.dtype) if isinstance(x, HostRows) else x for x in values]
    return dtypes.canonicalize_dtype(*arrays, dtype=dtype)


def product(
    x: Array | HostRows,
    kernel: Array,
    precision: jax.lax.PrecisionLike = None,
    *,
    scale: Array | None = None,
    bias: Array | None = None,
    activation: Activation | None = None,
) -> Array:
    """Return `row_matmul`, also of rows on the host."""
    if isinstance(x, HostRows):
        # Rows on the host are streamed through the product, a chunk at a time; scale, bias and
        # activation follow on the device.
        y = x.map(lambda rows, kernel: product(rows, kernel, precision), kernel)
        return finished(scaled(y, scale), bias, activation)
    return row_matmul(x, kernel, precision, scale=scale, bias=bias, activation=activation)


def matmul_with_segmented_gradient(
    x: Array, kernel: Array, precision: jax.lax.PrecisionLike = None
) -> Array:
    """Return ``x @ kernel`` by XLA, with the gradient of the kernel by `segment_matmul`.

    XLA fuses the product with later operations. The gradient of the kernel is a long sum over rows:
    XLA takes four launches for it on a GPU, as it pads both factors and adds up partial sums; this
    library takes one.
    """

    @jax.custom_jvp
    def matmul(x: Array, kernel: Array) -> Array:
        return jnp.matmul(x, kernel, precision=precision)

    def jvp(
        primals: tuple[Array, Array], tangents: tuple[Array | SymbolicZero, ...]
    ) -> tuple[Array, Array]:
        x, kernel = primals
        # Tangents that are zero by construction cost no product.
        dx, dkernel = (None if isinstance(t, SymbolicZero) else t for t in tangents)
        sizes = jnp.full((1,), x.shape[0], jnp.int32)
        terms = [] if dx is None else [matmul(dx, kernel)]
        if dkernel is not None:
            terms.append(segment_matmul(x, dkernel[None], sizes, precision=precision))
        return matmul(x, kernel), functools.reduce(operator.add, terms)

    matmul.defjvp(jvp, symbolic_zeros=True)
    return matmul(x, kernel)


def linear(layer: nnx.Linear, x: Array | HostRows, activation: Activation | None = None) -> Array:
    """Apply a linear layer and an activation by `product`."""
    x, kernel, bias = promote((x, layer.kernel[...], parameter_value(layer.bias)), layer.dtype)
    return product(x, kernel, layer.precision, bias=bias, activation=activation)


def normalized(norm: nnx.LayerNorm, x: Array) -> Array:
    """Apply a normalization, which promotes dtypes, also where promotion is strict."""
    with jax.numpy_dtype_promotion("standard"):
        y: Array = norm(x)
    return y


def finished(y: Array, bias: Array | None, activation: Activation | None = None) -> Array:
    """Add the bias, in the dtype of y, and apply the activation."""
    y = y if bias is None else y + feature_wise(bias.astype(y.dtype), y)
    return y if activation is None else jax.nn.relu(y)


def scaled(x: Array, scale: Array | None) -> Array:
    """Scale each row of x, in the dtype of x; return x if `scale` is None."""
    return x if scale is None else row_wise(scale.astype(x.dtype), x) * x


def inverse_root(x: Array) -> Array:
    """Return ``x^-1/2``, 0 where x <= 0; NaN stays NaN."""
    positive = ~(x <= 0)
    return jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, x, 1)), 0)


def unit_rows(y: Array) -> Array:
    """Divide each row by its Euclidean norm, whose square half types may not hold; zeros stay."""
    wide = y.astype(accumulator_dtype(y.dtype))
    return (wide * inverse_root(jnp.sum(wide * wide, axis=-1, keepdims=True))).astype(y.dtype)


class Named(nnx.Dict[Any]):
    """Modules or parameters by name, a text or a tuple of texts.

    `nnx.Dict` makes attributes of its keys, which would clash with attributes of modules.

    Attributes:
        names: Names in order.
        members: Modules or parameters, in the order of the names.
    """

    def __init__(self, named: Mapping[Any, Any]) -> None:
        self.names = tuple(named)
        self.members = nnx.List(list(named.values()))

    def __getitem__(self, name: object) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.members[self.names.index(name)]

    def __setitem__(self, name: object, value: object) -> None:
        self.members[self.names.index(name)] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Sizes(dict[str, int]):
    """Sizes by node type, hashable as static attributes of modules must be."""

    def __hash__(self) -> int:  # type: ignore[override]  # dict has none
        return hash(frozenset(self.items()))


# --- Sources and destinations --------------------------------------------------------------------


def endpoint_sizes(in_features: int | tuple[int, int]) -> tuple[int, int]:
    """Return the features of sources and of destinations, of a number or a pair."""
    sizes = in_features if isinstance(in_features, tuple) else (in_features, in_features)
    if len(sizes) != 2:
        raise ValueError(f"in_features must be a number or a pair, got {in_features}")
    check_positive(in_features=sizes[0])
    check_positive(in_features=sizes[1])
    return sizes


def num_rows(graph: AnyGraph) -> int:
    """Return the number of sources, or on a device's part the number of its local nodes."""
    return graph.num_dst if isinstance(graph, Part | RelationalPart) else graph.num_src


def source_rows(graph: AnyGraph, x: Array) -> Array:
    """Return the rows of all sources, on a device's part with the halo from other devices."""
    if isinstance(graph, Part | RelationalPart) and x.shape[0] == graph.num_dst:
        return graph.with_halo(x)
    return x


def destination_rows(graph: AnyGraph, x: Array) -> Array:
    """Return the rows of the destinations, which are the first sources."""
    return x if graph.num_dst == x.shape[0] else x[: graph.num_dst]


def aggregate_edges(graph: Graph, x: Array, weight: Array | None, **options: Any) -> Array:
    """Return `spmm`, on a device's part with the rows of other devices."""
    if isinstance(graph, Part) and x.shape[0] == graph.num_dst:
        return graph.aggregate(x, weight, **options)
    return spmm(graph, x, weight, **options)


def aggregate_incidences(
    hypergraph: Hypergraph | HypergraphPart, x: Array, **options: Any
) -> Array:
    """Return `hypergraph_aggregate`, on a device's part with the rows of other devices."""
    if isinstance(hypergraph, HypergraphPart):
        return hypergraph.aggregate(x, **options)
    return hypergraph_aggregate(hypergraph, x, **options)


def map_sources(graph: Graph, x: Array | HostRows, width: int, function: Callable[[Any], T]) -> T:
    """Return ``function(x)`` of all sources; halo rows are sent on its narrower side."""
    if not isinstance(x, HostRows) and x.shape[-1] <= width:
        return function(source_rows(graph, x))
    return jax.tree.map(lambda y: source_rows(graph, y), function(x))


def endpoint_values(
    name: str, values: ArrayLike | tuple[ArrayLike, ...], graph: AnyGraph
) -> tuple[Array, Array]:
    """Return numbers of sources and of destinations, which are the first sources of a vector."""
    if isinstance(values, tuple):
        if len(values) != 2:
            raise ValueError(f"{name} must be a vector or a pair, got {len(values)} arrays")
        return (
            check_vector(f"{name}[0]", values[0], "num_src", graph.num_src),
            check_vector(f"{name}[1]", values[1], "num_dst", graph.num_dst),
        )
    # One vector serves both endpoints: destinations are the first sources.
    is_square = num_rows(graph) == graph.num_dst
    if not is_square:
        check_destinations_are_sources(graph)
    src = check_vector(name, values, "num_nodes" if is_square else "num_src", num_rows(graph))
    return src, destination_rows(graph, src)


# --- Checks --------------------------------------------------------------------------------------


def check_features(
    x: Any, rows: int, in_features: int, name: str = "x", rows_name: str = "num_nodes"
) -> Array:
    """Check the shape of features, ``(rows, *batch, in_features)``."""
    features: Array = as_array(name, x)
    check_feature_shape(features, rows, in_features, name, rows_name)
    return features


def check_feature_shape(
    x: Array | HostRows, rows: int, in_features: int, name: str, rows_name: str
) -> None:
    """Raise ValueError for features of another shape."""
    if x.ndim < 2 or (x.shape[0], x.shape[-1]) != (rows, in_features):
        raise ValueError(
            f"{name} must have shape ({rows_name}, ..., in_features) = ({rows}, ..., "
            f"{in_features}), got {x.shape}"
        )


def check_structure(name: str, graph: object, convolution: Any) -> None:
    """Raise TypeError for a graph of another class than the convolution's calls take."""
    takes_parts = getattr(convolution, "takes_parts", False)
    if not (takes_parts and isinstance(graph, HypergraphPart)):
        check_instance(name, graph, convolution.structure)


def check_sources(graph: AnyGraph, x: ArrayLike | HostRows, in_features: int) -> Any:
    """Check features of the sources, of which the first are those of the destinations.

    Features of a plain graph that is not bipartite may be rows of the host.
    """
    if isinstance(x, HostRows) and isinstance(graph, Graph) and num_rows(graph) == graph.num_dst:
        check_feature_shape(x, graph.num_dst, in_features, "x", "num_nodes")
        return x
    if num_rows(graph) == graph.num_dst:
        return check_features(x, graph.num_dst, in_features)
    check_destinations_are_sources(graph)
    return check_features(x, graph.num_src, in_features, rows_name="num_src")


def check_destinations_are_sources(graph: AnyGraph) -> None:
    """Raise ValueError for a graph whose first sources cannot be its destinations."""
    if graph.num_src < graph.num_dst:
        raise ValueError(
            "graph must have its destinations among its sources, as one array is for both, got "
            f"num_src={graph.num_src} and num_dst={graph.num_dst}"
        )


def check_endpoint_features(
    graph: AnyGraph,
    x: NodeFeatures,
    src_features: int,
    dst_features: int,
    *,
    with_halo: bool = True,
) -> tuple[Array, Array]:
    """Return the features of sources and of destinations, of a pair or of one array for both.

    On a device's part with relations, those of sources have the halo, unless ``with_halo`` is off.
    """
    if isinstance(x, tuple):
        if len(x) != 2:
            raise ValueError(f"x must be an array or a pair, got {len(x)} arrays")
        src = check_features(x[0], graph.num_src, src_features, "x[0]", "num_src")
        dst = check_features(x[1], graph.num_dst, dst_features, "x[1]", "num_dst")
        if src.shape[1:-1] != dst.shape[1:-1]:
            raise ValueError(
                f"both of x must have the same batch axes, got shapes {src.shape} and {dst.shape}"
            )
        return src, dst
    if src_features != dst_features:
        raise ValueError(
            f"x must be a pair for in_features=({src_features}, {dst_features}), got an array"
        )
    src = check_sources(graph, x, src_features)
    dst = destination_rows(graph, src)
    # Attention within relations needs the halo before its maps; others map first if narrower.
    fetches = with_halo and isinstance(graph, RelationalGraph)
    return source_rows(graph, src) if fetches else src, dst


def check_vector(name: str, values: ArrayLike, size_name: str, size: int) -> Array:
    """Check the shape of values with one number for each node, edge or hyperedge."""
    values = check_real(name, values)
    if values.shape != (size,):
        raise ValueError(f"{name} must have shape ({size_name},) = ({size},), got {values.shape}")
    return values


def check_edge_weight(graph: AnyGraph, weight: ArrayLike | None) -> Array | None:
    """Check the shape of weights of edges; None means ones."""
    if weight is None:
        return None
    return check_vector("edge_weight", weight, "num_edges", graph.num_edges)


def check_edge_features(
    graph: AnyGraph, edge_features: ArrayLike | None, in_features: int | None
) -> Array | None:
    """Check that edges have features, of this width, if and only if the layer takes them."""
    if edge_features is None and in_features is None:
        return None
    if edge_features is None or in_features is None:
        state = "none" if edge_features is None else "some"
        raise ValueError(
            f"edge_features must be given if edge_in_features is, got {state} and {in_features}"
        )
    return check_features(edge_features, graph.num_edges, in_features, "edge_features", "num_edges")


def check_types(
    name: str,
    by_type: Mapping[str, object],
    types: Collection[str],
    *,
    optional: Collection[str] = (),
    note: str = "",
) -> None:
    """Raise ValueError for a mapping by node type with an unknown type, or without one."""
    known, keys = (", ".join(map(repr, names)) for names in (types, by_type))
    for key in by_type:
        if key not in types:
            raise ValueError(f"{name} has the key {key!r}, none of the types {known}, got {keys}")
    for key in types:
        if key not in by_type and key not in optional:
            raise ValueError(f"{name} lacks the type {key!r}{note}, got {keys or 'none'}")


def check_model(name: str, model: object) -> None:
    """Raise TypeError for a model that cannot be called, such as its class or its name."""
    check_callable(name, model)
    if isinstance(model, type):
        raise TypeError(f"{name} must be a model, got the class {model.__name__}; make one of it")


def check_heads(heads: int, features: int | None, name: str = "out_features") -> None:
    """Raise ValueError for heads that do not divide the features."""
    if features is not None and features % heads:
        raise ValueError(
            f"heads must divide {name}, which they share, got heads={heads} and {name}={features}"
        )
