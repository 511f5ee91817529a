"""``jax_gnn.program``: a function of one edge's rows as a function of a graph and arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_gnn._core.arguments import to_array
from jax_gnn._core.ids import is_traced
from jax_gnn._core.public import public
from jax_gnn._program import reference
from jax_gnn._program.lower import Lowering
from jax_gnn._program.maps import Maps, Structure
from jax_gnn._program.match import Matcher
from jax_gnn._program.passes import PASSES, run
from jax_gnn._program.rows import Row, in_order, uses_of
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Space
from jax_gnn._program.trace import Argument, EdgeView, Traced, annotated_spaces, trace
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph


class _Call(NamedTuple):
    """The arguments of one call, as arrays.

    Attributes:
        graph: The graph.
        arrays: All arrays.
        names: What each is called.
        spaces: Where their rows live.
        rebuild: Puts rows in the places of arrays: positional and keyword arguments.
        key: What calls that share a plan have in common; None if that cannot be known.
    """

    graph: Structure
    arrays: list[Any]
    names: list[str]
    spaces: list[Space]
    rebuild: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    key: Any


@dataclass(frozen=True, eq=False)
class Plan:
    """A program for graphs and arrays of given sizes.

    Attributes:
        traced: As it was written.
        results: After all passes.
        matcher: Of these.
        sides: Likewise.
    """

    traced: Traced
    results: tuple[Row, ...]
    matcher: Matcher
    sides: Sides

    def run(self, graph: Structure, given: Sequence[Any]) -> Any:
        """What the program gives."""
        lowering = Lowering(Maps(graph), self.matcher, self.sides, given)
        return jax.tree.unflatten(self.traced.tree, lowering.results(self.results))

    @functools.cached_property
    def compiled(self) -> Callable[[Structure, Sequence[Any]], Any]:
        """The same as one compiled call."""
        return jax.jit(self.run)


@public
class Program:
    """A program of messages, see :func:`program`."""

    def __init__(
        self, function: Callable[..., Any], passes: Sequence[str], tune: bool
    ) -> None:
        functools.update_wrapper(self, function)
        self.__module__ = getattr(function, "__module__", "jax_gnn")
        self._function = function
        self._name = getattr(function, "__name__", "program")
        self._passes = tuple(passes)
        self._tune = tune
        self._plans: dict[Any, Plan] = {}
        self._signature = inspect.signature(function)
        if not self._signature.parameters:
            raise TypeError(f"program {self._name} must take the edge, g, first, got no arguments")

    @functools.cached_property
    def _spaces(self) -> dict[str, Space]:
        return annotated_spaces(self._function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A program in a class is a method, whose graph comes after the instance."""
        if instance is None:
            return self
        raise TypeError(
            f"program {self._name} must be a function outside of classes, got a method: pass "
            "what it needs of the instance as arguments"
        )

    # --- What users call -----------------------------------------------------------------------

    def __call__(self, graph: Structure, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Args:
            graph: A `Graph`, bipartite ones too, or a `RelationalGraph`.
            *args: What the function takes after ``g``: arrays with rows in front, or pytrees of
                such, as its annotations say.
            **kwargs: Likewise.

        Returns:
            What the function returns, with rows in front.

        Raises:
            TypeError: an argument is none of these, or Python looks at what rows hold.
            ValueError: rows do not fit together or to the graph. Errors name the line.
        """
        call = self._bound(graph, args, kwargs)
        plan = self._plan(call)
        given = [*call.arrays, *plan.traced.closed_over]
        leaves = jax.tree.leaves((call.graph, given))
        ready = all(isinstance(each, jax.Array) for each in leaves) and not is_traced(*leaves)
        if ready and call.key in self._plans:
            return plan.compiled(call.graph, given)
        return plan.run(call.graph, given)

    def reference(self, graph: Structure, *args: Any, **kwargs: Any) -> Any:
        """The same in plain JAX, unoptimised: ``jax.vmap`` and ``jax.ops.segment_…``.

        For debugging, and for tests: arguments and results are those of a call.
        """
        call = self._bound(graph, args, kwargs)
        traced = self._traced(call)
        maps = Maps(call.graph)
        sides = self._sides_of(traced.results, call, maps)
        given = [*call.arrays, *traced.closed_over]
        return jax.tree.unflatten(
            traced.tree, reference.evaluate(traced.results, maps, given, sides)
        )

    # --- From arguments to a plan --------------------------------------------------------------

    def _bound(self, graph: Any, args: Any, kwargs: Any) -> _Call:
        """The arguments by name, and their arrays."""
        if not isinstance(graph, Graph | RelationalGraph):
            raise TypeError(
                f"program {self._name}: graph must be a Graph or a RelationalGraph, got "
                f"{type(graph).__name__}"
            )
        graph = graph.check()
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"program {self._name}: {error}") from None
        first = next(iter(self._signature.parameters))
        given = dict(bound.arguments)
        del given[first]
        leaves, tree = jax.tree_util.tree_flatten_with_path(given, is_leaf=lambda x: x is None)
        arrays, names, spaces, places = [], [], [], []
        rest: list[Any] = []
        for i, (path, leaf) in enumerate(leaves):
            argument = path[0].key  # type: ignore[union-attr]
            space = self._spaces.get(argument, Space.SHARED)
            name = argument + jax.tree_util.keystr(path[1:])
            if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
                arrays.append(leaf)
            elif space is not Space.SHARED and leaf is not None:
                arrays.append(to_array(name, leaf))
            else:
                rest.append((i, leaf))
                continue
            names.append(name)
            spaces.append(space)
            places.append(i)

        def rebuild(rows: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            flat = dict(zip(places, rows, strict=True)) | dict(rest)
            named = jax.tree.unflatten(tree, [flat[i] for i in range(len(leaves))])
            full = self._signature.bind(None)if not named else inspect.BoundArguments(
                self._signature, {first: None, **named}  # type: ignore[arg-type]
            )
            return full.args[1:], full.kwargs

        shapes = tuple((each.shape, str(each.dtype)) for each in arrays)
        nodes = graph if isinstance(graph, Graph) else graph.nodes
        sizes = tuple((each.shape, str(each.dtype)) for each in jax.tree.leaves(graph))
        key: Any = (jax.tree.structure(graph), sizes, tree, shapes, tuple(rest), nodes.num_src)
        try:
            hash(key)
        except TypeError:
            key = None
        return _Call(graph, arrays, names, spaces, rebuild, key)

    def _traced(self, call: _Call) -> Traced:
        arguments = []
        for name, space, array in zip(call.names, call.spaces, call.arrays, strict=True):
            shape = tuple(np.shape(array))
            if space is not Space.SHARED:
                self._check_space(name, space, call.graph)
                if not shape:
                    raise ValueError(
                        f"program {self._name}: {name} must have a row for each {space.value}, got "
                        "a scalar"
                    )
                shape = shape[1:]
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            arguments.append(Argument(name, space, shape, dtype))

        def invoke(view: EdgeView, rows: Sequence[Any]) -> Any:
            args, kwargs = call.rebuild(rows)
            return self._function(view, *args, **kwargs)

        wanted = self._spaces.get("return")
        traced = trace(self._function, self._name, arguments, invoke, wanted)
        self._check_ways(traced, call.graph)
        return traced

    def _check_space(self, name: str, space: Space, graph: Structure) -> None:
        if space is Space.RELATION and not isinstance(graph, RelationalGraph):
            raise ValueError(
                f"program {self._name}: {name} has a row for each relation, and the graph has no "
                f"relations: pass a RelationalGraph, got {graph}"
            )
        if space is Space.TYPE and getattr(graph, "node_type_sizes", None) is None:
            raise ValueError(
                f"program {self._name}: {name} has a row for each type of nodes, and the graph's "
                f"nodes have no types: RelationalGraph.from_edge_dict gives them, got {graph}"
            )

    def _check_ways(self, traced: Traced, graph: Structure) -> None:
        del traced, graph  # rows of relations and types come from arguments alone

    def _sides_of(self, results: Sequence[Row], call: _Call, maps: Maps) -> Sides:
        parts = maps.parts
        apart = parts.num_src != parts.num_dst
        sides = Sides(results, self._name, apart=apart)
        rows = {row.op.index: row for row in in_order(results) if hasattr(row.op, "index")
                and not row.operands}
        for i, (name, space) in enumerate(zip(call.names, call.spaces, strict=True)):
            if space is Space.SHARED:
                continue
            count = call.arrays[i].shape[0]
            side = sides.of(rows[i]) if i in rows else ""
            if not side and space is Space.NODE:
                continue  # which nothing reads
            wanted = maps.size(space, side)
            if count != wanted:
                what = {"src": "source", "dst": "destination"}.get(side, "") if apart else ""
                raise ValueError(
                    f"program {self._name}: {name} must have a row for each "
                    f"{what if space is Space.NODE and what else space.value}, {wanted}, got shape "
                    f"{tuple(call.arrays[i].shape)}"
                )
        return sides

    def _plan(self, call: _Call) -> Plan:
        if call.key is not None and call.key in self._plans:
            return self._plans[call.key]
        traced = self._traced(call)
        maps = Maps(call.graph)
        self._sides_of(traced.results, call, maps)
        results = run(traced.results, self._passes, maps.parts)
        apart = maps.parts.num_src != maps.parts.num_dst
        plan = Plan(
            traced,
            tuple(results),
            Matcher(uses_of(results), maps.parts, "compact" in self._passes),
            Sides(results, self._name, apart=apart),
        )
        if call.key is not None and not traced.closed_over:
            self._plans[call.key] = plan
        return plan


@public
def program(
    function: Callable[..., Any] | None = None,
    *,
    passes: Sequence[str] = PASSES,
    tune: bool = False,
) -> Any:
    """Makes a function of one edge's rows a function of a graph: it is lowered to this library's ops.

    The function's first argument, ``g``, reads rows along the edge and reduces them, see
    `EdgeView`: ``g.src(x)``, ``g.dst(x)``, ``g.relation(w)``, ``g.sum(m)``, ``g.softmax(s)`` and
    their kind. What is between is ``jax.numpy`` on rows. Annotations say what arguments have a row
    for: `Node`, `Edge`, `Relation`, `NodeType`; one without is shared. Results may live anywhere.

    Passes rewrite it: what is computed at edges goes to the (source, relation) or (destination,
    relation) pairs or the nodes that suffice, products change their order, and each piece becomes
    the op that serves it. All of JAX's transformations apply to the result.

    Args:
        function: Of ``g`` and rows.
        passes: Which passes to run.
        tune: Whether to measure the best ways once for each size of graphs, in place of counting.

    Raises:
        ValueError: a pass is unknown.

    Example:
        >>> @program
        ... def gcn(g, x: Node, w):
        ...     return g.sum(g.src(x) @ w)
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> gcn(graph, jnp.eye(3), jnp.ones((3, 1)))
        Array([[2.],
               [1.],
               [0.]], dtype=float32)
    """
    unknown = [each for each in passes if each not in PASSES]
    if unknown:
        raise ValueError(f"passes must be among {', '.join(PASSES)}, got {', '.join(unknown)}")
    if function is None:
        return functools.partial(program, passes=passes, tune=tune)
    return Program(function, passes, tune)


__all__ = ["Program", "program", "replace"]
