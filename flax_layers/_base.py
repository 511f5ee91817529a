"""What the layers and models share: parameters, options, checks, and the stack of layers."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypedDict, get_args

import jax
import jax.export
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike, DTypeLike

from jax_gnn import (
    Graph,
    Hypergraph,
    RelationalGraph,
    hypergraph_aggregate,
    segment_matmul,
    spmm,
)
from jax_gnn.extend import (
    as_array,
    check_callable,
    check_choice,
    check_instance,
    check_integer,
    check_number,
    check_real,
    feature_wise,
    gradients_at_once,
    is_tall,
    row_wise,
)
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import HostRows, HypergraphPart, Part, RelationalPart

Activation = Literal["relu"]  # what kernels may do after a convolution

Ends = ArrayLike | HostRows | tuple[ArrayLike, ArrayLike]  # of nodes, or sources, destinations

default_kernel_init = nnx.initializers.lecun_normal()
default_bias_init = nnx.initializers.zeros_init()


class Signature:
    """What a class is made from, for `help` and `inspect`: the metaclass of modules hides it."""

    def __get__(self, instance: Any, owner: type[Any]) -> inspect.Signature:
        """That of the class's initialisation; a module that is called has that of its call."""
        if instance is not None:
            raise AttributeError("__signature__")
        parameters = [*inspect.signature(owner.__init__).parameters.values()]
        return inspect.Signature(parameters[1:])  # without self


class LinearOptions(TypedDict, total=False):
    """Options of every convolution, which mean what they mean in `nnx.Linear`.

    Attributes:
        use_bias: Whether to add biases.
        dtype: Of the computation; None, the default, infers it from input and parameters.
        param_dtype: Of the parameters.
        precision: Of the matrix products, see `jax.lax.Precision`.
        kernel_init: Initialiser of the kernels.
        bias_init: Initialiser of the biases.
    """

    use_bias: bool
    dtype: DTypeLike | None
    param_dtype: DTypeLike
    precision: Any
    kernel_init: nnx.Initializer
    bias_init: nnx.Initializer


def linear_options(options: dict[str, Any]) -> Any:
    """Those that are `LinearOptions`."""
    return {name: options[name] for name in LinearOptions.__annotations__ if name in options}


def kept_options(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Options as a static attribute, by which a module can be made again: without initialisers."""
    return tuple(sorted(item for item in options.items() if not item[0].endswith("_init")))


class Convolution(nnx.Module):
    """Base of the convolutions: one linear map beside the aggregation, and the options.

    Attributes:
        structure: What its calls take, a `Graph` or a `Hypergraph`.
        has_activation: Whether they also take `activation`.
        takes_parts: Whether they also take a `HypergraphPart`.
        kernel: ``(in_features, width)``.
        bias: ``(width,)``, or None without a bias.
    """

    structure: ClassVar[type[Graph | Hypergraph]] = Hypergraph
    has_activation: ClassVar[bool] = False
    takes_parts: ClassVar[bool] = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        width: int | None = None,
        rngs: nnx.Rngs,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.Initializer = default_kernel_init,
        bias_init: nnx.Initializer = default_bias_init,
    ) -> None:
        """Initialises kernel and bias.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            width: Features after the linear map; None for `out_features`.
            rngs: Source of the keys for initialisation (stream "params").
            use_bias: See `LinearOptions`; so for all that follow.
            dtype: Of the computation.
            param_dtype: Of the parameters.
            precision: Of the matrix products.
            kernel_init: Initialiser of the kernels.
            bias_init: Initialiser of the biases.

        Raises:
            ValueError: A size is not positive.
        """
        check_positive(in_features=in_features, out_features=out_features)
        width = out_features if width is None else width
        self.kernel = nnx.Param(kernel_init(rngs.params(), (in_features, width), param_dtype))
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), (width,), param_dtype))
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    def _operands(self, x: Any, graph: Any) -> tuple[Array, Array, Array | None]:
        """Checks graph and x; returns x with kernel and bias in the dtype of the computation."""
        check_structure(self.structure.__name__.lower(), graph, self)
        if isinstance(graph, Graph):
            x = check_sources(graph, x, self.in_features)
        else:
            x = check_features(x, graph.num_nodes, self.in_features)
        bias = None if self.bias is None else self.bias[...]
        return in_one_dtype((x, self.kernel[...], bias), self.dtype)

    def _product(self, x: Array | HostRows, kernel: Array, **last: Any) -> Array:
        """The product of x and a kernel with what `product` does after it."""
        return product(x, kernel, self.precision, **last)

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
        """``aggregate(x) @ kernel``, bias and activation, of a linear aggregation.

        It gets the fewer features, but for a block's graph, and where it comes last what comes
        after.
        """
        narrow = kernel.shape[0] < kernel.shape[1]
        if narrow if graph is None else sums_first(graph, *kernel.shape, x=x):
            return self._product(aggregate(x), kernel, bias=bias, activation=activation)
        y, sent = self._product_ahead(graph, x, kernel)
        return aggregate(y, **sent, **epilogue(y, bias, activation))

    def _product_ahead(
        self, graph: Any, x: Array | HostRows, kernel: Array, *, scale: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """The product, and for `Part.aggregate` rows of it that other devices wait for."""

        def ahead(x: Array, *scale: Array) -> Array:
            own = jax.lax.optimization_barrier(kernel)  # else XLA makes one product of both
            return self._product(x, own, scale=scale[0] if scale else None)

        sent = None
        if isinstance(graph, Part) and not isinstance(x, HostRows):
            rows = (x,) if scale is None else (x, scale)
            if all(each.shape[0] == graph.num_dst for each in rows):
                sent = graph.ahead(ahead, *rows)
        y = self._product(x, kernel, scale=scale)
        return y, {} if sent is None else {"sent": sent}


class Stack(nnx.Module):
    """Base of the models: convolutions ``conv1``, ``conv2``, … with ReLU and dropout between them.

    A model keeps each of its arguments as an attribute, or else its convolutions do.

    Attributes:
        convolution: What a subclass stacks.
        dropout_in_convolutions: Whether their calls take `deterministic` and `rngs`, too.
        takes_types: Whether features may be by type of nodes; the convolution then checks those.
        num_layers: Number of convolutions.
        output: A linear map after the last convolution, ReLU and dropout; None without.
    """

    convolution: ClassVar[type[Any]]
    dropout_in_convolutions: ClassVar[bool] = False
    takes_types: ClassVar[bool] = False

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 3,
        dropout_rate: float = 0.5,
        input_dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        """Initialises the convolutions.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node between the convolutions.
            out_features: Features per node of the output, the number of classes.
            num_layers: Number of convolutions.
            dropout_rate: Share of hidden activations dropped in training, in [0, 1].
            input_dropout_rate: Share of input features dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            **options: Further arguments of each convolution.

        Raises:
            ValueError: A size is not positive, a rate is outside [0, 1], or a convolution refuses
                an option.
        """
        if not (self.takes_types and isinstance(in_features, Mapping)):
            check_positive(in_features=in_features)
        check_positive(
            hidden_features=hidden_features, out_features=out_features, num_layers=num_layers
        )
        check_rates(dropout_rate=dropout_rate, input_dropout_rate=input_dropout_rate)
        heads = options.get("heads", 1)
        shared = isinstance(heads, int) and heads > 0 and options.get("concat", True)
        if num_layers > 1 and shared and hidden_features % heads:
            raise ValueError(
                f"heads must divide hidden_features, which they share, got {heads=} and "
                f"{hidden_features=}"
            )
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.num_layers = num_layers
        self.dropout_rate = dropout_rate
        self.input_dropout_rate = input_dropout_rate
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.input_dropout = nnx.Dropout(input_dropout_rate, rngs=rngs)
        self.output: nnx.Linear | None = nnx.data(None)
        self._build(rngs=rngs, **options)

    def _build(self, *, rngs: nnx.Rngs, **options: Any) -> None:
        """Makes the layers."""
        between = [self.hidden_features] * (self.num_layers - 1)
        widths = [self.in_features, *between, self.out_features]
        for number, sizes in enumerate(pairwise(widths), start=1):
            layer = self.convolution(*sizes, rngs=rngs, **self._options_of(number, options))
            setattr(self, f"conv{number}", layer)

    def _options_of(self, number: int, options: dict[str, Any]) -> dict[str, Any]:
        """The further arguments of a convolution."""
        del number
        return options

    @property
    def convolutions(self) -> list[Any]:
        """The convolutions in order."""
        return [getattr(self, f"conv{number}") for number in range(1, self.num_layers + 1)]

    def __call__(
        self,
        graph: Any,
        x: ArrayLike | None,
        *arguments: Any,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        **named: Any,
    ) -> Array:
        """Computes one row of outputs (logits) per node.

        Args:
            graph: The graph or hypergraph. Models of graphs take `jax_gnn.sampling.Blocks`, too,
                one for each layer.
            x: Node features, ``(num_nodes, *batch, in_features)``; of blocks, those of the first
                one's sources.
            *arguments: Further arguments of the convolutions' calls, such as weights. Of blocks,
                values of edges are a tuple, one for each block, or those of the whole graph in its
                order; values of nodes are of the first block's sources.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.
            **named: Further arguments of the convolutions' calls, by name.

        Returns:
            ``(num_nodes, *batch, out_features)``; of blocks, for the seeds.

        Raises:
            ValueError: A shape does not fit a layer or the graph, or there are more or fewer blocks
                than layers.
        """
        layers = self._calls(graph, arguments, named)
        dropout = dropout_arguments(deterministic, rngs)
        within = dropout if self.dropout_in_convolutions else {}
        y: Any = self._input(x, **dropout)
        for number, (graph, arguments, named) in enumerate(layers, start=1):
            is_last = number == self.num_layers and self.output is None
            convolve = self._convolve if is_last else self._convolve_and_relu
            y = convolve(number, graph, y, *arguments, **named, **within)
            if not is_last:
                y = self.dropout(y, **dropout)
        return y if self.output is None else linear(self.output, y)

    def _calls(
        self, graph: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
        """The graph and the arguments of each convolution's call: the same but for blocks."""
        structure = self.convolution.structure
        if not isinstance(graph, Blocks) or not issubclass(structure, Graph | RelationalGraph):
            check_structure("graph", graph, self.convolution)
            return [(graph, arguments, named)] * self.num_layers
        if len(graph.graphs) != self.num_layers:
            raise ValueError(
                f"graph must be blocks for num_layers = {self.num_layers}, got {len(graph.graphs)}"
            )
        call = inspect.signature(self.convolution.__call__)
        bound = call.bind_partial(self, graph, None, *arguments, **named).arguments
        given = [*bound.items()][3:]
        calls: list[Any] = []
        for number, block in enumerate(graph.graphs):
            check_instance(f"graph.graphs[{number}]", block, structure)
            calls.append((block, (), {name: of_block(name, x, graph, number) for name, x in given}))
        return calls

    def _input(self, x: Any, **dropout: Any) -> Any:
        """What the first convolution gets."""
        if isinstance(x, HostRows) and self.input_dropout_rate:
            raise ValueError(
                f"input_dropout_rate must be 0 for rows of the host, got {self.input_dropout_rate}"
            )
        return x if isinstance(x, HostRows) else self.input_dropout(as_array("x", x), **dropout)

    def _convolve(self, number: int, graph: Any, x: Array, *arguments: Any, **named: Any) -> Array:
        """Calls a convolution."""
        return getattr(self, f"conv{number}")(graph, x, *arguments, **named)

    def _convolve_and_relu(self, *arguments: Any, **named: Any) -> Array:
        """The same with the ReLU after it, which a convolution's kernel may be able to do."""
        if getattr(self.convolution, "has_activation", False):
            return self._convolve(*arguments, **named, activation="relu")
        return jax.nn.relu(self._convolve(*arguments, **named))


class TwoLayerStack(Stack):
    """A stack of two convolutions, unless another number is asked for."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        **options: Any,
    ) -> None:
        """Initialises the convolutions.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node between the convolutions.
            out_features: Features per node of the output, the number of classes.
            num_layers: Number of convolutions.
            **options: Dropout rates and rngs, see `Stack`; further arguments of each convolution.

        Raises:
            ValueError: A size is not positive, a rate is outside [0, 1], or a convolution refuses
                an option.
        """
        super().__init__(
            in_features, hidden_features, out_features, num_layers=num_layers, **options
        )


OF_EDGES, OF_NODES = ("edge_weight", "edge_attr"), ("node_scale", "node_types")


def of_block(name: str, values: Any, blocks: Blocks, number: int) -> Any:
    """What a block's convolution gets of an argument of the model's call."""
    block, count = blocks.graphs[number], len(blocks.graphs)
    if values is None:
        return None
    if name in OF_EDGES and not isinstance(values, tuple):
        return block.edge_values(values)
    if name in OF_EDGES:
        if len(values) != count:
            raise ValueError(f"{name} must be one for each of {count} blocks, got {len(values)}")
        return values[number]
    if name in OF_NODES:
        values = check_vector(name, values, "graphs[0].num_src", blocks.graphs[0].num_src)
        return values[: block.num_src]
    return values


def dropout_arguments(
    deterministic: bool | None, rngs: nnx.Rngs | nnx.RngStream | Array | None
) -> dict[str, Any]:
    """What several dropouts are called with: of a single key, each gets another."""
    rngs = nnx.Rngs(dropout=rngs) if isinstance(rngs, Array) else rngs
    return {"deterministic": deterministic, "rngs": rngs}


def check_activation(activation: Any) -> None:
    """Raises ValueError for what is none that a convolution does."""
    check_choice("activation", activation, (None, *get_args(Activation)))


def epilogue(x: Array, bias: Array | None, activation: Activation | None) -> dict[str, Any]:
    """What an aggregation of x does last, as its arguments: a bias for each feature of a row."""
    last: dict[str, Any] = {} if activation is None else {"activation": activation}
    return last if bias is None else last | {"bias": jnp.broadcast_to(bias, x.shape[1:])}


def sums_first(graph: Graph, in_features: int, out_features: int, *, x: Any) -> bool:
    """Whether rows are summed over edges before their map, which then has a row a destination.

    That moves fewer numbers: of each edge and destination `in_features` in the place of
    `out_features`, and no sources through the map. Of as many destinations as sources it is the
    narrower side of the map, of a sampled block, which has many more sources, mostly its input.
    Rows of the host are never on the device all at once, and so are mapped first.
    """
    if isinstance(x, HostRows):
        return False
    sizes = edges, sources, destinations = graph.num_edges, num_rows(graph), graph.num_dst
    if sources == destinations or any(map(jax.export.is_symbolic_dim, sizes)):
        return in_features < out_features
    more = (edges + destinations) * (in_features - out_features)
    return more < (sources - destinations) * (in_features + out_features)


def in_one_dtype(values: tuple[Any, ...], dtype: DTypeLike | None) -> Any:
    """`promote_dtype`, also of rows of the host, which are mapped in that dtype then."""
    if not any(isinstance(value, HostRows) for value in values):
        return dtypes.promote_dtype(values, dtype=dtype)
    dtype = common_dtype(*values, dtype=dtype)
    return tuple(None if value is None else value.astype(dtype) for value in values)


def common_dtype(*values: Any, dtype: DTypeLike | None) -> Any:
    """`canonicalize_dtype`, likewise."""
    like = [jnp.zeros(0, x.dtype) if isinstance(x, HostRows) else x for x in values]
    return dtypes.canonicalize_dtype(*like, dtype=dtype)


def product(
    x: Array | HostRows,
    kernel: Array,
    precision: jax.lax.PrecisionLike = None,
    *,
    scale: Array | None = None,
    bias: Array | None = None,
    activation: Activation | None = None,
) -> Array:
    """``activation(scale * (x @ kernel) + bias)``, in one kernel where x is tall.

    The scale is a number of each row.
    """
    if isinstance(x, HostRows):
        y = x.map(lambda rows, kernel: product(rows, kernel, precision), kernel)
        return finished(scaled(y, scale), bias, activation)
    x, kernel = gradients_at_once(x, kernel)
    if is_tall(x, kernel, precision):
        return segment_matmul(
            *(x, kernel[None], jnp.full((1,), x.shape[0], jnp.int32)),
            scale=scale,
            bias=None if bias is None else bias[None],
            activation=activation,
        )
    # Where x is not the wider side, it is scaled itself: XLA joins that to what made x, such as a
    # dropout.
    narrows = kernel.shape[0] > kernel.shape[1]
    y = jnp.matmul(x if narrows else scaled(x, scale), kernel, precision=precision)
    return finished(scaled(y, scale) if narrows else y, bias, activation)


def summed_by_rows(x: Array, kernel: Array, precision: jax.lax.PrecisionLike = None) -> Array:
    """``x @ kernel`` by XLA, which joins it to what follows, but for the kernel's gradient.

    That is a long sum over rows, for which XLA takes four launches on a GPU, as it pads both
    factors and adds up parts; this library's takes one.
    """

    @jax.custom_jvp
    def times(x: Array, kernel: Array) -> Array:
        return jnp.matmul(x, kernel, precision=precision)

    def jvp(primals: Any, tangents: Any) -> tuple[Array, Any]:
        x, kernel = primals
        dx, dkernel = (None if isinstance(each, SymbolicZero) else each for each in tangents)
        sizes = jnp.full((1,), x.shape[0], jnp.int32)
        terms = [] if dx is None else [times(dx, kernel)]
        if dkernel is not None:
            terms.append(segment_matmul(x, dkernel[None], sizes, precision=precision))
        return times(x, kernel), functools.reduce(operator.add, terms)

    times.defjvp(jvp, symbolic_zeros=True)
    return times(x, kernel)


def linear(layer: nnx.Linear, x: Array | HostRows, activation: Activation | None = None) -> Array:
    """What the layer and the activation do, by `product`."""
    bias = None if layer.bias is None else layer.bias[...]
    x, kernel, bias = in_one_dtype((x, layer.kernel[...], bias), layer.dtype)
    return product(x, kernel, layer.precision, bias=bias, activation=activation)


def normalized(norm: nnx.LayerNorm, x: Array) -> Array:
    """What the layer makes, which promotes dtypes, also where promotion is set to be strict."""
    with jax.numpy_dtype_promotion("standard"):
        return norm(x)


def finished(y: Array, bias: Array | None, activation: Activation | None = None) -> Array:
    """Adds the bias, in the dtype of y, and applies the activation."""
    y = y if bias is None else y + feature_wise(bias.astype(y.dtype), y)
    return y if activation is None else jax.nn.relu(y)


def scaled(x: Array, scale: Array | None) -> Array:
    """Rows times their numbers, in the dtype of x, if there are any."""
    return x if scale is None else row_wise(scale.astype(x.dtype), x) * x


def inverse_root(x: Array) -> Array:
    """Return ``x^-1/2``, 0 where x <= 0; NaN stays NaN."""
    positive = ~(x <= 0)
    return jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, x, 1)), 0)


def unit_rows(y: Array) -> Array:
    """Divides each row by its Euclidean norm; zeros stay."""
    return y * inverse_root(jnp.sum(y * y, axis=-1, keepdims=True))


def check_features(
    x: Any, rows: int, in_features: int, name: str = "x", rows_name: str = "num_nodes"
) -> Array:
    """Checks the shape of features, ``(rows, *batch, in_features)``."""
    x = as_array(name, x)
    check_feature_shape(x, rows, in_features, name, rows_name)
    return x


def check_feature_shape(x: Any, rows: int, in_features: int, name: str, rows_name: str) -> None:
    """Raises ValueError for features of another shape."""
    if x.ndim < 2 or (x.shape[0], x.shape[-1]) != (rows, in_features):
        raise ValueError(
            f"{name} must have shape ({rows_name}, ..., in_features) = ({rows}, ..., "
            f"{in_features}), got {x.shape}"
        )


class Named(nnx.Dict[Any]):
    """Modules or parameters by name, which is any text or a tuple of texts.

    `nnx.Dict` makes attributes of its keys, which may be such as modules have already.

    Attributes:
        names: In order.
        members: What has these names.
    """

    def __init__(self, named: Mapping[Any, Any]) -> None:
        self.names = tuple(named)
        self.members = nnx.List(list(named.values()))

    def __getitem__(self, name: Any) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.members[self.names.index(name)]

    def __setitem__(self, name: Any, value: Any) -> None:
        self.members[self.names.index(name)] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def end_sizes(in_features: int | tuple[int, int]) -> tuple[int, int]:
    """Features of sources and of destinations."""
    sizes = in_features if isinstance(in_features, tuple) else (in_features, in_features)
    if len(sizes) != 2:
        raise ValueError(f"in_features must be a number or a pair, got {in_features}")
    check_positive(in_features=sizes[0])
    check_positive(in_features=sizes[1])
    return sizes


def num_rows(graph: Graph | RelationalGraph) -> int:
    """Rows of the features that layers get: of sources; of a device's part those of own nodes."""
    return graph.num_dst if isinstance(graph, Part | RelationalPart) else graph.num_src


def of_sources(graph: Graph | RelationalGraph, x: Array) -> Array:
    """The sources' rows of what layers have: of a device's part with those of other devices."""
    if isinstance(graph, Part | RelationalPart) and x.shape[0] == graph.num_dst:
        return graph.with_halo(x)
    return x


def aggregated(graph: Graph, x: Array, weight: Array | None, **options: Any) -> Array:
    """`spmm`, also of a device's part, with rows of other devices."""
    if isinstance(graph, Part) and x.shape[0] == graph.num_dst:
        return graph.aggregate(x, weight, **options)
    return spmm(graph, x, weight, **options)


def mapped_sources(graph: Graph, x: Any, width: int, function: Callable[[Any], Any]) -> Any:
    """``function(x)`` of the sources; rows of other devices come on its narrower side."""
    if x.shape[-1] <= width and not isinstance(x, HostRows):
        return function(of_sources(graph, x))
    return jax.tree.map(lambda y: of_sources(graph, y), function(x))


def check_structure(name: str, graph: Any, convolution: Any) -> None:
    """Raises TypeError for what calls of a convolution do not take."""
    takes_parts = getattr(convolution, "takes_parts", False)
    if not (takes_parts and isinstance(graph, HypergraphPart)):
        check_instance(name, graph, convolution.structure)


def aggregate(hypergraph: Hypergraph | HypergraphPart, x: Array, **options: Any) -> Array:
    """`hypergraph_aggregate`, also of a device's part with rows of other devices."""
    if isinstance(hypergraph, HypergraphPart):
        return hypergraph.aggregate(x, **options)
    return hypergraph_aggregate(hypergraph, x, **options)


def of_destinations(graph: Graph | RelationalGraph, x: Array) -> Array:
    """The destinations' rows of what sources have: the first, where one array is for both."""
    return x if graph.num_dst == x.shape[0] else x[: graph.num_dst]


def end_values(name: str, values: Any, graph: Graph | RelationalGraph) -> dict[str, Array]:
    """Numbers of sources and of destinations, by the name for errors: of a vector, its first."""
    if isinstance(values, tuple):
        if len(values) != 2:
            raise ValueError(f"{name} must be a vector or a pair, got {len(values)} arrays")
        ends = (("num_src", graph.num_src), ("num_dst", graph.num_dst))
        names = f"{name}[0]", f"{name}[1]"
        return {
            of: check_vector(of, each, *end)
            for of, each, end in zip(names, values, ends, strict=True)
        }
    square = num_rows(graph) == graph.num_dst
    if not square:
        check_among_sources(graph)
    src = check_vector(name, values, "num_nodes" if square else "num_src", num_rows(graph))
    return {name: src, f"{name} of destinations": of_destinations(graph, src)}


def check_sources(graph: Graph | RelationalGraph, x: Any, in_features: int) -> Array:
    """Checks features of the sources, of which the first are those of the destinations.

    Those of a plain graph that is not bipartite may be rows of the host, as an array of `product`.
    """
    if isinstance(x, HostRows) and isinstance(graph, Graph) and num_rows(graph) == graph.num_dst:
        check_feature_shape(x, graph.num_dst, in_features, "x", "num_nodes")
        found: Any = x
        return found
    if num_rows(graph) == graph.num_dst:
        return check_features(x, graph.num_dst, in_features)
    check_among_sources(graph)
    return check_features(x, graph.num_src, in_features, rows_name="num_src")


def check_among_sources(graph: Graph | RelationalGraph) -> None:
    """Raises ValueError for a graph whose first sources cannot be its destinations."""
    if graph.num_src < graph.num_dst:
        raise ValueError(
            "graph must have its destinations among its sources, as one array is for both, got "
            f"num_src={graph.num_src} and num_dst={graph.num_dst}"
        )


def check_ends(
    graph: Graph | RelationalGraph, x: Ends, src_features: int, dst_features: int
) -> tuple[Array, Array]:
    """The features of sources and of destinations: of one array, its first rows, or all of it."""
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
    # Maps by relation come after rows of other devices, those of a graph before if they narrow.
    ahead = isinstance(graph, RelationalGraph)
    return of_sources(graph, src) if ahead else src, of_destinations(graph, src)


def check_vector(name: str, values: ArrayLike, size_name: str, size: int) -> Array:
    """Checks the shape of what has one number for each node, edge or hyperedge."""
    values = check_real(name, values)
    if values.shape != (size,):
        raise ValueError(f"{name} must have shape ({size_name},) = ({size},), got {values.shape}")
    return values


def check_model(name: str, model: Any) -> None:
    """Raises TypeError for what cannot be called as a model, such as its class or its name."""
    check_callable(name, model)
    if isinstance(model, type):
        raise TypeError(f"{name} must be a model, got the class {model.__name__}; make one of it")


def check_rates(**rates: float) -> None:
    """Raises ValueError for a share outside [0, 1], TypeError for what is no number."""
    for name, rate in rates.items():
        check_number(name, rate)
        if not 0 <= rate <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {rate}")


def check_positive(**sizes: int) -> None:
    """Raises ValueError for a size below 1, TypeError for what is no integer."""
    for name, size in sizes.items():
        if check_integer(name, size) < 1:
            raise ValueError(f"{name} must be positive, got {size}")
