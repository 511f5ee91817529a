"""Convolutions whose message passing is a program, `jax_gnn.program`, with parameters by shape.

The signature of the program's function declares all: arguments that are annotated as rows of nodes,
edges or graphs are inputs of the call, all others parameters, dropout or options of the layer.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, get_type_hints

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, check_positive
from flax_layers.mlp import MLP
from flax_layers.relational import check_relations
from jax_gnn import Batch, Edge, Global, Graph, Hypergraph, Node, RelationalGraph, program
from jax_gnn.extend import as_array, check_callable, check_instance, described

ProgramGraph = Graph | RelationalGraph | Batch | Hypergraph  # type: ignore[type-arg]
Reduction = Literal["sum", "mean", "max", "min"]
Widths = Mapping[str, int | None]
Width = str | int | tuple[str | int, ...]


# --- Declarations in the signature of a program --------------------------------------------------


class Axes(NamedTuple):
    """Shape of a parameter or of an input's row, see `axes`."""

    widths: tuple[Width, ...]
    init: Any = None
    when: str | None = None
    exact: bool = False
    optional: bool = False

    def shape(self, name: str, widths: Widths) -> tuple[int, ...] | None:
        """Return the sizes of the axes; None if one of them is absent, such as "edge"."""
        sizes: list[int] = []
        for width in self.widths:
            parts: list[int | None] = []
            for part in width if isinstance(width, tuple) else (width,):
                if isinstance(part, str) and part not in widths:
                    raise ValueError(
                        f"widths must have {part!r}, an axis of the program's {name}, got "
                        f"{', '.join(widths)}"
                    )
                parts.append(widths[part] if isinstance(part, str) else part)
            if parts == [None]:
                return None
            sizes.append(sum(part or 0 for part in parts))
        return tuple(sizes)

    def make(self, name: str, layer: Any, factory: ParameterFactory, widths: Widths) -> Any:
        """Return the parameter, or None where the layer has none."""
        shape = self.shape(name, widths)
        if shape is None or (self.when and not getattr(layer, self.when)):
            return nnx.data(None)
        init = getattr(layer, self.init) if isinstance(self.init, str) else self.init
        if init is None and len(shape) == 1:
            return factory.bias(*shape)
        if init is None or callable(init):
            return factory.kernel(*shape, init=init)
        return factory.full(init, *shape)

    def value(self, parameter: Any) -> Array | None:
        """Return what the program gets: the array, or None."""
        return base.parameter_value(parameter)


class DenseAxes(NamedTuple):
    """Widths of linear maps, see `dense`."""

    widths: tuple[Width, ...]
    activation: Callable[[Array], Array]
    use_bias: bool | str | None
    layers: str | None
    copies: str | None
    when: str | None

    def make(self, name: str, layer: Any, factory: ParameterFactory, widths: Widths) -> Any:
        """Return a perceptron or several as lists of linear maps, or None if there is none."""
        sizes = Axes(self.widths).shape(name, widths)
        if sizes is None or (self.when and not getattr(layer, self.when)):
            return nnx.data(None)
        if self.layers is not None:
            sizes += sizes[-1:] * (getattr(layer, self.layers) - len(sizes) + 1)
        use_bias = self.use_bias
        if isinstance(use_bias, str):
            use_bias = getattr(layer, use_bias)
        copies = 1 if self.copies is None else getattr(layer, self.copies)
        perceptrons = [
            nnx.List([factory.linear(*pair, use_bias=use_bias) for pair in pairwise(sizes)])
            for _ in range(copies)
        ]
        return perceptrons[0] if self.copies is None else nnx.List(perceptrons)

    def value(self, maps: Any) -> Any:
        """Return what the program gets: a `Perceptron`, a list of them, or None."""
        if maps is None:
            return None
        if self.copies is not None:
            return [self._replace(copies=None).value(perceptron) for perceptron in maps]
        return _perceptron_of(maps, self.activation)


class NodeMLP(NamedTuple):
    """Declaration of an `MLP` that the layer makes; the program gets it if it has no state."""

    def make(self, *_: object) -> Any:
        """Return a place for it."""
        return nnx.data(None)

    def value(self, mlp: Any) -> Perceptron | None:
        """Return the maps; None for a user's module, and where there are norms or dropout."""
        if type(mlp) is not MLP or mlp.norms or mlp.dropout_rate:
            return None
        return _perceptron_of(mlp.layers, jax.nn.relu)


NODE_MLP = NodeMLP()


def axes(
    *widths: Width,
    init: Any = None,
    when: str | None = None,
    exact: bool = False,
    optional: bool = False,
) -> Any:
    """Declare the shape of an argument of a program: of a parameter, or of an input's rows.

    Args:
        *widths: Size of each axis: a number, or a name of one. Names are "src" and "dst", the
            features of sources and destinations, "edge", "out", and those of the layer's `widths`.
            A tuple is their sum, the width of a concatenation. Without "edge", features of edges
            and parameters with such an axis are None.
        init: Initial value of a parameter: a number, an initializer, or the name of the layer's
            attribute that holds one. None means that vectors are biases, and absent from layers
            without biases, and that the last two axes of others are a kernel.
        when: Name of the layer's attribute without which the parameter is None.
        exact: Whether an input keeps 32 bits at least where the layer computes in fewer, as
            positions do whose differences count.
        optional: Whether an input of edges may be left out of a call, and then is None.

    Returns:
        A default value that `ProgramConv` replaces.

    Example:
        >>> def linear(g, x_src: Node, *, w=axes("src", "out"), scale=axes(init=0.5)):
        ...     return scale * g.sum(g.src(x_src @ w))
        >>> ProgramConv(4, 8, function=linear, rngs=nnx.Rngs(0)).scale[...]
        Array(0.5, dtype=float32)
    """
    return Axes(widths, init, when, exact, optional)


def dense(
    *widths: Width,
    activation: Callable[[Array], Array] | None = None,
    use_bias: bool | str | None = None,
    layers: str | None = None,
    copies: str | None = None,
    when: str | None = None,
) -> Any:
    """Declare an argument of a program that is a linear map or a perceptron, called with rows.

    Args:
        *widths: Features of the input, of each hidden layer and of the output, as in `axes`.
        activation: Function between two maps; None means ReLU.
        use_bias: Whether maps have biases, or the name of the layer's attribute that tells; None
            means as the layer's `use_bias`.
        layers: Name of the layer's attribute with the number of maps, of which the last ones repeat
            the last width; None means one map from each width to the next.
        copies: Name of the layer's attribute with the number of perceptrons, of which the program
            gets a list; None means one, not in a list.
        when: Name of the layer's attribute without which the argument is None.

    Returns:
        A default value that `ProgramConv` replaces.

    Example:
        >>> def deep(g, x_src: Node, *, mlp=dense("src", 16, "out")):
        ...     return g.max(mlp(g.src(x_src)))
        >>> [layer.kernel.shape for layer in ProgramConv(4, 8, function=deep, rngs=nnx.Rngs(0)).mlp]
        [(4, 16), (16, 8)]
    """
    return DenseAxes(widths, activation or jax.nn.relu, use_bias, layers, copies, when)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["maps"], meta_fields=["activation"]
)
@dataclass
class Perceptron:
    """Linear maps as a program gets them: kernels and biases, with a function between two maps."""

    maps: list[tuple[Array, Array | None]]
    activation: Callable[[Array], Array]

    def __call__(self, x: Array) -> Array:
        """Apply the perceptron to a row."""
        for number, (kernel, bias) in enumerate(self.maps):
            x = (self.activation(x) if number else x) @ kernel
            x = x if bias is None else x + bias
        return x


def _perceptron_of(layers: Any, activation: Callable[[Array], Array]) -> Perceptron:
    parts = [(layer.kernel[...], base.parameter_value(layer.bias)) for layer in layers]
    return Perceptron(parts, activation)


def dropout_key(
    dropout: nnx.Dropout, deterministic: bool | None, rngs: base.DropoutKeys
) -> Array | None:
    """Return the key of an `EdgeDropout`; None if nothing is dropped."""
    if dropout.rate == 0 or (dropout.deterministic if deterministic is None else deterministic):
        return None
    source = dropout.rngs if rngs is None else rngs
    source = source["dropout"] if isinstance(source, nnx.Rngs) else source
    return source() if isinstance(source, nnx.RngStream) else source


@functools.partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["rate"])
@dataclass
class EdgeDropout:
    """Dropout as a program gets it, in its argument `dropout`."""

    key: Array | None
    rate: float

    def __call__(self, g: Any, values: Array) -> Array:
        """Drop entries of a row of the edge; each edge draws for itself."""
        if self.key is None:
            return values
        if self.rate == 1:
            return jnp.zeros_like(values)
        kept = jax.random.bernoulli(g.key(self.key), 1 - self.rate, values.shape)
        return jnp.where(kept, values / (1 - self.rate), 0)


_INPUT_AXES = {"x_src": ("src",), "x_dst": ("dst",), "edge_features": ("edge",)}


class _Signature(NamedTuple):
    """Arguments of a program's function.

    Attributes:
        rows: Inputs by argument: axes of a row.
        nodes: Names of inputs by node, in the call.
        others: Names of inputs by edge or by graph, with the name of the number of rows.
        parameters: Parameters.
        options: Names of the other arguments with their defaults; "dropout" is one of them.
    """

    rows: dict[str, Axes]
    nodes: list[str]
    others: dict[str, str]
    parameters: dict[str, Axes | DenseAxes | NodeMLP]
    options: dict[str, Any]


@functools.lru_cache(maxsize=1024)
def _signature_of(function: Callable[..., Any]) -> _Signature:
    """Read the declarations of a function.

    Raises:
        ValueError: An input has no axes, or one of nodes does not say of which end it is.
    """
    hints = get_type_hints(function, include_extras=True)
    signature = _Signature({}, [], {}, {}, {})
    for name, parameter in [*inspect.signature(function).parameters.items()][1:]:
        default, hint = parameter.default, hints.get(name)
        if hint not in (Node, Edge, Global):
            is_parameter = isinstance(default, Axes | DenseAxes | NodeMLP)
            (signature.parameters if is_parameter else signature.options)[name] = default
            continue
        if name in _INPUT_AXES and default is parameter.empty:
            default = Axes(_INPUT_AXES[name])
        stem, _, end = name.rpartition("_")
        if not isinstance(default, Axes) or (hint is Node and end not in ("src", "dst")):
            what = "be named …_src or …_dst and have" if hint is Node else "have"
            raise ValueError(
                f"program's argument {name} must {what} axes, such as {name}=axes('src'), got "
                f"{parameter}"
            )
        signature.rows[name] = default
        if hint is not Node:
            signature.others[name] = "num_edges" if hint is Edge else "num_graphs"
        elif stem not in signature.nodes:
            signature.nodes.append(stem)
    return signature


@functools.lru_cache(maxsize=1024)
def _made_program(function: Callable[..., Any], is_bipartite: bool) -> Any:
    """Return the program of a function.

    Without separate destinations, the rows of both ends are one input.
    """
    signature = inspect.signature(function)
    names = [*signature.parameters][1:]
    source = {
        name: f"{name[:-4]}_src" if f"{name[:-4]}_src" in names else name
        for name in names
        if name.endswith("_dst") and not is_bipartite
    }

    @functools.wraps(function)
    def run(g: Any, **values: Any) -> Any:
        return function(
            g, **values, **{dst: values[src] for dst, src in source.items() if src != dst}
        )

    first, *others = signature.parameters.values()
    others = [p for p in others if source.get(p.name, p.name) == p.name]
    keywords = [p.replace(kind=p.KEYWORD_ONLY) for p in others]
    run.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
    return program(run)


# --- Layers --------------------------------------------------------------------------------------


class ProgramLayer(LinearOptions):
    """Base of convolutions whose message passing is a program.

    A subclass names the function as its class argument `program`. Arguments of the function that
    are neither inputs nor parameters get the layer's attributes of their names.

    Attributes:
        in_features: Features per node of the input; a pair for sources and destinations.
        out_features: Features per node of the output.
        structure: Class of the graphs that calls take.
    """

    structure: ClassVar[Any] = Graph
    _program: ClassVar[Callable[..., Any]]
    _call_options: ClassVar[tuple[str, ...]] = ()  # options that a call passes

    in_features: int | tuple[int, int] = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def __init_subclass__(cls, program: Callable[..., Any] | None = None, **options: bool) -> None:
        """Keep the program of a subclass, which is no method."""
        if program is not None:
            cls._program = staticmethod(program)
        super().__init_subclass__(**options)

    def _widths(self) -> dict[str, int | None]:
        """Return the widths by name, further ones in a subclass."""
        src, dst = base.endpoint_sizes(self.in_features)
        edge = getattr(self, "edge_in_features", None)
        widths = {"src": src, "dst": dst, "edge": edge, "out": self.out_features}
        if hasattr(self, "mlp_features"):
            widths["hidden"] = self.mlp_features or self.out_features
        return widths

    def _dropout_rate(self) -> float:
        """Return the rate of the dropout that the program gets."""
        return getattr(self, "attention_dropout_rate", 0.0)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        """Make the parameters that the program's arguments declare."""
        base.endpoint_sizes(self.in_features)
        for name, declared in _signature_of(self._program).parameters.items():
            setattr(self, name, declared.make(name, self, factory, self._widths()))
        self.dropout = nnx.Dropout(self._dropout_rate(), rngs=factory.rngs)

    def __call__(
        self,
        graph: ProgramGraph,
        x: base.NodeFeatures,
        edge_features: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
        **inputs: Any,
    ) -> Any:
        """Run the program.

        Args:
            graph: The graph. `ProgramConv` takes a `jax_gnn.Batch`, too, and a `Hypergraph` whose
                hyperedges are the destinations.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_features: Features of edges, ``(num_edges, *batch, edge_in_features)``, in the
                graph's order (`Graph.edge_values`), of a layer with `edge_in_features`.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
            **inputs: Further inputs of the program by name: arrays or pairs of nodes' rows, as x,
                and of edges' or graphs' rows.

        Returns:
            The program's results, such as the new node features, ``(num_dst, *batch,
            out_features)`` in `dtype`.

        Raises:
            TypeError: The graph is of another kind, or the program has no such input.
            ValueError: A shape does not fit the layer or the graph, or an input is missing.
        """
        check_instance("graph", graph, self.structure)
        graph = graph if isinstance(graph, Batch) else graph.check()
        if hasattr(self, "num_relations") and isinstance(graph, RelationalGraph):
            check_relations(graph, self.num_relations)
        signature = _signature_of(self._program)
        call_options = {name: inputs.pop(name, None) for name in self._call_options}
        values = inputs | ({} if edge_features is None else {"edge_features": edge_features})
        for name in values:
            if name not in signature.nodes and name not in signature.others:
                raise TypeError(
                    f"{name} must be an input of the program, which are "
                    f"{', '.join([*signature.nodes, *signature.others])}, got {name}"
                    f" for {self._program.__name__}"
                )
        is_bipartite, rows = self._rows(graph, {"x": x, **values})
        rows, parameters = self._promoted(rows)
        options = {
            name: getattr(self, name)
            for name in signature.options
            if name != "dropout" and hasattr(self, name)
        } | call_options
        if isinstance(x, tuple) and "add_self_loops" in options:  # nodes of two kinds differ
            options["add_self_loops"] = False
        run = functools.partial(self._function(is_bipartite), graph, **options)
        has_dropout = "dropout" in signature.options
        key = dropout_key(self.dropout, deterministic, rngs) if has_dropout else None

        def apply(rows: dict[str, Any], key: Array | None) -> Any:
            if has_dropout:
                rows = rows | {"dropout": EdgeDropout(key, self._dropout_rate())}
            return run(**rows, **parameters)

        with matmul_precision(self.precision):
            return self._over_batch(apply, rows, key)

    # --- Steps of a call -----------------------------------------------------------------------

    def _function(self, is_bipartite: bool) -> Callable[..., Any]:
        """Return the function of the graph, inputs, parameters and options: the program."""
        run: Callable[..., Any] = _made_program(self._program, is_bipartite)
        return run

    def _rows(
        self, structure: ProgramGraph, values: Mapping[str, Any]
    ) -> tuple[bool, dict[str, Any]]:
        """Return whether the ends of edges have rows of their own, and the inputs by argument."""
        signature, widths = _signature_of(self._program), self._widths()
        graph: Any = structure
        if isinstance(structure, Batch | Hypergraph):
            graph = structure.graph
            check_instance("graph.graph", graph, base.AnyGraph)
        if isinstance(structure, Hypergraph):  # hyperedges are no nodes
            values = {
                name: (value, None)
                if name in signature.nodes and type(value) is not tuple
                else value
                for name, value in values.items()
            }
        is_bipartite = graph.num_src != graph.num_dst or any(
            isinstance(values.get(name), tuple) for name in signature.nodes
        )
        rows: dict[str, Any] = {}
        for name in signature.nodes:
            ends = [f"{name}_src", f"{name}_dst"]
            shapes = [
                signature.rows[end].shape(end, widths) if end in signature.rows else None
                for end in ends
            ]
            pair = _endpoint_rows(graph, name, values.get(name), shapes)
            for end, row in zip(ends, pair, strict=True):
                if end in signature.rows and (is_bipartite or ends[0] not in rows):
                    rows[end] = row
        num_graphs: Any = getattr(structure, "num_graphs", None)
        for name, rows_name in signature.others.items():
            shape, value = signature.rows[name].shape(name, widths), values.get(name)
            if rows_name == "num_graphs" and num_graphs is None and value is not None:
                raise ValueError(f"graph must be a Batch for {name}, rows of graphs, got {graph}")
            count = graph.num_edges if rows_name == "num_edges" else num_graphs
            if shape is None and value is not None:
                raise ValueError(
                    f"{name} must be None without edge_in_features, got {described(value)}"
                )
            is_absent = shape is None or (value is None and signature.rows[name].optional)
            checked = functools.partial(_checked, name, value, rows_name, count)
            rows[name] = None if is_absent else checked(shape or ())
        return is_bipartite, rows

    def _promoted(self, rows: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return inputs and parameters in the dtype of the computation."""
        signature = _signature_of(self._program)
        parameters = {
            name: declared.value(getattr(self, name))
            for name, declared in signature.parameters.items()
        }
        exact = {name for name, declared in signature.rows.items() if declared.exact}
        others = [row for name, row in rows.items() if row is not None and name not in exact]
        dtype = base.promoted_dtype(*others, *jax.tree.leaves(parameters), dtype=self.dtype)
        wide = dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
        promoted = {
            name: None if row is None else row.astype(wide if name in exact else dtype)
            for name, row in rows.items()
        }
        return promoted, jax.tree.map(lambda value: value.astype(dtype), parameters)

    def _over_batch(
        self, apply: Callable[..., Any], rows: dict[str, Any], key: Array | None
    ) -> Any:
        """Apply a function of rows without batch axes to rows that may have some."""
        signature, widths = _signature_of(self._program), self._widths()
        batches = {
            name: row.shape[1 : row.ndim - len(signature.rows[name].shape(name, widths) or ())]
            for name, row in rows.items()
            if row is not None
        }
        batch = max(batches.values(), key=len)
        if not batch:
            return apply(rows, key)
        for name, shape in batches.items():
            if shape not in ((), batch):
                raise ValueError(
                    f"{name.removesuffix('_src').removesuffix('_dst')} must have no batch axes, or "
                    f"{batch} as other inputs have, got {shape}"
                )
        count = math.prod(batch)
        flat = {
            name: row.reshape(len(row), count, *row.shape[1 + len(batch) :])
            if batches.get(name)
            else row
            for name, row in rows.items()
        }
        row_axes = {name: 1 if batches.get(name) else None for name in rows}
        keys = None if key is None else jax.random.split(key, count)
        results = jax.vmap(apply, (row_axes, None if key is None else 0), 1)(flat, keys)
        return jax.tree.map(lambda y: y.reshape(len(y), *batch, *y.shape[2:]), results)


def _endpoint_rows(
    graph: Graph | RelationalGraph, name: str, value: Any, shapes: Sequence[tuple[int, ...] | None]
) -> tuple[Array | None, Array | None]:
    """Return the rows of sources and of destinations; None for an end without axes."""
    ends = ("num_src", graph.num_src), ("num_dst", graph.num_dst)
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ValueError(f"{name} must be an array or a pair, got {len(value)} arrays")
        src, dst = (
            None if shape is None else _checked(f"{name}[{i}]", value[i], *ends[i], shape)
            for i, shape in enumerate(shapes)
        )
        return src, dst
    present = [shape for shape in shapes if shape is not None]
    if len({*present}) > 1:
        raise ValueError(
            f"{name} must be a pair for rows of {shapes[0]} and {shapes[1]}, got {described(value)}"
        )
    if base.num_rows(graph) == graph.num_dst:
        rows = _checked(name, value, "num_nodes", graph.num_dst, present[0])
    else:
        base.check_destinations_are_sources(graph)
        rows = _checked(name, value, *ends[0], present[0])
    return base.source_rows(graph, rows), base.destination_rows(graph, rows)


def _checked(name: str, value: Any, rows_name: str, rows: int, shape: tuple[int, ...]) -> Array:
    """Return an input of this many rows, whose last axes are `shape`."""
    if value is None:
        raise ValueError(f"{name} must be an array of the program's input, got None")
    array: Array = as_array(name, value)
    split = array.ndim - len(shape)
    if split < 1 or array.shape[0] != rows or array.shape[split:] != shape:
        sizes = ", ".join(map(str, shape))
        raise ValueError(
            f"{name} must have shape ({rows_name}, ..., {sizes}) = ({rows}, ..., {sizes}), got "
            f"{array.shape}"
        )
    return array


def matmul_precision(precision: Any) -> Any:
    """Return a context in which products have this precision."""
    if precision is None:
        return contextlib.nullcontext()
    precision = precision[0] if isinstance(precision, tuple) else precision
    name = precision.name.lower() if isinstance(precision, jax.lax.Precision) else precision
    return jax.default_matmul_precision(name)


class ProgramOptions(LinearOptions):
    """Options of `ProgramConv`, and of `ProgramModel` for its convolutions.

    Attributes:
        function: Function of an edge, see `ProgramConv`.
        edge_in_features: Features per edge; None if edges have none.
        widths: Sizes that axes of the program's arguments name, beside "src", "dst", "edge" and
            "out".
        edge_dropout_rate: Share of what the program's `dropout` drops in training, in [0, 1].
    """

    function: Callable[..., Any]
    edge_in_features: int | None = None
    widths: Mapping[str, int] | None = None
    edge_dropout_rate: float = 0.0


class ProgramConv(ProgramOptions, ProgramLayer):
    """Convolution whose message passing is a function of an edge, as of `jax_gnn.program`.

    The function's first argument is the edge, `g`. The signature declares the others:

    - Inputs are annotated. ``x_src: Node`` and ``x_dst: Node`` are rows of x, of sources and of
      destinations; other inputs of nodes have names that end alike. ``edge_features: Edge`` are
      features of edges. Inputs beside these have axes, as in ``pos_src: Node = axes(3)`` and in
      ``u: Global = axes(8)``, a row of each graph of a batch.
    - Parameters have `axes`, or are a `dense`. One that is annotated as `jax_gnn.Relation`
      has a row for each relation.
    - An argument `dropout` is a function of `g` and a row of the edge, which it drops entries of.

    All are functions of single rows; axes of batches are added by the layer. The destinations of a
    bipartite graph, such as a sampled block, are the first of its sources, unless x is a pair.

    Attributes:
        function: The function.

    Example:
        >>> def gated(g, x_src: Node, x_dst: Node, *, gate=axes("dst"), w=axes("src", "out")):
        ...     return g.sum(jax.nn.sigmoid(g.dst(x_dst @ gate)) * g.src(x_src @ w))
        >>> conv = ProgramConv(4, 8, function=gated, rngs=nnx.Rngs(0))
        >>> conv(Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3), jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = ProgramGraph

    @property
    def _program(self) -> Callable[..., Any]:  # type: ignore[override]  # a field here
        return self.function

    def _widths(self) -> dict[str, int | None]:
        return super()._widths() | dict(self.widths or {})

    def _dropout_rate(self) -> float:
        return self.edge_dropout_rate

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_callable("function", self.function)
        if self.widths is not None:
            check_instance("widths", self.widths, Mapping)
            check_positive(**{f"widths[{name!r}]": size for name, size in self.widths.items()})
            self.widths = base.Sizes(self.widths)
        super()._make_parameters(factory)


class ProgramModel(ProgramOptions, base.Stack):
    """Model of three `ProgramConv` by default, all of one program.

    Its call takes the arguments of `ProgramConv`'s.

    Example:
        >>> def mean(g, x_src: Node, *, w=axes("src", "out")):
        ...     return g.mean(g.src(x_src @ w))
        >>> model = ProgramModel(4, 8, 3, function=mean, rngs=nnx.Rngs(0))
        >>> model(Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3), jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = ProgramConv
    dropout_in_convolutions = True

    def _make_layers(self, factory: ParameterFactory) -> None:
        super()._make_layers(factory)
        self.widths = self.convolutions[0].widths  # hashable, as static attributes must be
