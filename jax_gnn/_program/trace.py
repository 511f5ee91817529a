"""From a Python function of one edge's rows to a graph of rows, and what is wrong with it.

JAX traces the function with one row of each argument; ``g.…`` leaves primitives of its own in the
jaxpr. One walk over that says where each row lives, gives shared ones to whoever reads them, and
finds what does not fit together. Errors name the user's line.
"""

from __future__ import annotations

import functools
import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters import ad, batching

from jax_gnn._core.ids import is_traced
from jax_gnn._program.rows import (
    MAX_CONSTANT,
    Apply,
    Constant,
    Given,
    Place,
    Push,
    Row,
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

_ANNOTATIONS = {
    "Node": Space.NODE,
    "Edge": Space.EDGE,
    "Relation": Space.RELATION,
    "NodeType": Space.TYPE,
}


# --- What a program calls ------------------------------------------------------------------------


def _same_aval(aval: Any, **params: Any) -> Any:
    del params
    return aval.update()


def _batched(primitive: Any, operands: Any, dims: Any, **params: Any) -> Any:
    """An axis that ``jax.vmap`` adds inside a program is one more of the row."""
    return primitive.bind(*operands, **params), dims[0]


def _differentiated(primals: Any, tangents: Any, **params: Any) -> Any:
    del primals, tangents, params
    raise TypeError(
        "rows are not differentiated through g.… inside a program, got a derivative of it: take "
        "jax.grad of the program"
    )


def _primitive(name: str) -> Any:
    primitive = jex.Primitive(f"jax_gnn_{name}")
    primitive.def_abstract_eval(_same_aval)
    batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)
    ad.primitive_jvps[primitive] = _differentiated
    return primitive


_pull, _push, _softmax, _key_of = map(_primitive, ("pull", "push", "softmax", "key"))
_OWN = {_pull, _push, _softmax, _key_of}


_OTHERS = {
    "degree": "g.sum(1.0), the number of edges into each node",
    "in_degree": "g.sum(1.0)",
    "out_degree": "an argument of nodes, graph.out_degrees()",
    "count": "g.sum(1.0)",
    "std": "jnp.sqrt(g.mean((m - g.dst(g.mean(m))) ** 2))",
    "var": "g.mean((m - g.dst(g.mean(m))) ** 2)",
    "prod": "jax_gnn.segment_prod outside of the program, or jnp.exp(g.sum(jnp.log(m))) if m > 0",
    "logsumexp": "top = g.max(s), then top + jnp.log(g.sum(jnp.exp(s - g.dst(top))))",
    "edge": "the argument itself, annotated as Edge",
    "add": "g.sum",
    "amax": "g.max",
}
"""In the place of methods that other libraries have."""


class EdgeView:
    """One edge, as a program sees it: its first argument, called ``g``.

    Arguments and results of all methods are rows, or pytrees of such.
    """

    def __getattr__(self, name: str) -> Any:
        """Names what there is in the place of what there is not."""
        methods = ", ".join(f"g.{each}" for each in vars(EdgeView) if not each.startswith("_"))
        other = f": write {_OTHERS[name]}" if name in _OTHERS else ""
        raise AttributeError(f"a program's g has no {name}{other}; it has {methods}")

    def src(self, row: Any) -> Any:
        """What the edge's source has of a node's row."""
        return _each(_pull, row, way="src")

    def dst(self, row: Any) -> Any:
        """What the edge's destination has of a node's row."""
        return _each(_pull, row, way="dst")

    def relation(self, row: Any) -> Any:
        """What the edge's relation has."""
        return _each(_pull, row, way="relation")

    def node_type(self, row: Any) -> Any:
        """What a node's type has, as a node's row."""
        return _each(_pull, row, way="type")

    def src_type(self, row: Any) -> Any:
        """What the type of the edge's source has."""
        return self.src(self.node_type(row))

    def dst_type(self, row: Any) -> Any:
        """What the type of the edge's destination has."""
        return self.dst(self.node_type(row))

    def sum(self, row: Any) -> Any:
        """The sum over the edges into each node, as a node's row; 0 where there are none."""
        return _each(_push, row, reduce="sum")

    def mean(self, row: Any) -> Any:
        """The mean over the edges into each node; 0 where there are none."""
        return _each(_push, row, reduce="mean")

    def max(self, row: Any) -> Any:
        """The maximum over the edges into each node; -inf where there are none."""
        return _each(_push, row, reduce="max")

    def min(self, row: Any) -> Any:
        """The minimum over the edges into each node; inf where there are none."""
        return _each(_push, row, reduce="min")

    def key(self, key: Any) -> Any:
        """A random key of the edge, made of one that is shared and of the edge's number.

        An edge's number is its place among the graph's edges: its key does not depend on how edges
        are dealt out.
        """
        key = jnp.asarray(key)
        is_key = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        return _key_of.bind(key if is_key else jax.random.wrap_key_data(key))

    def softmax(self, row: Any) -> Any:
        """The softmax over the edges into each node, of each number of the row: an edge's row."""
        return _each(_softmax, row)


def _each(primitive: Any, row: Any, **params: Any) -> Any:
    return jax.tree.map(lambda each: primitive.bind(jnp.asarray(each), **params), row)


# --- Arguments -----------------------------------------------------------------------------------


def written(function: Any) -> Any:
    """The function that wrappers, methods and `functools.partial` objects call."""
    while True:
        inner = getattr(function, "__wrapped__", getattr(function, "__func__", None))
        if isinstance(function, functools.partial):
            inner = function.func
        if inner is None:
            return function
        function = inner


def annotated_spaces(function: Callable[..., Any]) -> dict[str, Space]:
    """Where the rows of each argument live, and of the result, called "return", if it says so.

    Raises:
        TypeError: an annotation has rows of two spaces.
    """
    function = written(function)
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:  # of names that only type checkers see, or of an enclosing function
        hints = {name: _evaluated(hint) for name, hint in _strings(function).items()}
    found = {}
    for name, hint in hints.items():
        spaces = set(_marked(hint))
        if len(spaces) > 1:
            raise TypeError(
                f"program {function.__name__}: {name} must be annotated with rows of one space, "
                f"got {' and '.join(sorted(space.value for space in spaces))}"
            )
        found[name] = spaces.pop() if spaces else Space.SHARED
    return found


def _strings(function: Callable[..., Any]) -> dict[str, Any]:
    return dict(getattr(function, "__annotations__", {}))


def _evaluated(hint: Any) -> Any:
    if not isinstance(hint, str):
        return hint
    space = _ANNOTATIONS.get(hint.rpartition(".")[2])
    return hint if space is None else Annotated[Array, space]


def _marked(hint: Any) -> Iterator[Space]:
    """The spaces that an annotation names anywhere."""
    for each in (*get_args(hint), *getattr(hint, "__metadata__", ())):
        if isinstance(each, Space):
            yield each
        elif each is not hint:
            yield from _marked(each)


# --- The user's lines ----------------------------------------------------------------------------

_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (jax.__file__, __file__, np.__file__, functools.__file__ + "/")
)


def _is_own(file: str) -> bool:
    """Whether a file belongs to what programs are traced with."""
    path = os.path.abspath(file)
    jaxlib = f"{os.sep}jaxlib{os.sep}"
    return path.startswith(_LIBRARIES) or jaxlib in path or file.startswith("<")


class Line(NamedTuple):
    """Where something was written."""

    file: str
    number: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.number).strip()
        place = f"{os.path.basename(self.file)}:{self.number}"
        return f"{place}, `{code}`" if code else place


def _line_of(eqn: Any, code: CodeType) -> str:
    """The innermost line of the user's that an equation comes from; the program's own, if any."""
    traceback = eqn.source_info.traceback
    frames = [] if traceback is None else list(traceback.frames)
    lines = [(f.function_name, Line(f.file_name, f.line_num)) for f in frames]
    users = [(name, line) for name, line in lines if not _is_own(line.file)]
    own = [line for _, line in users if line.file == code.co_filename]
    return str(own[0] if own else users[0][1]) if users else ""


def _line_of_error(error: BaseException) -> str:
    """The innermost line of the user's that an error comes through."""
    found, traceback = "", error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not _is_own(file):
            found = str(Line(file, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


# --- Tracing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traced:
    """A program as rows.

    Attributes:
        name: Of the program.
        results: What it gives, one after another.
        tree: How they are put together.
        closed_over: The arrays that it closes over, which follow the arguments.
    """

    name: str
    results: tuple[Row, ...]
    tree: Any
    closed_over: tuple[Any, ...]


class Argument(NamedTuple):
    """One array of the arguments.

    Attributes:
        name: What it is called.
        space: Where its rows live.
        shape: Of one row.
        dtype: Of its numbers.
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
    wanted: Space | None,
) -> Traced:
    """Traces a function of one edge's rows.

    Args:
        function: Whose code it is.
        name: What errors call it.
        arguments: What it gets.
        call: Calls it with rows.
        wanted: Where its results must live, if it says so.

    Raises:
        TypeError: Python looks at what a row holds, or it has side effects.
        ValueError: rows do not fit together.
    """
    tree: list[Any] = []

    def flat(*rows: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(call(EdgeView(), rows))
        tree.append(structure)
        return [jnp.asarray(leaf) for leaf in leaves]

    try:
        closed = jax.make_jaxpr(flat)(*(each.like for each in arguments))
    except jax.errors.ConcretizationTypeError as error:
        raise TypeError(
            f"program {name}, {_line_of_error(error)}: Python looks at what a row holds, which is "
            "known when the program runs only: use jnp.where in the place of if, got "
            f"{type(error).__name__}"
        ) from error
    except (TypeError, ValueError, NotImplementedError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"program {name}, {_line_of_error(error)}: {error}") from error
    code = written(function).__code__
    if closed.effects:
        lines = [_line_of(eqn, code) for eqn in closed.jaxpr.eqns if eqn.effects]
        raise TypeError(
            f"program {name}, {', '.join(lines)}: a program has no side effects, got "
            f"{', '.join(map(str, closed.effects))}"
        )
    rows = [
        Row(Given(i, each.name), (), each.space, each.shape, _dtype(each.dtype))
        for i, each in enumerate(arguments)
    ]
    closed_over: list[Any] = []
    consts: list[Row] = []
    for value in closed.consts:
        if np.ndim(value) == 0 and isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            consts.append(Row(Constant(array), (), Space.SHARED, (), array.dtype))
            continue
        number = len(arguments) + len(closed_over)
        if _is_index(value):  # it is traced again for each call
            consts.append(constant(np.asarray(value), value.dtype))
            closed_over.append(value)
            continue
        given = Given(number, "an array that the program closes over")
        consts.append(Row(given, (), Space.SHARED, np.shape(value), value.dtype))
        closed_over.append(value)
    results = _Walk(name, code).walk(closed.jaxpr, consts, rows)
    if wanted not in (None, Space.SHARED):
        for row in results:
            if row.space is not wanted:
                raise ValueError(
                    f"program {name}: its result is annotated as a row of a {wanted.value}, and "
                    f"varies over more or other: {_described(row)}"
                )
    return Traced(name, tuple(results), tree[0], tuple(closed_over))


def _is_index(value: Any) -> bool:
    """Whether an array that a program closes over is known, and few whole numbers or masks."""
    is_known = isinstance(value, np.ndarray) or (
        isinstance(value, Array) and not is_traced(value) and value.is_fully_addressable
    )
    return is_known and value.dtype.kind in "iub" and value.size <= MAX_CONSTANT


def _described(row: Row) -> str:
    """A row, as errors call it."""
    where = "shared" if row.space is Space.SHARED else f"a row of each {row.space.value}"
    if isinstance(row.op, Given):
        return f"{row.op.name}, {where}, {row.shape}"
    if isinstance(row.op, Constant):
        return f"{row.op.value}"
    return f"what {row.line or 'the program'} makes, {where}, {row.shape}"


class _Walk:
    """Turns equations into rows.

    Attributes:
        name: The name of the program.
        code: The code of its function.
        drawn: For each shared row that depends on random numbers, the shapes that were drawn.
    """

    def __init__(self, name: str, code: CodeType) -> None:
        self.name = name
        self.code = code
        self.drawn: dict[Row, frozenset[tuple[int, ...]]] = {}

    def walk(self, jaxpr: Any, consts: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
        """The results of a jaxpr of these rows."""
        env: dict[Any, Row] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *rows], strict=True)
        )

        def read(atom: Any) -> Row:
            if isinstance(atom, jex.Literal):
                value = np.asarray(atom.val, atom.aval.dtype)  # type: ignore[attr-defined]
                return Row(Constant(value), (), Space.SHARED, value.shape, value.dtype)
            return env[atom]

        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(atom) for atom in eqn.invars], jaxpr)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, operands: Sequence[Row], jaxpr: Any) -> Sequence[Row]:
        """What an equation makes of rows."""
        line = _line_of(eqn, self.code)
        if eqn.primitive is _pull:
            return [self.pulled(operands[0], eqn.params["way"], line)]
        if eqn.primitive is _key_of:
            return [self.keyed(operands[0], line)]
        if eqn.primitive in (_push, _softmax):
            return [self.pushed(operands[0], eqn, line)]
        if eqn.primitive.name in ("pvary", "pcast"):  # which `each_row` does where it is needed
            return operands
        inner = _inlined(eqn)
        if inner is not None:
            body = inner.jaxpr if isinstance(inner, jex.ClosedJaxpr) else inner
            consts = [
                Row(Constant(np.asarray(c)), (), Space.SHARED, np.shape(c), np.asarray(c).dtype)
                for c in getattr(inner, "consts", ())
            ]
            return self.walk(body, consts, operands)
        if _has_own(eqn):
            raise ValueError(
                f"program {self.name}, {line}: {eqn.primitive.name} holds a g.…: rows are read and "
                "reduced outside of loops and branches, got one inside"
            )
        return self.applied(eqn, operands, line, jaxpr)

    def pulled(self, row: Row, way: str, line: str) -> Row:
        """What ``g.src`` and its kind read."""
        method, wanted, space = {
            "src": ("g.src", Space.NODE, Space.EDGE),
            "dst": ("g.dst", Space.NODE, Space.EDGE),
            "relation": ("g.relation", Space.RELATION, Space.EDGE),
            "type": ("g.node_type", Space.TYPE, Space.NODE),
        }[way]
        if row.space is not wanted:
            annotation = {Space.NODE: "Node", Space.RELATION: "Relation", Space.TYPE: "NodeType"}
            hint = ""
            if row.space is Space.SHARED:
                hint = (
                    f"; what is shared is the same everywhere: annotate an argument as "
                    f"{annotation[wanted]}, or use it without {method}"
                )
            raise ValueError(
                f"program {self.name}, {line}: {method} reads a row of a {wanted.value}, got "
                f"{_described(row)}{hint}"
            )
        return pull(row, space, way)

    def keyed(self, row: Row, line: str) -> Row:
        """What ``g.key`` makes."""
        if row.space is not Space.SHARED:
            raise ValueError(
                f"program {self.name}, {line}: g.key takes a key that all edges share, got "
                f"{_described(row)}"
            )
        place = Row(Place(), (), Space.EDGE, (), np.dtype(np.uint32), line)
        return replace(apply("fold_in", _folded, row, place), line=line)

    def pushed(self, row: Row, eqn: Any, line: str) -> Row:
        """What ``g.sum`` and its kind, and ``g.softmax``, make."""
        reduce = eqn.params.get("reduce")
        if row.space not in (Space.EDGE, Space.SHARED):
            raise ValueError(
                f"program {self.name}, {line}: g.{reduce or 'softmax'} takes a row of each edge, "
                f"got {_described(row)}; read it by g.{self._reader(row)} first"
            )
        if not (jnp.issubdtype(row.dtype, np.floating) or reduce in ("sum", "max", "min")):
            raise TypeError(
                f"program {self.name}, {line}: g.{reduce or 'softmax'} takes floating-point "
                f"numbers, got {row.dtype}"
            )
        if row.dtype == bool:
            raise TypeError(f"program {self.name}, {line}: g.{reduce} takes numbers, got bool")
        op = Softmax() if reduce is None else Push(reduce)
        space = Space.EDGE if reduce is None else Space.NODE
        return Row(op, (row,), space, row.shape, row.dtype, line)

    @staticmethod
    def _reader(row: Row) -> str:
        ways = {Space.RELATION: "relation", Space.TYPE: "src_type or g.dst_type"}
        return ways.get(row.space, "src or g.dst")

    def applied(self, eqn: Any, operands: Sequence[Row], line: str, jaxpr: Any) -> list[Row]:
        """What any other function makes of rows of one space."""
        spaces = {each.space for each in operands} - {Space.SHARED}
        if len(spaces) > 1:
            outside = [row for row in operands if row.space not in (Space.EDGE, Space.SHARED)]
            reads = " and ".join(f"{_described(row)}, by g.{self._reader(row)}" for row in outside)
            raise ValueError(
                f"program {self.name}, {line}: {eqn.primitive.name} combines rows of different "
                f"spaces, {' and '.join(map(_described, self._apart(operands)))}: read {reads}"
            )
        space = spaces.pop() if spaces else Space.SHARED
        function, key = _function_of(eqn, jaxpr)
        rows = [
            Row(
                Apply(_name(eqn), function, i, key, eqn.params),
                tuple(operands),
                space,
                tuple(out.aval.shape),
                _dtype(out.aval.dtype),
                line,
            )
            for i, out in enumerate(eqn.outvars)
        ]
        shapes = frozenset().union(*(self.drawn.get(each, ()) for each in operands))
        if space is Space.SHARED:
            shapes |= {row.shape for row in rows if _draws(eqn)}
            self.drawn |= dict.fromkeys(rows, shapes) if shapes else {}
        elif eqn.primitive.name != "dot_general":
            self.check_drawn(eqn, shapes, self._apart(operands), line)
        return rows

    def check_drawn(
        self, eqn: Any, shapes: frozenset[tuple[int, ...]], rows: Sequence[Row], line: str
    ) -> None:
        """Refuses random numbers of the shape of a row which are the same for all rows."""
        for row in rows:
            if row.shape in shapes:
                what = row.space.value
                hint = "with g.key(key)" if row.space is Space.EDGE else _KEYS
                raise ValueError(
                    f"program {self.name}, {line}: {eqn.primitive.name} takes random numbers that "
                    f"are the same for each {what}, drawn with a key that all share, in the shape "
                    f"of its row, {row.shape}: draw {hint}"
                )

    @staticmethod
    def _apart(operands: Sequence[Row]) -> list[Row]:
        return [row for row in operands if row.space is not Space.SHARED]


def _dtype(dtype: Any) -> Any:
    """As rows have it, one of random keys too."""
    return dtype if jnp.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype)


def _folded(keys: Array, place: Array) -> Array:
    """Keys of a place; of each axis that ``jax.vmap`` adds."""
    fold = functools.reduce(lambda f, _: jax.vmap(f, (0, None)), keys.shape, jax.random.fold_in)
    return fold(keys, place)


def _name(eqn: Any) -> str:
    """What people call it."""
    name = eqn.primitive.name
    if name != "custom_jvp_call":
        return name
    found = getattr(eqn.params["call_jaxpr"].jaxpr.debug_info, "func_name", "function")
    return f"custom_jvp {found}"


_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
_KEPT = ("custom_jvp_call", "custom_vjp_call")  # for their rules, unless there is a g inside
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def _inlined(eqn: Any) -> Any:
    """The function that an equation only calls, if it is looked into."""
    name = eqn.primitive.name
    if name in _CALLS and not (name in _KEPT and not _has_own(eqn)):
        return next(eqn.params[each] for each in _INNER if each in eqn.params)
    if name in ("remat", "remat2", "checkpoint") and _has_own(eqn):
        return eqn.params["jaxpr"]
    return None


def _has_own(eqn: Any) -> bool:
    """Whether there is a ``g.…`` in the functions that an equation has."""
    for jaxpr in _jaxprs(eqn.params.values()):
        if any(each.primitive in _OWN or _has_own(each) for each in jaxpr.eqns):
            return True
    return False


_KEYS = (
    "with keys of their own, an argument such as key: Node, and pass "
    "jax.random.split(key, num_nodes)"
)
_DRAWS = frozenset(("random_bits", "random_gamma", "rng_bit_generator", "threefry2x32"))


def _draws(eqn: Any) -> bool:
    """Whether an equation draws random numbers, perhaps inside of its functions."""
    inner = (each for jaxpr in _jaxprs(eqn.params.values()) for each in jaxpr.eqns)
    return eqn.primitive.name in _DRAWS or any(map(_draws, inner))


def _jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, jex.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, jex.Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _jaxprs(value)


def _function_of(eqn: Any, jaxpr: Any) -> tuple[Callable[..., Sequence[Any]], Any]:
    """An equation of a jaxpr as a function of its operands, and what is equal of equal ones."""
    operands = [atom.aval for atom in eqn.invars]
    fresh = [jex.Var(aval) for aval in operands]
    alone = eqn.replace(invars=fresh)
    single = jaxpr.replace(constvars=[], invars=fresh, outvars=list(eqn.outvars), eqns=[alone])
    function = jex.jaxpr_as_fun(jex.ClosedJaxpr(single, []))
    key = (eqn.primitive.name, tuple((name, _key(v)) for name, v in sorted(eqn.params.items())))
    return function, key


def _key(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value  # 1, 1.0 and True are equal
