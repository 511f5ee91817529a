"""Tracing: from a Python function of one edge's rows to a graph of rows, with all input errors.

JAX traces the function with one row of each argument; ``g.…`` leaves primitives in the jaxpr. A
walk over the jaxpr infers the space of each value and finds rows that do not fit together. Errors
name the user's line.
"""

from __future__ import annotations

import functools
import linecache
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters import ad, batching

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.ids import is_traced
from jax_gnn._core.op import varying_axes
from jax_gnn._ops.edge_region.region import is_constant
from jax_gnn._program.rows import (
    MAX_CONSTANT,
    Apply,
    Constant,
    Index,
    Input,
    Push,
    Row,
    RowFunction,
    Softmax,
    apply,
    constant,
    pull,
)
from jax_gnn._program.spaces import Space

Node = Annotated[Array, Space.NODE]
"""A program's argument that has a row for each node."""

Edge = Annotated[Array, Space.EDGE]
"""A program's argument that has a row for each edge, in the graph's order."""

Relation = Annotated[Array, Space.RELATION]
"""A program's argument that has a row for each relation."""

NodeType = Annotated[Array, Space.TYPE]
"""A program's argument that has a row for each type of nodes."""

Global = Annotated[Array, Space.GRAPH]
"""A program's argument that has a row for each graph of a batch."""

_ANNOTATIONS = {
    "Node": Space.NODE,
    "Edge": Space.EDGE,
    "Relation": Space.RELATION,
    "NodeType": Space.TYPE,
    "Global": Space.GRAPH,
}
_ANNOTATION_OF = {space: name for name, space in _ANNOTATIONS.items()}


# --- The first argument --------------------------------------------------------------------------


def _same_aval(aval: Any, **params: object) -> Any:
    del params
    return aval.update()


def _batch(
    primitive: jex.Primitive, operands: Sequence[Array], dims: Sequence[int], **params: object
) -> tuple[Any, int]:
    """Batch: an axis that ``jax.vmap`` adds inside a program is one more axis of the row."""
    return primitive.bind(*operands, **params), dims[0]


def _jvp(primals: object, tangents: object, **params: object) -> None:
    raise TypeError(
        "rows are not differentiated through g.… inside a program, got a derivative of it: take "
        "jax.grad of the program"
    )


def _primitive(name: str) -> jex.Primitive:
    primitive: Any = jex.Primitive(f"jax_gnn_{name}")
    primitive.def_abstract_eval(_same_aval)
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)
    ad.primitive_jvps[primitive] = _jvp
    marked: jex.Primitive = primitive
    return marked


_pull, _push, _softmax, _edge_key = map(_primitive, ("pull", "push", "softmax", "key"))
_EDGE_PRIMITIVES = {_pull, _push, _softmax, _edge_key}


_SUGGESTIONS = {
    "in_degree": "g.degree()",
    "out_degree": "g.reverse.degree()",
    "readout": "g.graph.sum",
    "count": "g.degree()",
    "prod": "jax_gnn.segment_prod outside of the program, or jnp.exp(g.sum(jnp.log(m))) if m > 0",
    "edge": "the argument itself, annotated as Edge",
    "add": "g.sum",
    "amax": "g.max",
}
"""Replacements of methods that other libraries have."""


MAX_STEPS = 64
"""Largest number of steps of a loop that is unrolled, as it holds a ``g.…``."""


class _View:
    """Reductions of rows into one, of edges into a node or of nodes into a graph.

    Arguments and results of all methods are rows, or pytrees of rows.
    """

    _name: str
    _way: str

    def __getattr__(self, name: str) -> Any:
        """Raise an error that lists the methods, and suggests a replacement."""
        names = dict.fromkeys(name for kind in type(self).__mro__[:-1] for name in vars(kind))
        methods = ", ".join(f"{self._name}.{method}" for method in names if method[0] != "_")
        hint = f": write {_SUGGESTIONS[name]}" if name in _SUGGESTIONS else ""
        raise AttributeError(f"a program's {self._name} has no {name}{hint}; it has {methods}")

    def sum(self, row: object) -> Any:
        """Sum over the edges into each node, as a row of nodes; 0 without edges."""
        return _bind(_push, row, reduce="sum", way=self._way)

    def mean(self, row: object) -> Any:
        """Average over the edges into each node; 0 without edges."""
        return _bind(_push, row, reduce="mean", way=self._way)

    def max(self, row: object) -> Any:
        """Take the maximum over the edges into each node; -inf without edges."""
        return _bind(_push, row, reduce="max", way=self._way)

    def min(self, row: object) -> Any:
        """Take the minimum over the edges into each node; inf without edges."""
        return _bind(_push, row, reduce="min", way=self._way)

    def var(self, row: object) -> Any:
        """Return the variance over the edges into each node; 0 without edges."""
        return jax.tree.map(lambda m: self.mean((m - self._read(self.mean(m))) ** 2), row)

    def std(self, row: object) -> Any:
        """Return the root of the variance; where it is 0, so is its gradient."""

        def root(v: Array) -> Array:
            return jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1)), 0)

        return jax.tree.map(root, self.var(row))

    def logsumexp(self, row: object) -> Any:
        """Return the logarithm of the sum of exponentials over edges; -inf without edges."""

        def reduced(s: Array) -> Array:
            s = jnp.asarray(s)
            wide = accumulator_dtype(s.dtype)  # a sum of exponentials may exceed float16
            top, exponentials = self._exponentials(s.astype(wide))
            y: Array = jnp.log(self.sum(exponentials)) + top
            return y if wide == s.dtype else y.astype(s.dtype)

        return jax.tree.map(reduced, row)

    def softmax(self, row: object) -> Any:
        """Return the softmax over the edges into each node, elementwise: a row of edges.

        Its value is 0 where the score is -inf, also if all scores of the node are.
        """
        if self._way != "src":
            return _bind(_softmax, row, way=self._way)

        def shares(s: Array) -> Array:
            s = jnp.asarray(s)
            _, exponentials = self._exponentials(s.astype(accumulator_dtype(s.dtype)))
            total = self.sum(exponentials)
            y: Array = exponentials / self._read(jnp.where(total == 0, 1, total))
            return y.astype(s.dtype)

        return jax.tree.map(shares, row)

    def _exponentials(self, s: Array) -> tuple[Array, Array]:
        """Return the maxima, 0 where these are infinite, and exponentials above them."""
        top = jax.lax.stop_gradient(self.max(s))
        top = jnp.where(jnp.isfinite(top), top, 0)
        below: Array = s - self._read(top)
        if self._way == "graph":  # padding nodes read the first graph, whose maximum may be less
            below = jnp.where(below > 0, 0, below)
        return top, jnp.exp(below)

    def _read(self, row: object) -> Any:
        """Return the row that a row is reduced into."""
        return _bind(_pull, row, way=self._way)


class GraphView(_View):
    """The graph of a node, in a batch of graphs: ``g.graph`` of a program's ``g``.

    ``g.graph(u)`` reads a row of graphs at nodes. Reductions are over the nodes of each graph, and
    the softmax is a row of nodes.
    """

    _name, _way = "g.graph", "graph"

    def __call__(self, row: object) -> Any:
        """Return the row of a node's graph, as a row of nodes."""
        return self._read(row)


class EdgeView(_View):
    """One edge, as a program sees it: the program's first argument, called ``g``.

    Attributes:
        graph: The graph of a node, a `GraphView`.
    """

    graph = GraphView()

    def __init__(self, is_reverse: bool = False) -> None:
        self._name = "g.reverse" if is_reverse else "g"
        self._source, self._way = ("dst", "src") if is_reverse else ("src", "dst")

    @property
    def reverse(self) -> EdgeView:
        """The reverse edge, from the edge's destination to its source, with the same methods."""
        return EdgeView(self._way == "dst")

    def src(self, row: object) -> Any:
        """Return the row of the edge's source, of a row of nodes."""
        return _bind(_pull, row, way=self._source)

    def dst(self, row: object) -> Any:
        """Return the row of the edge's destination, of a row of nodes."""
        return self._read(row)

    def relation(self, row: object) -> Any:
        """Return the row of the edge's relation, of a row of relations."""
        return _bind(_pull, row, way="relation")

    def node_type(self, row: object) -> Any:
        """Return the row of a node's type, as a row of nodes."""
        return _bind(_pull, row, way="type")

    def src_type(self, row: object) -> Any:
        """Return the row of the type of the edge's source."""
        return self.src(self.node_type(row))

    def dst_type(self, row: object) -> Any:
        """Return the row of the type of the edge's destination."""
        return self.dst(self.node_type(row))

    def degree(self) -> Any:
        """Return the number of edges into each node, a float."""
        return self.sum(1.0)

    def key(self, key: Any) -> Any:
        """Return a random key of the edge, from a shared key and the index of the edge.

        The index is that among the graph's edges, whatever the order in which they are processed.
        """
        key = jnp.asarray(key)
        is_key = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        return _edge_key.bind(key if is_key else jax.random.wrap_key_data(key))


def _bind(primitive: jex.Primitive, rows: object, **params: object) -> Any:
    return jax.tree.map(lambda row: primitive.bind(jnp.asarray(row), **params), rows)


# --- Arguments -----------------------------------------------------------------------------------


def unwrap(function: Any) -> Any:
    """Return the function that wrappers, methods and `functools.partial` objects call."""
    while True:
        inner = getattr(function, "__wrapped__", getattr(function, "__func__", None))
        if isinstance(function, functools.partial):
            inner = function.func
        if inner is None:
            return function
        function = inner


def annotated_spaces(function: Callable[..., Any]) -> dict[str, Space]:
    """Return the annotated space of each argument, and of the result, called "return".

    Raises:
        TypeError: An annotation has rows of two spaces.
    """
    function = unwrap(function)
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:  # names of type checkers alone, or of an enclosing function
        # Annotations that Python cannot evaluate are matched by the last part of their text.
        annotations = getattr(function, "__annotations__", {})
        hints = {name: _resolve(hint) for name, hint in annotations.items()}
    space_of = {}
    for name, hint in hints.items():
        spaces = set(_spaces_in(hint))
        if len(spaces) > 1:
            raise TypeError(
                f"program {function.__name__}: {name} must be annotated with rows of one space, "
                f"got {' and '.join(sorted(space.value for space in spaces))}"
            )
        space_of[name] = spaces.pop() if spaces else Space.SHARED
    return space_of


def _resolve(hint: object) -> Any:
    if not isinstance(hint, str):
        return hint
    space = _ANNOTATIONS.get(hint.rpartition(".")[2])
    return hint if space is None else Annotated[Array, space]


def _spaces_in(hint: object) -> Iterator[Space]:
    """Yield the spaces that an annotation contains."""
    for argument in (*get_args(hint), *getattr(hint, "__metadata__", ())):
        if isinstance(argument, Space):
            yield argument
        elif argument is not hint:
            yield from _spaces_in(argument)


# --- The user's lines ----------------------------------------------------------------------------

_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (jax.__file__, __file__, np.__file__, functools.__file__ + "/")
)


@functools.lru_cache(maxsize=1024)
def _is_library(file: str) -> bool:
    """Whether a file is part of the libraries that trace programs."""
    path = os.path.abspath(file)
    jaxlib = f"{os.sep}jaxlib{os.sep}"
    return path.startswith(_LIBRARIES) or jaxlib in path or file.startswith("<")


class Line(NamedTuple):
    """A line of a file."""

    file: str
    number: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.number).strip()
        place = f"{os.path.basename(self.file)}:{self.number}"
        return f"{place}, `{code}`" if code else place


def line_of(eqn: jex.JaxprEqn, code: CodeType | None = None) -> str:
    """Return the innermost user's line of an equation, of the program's file if possible."""
    traceback = eqn.source_info.traceback
    frames: Iterable[Any] = () if traceback is None else traceback.frames
    lines = [Line(frame.file_name, frame.line_num) for frame in frames]
    lines = [line for line in lines if not _is_library(line.file)]
    in_program = [line for line in lines if code and line.file == code.co_filename]
    return str((in_program or lines)[0]) if lines else ""


def _line_of_error(error: BaseException) -> str:
    """Return the innermost user's line in the traceback of an error."""
    line, traceback = "", error.__traceback__
    # Tracebacks go from the outermost frame inwards: the last user's line is the innermost.
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not _is_library(file):
            line = str(Line(file, traceback.tb_lineno))
        traceback = traceback.tb_next
    return line


# --- Tracing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traced:
    """A program as rows.

    Attributes:
        name: Name of the program.
        results: The results, flattened.
        tree: Tree structure of the results.
        closed_over: Arrays that the program closes over, which follow the arguments.
    """

    name: str
    results: tuple[Row, ...]
    tree: Any
    closed_over: tuple[Any, ...]


class Argument(NamedTuple):
    """One array of the arguments.

    Attributes:
        name: Name in errors.
        space: Space of its rows.
        shape: Shape of one row.
        dtype: Dtype of the elements.
        like: An abstract row.
    """

    name: str
    space: Space
    shape: tuple[int, ...]
    dtype: Any
    like: Any


def trace(
    function: Callable[..., Any],
    name: str,
    arguments: Sequence[Argument],
    call: Callable[[EdgeView, Sequence[Any]], Any],
    result_space: Space | None,
) -> Traced:
    """Trace a function of one edge's rows.

    Args:
        function: The user's function.
        name: Name of the program in errors.
        arguments: The arguments.
        call: Calls the function with an edge and rows.
        result_space: Annotated space of the results.

    Raises:
        TypeError: Python looks at the content of a row, or the function has side effects.
        ValueError: Rows do not fit together.
    """
    trees: list[Any] = []

    def flat(*rows: Any) -> list[Array]:
        leaves, tree = jax.tree.flatten(call(EdgeView(), rows))
        trees.append(tree)
        return [jnp.asarray(leaf) for leaf in leaves]

    try:
        closed = jax.make_jaxpr(flat)(*(argument.like for argument in arguments))
    except jax.errors.ConcretizationTypeError as error:
        raise TypeError(
            f"program {name}, {_line_of_error(error)}: Python looks at what a row holds, which is "
            "known when the program runs only: use jnp.where in the place of if, got "
            f"{type(error).__name__}"
        ) from error
    except (TypeError, ValueError, NotImplementedError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"program {name}, {_line_of_error(error)}: {error}") from error
    code = unwrap(function).__code__
    if closed.effects:
        lines = [line_of(eqn, code) for eqn in closed.jaxpr.eqns if eqn.effects]
        raise TypeError(
            f"program {name}, {', '.join(lines)}: a program has no side effects, got "
            f"{', '.join(map(str, closed.effects))}"
        )
    rows = [
        Row(Input(i, argument.name), (), argument.space, argument.shape, _dtype(argument.dtype))
        for i, argument in enumerate(arguments)
    ]
    closed_over: list[Any] = []
    consts: list[Row] = []
    for value in closed.consts:
        if np.ndim(value) == 0 and isinstance(value, np.ndarray | np.generic):
            consts.append(_constant(np.asarray(value)))
            continue
        index = len(arguments) + len(closed_over)
        closed_over.append(value)
        # Constant in this plan: programs that close over arrays are traced at each call.
        if _is_index_array(value) or is_constant(value):
            consts.append(constant(np.asarray(value), value.dtype))
            continue
        op = Input(index, "an array that the program closes over")
        consts.append(Row(op, (), Space.SHARED, np.shape(value), value.dtype))
    results = _Walk(name, code).walk(closed.jaxpr, consts, rows)
    if result_space is not None and result_space is not Space.SHARED:
        for row in results:
            if row.space is not result_space:
                raise ValueError(
                    f"program {name}: its result is annotated as a row of a {result_space.value}, "
                    f"and varies over more or other: {_described(row)}"
                )
    return Traced(name, tuple(results), trees[0], tuple(closed_over))


def _constant(array: np.ndarray) -> Row:
    return Row(Constant(array), (), Space.SHARED, array.shape, array.dtype)


def _is_index_array(value: Any) -> bool:
    """Whether a closed-over array is concrete, and holds few integers or booleans."""
    is_concrete = isinstance(value, np.ndarray) or (
        isinstance(value, Array) and not is_traced(value) and value.is_fully_addressable
    )
    return is_concrete and value.dtype.kind in "iub" and value.size <= MAX_CONSTANT


def _described(row: Row) -> str:
    """Return the description of a row in errors."""
    where = "shared" if row.is_shared else f"a row of each {row.space.value}"
    if isinstance(row.op, Input):
        return f"{row.op.name}, {where}, {row.shape}"
    if isinstance(row.op, Constant):
        return f"{row.op.value}"
    return f"what {row.line or 'the program'} makes, {where}, {row.shape}"


def _varying(operands: Sequence[Row]) -> list[Row]:
    return [operand for operand in operands if not operand.is_shared]


class _Walk:
    """Converts equations to rows.

    Attributes:
        name: Name of the program.
        code: Code of its function.
        drawn: For each shared row that depends on random numbers, the shapes that were drawn.
    """

    def __init__(self, name: str, code: CodeType) -> None:
        self.name = name
        self.code = code
        self.drawn: dict[Row, frozenset[tuple[int, ...]]] = {}

    def walk(self, jaxpr: jex.Jaxpr, consts: Sequence[Row], arguments: Sequence[Row]) -> list[Row]:
        """Return the results of a jaxpr, of these rows."""
        rows: dict[Any, Row] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True)
        )

        def row_of(atom: Any) -> Row:
            if isinstance(atom, jex.Literal):
                return _constant(np.asarray(atom.val, atom.aval.dtype))  # type: ignore[attr-defined]
            return rows[atom]

        for eqn in jaxpr.eqns:
            results = self._convert(eqn, [row_of(atom) for atom in eqn.invars], jaxpr)
            rows.update(zip(eqn.outvars, results, strict=True))
        return [row_of(atom) for atom in jaxpr.outvars]

    def _convert(
        self, eqn: jex.JaxprEqn, operands: Sequence[Row], jaxpr: jex.Jaxpr
    ) -> Sequence[Row]:
        """Return the results of an equation."""
        line = line_of(eqn, self.code)
        if eqn.primitive is _pull:
            return [self._pull(operands[0], eqn.params["way"], line)]
        if eqn.primitive is _edge_key:
            return [self._edge_key(operands[0], line)]
        if eqn.primitive in (_push, _softmax):
            return [self._reduce(operands[0], line, **eqn.params)]
        if eqn.primitive.name in ("pvary", "pcast"):  # `apply_to_rows` aligns axes itself
            return operands
        inner = _inlined(eqn)
        if inner is not None:
            body = inner.jaxpr if isinstance(inner, jex.ClosedJaxpr) else inner
            consts = [_constant(np.asarray(value)) for value in getattr(inner, "consts", ())]
            return self.walk(body, consts, operands)
        if _has_edge_primitive(eqn):
            if eqn.primitive.name == "scan" and eqn.params["length"] <= MAX_STEPS:
                return self._unrolled(eqn, operands)
            raise ValueError(
                f"program {self.name}, {line}: {eqn.primitive.name} holds a g.…: rows are read and "
                "reduced outside of branches, of functions with a derivative rule, and of loops but"
                f" those of {MAX_STEPS} steps at most, which are known beforehand, got one inside"
            )
        return self._apply(eqn, operands, line, jaxpr)

    def _unrolled(self, eqn: jex.JaxprEqn, operands: Sequence[Row]) -> list[Row]:
        """Return the results of a loop of a known number of steps, of which each is walked."""
        body, length, (kept, num_carry) = eqn.params["jaxpr"], eqn.params["length"], scan_sizes(eqn)
        carried = kept + num_carry
        fixed, carry, xs = operands[:kept], [*operands[kept:carried]], operands[carried:]
        steps = [*range(length)][:: -1 if eqn.params["reverse"] else 1]
        results: dict[int, list[Row]] = {}
        for i in steps:
            items = [apply("item", lambda x, i=i: x[i], row, key=i) for row in xs]
            consts = [_constant(np.asarray(value)) for value in body.consts]
            rows = self.walk(body.jaxpr, consts, [*fixed, *carry, *items])
            carry, results[i] = rows[: len(carry)], rows[len(carry) :]
        by_result = zip(*(results[i] for i in range(length)), strict=True)
        return carry + [apply("stack", lambda *x: jnp.stack(x), *rows) for rows in by_result]

    def _pull(self, row: Row, way: str, line: str) -> Row:
        """Return what ``g.src`` and its like read."""
        method, source, space = {
            "src": ("g.src", Space.NODE, Space.EDGE),
            "dst": ("g.dst", Space.NODE, Space.EDGE),
            "relation": ("g.relation", Space.RELATION, Space.EDGE),
            "type": ("g.node_type", Space.TYPE, Space.NODE),
            "graph": ("g.graph", Space.GRAPH, Space.NODE),
        }[way]
        if row.space is not source:
            hint = ""
            if row.is_shared:
                hint = (
                    f"; what is shared is the same everywhere: annotate an argument as "
                    f"{_ANNOTATION_OF[source]}, or use it without {method}"
                )
            raise ValueError(
                f"program {self.name}, {line}: {method} reads a row of a {source.value}, got "
                f"{_described(row)}{hint}"
            )
        return pull(row, space, way)

    def _edge_key(self, row: Row, line: str) -> Row:
        """Return the key of each edge."""
        if not row.is_shared:
            raise ValueError(
                f"program {self.name}, {line}: g.key takes a key that all edges share, got "
                f"{_described(row)}"
            )
        index = Row(Index(), (), Space.EDGE, (), np.dtype(np.uint32), line)
        return replace(apply("fold_in", _fold_in, row, index), line=line)

    def _reduce(self, row: Row, line: str, way: str, reduce: str | None = None) -> Row:
        """Return a reduction over edges or nodes, or the softmax if `reduce` is None."""
        view = {"dst": "g", "src": "g.reverse", "graph": "g.graph"}[way]
        method = f"program {self.name}, {line}: {view}.{reduce or 'softmax'}"
        of, to = (Space.NODE, Space.GRAPH) if way == "graph" else (Space.EDGE, Space.NODE)
        if row.space not in (of, Space.SHARED):
            first = (
                "sum it by g.sum" if row.space is Space.EDGE else f"read it by {self._reader(row)}"
            )
            raise ValueError(
                f"{method} takes a row of each {of.value}, got {_described(row)}; {first} first"
            )
        if not (jnp.issubdtype(row.dtype, np.floating) or reduce in ("sum", "max", "min")):
            raise TypeError(f"{method} takes floating-point numbers, got {row.dtype}")
        if row.dtype == bool:
            raise TypeError(f"{method} takes numbers, got bool")
        op = Softmax(way) if reduce is None else Push(reduce, way)
        return Row(op, (row,), of if reduce is None else to, row.shape, row.dtype, line)

    @staticmethod
    def _reader(row: Row) -> str:
        ways = {
            Space.RELATION: "g.relation",
            Space.TYPE: "g.src_type or g.dst_type",
            Space.GRAPH: "g.graph",
        }
        return ways.get(row.space, "g.src or g.dst")

    def _apply(
        self, eqn: jex.JaxprEqn, operands: Sequence[Row], line: str, jaxpr: jex.Jaxpr
    ) -> list[Row]:
        """Return the results of a function of rows of one space."""
        spaces = {operand.space for operand in _varying(operands)}
        if len(spaces) > 1:
            inner = next(space for space in (Space.EDGE, Space.NODE, Space.TYPE) if space in spaces)
            outside = [row for row in _varying(operands) if row.space is not inner]
            reads = " and ".join(f"{_described(row)}, by {self._reader(row)}" for row in outside)
            raise ValueError(
                f"program {self.name}, {line}: {eqn.primitive.name} combines rows of different "
                f"spaces, {' and '.join(map(_described, _varying(operands)))}: read {reads}"
            )
        space = spaces.pop() if spaces else Space.SHARED
        function, key = function_of(eqn, jaxpr)
        name = _name(eqn)
        avals: list[Any] = [var.aval for var in eqn.outvars]
        varies = None
        if any(inner_jaxprs(eqn.params.values())):
            varies = tuple(bool(varying_axes(var.aval)) for var in eqn.invars)
        rows = [
            Row(
                Apply(name, function, i, key, eqn.params, varies=varies),
                tuple(operands),
                space,
                tuple(aval.shape),
                _dtype(aval.dtype),
                line,
            )
            for i, aval in enumerate(avals)
        ]
        shapes = frozenset().union(*(self.drawn.get(operand, ()) for operand in operands))
        if space is Space.SHARED:
            shapes |= {row.shape for row in rows if _draws(eqn)}
            self.drawn |= dict.fromkeys(rows, shapes) if shapes else {}
        elif eqn.primitive.name != "dot_general":
            self._check_drawn(eqn, shapes, _varying(operands), line)
        return rows

    def _check_drawn(
        self,
        eqn: jex.JaxprEqn,
        shapes: frozenset[tuple[int, ...]],
        rows: Sequence[Row],
        line: str,
    ) -> None:
        """Reject random numbers in the shape of a row that are the same for all rows."""
        for row in rows:
            if row.shape in shapes:
                what = row.space.value
                hint = "with g.key(key)" if row.space is Space.EDGE else _KEYS_HINT
                raise ValueError(
                    f"program {self.name}, {line}: {eqn.primitive.name} takes random numbers that "
                    f"are the same for each {what}, drawn with a key that all share, in the shape "
                    f"of its row, {row.shape}: draw {hint}"
                )


def _dtype(dtype: Any) -> Any:
    """Return a dtype as rows have it; dtypes of random keys stay."""
    return dtype if jnp.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype)


def _fold_in(keys: Array, index: Array) -> Array:
    """Fold an index into a key, or into keys of the axes that ``jax.vmap`` adds."""
    fold: Callable[[Array, Array], Array] = jax.random.fold_in
    for _ in keys.shape:
        fold = jax.vmap(fold, (0, None))
    return fold(keys, index)


def _name(eqn: jex.JaxprEqn) -> str:
    name = eqn.primitive.name
    if name != "custom_jvp_call":
        return name
    debug_info = eqn.params["call_jaxpr"].jaxpr.debug_info
    function: str = getattr(debug_info, "func_name", "function")
    is_of_jax = (getattr(debug_info, "func_filename", None) or "").startswith(_JAX_FOLDER)
    return function if is_of_jax else f"custom_jvp {function}"


_JAX_FOLDER = os.path.join(os.path.dirname(jax.__file__), "")
_CALLS = ("jit", "pjit", "closed_call", "core_call")  # not those with a derivative rule
_INNER_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def _inlined(eqn: jex.JaxprEqn) -> Any:
    """Return the jaxpr of a call that is inlined; None for other equations."""
    name = eqn.primitive.name
    if name in _CALLS:
        return inner_jaxpr(eqn)
    if name in ("remat", "remat2", "checkpoint") and _has_edge_primitive(eqn):
        return eqn.params["jaxpr"]
    return None


def inner_jaxpr(eqn: jex.JaxprEqn) -> Any:
    """Return the jaxpr of a call."""
    return next(eqn.params[key] for key in _INNER_JAXPRS if key in eqn.params)


def _has_edge_primitive(eqn: jex.JaxprEqn) -> bool:
    """Whether the jaxprs of an equation contain a ``g.…``."""
    return any(
        inner.primitive in _EDGE_PRIMITIVES or _has_edge_primitive(inner)
        for jaxpr in inner_jaxprs(eqn.params.values())
        for inner in jaxpr.eqns
    )


_KEYS_HINT = (
    "with keys of their own, an argument such as key: Node, and pass "
    "jax.random.split(key, num_nodes)"
)
_DRAWS = frozenset(("random_bits", "random_gamma", "rng_bit_generator", "threefry2x32"))


def _draws(eqn: jex.JaxprEqn) -> bool:
    """Whether an equation draws random numbers, perhaps in an inner jaxpr."""
    return eqn.primitive.name in _DRAWS or any(
        _draws(inner) for jaxpr in inner_jaxprs(eqn.params.values()) for inner in jaxpr.eqns
    )


def inner_jaxprs(values: Iterable[object]) -> Iterator[jex.Jaxpr]:
    """Yield the jaxprs among an equation's parameters."""
    for value in values:
        if isinstance(value, jex.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, jex.Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from inner_jaxprs(value)


def scan_sizes(eqn: jex.JaxprEqn) -> tuple[int, int]:
    """Return how many operands of a scan are the same in all steps, and how many are carried."""
    if "ft_in" not in eqn.params:  # before jax 0.11
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry)


def function_of(eqn: jex.JaxprEqn, jaxpr: jex.Jaxpr) -> tuple[RowFunction, Hashable]:
    """Return an equation as a function of its operands, and a key that equal ones share."""
    variables: list[Any] = [jex.Var(atom.aval) for atom in eqn.invars]
    untyped: Any = jaxpr
    single = untyped.replace(
        constvars=[],
        invars=variables,
        outvars=list(eqn.outvars),
        eqns=[eqn.replace(invars=variables)],
    )
    function = jex.jaxpr_as_fun(jex.ClosedJaxpr(single, []))
    params = tuple((name, parameter_key(v)) for name, v in sorted(eqn.params.items()))
    return function, (eqn.primitive.name, params)


def parameter_key(value: object) -> Hashable:
    """Return a key that equal parameters share."""
    if isinstance(value, tuple | list):
        return tuple(map(parameter_key, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value  # 1, 1.0 and True are equal
