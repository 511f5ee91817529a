"""The uses of ids in a jaxpr: gathers of rows by an array of ids, and scatters of rows by one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jax_gnn._core.arrays import FLOATS
from jax_gnn._core.ids import is_traced
from jax_gnn._ops.edge_region.region import is_constant
from jax_gnn._program.lift_rows import CALLS, REMATS, Equation, is_var, needed_equations
from jax_gnn._program.rows import MAX_CONSTANT
from jax_gnn._program.trace import inner_jaxpr, inner_jaxprs, parameter_key

_REDUCTIONS = {
    f"scatter{sign}{name}": reduce
    for sign in "-_"
    for name, reduce in (("add", "sum"), ("max", "max"), ("min", "min"))
}
CLIPS = "clip", "promise"
SOFTMAX = jex.Primitive("jax_gnn_lifted_softmax")
"""The softmax of its operand over the edges of equal ids, which are a parameter."""
_COPIES = frozenset(("broadcast_in_dim", "convert_element_type", "reshape"))


@dataclass(frozen=True, eq=False)
class End:
    """One end of the edges of a space: an array of ids.

    Attributes:
        root: The variable of the ids, ``(edges,)``.
        num_nodes: Number of rows that they index.
    """

    root: Any
    num_nodes: int


@dataclass(frozen=True, eq=False)
class Use:
    """A gather of rows by ids, or a scatter of rows by them.

    Attributes:
        eqn: The equation.
        reduce: ``"sum"``, ``"max"``, ``"min"`` or ``"softmax"``; "" for a gather.
        key: Key that uses of one end share.
        end: The ids.
        wraps: Whether negative ids count from the end.
        mode: "clip", "fill" or "drop", which says what becomes of ids out of range; "promise" clips
            them, and has no gradient there.
    """

    eqn: Equation
    reduce: str
    key: tuple[Any, ...]
    end: End
    wraps: bool
    mode: str

    @property
    def num_edges(self) -> int:
        """Number of ids."""
        by_edge = self.eqn.invars[0 if self.reduce == "softmax" else 1]
        return int(by_edge.aval.shape[0])

    @property
    def moved(self) -> Any:
        """The abstract rows that are gathered or scattered."""
        is_scatter = self.reduce in _REDUCTIONS.values()
        return (self.eqn.invars[2] if is_scatter else self.eqn.outvars[0]).aval


class Segment(NamedTuple):
    """Equations that run as they were.

    Attributes:
        function: The equations.
        inputs: The variables that they read.
        outputs: The variables that others read.
    """

    function: Callable[..., Sequence[Any]]
    inputs: list[Any]
    outputs: list[Any]


class Flat(NamedTuple):
    """A jaxpr with its calls inlined, each variable assigned once.

    Attributes:
        products: The results of scatters that are written as products of one-hot rows.
        checkpoints: The options of the ``jax.checkpoint`` that each variable is made in.
    """

    invars: list[Any]
    consts: dict[Any, Any]
    eqns: list[Equation]
    outvars: list[Any]
    template: jex.Jaxpr
    checkpoints: Mapping[Any, Mapping[str, Any]]
    products: frozenset[Any] = frozenset()

    def segment(self, eqns: Sequence[Equation], needed: Container[Any]) -> Segment:
        """Return some equations as a function, which returns what is needed."""
        made = {v: None for eqn in eqns for v in eqn.outvars}
        inputs = [*dict.fromkeys(v for e in eqns for v in e.invars if is_var(v) and v not in made)]
        outputs = [v for v in made if v in needed]
        template: Any = self.template
        jaxpr = template.replace(constvars=[], invars=inputs, outvars=outputs, eqns=[*eqns])
        return Segment(jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, [])), inputs, outputs)


def has_indexing(jaxpr: jex.Jaxpr) -> bool:
    """Whether a jaxpr gathers or scatters, perhaps inside of a call or loop."""
    return any(
        eqn.primitive.name == "gather"
        or eqn.primitive.name in _REDUCTIONS
        or any(map(has_indexing, inner_jaxprs(eqn.params.values())))
        for eqn in jaxpr.eqns
    )


def flatten(closed: jex.ClosedJaxpr) -> Flat:
    """Inline the calls of a jaxpr.

    Calls with shardings or donated arguments stay, and ``jax.checkpoint`` without indices.
    """
    eqns: list[Equation] = []
    consts: dict[Any, Any] = {}
    checkpoints: dict[Any, Mapping[str, Any]] = {}

    def walk(
        jaxpr: jex.Jaxpr, values: Sequence[Any], operands: Sequence[Any], options: Any = None
    ) -> list[Any]:
        env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
        for var, value in zip(jaxpr.constvars, values, strict=True):
            env[var] = jex.Var(var.aval)
            consts[env[var]] = value
        for eqn in jaxpr.eqns:
            inputs = [env[v] if is_var(v) else v for v in eqn.invars]
            if _is_inlined(eqn):
                inner = inner_jaxpr(eqn)
                body = inner.jaxpr if isinstance(inner, jex.ClosedJaxpr) else inner
                is_checkpoint = eqn.primitive.name in REMATS
                inner_options = eqn.params if is_checkpoint else options
                outs = walk(body, getattr(inner, "consts", ()), inputs, inner_options)
            else:
                outs = [jex.Var(v.aval) for v in eqn.outvars]
                eqns.append(eqn.replace(invars=inputs, outvars=outs))
                checkpoints.update(dict.fromkeys(outs, options) if options else {})
            env.update(zip(eqn.outvars, outs, strict=True))
        return [env[v] if is_var(v) else v for v in jaxpr.outvars]

    jaxpr = closed.jaxpr
    outvars = walk(jaxpr, closed.consts, jaxpr.invars)
    eqns = needed_equations(eqns, outvars)
    return Flat(list(jaxpr.invars), consts, eqns, outvars, jaxpr, checkpoints)


def _is_inlined(eqn: Equation) -> bool:
    name, params = eqn.primitive.name, eqn.params
    if name in REMATS:
        return has_indexing(params["jaxpr"])
    if name not in CALLS:
        return False
    shardings = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    is_plain = all(type(x).__name__ == "UnspecifiedValue" for x in shardings)
    return is_plain and not any(params.get("donated_invars", ()))


class Indexing:
    """The uses of ids in a jaxpr.

    Attributes:
        flat: The jaxpr.
        left: Gathers and scatters that stay, with the reason, by the id of their equation.
        readers: The equations that read each variable; None among them for a result.
        uses: The gathers and scatters of rows, by the id of their equation.
    """

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.left: dict[int, tuple[Equation, str]] = {}
        self._producers = {v: eqn for eqn in flat.eqns for v in eqn.outvars}
        self.readers: dict[Any, list[Equation | None]] = defaultdict(list)
        for eqn in flat.eqns:
            for var in filter(is_var, eqn.invars):
                self.readers[var].append(eqn)
        for var in filter(is_var, flat.outvars):
            self.readers[var].append(None)
        self._numbers = self._value_numbers()
        self.uses = self._find_uses()

    def producer(self, atom: Any) -> Equation | None:
        """Return the equation that makes a variable; None for arguments and literals."""
        return self._producers.get(atom) if is_var(atom) else None

    def _value_numbers(self) -> dict[Any, Any]:
        """Number integers, so that equal functions of equal arrays have one number."""
        numbers: dict[Any, Any] = {}
        seen: dict[Any, Any] = {}
        for eqn in self.flat.eqns:
            dtypes = [getattr(v.aval, "dtype", float) for v in eqn.outvars]
            is_exact = [
                jnp.issubdtype(x, np.integer) or jnp.issubdtype(x, np.bool_) for x in dtypes
            ]
            if not all(is_exact):
                continue
            key = (
                eqn.primitive.name,
                parameter_key(sorted(eqn.params.items())),
                tuple(numbers.get(v, v) if is_var(v) else _literal_key(v) for v in eqn.invars),
            )
            for i, var in enumerate(eqn.outvars):
                numbers[var] = seen.setdefault((key, i), var)
        return numbers

    def number(self, atom: Any) -> Any:
        """Return what equal arrays of integers share."""
        return self._numbers.get(atom, atom) if is_var(atom) else _literal_key(atom)

    def key(self, ids: Any, num_nodes: int) -> tuple[Any, int]:
        """Return the key of uses of ids."""
        return self.number(self._root(ids, num_nodes)[0]), num_nodes

    def _root(self, var: Any, num_nodes: int) -> tuple[Any, bool]:
        """Return the ids behind an array of indices, and whether negative ones were wrapped.

        They have one axis: ``edge_index[0]`` is a row of an array of two.
        """
        wraps, ids = False, (var, False)
        while (eqn := self.producer(var)) is not None:
            name, operand = eqn.primitive.name, next(iter(eqn.invars), None)
            if operand is None or not is_var(operand):
                break
            if name in ("broadcast_in_dim", "reshape", "squeeze"):
                if math.prod(operand.aval.shape) != math.prod(var.aval.shape):
                    break
            elif name == "convert_element_type":
                # Ids that do not fit into 32 bits are out of range of arrays indexed by 32 bits.
                if operand.aval.dtype.kind not in "iu" or var.aval.dtype.itemsize < 4:
                    break
            elif name == "select_n" and not wraps and (ids_of := self._wrapped(eqn, num_nodes)):
                operand, wraps = ids_of, True
            else:
                break
            var = operand
            if len(var.aval.shape) == 1:
                ids = var, wraps
        return ids

    def _wrapped(self, eqn: Equation, num_nodes: int) -> Any:
        """Return ids of which ``where(ids < 0, ids + num_nodes, ids)`` is an equation, or None."""
        if len(eqn.invars) != 3:
            return None
        condition, ids, wrapped = eqn.invars
        less, plus = self.producer(condition), self.producer(wrapped)
        if less is None or plus is None:
            return None
        if less.primitive.name != "lt" or plus.primitive.name != "add":
            return None
        same = self.number(less.invars[0]) == self.number(plus.invars[0]) == self.number(ids)
        numbers = [v.val for v in (less.invars[1], plus.invars[1]) if not is_var(v)]
        return ids if same and [int(x) for x in numbers] == [0, num_nodes] else None

    def _find_uses(self) -> dict[int, Use]:
        """Return the gathers and scatters of rows, by the id of their equation."""
        uses = {}
        for eqn in self.flat.eqns:
            name = eqn.primitive.name
            if eqn.primitive is SOFTMAX:
                num_nodes = eqn.params["num_nodes"]
                root, wraps = self._root(eqn.params["ids"], num_nodes)
                key, end = self.key(root, num_nodes), End(root, num_nodes)
                uses[id(eqn)] = Use(eqn, "softmax", key, end, wraps, "drop")
                continue
            if name != "gather" and not name.startswith("scatter"):
                continue
            reason = _reason_to_leave(eqn)
            reduce = _REDUCTIONS.get(name, "")
            if reduce in ("max", "min") and not reason:
                neutral = -np.inf if reduce == "max" else np.inf
                is_neutral = self.constant(eqn.invars[0]) == neutral
                reason = "" if is_neutral else "nodes without edges have other values"
            if reason:
                self.left[id(eqn)] = eqn, reason
                continue
            num_nodes = eqn.invars[0].aval.shape[0]
            root, wraps = self._root(eqn.invars[1], num_nodes)
            if not is_var(root) or root.aval.shape != eqn.invars[1].aval.shape[:1]:
                self.left[id(eqn)] = eqn, "its ids are no array of one id for each edge"
                continue
            mode = str(eqn.params["mode"]).rpartition(".")[2].lower()
            modes = {"clip": "clip", "promise_in_bounds": "drop" if reduce else "promise"}
            mode = modes.get(mode, "drop" if reduce else "fill")
            key = self.key(root, num_nodes)
            uses[id(eqn)] = Use(eqn, reduce, key, End(root, num_nodes), wraps, mode)
        return uses

    def constant(self, atom: Any) -> float | None:
        """Return the number that all elements of a value are, if that is known."""
        while is_var(atom):
            eqn = self.producer(atom)
            if eqn is None or eqn.primitive.name not in _COPIES:
                return None
            atom = eqn.invars[0]
        value = np.asarray(atom.val)
        return float(value) if value.ndim == 0 and value.dtype.kind in "iuf" else None

    def known_arrays(self, wanted: Iterable[Any]) -> dict[Any, np.ndarray]:
        """Return the small sparse arrays of floats that constants alone make, of some variables.

        Such arrays, as those of Clebsch and Gordan, are part of kernels. They are computed by one
        call, which compiles faster than one for each equation.
        """
        consts = {var: x for var, x in self.flat.consts.items() if not is_traced(x)}
        known = {*consts}
        for eqn in self.flat.eqns:
            if not eqn.effects and all(v in known for v in eqn.invars if is_var(v)):
                known.update(eqn.outvars)
        outs = [
            var
            for var in dict.fromkeys(wanted)
            if var in known
            and var.aval.size <= MAX_CONSTANT
            and jnp.issubdtype(var.aval.dtype, jnp.floating)
        ]
        eqns = needed_equations(self.flat.eqns, outs)
        if eqns:
            segment = self.flat.segment(eqns, set(outs))
            operands = [consts[v] for v in segment.inputs]
            compiled = jax.jit(segment.function).lower(*operands).compile()
            consts |= zip(segment.outputs, compiled(*operands), strict=True)
        arrays = {var: np.asarray(consts[var]) for var in outs}
        return {var: x for var, x in arrays.items() if is_constant(x)}


def fill_value(use: Use, dtype: Any) -> Any:
    """Return what a gather reads out of range; None if that is the next row."""
    if use.mode != "fill":
        return None
    value = use.eqn.params["fill_value"]
    if value is None:
        if jnp.issubdtype(dtype, np.inexact):
            value = jnp.nan
        elif jnp.issubdtype(dtype, np.integer):
            limits: Any = jnp.iinfo(dtype)  # type: ignore[no-untyped-call,unused-ignore]
            value = limits.min or limits.max
        else:
            value = True
    return jnp.asarray(value, dtype)


def _reason_to_leave(eqn: Equation) -> str:
    """Return why a gather or scatter is not one of rows; "" if it is."""
    operand, ids = eqn.invars[0].aval, eqn.invars[1].aval
    numbers, dtype = eqn.params["dimension_numbers"], operand.dtype
    if ids.ndim != 2 or ids.shape[1] != 1 or not jnp.issubdtype(ids.dtype, np.integer):
        return "it is by more than one id for each row"
    if ids.shape[0] < 2 or operand.ndim == 0 or operand.shape[0] < 1:
        return "it has too few rows"
    rest = tuple(range(1, operand.ndim))
    if eqn.primitive.name == "gather":
        is_of_rows = (
            numbers.collapsed_slice_dims == numbers.start_index_map == (0,)
            and numbers.offset_dims == rest
            and not numbers.operand_batching_dims
            and eqn.params["slice_sizes"] == (1, *operand.shape[1:])
        )
        is_key = jnp.issubdtype(dtype, jax.dtypes.extended)
        return "it does not read whole rows" if not is_of_rows or is_key else ""
    if eqn.primitive.name not in _REDUCTIONS:
        return "it is neither a sum, a maximum nor a minimum"
    if dtype not in FLOATS:
        return f"{dtype} is summed exactly in any order"
    is_of_rows = (
        numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
        and numbers.update_window_dims == rest
        and not numbers.operand_batching_dims
    )
    return "" if is_of_rows else "it does not write whole rows"


def _literal_key(atom: Any) -> Any:
    return "literal", str(atom.val), str(atom.aval.dtype)
