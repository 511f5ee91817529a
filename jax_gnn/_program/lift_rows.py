"""Rules that take the edges' axis off an equation: the inverse of batching.

A rule gets an equation and, for each operand, the axis with an entry for each edge, or None for an
operand that all edges share. It returns the equation for one edge.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jax_gnn._core.op import replace_items
from jax_gnn._program.reference import ELEMENTWISE
from jax_gnn._program.trace import function_of, inner_jaxpr

Axes = Sequence[int | None]
Equation = Any  # a `jex.JaxprEqn`, whose variables have types without shapes for type checkers


class RowEquation(NamedTuple):
    """An equation for one edge.

    Attributes:
        axes: Axis of the edges in each result of the equation for all edges.
        function: Maps one row of each operand to a list of rows.
        is_view: Whether the results are entries of the operands, or constants.
    """

    axes: tuple[int, ...]
    function: Callable[..., Sequence[Any]]
    is_view: bool = False


_VIEWS = frozenset(("broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze"))
_AXIS_PARAMETERS = {  # of functions along one axis, which keep the others
    "concatenate": "dimension",
    "cumlogsumexp": "axis",
    "cummax": "axis",
    "cummin": "axis",
    "cumprod": "axis",
    "cumsum": "axis",
    "sort": "dimension",
    "split": "axis",
}
_REDUCTIONS = frozenset(
    f"{name}{suffix}"
    for name, suffixes in (("reduce_", "and max min or prod sum"), ("arg", "max min"))
    for suffix in suffixes.split()
)
CALLS = frozenset(("closed_call", "core_call", "jit", "pjit"))
REMATS = frozenset(("checkpoint", "remat", "remat2"))


def row_equation(eqn: Equation, axes: Axes, size: int, in_rule: bool = False) -> RowEquation | None:
    """Return an equation for one edge, or None if there is no rule.

    Args:
        eqn: The equation for all edges.
        axes: Axis of the edges in each operand; None for shared operands.
        size: Number of edges.
        in_rule: Whether the equation is part of a derivative rule.
    """
    name = eqn.primitive.name
    if name in CALLS or name in REMATS:
        return _jaxpr_rows(_closed(inner_jaxpr(eqn)), axes, size, in_rule)
    if name in ("custom_jvp_call", "custom_vjp_call"):
        return _custom_rows(eqn, axes, size, in_rule)
    if name == "dot_general":
        return _dot_general(eqn, *axes)
    if name == "gather":
        return _gather(eqn, axes, size)
    if name.startswith("scatter"):
        return _scatter(eqn, axes, size)
    present = {axis for axis in axes if axis is not None}
    if len(present) != 1:
        return None
    axis = present.pop()
    is_shared = [x is None for x in axes]
    if name in ("pvary", "pcast"):  # programs align the mesh axes of their rows themselves
        return RowEquation((axis,) * len(axes), lambda *rows: rows, True)
    if name in ELEMENTWISE:
        return _elementwise(eqn, axes, axis)
    if name == "pad" and not is_shared[0] and is_shared[1]:
        config = eqn.params["padding_config"]
        dropped = tuple(_without(config, axis))
        return _bound(eqn, axis, padding_config=dropped) if config[axis] == (0, 0, 0) else None
    if any(is_shared):
        return None
    if name in _AXIS_PARAMETERS:
        parameter = _AXIS_PARAMETERS[name]
        along = eqn.params[parameter]
        return None if along == axis else _bound(eqn, axis, **{parameter: along - (along > axis)})
    return _one_operand(eqn, name, axis, size)


def _elementwise(eqn: Equation, axes: Axes, axis: int) -> RowEquation | None:
    """Take off an axis that shared operands lack, or have with size 1."""
    shapes = [_shape(var) for var in eqn.invars]
    shared = [shape for shape, a in zip(shapes, axes, strict=True) if a is None]
    if any(shape and shape[axis] != 1 for shape in shared):
        return None
    squeezed = [bool(shape) and a is None for shape, a in zip(shapes, axes, strict=True)]
    rows = _bound(eqn, axis)
    if not any(squeezed):
        return rows

    def function(*operands: Any) -> Sequence[Any]:
        return rows.function(
            *(jnp.squeeze(x, axis) if s else x for x, s in zip(operands, squeezed, strict=True))
        )

    return RowEquation(rows.axes, function)


def _one_operand(eqn: Equation, name: str, axis: int, size: int) -> RowEquation | None:
    """Apply the rules of functions of one array that move or reduce axes."""
    params = eqn.params
    if name in _REDUCTIONS:
        if axis in params["axes"]:
            return None
        axes = _shifted(params["axes"], axis)
        return _bound(eqn, axis - sum(x < axis for x in params["axes"]), axes=axes)
    if name == "squeeze":
        dims = params["dimensions"]
        return _bound(eqn, axis - sum(x < axis for x in dims), dimensions=_shifted(dims, axis))
    if name == "transpose":
        order = params["permutation"]
        rest = tuple(x - (x > axis) for x in order if x != axis)
        return _bound(eqn, order.index(axis), permutation=rest)
    if name == "rev" and axis not in params["dimensions"]:
        return _bound(eqn, axis, dimensions=_shifted(params["dimensions"], axis))
    if name == "slice":
        starts, limits, strides = (params[x] for x in ("start_indices", "limit_indices", "strides"))
        if starts[axis] or limits[axis] != size or (strides and strides[axis] != 1):
            return None
        return _bound(
            eqn,
            axis,
            start_indices=tuple(_without(starts, axis)),
            limit_indices=tuple(_without(limits, axis)),
            strides=strides and tuple(_without(strides, axis)),
        )
    if name == "broadcast_in_dim":
        dims = params["broadcast_dimensions"]
        rest = tuple(x - (x > dims[axis]) for i, x in enumerate(dims) if i != axis)
        shape = tuple(_without(params["shape"], dims[axis]))
        return _bound(eqn, dims[axis], shape=shape, broadcast_dimensions=rest)
    if name == "reshape" and params["dimensions"] is None:
        shape, before = params["new_sizes"], math.prod(_shape(eqn.invars[0])[:axis])
        for new in range(len(shape)):
            if shape[new] == size and math.prod(shape[:new]) == before:
                return _bound(eqn, new, new_sizes=tuple(_without(shape, new)))
    return None


def uniform_row(eqn: Equation, axis: int) -> RowEquation | None:
    """Return one row of a result that is the same along an axis, of shared operands."""
    if eqn.primitive.name == "broadcast_in_dim" and axis not in eqn.params["broadcast_dimensions"]:
        dims = tuple(x - (x > axis) for x in eqn.params["broadcast_dimensions"])
        shape = tuple(_without(eqn.params["shape"], axis))
        return _bound(eqn, axis, shape=shape, broadcast_dimensions=dims)
    return None


# --- Products and indices ------------------------------------------------------------------------


def _dot_general(eqn: Equation, lhs: int | None, rhs: int | None) -> RowEquation | None:
    """Take off a batch axis of both factors, or a free axis of one."""
    contracted, batch = eqn.params["dimension_numbers"]
    contracted, batch = [list(map(tuple, x)) for x in (contracted, batch)]
    if lhs is not None and rhs is not None:
        if (lhs, rhs) not in zip(*batch, strict=True):
            return None
        axis = batch[0].index(lhs)
        batch = [
            tuple(x for x in dims if x != a) for dims, a in zip(batch, (lhs, rhs), strict=True)
        ]
    else:
        side, edges = (0, lhs) if rhs is None else (1, rhs)
        if edges is None or edges in contracted[side] or edges in batch[side]:
            return None
        axis = len(batch[0])
        for i in range(side + 1):
            taken = (*contracted[i], *batch[i])
            stop = edges if i == side else len(_shape(eqn.invars[i]))
            axis += sum(x not in taken for x in range(stop))
    numbers = tuple(
        tuple(
            dims if edges is None else tuple(x - (x > edges) for x in dims)
            for dims, edges in zip(pair, (lhs, rhs), strict=True)
        )
        for pair in (contracted, batch)
    )
    return _bound(eqn, axis, dimension_numbers=numbers)


def _gather(eqn: Equation, axes: Axes, size: int) -> RowEquation | None:
    """Take off an axis that shared indices leave as it is, as in ``x[:, ids]``."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    axis = axes[0]
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    if axis is None or axes[1] is not None or numbers.operand_batching_dims:
        return None
    if axis in (*dropped, *numbers.start_index_map) or sizes[axis] != size:
        return None
    window = [i for i in range(len(sizes)) if i not in dropped]
    out = numbers.offset_dims[window.index(axis)]
    row_numbers = numbers._replace(
        offset_dims=_shifted((x for x in numbers.offset_dims if x != out), out),
        collapsed_slice_dims=_shifted(numbers.collapsed_slice_dims, axis),
        start_index_map=_shifted(numbers.start_index_map, axis),
    )
    sizes = tuple(_without(sizes, axis))
    return _bound(eqn, out, dimension_numbers=row_numbers, slice_sizes=sizes)


def _scatter(eqn: Equation, axes: Axes, size: int) -> RowEquation | None:
    """Take off an axis that shared indices leave as it is, as in ``x.at[:, ids].add(y)``."""
    numbers = eqn.params["dimension_numbers"]
    axis, ids, updates = axes
    if axis is None or updates is None or ids is not None or numbers.operand_batching_dims:
        return None
    inserted = numbers.inserted_window_dims
    if axis in (*inserted, *numbers.scatter_dims_to_operand_dims):
        return None
    window = [i for i in range(len(_shape(eqn.invars[0]))) if i not in inserted]
    if numbers.update_window_dims[window.index(axis)] != updates:
        return None
    if _shape(eqn.invars[2])[updates] != size:
        return None
    row_numbers = numbers._replace(
        update_window_dims=_shifted(
            (x for x in numbers.update_window_dims if x != updates), updates
        ),
        inserted_window_dims=_shifted(inserted, axis),
        scatter_dims_to_operand_dims=_shifted(numbers.scatter_dims_to_operand_dims, axis),
    )
    return _bound(eqn, axis, dimension_numbers=row_numbers)


# --- Functions -----------------------------------------------------------------------------------


def choices(eqn: Equation, axes: Axes, size: int) -> Iterator[tuple[int | None, ...]]:
    """Yield the axes that an equation's operands may have, those that share the most first.

    Args:
        eqn: The equation.
        axes: Axes that are known; for others None.
        size: Number of edges.
    """
    options = [
        [axis]
        if axis is not None
        else [None, *(i for i, length in enumerate(_shape(var)) if length == size)]
        for var, axis in zip(eqn.invars, axes, strict=True)
    ]
    yield from itertools.islice(itertools.product(*options), 64)


def _jaxpr_rows(
    closed: jex.ClosedJaxpr, axes: Axes, size: int, in_rule: bool
) -> RowEquation | None:
    """Return a function of all edges as one of an edge."""
    jaxpr = closed.jaxpr
    axis_of = {v: a for v, a in zip(jaxpr.invars, axes, strict=True) if a is not None}
    producers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    steps: list[tuple[Any, Callable[..., Sequence[Any]], list[Any]]] = []

    def spread_out(var: Any, axis: int) -> bool:
        """Make a shared value one that has a row for each edge."""
        rows = uniform_row(producers[var], axis) if var in producers else None
        if rows is not None:
            copy = jex.Var(var.aval)
            copies[var, axis] = copy
            axis_of[copy] = axis
            steps.append((producers[var].invars, rows.function, [copy]))
        return rows is not None

    copies: dict[Any, Any] = {}

    def edges_of(var: Any, axis: int | None) -> Any:
        """Return the variable of an operand with an axis of edges; None if it has none."""
        if axis is None or not is_var(var) or axis_of.get(var) == axis:
            return var if axis is None or is_var(var) else None
        if (var, axis) in copies or (var not in axis_of and spread_out(var, axis)):
            return copies[var, axis]
        return None

    for eqn in needed_equations(jaxpr.eqns, jaxpr.outvars):
        known = [None if not is_var(v) else axis_of.get(v) for v in eqn.invars]
        if all(axis is None for axis in known):
            steps.append((eqn.invars, function_of(eqn, jaxpr)[0], list(eqn.outvars)))
            continue
        for options in choices(eqn, known, size):
            rows = row_equation(eqn, options, size, in_rule)
            if rows is None:
                continue
            operands = [edges_of(v, a) for v, a in zip(eqn.invars, options, strict=True)]
            if all(operand is not None for operand in operands):
                break
        else:
            return None
        steps.append((operands, rows.function, list(eqn.outvars)))
        axis_of.update(zip(eqn.outvars, rows.axes, strict=True))
    results = []
    for var in jaxpr.outvars:  # a result that all edges share has no place for them
        if not is_var(var) or var not in axis_of:
            axis = next((i for i, n in enumerate(_shape(var)) if n == size), None)
            edges = None if axis is None else edges_of(var, axis)
            if edges is None:
                return None
            var = edges
        results.append(var)

    def function(*rows: Any) -> Sequence[Any]:
        env = dict(zip(jaxpr.invars, rows, strict=True))
        env |= dict(zip(jaxpr.constvars, closed.consts, strict=True))

        def value(atom: Any) -> Any:
            return literal(atom) if not is_var(atom) else env[atom]

        for operands, apply, outs in steps:
            env.update(zip(outs, apply(*map(value, operands)), strict=True))
        return [value(atom) for atom in results]

    return RowEquation(tuple(axis_of[var] for var in results), function)


def needed_equations(eqns: Sequence[Equation], outvars: Sequence[Any]) -> list[Equation]:
    """Return the equations that results need, in order."""
    needed, kept = set(filter(is_var, outvars)), []
    for eqn in reversed(eqns):
        if any(v in needed for v in eqn.outvars):
            kept.append(eqn)
            needed |= set(filter(is_var, eqn.invars))
    return kept[::-1]


def _custom_rows(eqn: Equation, axes: Axes, size: int, in_rule: bool) -> RowEquation | None:
    """Return a function with a derivative rule for one edge; the rule becomes one of an edge, too.

    The rule is read off the derivative of the equation, whose jaxpr has the rule inlined. Rules
    inside of rules are read when a second derivative is taken, as rules may call their function.
    """
    closed = _closed(inner_jaxpr(eqn))
    primal = _jaxpr_rows(closed, axes, size, in_rule)
    avals = [jax.ShapeDtypeStruct(_shape(v), v.aval.dtype) for v in (*eqn.invars, *eqn.outvars)]
    ins, outs = avals[: len(eqn.invars)], avals[len(eqn.invars) :]
    active = [i for i, x in enumerate(ins) if jnp.issubdtype(x.dtype, jnp.inexact)]
    is_jvp = eqn.primitive.name == "custom_jvp_call"
    if primal is None or not all(jnp.issubdtype(x.dtype, jnp.inexact) for x in outs):
        return None
    if not is_jvp and any(axes[i] is None for i in active):
        return None  # cotangents of what edges share are sums over edges
    call, _ = function_of(eqn, closed.jaxpr)

    def derivative(operands: Any, directions: Any) -> Any:
        def of_active(*some: Any) -> Any:
            return call(*replace_items(operands, active, some))

        primals = [operands[i] for i in active]
        if is_jvp:
            return jax.jvp(of_active, primals, directions)[1]
        return list(jax.vjp(of_active, *primals)[1](list(directions)))

    @functools.cache
    def rule() -> RowEquation | None:
        jaxpr = jax.make_jaxpr(derivative)(ins, [ins[i] for i in active] if is_jvp else outs)
        of_directions = [axes[i] for i in active] if is_jvp else primal.axes
        rows = _jaxpr_rows(jaxpr, [*axes, *of_directions], size, in_rule=True)
        wanted = primal.axes if is_jvp else tuple(axes[i] for i in active)
        return rows if rows is not None and rows.axes == wanted else None

    if not in_rule and rule() is None:
        return None

    def derive(*rows: Any) -> Sequence[Any]:
        derivative_rows = rule()
        if derivative_rows is None:
            raise NotImplementedError(
                f"lift cannot take the derivative of {eqn.primitive.name} {named.__name__} by "
                "edge: call the function without lift for derivatives of this order"
            )
        return derivative_rows.function(*rows)

    def named(*rows: Any) -> Any:
        return list(primal.function(*rows))

    named.__name__ = getattr(closed.jaxpr.debug_info, "func_name", "function").split(" ")[0]
    if is_jvp:
        with_jvp = jax.custom_jvp(named)

        @with_jvp.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            return with_jvp(*primals), list(derive(*primals, *(tangents[i] for i in active)))

        return RowEquation(primal.axes, with_jvp)
    with_vjp = jax.custom_vjp(named)

    def backward(rows: Any, cotangents: Any) -> Any:
        return tuple(replace_items([None] * len(rows), active, derive(*rows, *cotangents)))

    with_vjp.defvjp(lambda *rows: (with_vjp(*rows), rows), backward)
    return RowEquation(primal.axes, with_vjp)


# --- Helpers -------------------------------------------------------------------------------------


def literal(atom: Any) -> Any:
    """Return the value of a literal as an array of its type."""
    return jnp.asarray(atom.val, atom.aval.dtype)


def _bound(eqn: Equation, axis: int, /, **changes: Any) -> RowEquation:
    primitive, params = eqn.primitive, {**eqn.params, **changes}

    def function(*rows: Any) -> Sequence[Any]:
        results = primitive.bind(*rows, **params)
        return results if primitive.multiple_results else [results]

    return RowEquation((axis,) * len(eqn.outvars), function, primitive.name in _VIEWS)


def _closed(jaxpr: Any) -> jex.ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jex.ClosedJaxpr(jaxpr, [])


def is_var(atom: Any) -> bool:
    """Whether an operand is a variable, not a literal."""
    return not isinstance(atom, jex.Literal)


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def _without(values: Sequence[Any], axis: int) -> Iterator[Any]:
    return (x for i, x in enumerate(values) if i != axis)


def _shifted(dims: Iterable[int], axis: int) -> tuple[int, ...]:
    """Return axes as they are numbered without another one."""
    return tuple(x - (x > axis) for x in dims)
