"""``jax_gnn.program``: a function of one edge's rows as a function of a graph and arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_gnn._core.arguments import to_array
from jax_gnn._core.ffi import implementation
from jax_gnn._core.ids import is_traced
from jax_gnn._core.op import align_varying, varying_axes
from jax_gnn._core.public import Decorated, public
from jax_gnn._program import reference
from jax_gnn._program.backend import settings
from jax_gnn._program.matrices import Matrices, Structure, parts_of
from jax_gnn._program.passes import DISTRIBUTE, PASSES
from jax_gnn._program.plan import Plan, make_plan, tune_plan
from jax_gnn._program.rows import Input, Row, topological_order
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Parts, Space
from jax_gnn._program.trace import Argument, EdgeView, Traced, annotated_spaces, trace, unwrap
from jax_gnn.batches import Batch
from jax_gnn.graph import Graph, check_index
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph

ProgramGraph = Structure | Hypergraph | HeteroGraph | EdgeView


class _Call(NamedTuple):
    """The arguments of one call.

    Attributes:
        graph: The graph.
        arrays: All arrays among the arguments.
        names: Name of each array in errors.
        spaces: Space of each array.
        with_rows: Calls the function with an edge, and rows in place of the arrays.
        key: A key that calls with the same plan share; None if arguments are not hashable.
    """

    graph: Structure
    arrays: list[Any]
    names: list[str]
    spaces: list[Space]
    with_rows: Callable[[EdgeView, Sequence[Any]], Any]
    key: Any

    @property
    def parts(self) -> Parts:
        """The spaces of the graph."""
        return parts_of(self.graph)


@public
class Program(Decorated):
    """A function of a graph and of arrays, made by :func:`program`."""

    def __init__(
        self,
        function: Callable[..., Any],
        passes: Sequence[str],
        tune: bool = False,
        has_constants: bool = False,
    ) -> None:
        """Make a program.

        Args:
            function: See `program`, as for the next two.
            passes: See there.
            tune: See there.
            has_constants: Whether arrays that the function closes over stay the same.
        """
        super().__init__(function, tuple(passes), tune)
        self._name = getattr(unwrap(function), "__name__", "program")
        self._passes = tuple(passes)
        self._tune = tune
        self._has_constants = has_constants
        self._plans: dict[Any, Plan] = {}
        if not isinstance(unwrap(function), FunctionType):
            raise TypeError(
                "program takes a function of an edge, g, and of rows, got "
                f"{type(function).__name__}: write one with def"
            )
        self._signature = inspect.signature(function)
        first = next(iter(self._signature.parameters), None)
        if first is None:
            raise TypeError(f"program {self._name} must take an edge, g, first, got no arguments")
        if first in ("self", "cls"):
            raise TypeError(
                f"program {self._name} must take an edge, g, first, got {first}: write the program "
                "outside of the class, and pass it what it needs of the object"
            )

    @functools.cached_property
    def _spaces(self) -> dict[str, Space]:
        return annotated_spaces(self._function)

    # --- What users call -----------------------------------------------------------------------

    def __call__(self, graph: ProgramGraph, *args: object, **kwargs: object) -> Any:
        """Run the program.

        Args:
            graph: A `Graph`, bipartite ones too, a `RelationalGraph`, a `Batch` of either, an
                undirected `Hypergraph`, whose incidences are edges from nodes to hyperedges, or a
                `HeteroGraph` with graphs (`HeteroGraph.with_graphs`), of which each edge type runs
                the program; within another program its ``g`` or ``g.reverse``, with rows as
                arguments and results.
            *args: The function's arguments after ``g``: arrays, or pytrees of arrays, with a row
                for each member of the annotated space; other values are passed on as they are. For
                a `HeteroGraph`, dicts by type of nodes, whose names end in ``_src`` or ``_dst``,
                and by edge type; dicts of shared arguments by edge type, too.
            **kwargs: Keyword arguments of the function.

        Returns:
            The function's results, with rows in front: ``(num_dst, *row)`` for nodes, or
            ``(num_src, *row)`` for sources, ``(num_edges, *row)`` for edges, zeros if they are
            padding, and ``(num_graphs, *row)`` for graphs. For a `HeteroGraph`, a dict in the place
            of each: of nodes the sums over edge types by type of nodes, all others by edge type.

        Raises:
            TypeError: the graph or an argument has the wrong type, or Python looks at what rows
                hold.
            ValueError: rows do not fit together, or to the graph. Errors name the user's line.
        """
        if isinstance(graph, EdgeView):  # of a program that calls this one
            return self._function(graph, *args, **kwargs)
        return self._joined(self._run, graph, args, kwargs)

    def reference(self, graph: ProgramGraph, *args: object, **kwargs: object) -> Any:
        """Run the program in plain JAX as it is written: ``jax.vmap`` and ``jax.ops.segment_…``.

        Used for debugging and tests. Arguments, results and errors are those of a call.
        """
        return self._joined(self._run_reference, graph, args, kwargs)

    def explain(self, graph: ProgramGraph, *args: object, **kwargs: object) -> str:
        """Return the rows of the program after each pass, and the ops that compute them.

        Arguments and errors are those of a call. Times are estimates for an H200.
        """
        from jax_gnn._program.explain import explain

        if isinstance(graph, HeteroGraph):
            return self._text_by_type(self.explain, graph, args, kwargs)
        call = self._call(graph, args, kwargs)
        plan, _ = self._plan(call)
        return explain(plan, call.graph, self._passes)

    def kernels(self, graph: ProgramGraph, *args: object, **kwargs: object) -> str:
        """Return the code that is generated for the program's edge regions and their gradients.

        Arguments and errors are those of a call. For each region the instructions, and the CUDA
        source that is compiled on a GPU; of a program without regions nothing. No GPU is needed.
        """
        from jax_gnn._program.explain import kernels

        if isinstance(graph, HeteroGraph):
            return self._text_by_type(self.kernels, graph, args, kwargs)
        with implementation("cuda"):
            call = self._call(graph, args, kwargs)
            plan, _ = self._plan(call)
            return kernels(plan, call.graph)

    def planned(self, graph: Structure, *args: object) -> Plan:
        """Return the plan of a call. Arguments are those of a call; arrays may be abstract."""
        plans: list[Plan] = []

        def plan(graph: Structure, args: Sequence[object]) -> None:
            plans.append(self._plan(self._call(graph, args, {}))[0])

        jax.eval_shape(plan, graph, args)
        return plans[0]

    def _by_edge_type(self, run: Callable[..., Any], graph: HeteroGraph, call: Any) -> Any:
        """Return the results of `run` for each edge type."""
        from jax_gnn._program.by_edge_type import run_by_edge_type

        return run_by_edge_type(self._name, self._spaces, self._bound(*call), graph, run)

    def _text_by_type(self, run: Callable[..., Any], graph: HeteroGraph, *call: Any) -> str:
        """Return the texts of each edge type."""
        texts = self._by_edge_type(run, graph, call)
        return "\n\n".join(f"{key}: {text}" for key, text in texts.items())

    def _joined(self, run: Callable[..., Any], graph: ProgramGraph, *call: Any) -> Any:
        """Return the results of a run, or those for each edge type joined by type."""
        if not isinstance(graph, HeteroGraph):
            args, kwargs = call
            return run(graph, *args, **kwargs)[0]
        from jax_gnn._program.by_edge_type import joined_results

        return joined_results(self._by_edge_type(run, graph, call))

    def _run(self, graph: Structure, *args: object, **kwargs: object) -> tuple[Any, Sequence[Row]]:
        """Return the results of a call, and their rows in the program, flattened."""
        call = self._call(graph, args, kwargs)
        plan, is_cached = self._plan(call)
        inputs = [*call.arrays, *plan.traced.closed_over]
        is_compiled = is_cached and not is_traced(*jax.tree.leaves((call.graph, inputs)))
        run = plan.compiled if is_compiled else plan.run
        return run(call.graph, inputs), plan.traced.results

    def _run_reference(
        self, graph: Structure, *args: object, **kwargs: object
    ) -> tuple[Any, Sequence[Row]]:
        """Return the results of `reference`, and their rows in the program, flattened."""
        call = self._call(graph, args, kwargs)
        traced, sides = self._traced(call)
        inputs = [*call.arrays, *traced.closed_over]
        results = reference.evaluate(traced.results, Matrices(call.graph), inputs, sides)
        return jax.tree.unflatten(traced.tree, results), traced.results

    # --- Arguments -----------------------------------------------------------------------------

    def _bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        """Return the arguments by name, without an edge."""
        try:
            return self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"program {self._name}: {error}") from None

    def _call(self, graph: object, args: Sequence[object], kwargs: Mapping[str, object]) -> _Call:
        """Bind the arguments of a call and collect their arrays."""
        graph = self._checked(graph)
        bound = self._bound(args, kwargs)
        edge, *names = bound.arguments
        graph, bound.arguments = _aligned(graph, bound.arguments)
        leaves, tree = jax.tree_util.tree_flatten_with_path(
            {name: bound.arguments[name] for name in names}
        )
        arrays: dict[int, Any] = {}
        names_and_spaces: list[tuple[str, Space]] = []
        for place, (path, leaf) in enumerate(leaves):
            first = path[0]
            assert isinstance(first, jax.tree_util.DictKey)
            space = self._spaces.get(first.key, Space.SHARED)
            name = f"{first.key}{jax.tree_util.keystr(path[1:])}"
            if space is not Space.SHARED or _is_array(leaf):
                if not _is_array(leaf) and len(path) > 1:
                    raise TypeError(
                        f"program {self._name}: {first.key} must be an array with a row for each "
                        f"{space.value}, or a pytree of such, got {type(leaf).__name__} in a "
                        f"{type(bound.arguments[first.key]).__name__}: pass "
                        f"jnp.asarray({first.key})"
                    )
                arrays[place] = leaf if _is_array(leaf) else to_array(name, leaf)
                names_and_spaces.append((name, space))

        def with_rows(view: EdgeView, rows: Sequence[Any]) -> Any:
            new = [leaf for _, leaf in leaves]
            for place, row in zip(arrays, rows, strict=True):
                new[place] = row
            values = {edge: view, **jax.tree.unflatten(tree, new)}
            call = inspect.BoundArguments(self._signature, {**values})
            return self._function(*call.args, **call.kwargs)

        key: Any = (
            settings(),
            jax.tree.structure(graph),
            _varying((graph, arrays)),
            *(_static(leaf) for leaf in jax.tree.leaves(graph)),
            tree,
            # 1, 1.0 and True are equal, as are 0.0 and -0.0, also within other values.
            *(
                _static(arrays[i]) if i in arrays else (type(x), x, repr(x))
                for i, (_, x) in enumerate(leaves)
            ),
        )
        try:
            hash(key)
        except TypeError:
            key = None
        argument_names = [name for name, _ in names_and_spaces]
        spaces = [space for _, space in names_and_spaces]
        return _Call(graph, [*arrays.values()], argument_names, spaces, with_rows, key)

    def _checked(self, graph: object) -> Structure:
        """Return a graph, a batch of graphs, or the incidences of a hypergraph, checked."""
        if isinstance(graph, Hypergraph):
            graph = graph.check()
            if graph.head is not None:
                raise ValueError(
                    f"program {self._name}: graph must be an undirected hypergraph, whose "
                    "incidences go both ways, got a directed one: call one program with "
                    "hypergraph.graph, from nodes to hyperedges, and one with "
                    "hypergraph.head.transpose(), back to nodes"
                )
            return graph.graph
        if isinstance(graph, Batch) and isinstance(graph.graph, Graph | RelationalGraph):
            inner, ids = graph.graph.check("graph.graph"), graph.graph_ids
            check_index("graph.num_nodes", graph.num_nodes)
            check_index("graph.graph_ids", ids)
            if ids.shape != (inner.num_nodes,):
                raise ValueError(
                    f"graph.graph_ids must be (num_nodes,) = ({inner.num_nodes},), got shape "
                    f"{ids.shape}"
                )
            return replace(graph, graph=inner)
        if not isinstance(graph, Graph | RelationalGraph):
            raise TypeError(
                f"program {self._name}: graph must be a Graph, a RelationalGraph, a Batch of these "
                f"or a Hypergraph or HeteroGraph, got {type(graph).__name__}"
            )
        return graph.check()

    def _check_space(self, name: str, space: Space, call: _Call) -> None:
        """Reject an argument of a space that the graph lacks."""
        if space in call.parts.rows:
            return
        requirement = {
            Space.GRAPH: "graphs: pass a Batch",
            Space.RELATION: "relations: pass a RelationalGraph",
            Space.TYPE: "types of nodes: RelationalGraph.from_edge_dict makes one that has",
        }[space]
        raise ValueError(
            f"program {self._name}: {name} has a row for each {space.value}, and the graph has no "
            f"{requirement}, got {call.graph}"
        )

    def _traced(self, call: _Call) -> tuple[Traced, Sides]:
        """Trace the program for checked arguments."""
        arguments = []
        for name, space, array in zip(call.names, call.spaces, call.arrays, strict=True):
            shape = tuple(array.shape)
            if space is not Space.SHARED:
                self._check_space(name, space, call)
                if not shape:
                    raise ValueError(
                        f"program {self._name}: {name} must have a row for each {space.value}, got "
                        "a scalar"
                    )
                shape = shape[1:]
            dtype = jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)
            like: Any = jax.ShapeDtypeStruct(shape, dtype)
            if _varying(array):  # over manual mesh axes, as what is made of it will
                like = jax.typeof(array).update(shape=shape, weak_type=False)
            arguments.append(Argument(name, space, shape, dtype, like))
        result_space = self._spaces.get("return")
        traced = trace(self._function, self._name, arguments, call.with_rows, result_space)
        bipartite = call.parts.num_src != call.parts.num_dst
        sides = Sides(traced.results, self._name, bipartite=bipartite)
        self._check_rows(traced.results, call, sides)
        return traced, sides

    def _check_rows(self, results: Sequence[Row], call: _Call, sides: Sides) -> None:
        """Reject arrays with another number of rows than the graph has."""
        parts = call.parts
        for row in topological_order(results):
            if getattr(row.op, "way", "") == "graph" and Space.GRAPH not in parts.rows:
                raise ValueError(
                    f"program {self._name}, {row.line}: g.graph is the graph of a node in a batch: "
                    f"graph must be a Batch, got {call.graph}"
                )
            if not isinstance(row.op, Input) or row.space is Space.SHARED:
                continue
            size, what = parts.rows[row.space], row.space.value
            if row.space is Space.NODE and parts.num_src != parts.num_dst:
                is_src = sides.of(row) == "src"
                size = parts.num_src if is_src else parts.num_dst
                what = "source" if is_src else "destination"
            shape = tuple(call.arrays[row.op.index].shape)
            if shape[0] != size:
                raise ValueError(
                    f"program {self._name}: {row.op.name} must have a row for each {what} of the "
                    f"graph, {size}, got shape {shape}"
                )

    def _plan(self, call: _Call) -> tuple[Plan, bool]:
        """Return the plan of a call, and whether it is cached."""
        if call.key is not None and call.key in self._plans:
            return self._plans[call.key], True
        traced, _ = self._traced(call)
        inputs = [*call.arrays, *traced.closed_over]
        if self._tune and not is_traced(*jax.tree.leaves((call.graph, inputs))):
            plan = tune_plan(Plan(traced, call.parts, self._passes), call.graph, inputs)
        else:
            plan = make_plan(traced, call.parts, self._passes)
        # What is closed over may be another array next time.
        is_fixed = self._has_constants or not traced.closed_over
        is_cacheable = call.key is not None and is_fixed
        if is_cacheable:
            self._plans[call.key] = plan
        return plan, is_cacheable


def _is_array(leaf: object) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _varying(tree: object) -> frozenset[str]:
    """Return the manual mesh axes that arrays vary over, inside ``jax.shard_map``."""
    tracers = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.core.Tracer)]
    return frozenset().union(*(varying_axes(jax.typeof(tracer)) for tracer in tracers))


def _aligned(graph: Structure, arguments: Any) -> tuple[Structure, dict[str, Any]]:
    """Return the arguments, varying over the same manual mesh axes."""
    if not _varying((graph, dict(arguments))):
        return graph, arguments
    leaves, tree = jax.tree.flatten((graph, dict(arguments)))
    places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    arrays = align_varying([jnp.asarray(leaves[i]) for i in places])
    for place, array in zip(places, arrays, strict=True):
        leaves[place] = array
    graph, arguments = jax.tree.unflatten(tree, leaves)
    return graph, arguments


def _static(array: Any) -> tuple[Any, ...]:
    """Return shape and dtype of an array."""
    return tuple(array.shape), str(
        jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)
    )


@public
def program(
    function: Callable[..., Any] | None = None,
    *,
    passes: Sequence[str] = PASSES,
    tune: bool = False,
) -> Any:
    """Turn a function of one edge's rows into one of a graph, lowered to this library's ops.

    The function's first argument, ``g``, reads rows along the edge and reduces them over edges:
    ``g.src(x)``, ``g.dst(x)``, ``g.relation(w)``, ``g.src_type(w)``, ``g.dst_type(w)`` and
    ``g.node_type(w)`` read; ``g.sum(m)``, ``g.mean(m)``, ``g.max(m)`` and ``g.min(m)`` reduce over
    the edges into each node, and ``g.softmax(s)`` is the softmax over these; ``g.key(key)`` is a
    random key of the edge. ``g.reverse`` is the reverse edge, which reduces into sources;
    ``g.graph(u)`` reads, and ``g.graph.sum(x)`` and others reduce over the nodes of each graph of a
    batch. All else is ``jax.numpy`` on rows. Annotations say what an argument has a row for:
    `Node`, `Edge`, `Relation`, `NodeType` or `Global`; what has none is shared. Results may live
    anywhere.

    What is written for edges is computed where fewer rows suffice, products in the order that takes
    least, and each piece by the op that serves it (Hector, Wu et al., ASPLOS 2024, section 3).
    ``jax.jit``, ``jax.grad``, ``jax.vmap`` and all others apply to the result.

    Args:
        function: A function of ``g`` and rows.
        passes: Names of the passes that are applied, by default the first seven. ``"cse"``: equal
            values are computed once; ``"factor_scales"``: products of scaled copies of a row become
            scaled products of the row; ``"hoist_linear_maps"``: products of concatenations become
            sums of products; ``"contraction_order"``: products and sums over edges take the
            cheapest order; ``"compact_pairs"``: functions of nodes, relations or their pairs are
            computed for these; ``"split_softmax"``: softmaxes become maxima and sums of
            exponentials, in edge regions; ``"inline_pairs"``: edge regions compute functions of
            pairs where they read these. ``"distribute"``: linear maps of sums and differences, as
            in ``(x_u - x_v) @ w``, become sums of linear maps; it loses digits where terms cancel.
        tune: Whether to measure the three ways that are counted best, once for each size of
            arguments, outside of ``jax.jit``.

    Returns:
        A :class:`Program`, which is called with a graph and the function's other arguments. Without
        ``function``, a decorator.

    Raises:
        TypeError: `function` is no function, is a method or takes no arguments; or `passes` is a
            string.
        ValueError: A pass is unknown.

    Example:
        >>> @program
        ... def convolution(g, x: Node, w):
        ...     return g.sum(g.src(x) @ w)
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> convolution(graph, jnp.eye(3), jnp.ones((3, 1)))
        Array([[2.],
               [1.],
               [0.]], dtype=float32)
    """
    choices = *PASSES, DISTRIBUTE
    if isinstance(passes, str):
        raise TypeError(f"passes must be a sequence of names, got {passes!r}: write ({passes!r},)")
    unknown = [name for name in passes if name not in choices]
    if unknown:
        raise ValueError(f"passes must be among {', '.join(choices)}, got {', '.join(unknown)}")
    if function is None:
        return functools.partial(program, passes=passes, tune=tune)
    return Program(function, passes, tune)
