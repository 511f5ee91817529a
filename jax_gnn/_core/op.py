"""An op is one record: what is particular to a primitive, from which the rest is made.

This module, :mod:`jax_gnn._core.linear` and :mod:`jax_gnn._core.ffi` are the only ones that touch
``jax.extend``, ``jax.interpreters`` and ``jax.ffi``.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import jax
import jax.export
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from jax_gnn._core import ffi, sharding
from jax_gnn._core.ffi import Platform
from jax_gnn._core.ids import UnknownSize
from jax_gnn._core.schedule import Family


@dataclass(frozen=True)
class Bind:
    """Applies an op to operands; its rules get it as their first argument."""

    op: Op
    implementation: str | None
    attributes: Mapping[str, Any] = field(hash=False)

    def __call__(self, operands: Any, **changes: Any) -> Any:
        """Applies the op to its operands, with its attributes but for the ``changes``."""
        leaves, tree = jax.tree.flatten(operands)
        attributes = {**self.attributes, **changes}

        def call(*leaves: Array) -> Any:
            return self.op.primitive.bind(
                *leaves,
                implementation=self.implementation,
                tree=tree,
                devices=sharding.needs_devices(),
                **attributes,
            )

        leaves = align_varying(leaves)
        avals = [jax.typeof(x) for x in leaves]
        if not sharding.is_explicit(avals):
            return call(*leaves)
        results, result_tree = jax.tree.flatten(
            self.op.result(jax.tree.unflatten(tree, avals), **attributes)
        )
        split = _split(self.op, self.implementation, tree, avals, results, attributes)
        specs = split.result_specs(avals, results) if split else [PartitionSpec() for _ in results]
        return sharding.over_auto_axes(call, leaves, jax.tree.unflatten(result_tree, specs))


@dataclass(frozen=True)
class Operand:
    """An array on its way to a custom call.

    Attributes:
        aval: its abstract value.
        lower: gives its value, from the context of a lowering.
    """

    aval: Any
    lower: Callable[[Any], Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self.aval.dtype

    @staticmethod
    def of(function: Callable[..., Array], *operands: Operand) -> Operand:
        """What a function makes of operands."""
        avals = [operand.aval for operand in operands]
        like = jax.eval_shape(function, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
        aval = abstract_like(avals[0], like)

        def lower(ctx: Any) -> Any:
            inner = ctx.replace(avals_in=avals, avals_out=[aval])
            values = [operand.lower(ctx) for operand in operands]
            return mlir.lower_fun(function, multiple_results=False)(inner, *values)[0]

        return Operand(aval, lower)


@dataclass(frozen=True)
class Call:
    """A custom call: what a kernel gets.

    Attributes:
        operands: those of the op's operands that the kernel wants. A handler takes them by
            position; what is absent has any other in its place, and an attribute says so.
        attributes: numpy scalars, by name.
        workspaces: shapes and dtypes of the scratch memory, which are further results.
        finish: maps the kernel's results, and then its operands, to the op's results, which are of
            the same shapes; None where they are these.
    """

    operands: Sequence[Operand]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    workspaces: Sequence[jax.ShapeDtypeStruct] = ()
    finish: Callable[..., Any] | None = None


class Cost(NamedTuple):
    """What a call cannot do without.

    Attributes:
        bytes: of memory, all that a kernel reads and writes counted once.
        flops: additions and multiplications.
    """

    bytes: int
    flops: int


def _all_operands(platform: str, operands: Any, **attributes: Any) -> Call | None:
    del platform, attributes
    return Call(jax.tree.leaves(operands))


def _no_composition(
    platform: str, implementation: str | None, operands: Any, **attributes: Any
) -> None:
    del platform, implementation, operands, attributes


@dataclass(frozen=True, kw_only=True, eq=False)
class Op:
    """Everything that is particular to one primitive; calling it applies the primitive.

    A primitive maps operands, which are pytrees of arrays, to one array, or to several: a list. It
    is linear in each operand that ``transpose`` names; these are single arrays. Its attributes are
    static keyword arguments: ``result``, ``xla`` and ``call`` get them, the others find them in
    ``bind``. Rules get all operands, and tangents, and what is batched, by name: as a named tuple
    of the type ``operands``.

    Attributes:
        name: of the primitive, and of each platform's target.
        operands: the named tuple of its operands.
        result: maps the operands' avals to shape and dtype of the result; of each, in a list.
        xla: the same function in plain ``jax.numpy``, or in other primitives, of operands and
            attributes as keyword arguments.
        transpose: for the name of each linear operand, a function of (bind, cotangent, operands)
            that gives the operand's cotangent; the operand itself is not to be read. For several
            names in a tuple, where it is linear in all these operands together, a function that
            gives the cotangent of each. Of several results, ``cotangent`` is a list, with None for
            zero. Of an operand that is a tuple of arrays it gives a tuple, with None where an
            array is known.
        batch: a function of (bind, operands, batched, size) in which batched operands carry the
            batch as their first axis; gives the result with the batch as first axis.
        platforms: those whose compiled modules have a kernel of this name.
        call: maps a platform and the operands, of which arrays are :class:`Operand`, to what that
            platform's kernel gets, or to None where ``xla`` is meant to do the work. By default,
            all operands.
        prefers_xla: whether plain XLA is faster than that kernel, which is not asked where an
            implementation is demanded. Called like ``call``.
        jvp: a function of (bind, primals, tangents), where None is a zero tangent, that gives
            (result, tangent). Left out, the sum over the linear operands.
        several: whether there are several results.
        composition: maps a platform, the implementation that was demanded, if any, and the
            operands, as for ``call``, to the same function in other primitives, which have kernels
            there; or to None.
        flops: maps the operands' avals to how many additions and multiplications it takes.
        family: of the schedules that its kernels follow, if any.
        sharding: maps the avals of operands and, in a list, of results to how the work is split
            over devices. None: each does it all, or, over explicit axes, the primitives of ``xla``
            are split.
    """

    name: str
    operands: Callable[..., Any]
    result: Callable[..., Any]
    xla: Callable[..., Any]
    transpose: Mapping[str | tuple[str, ...], Callable[[Bind, Any, Any], Any]]
    batch: Callable[[Bind, Any, Any, int], Any]
    platforms: tuple[Platform, ...] = get_args(Platform)
    call: Callable[..., Call | None] = _all_operands
    prefers_xla: Callable[..., bool] = lambda platform, operands, **attributes: False
    jvp: Callable[[Bind, Any, Any], tuple[Any, Any]] | None = None
    several: bool = False
    composition: Callable[..., Callable[..., Any] | None] = _no_composition
    flops: Callable[..., int] = lambda operands, **attributes: 0
    family: Family[Any] | None = None
    sharding: Callable[..., sharding.Sharding] | None = None
    primitive: Primitive = field(init=False)

    def __call__(self, *operands: Any, implementation: str | None = None, **attributes: Any) -> Any:
        """Applies the primitive to operands, in the order of their names."""
        ffi.check_implementation(implementation)
        chosen = implementation or ffi.chosen_implementation.value
        return Bind(self, chosen, attributes)(self.operands(*operands))

    def cost(self, *operands: Any, platform: Platform = "cuda", **attributes: Any) -> Cost:
        """What a call cannot do without, from the operands' shapes and dtypes."""
        named = self.operands(*operands)
        arrays = jax.tree.map(
            lambda x: Operand(jax.core.ShapedArray(x.shape, x.dtype), _never_lowered), named
        )
        has_kernel = platform in self.platforms
        call = self.call(platform, arrays, **attributes) if has_kernel else None
        read = jax.tree.leaves(arrays) if call is None else call.operands
        results = jax.tree.leaves(self.result(named, **attributes))
        moved = [*{id(each): each for each in read}.values(), *results]
        num_bytes = sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in moved)
        return Cost(num_bytes, self.flops(named, **attributes))


def _never_lowered(ctx: Any) -> Any:
    raise AssertionError("only shapes are asked for")


OPS: dict[str, Op] = {}


def export_checks() -> tuple[jax.export.DisabledSafetyCheck, ...]:
    """What :mod:`jax.export` must be told: that all custom calls of this library may be trusted."""
    return tuple(
        jax.export.DisabledSafetyCheck.custom_call(ffi.TARGET_PREFIX + name) for name in OPS
    )


def define(op: Op) -> Op:
    """Makes an op's primitive: abstract evaluation, JVP, transpose, batching and lowerings."""
    primitive = Primitive(f"{ffi.TARGET_PREFIX}{op.name}")
    primitive.multiple_results = op.several
    object.__setattr__(op, "primitive", primitive)
    OPS[op.name] = op
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(functools.partial(_abstract_eval, op))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, op)
    ad.primitive_transposes[primitive] = functools.partial(_transpose, op)
    batching.primitive_batchers[primitive] = functools.partial(_batch, op)
    mlir.register_lowering(primitive, functools.partial(lower, op, "xla"))
    for platform in get_args(Platform):
        rule = functools.partial(lower, op, platform)
        mlir.register_lowering(primitive, rule, platform=platform)
    return op


def multilinear_jvp(
    linear: Sequence[str], bind: Bind, primals: Any, tangents: Any
) -> tuple[Array, Array | None]:
    """Value and derivative of a function that is linear in each of the operands ``linear``."""
    terms = [
        bind(primals._replace(**{name: tangent}))
        for name in linear
        if (tangent := getattr(tangents, name)) is not None
    ]
    return bind(primals), functools.reduce(jax.numpy.add, terms) if terms else None


def composed_jvp(
    function: Callable[[Any], Array], primals: Any, tangents: Any
) -> tuple[Array, Array]:
    """Value and derivative of a function of the operands that is made of others."""
    leaves, tree = jax.tree.flatten(primals)
    changes: list[Any] = tree.flatten_up_to(tangents)  # type: ignore[attr-defined]
    moving = [i for i, change in enumerate(changes) if change is not None]

    def moved(values: list[Any]) -> Array:
        return function(jax.tree.unflatten(tree, replace_items(leaves, moving, values)))

    at, along = ([each[i] for i in moving] for each in (leaves, changes))
    return jax.jvp(moved, (at,), (along,))


def replace_items(leaves: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """The leaves, with other values in some places."""
    found = list(leaves)
    for i, value in zip(places, values, strict=True):
        found[i] = value
    return found


# --- The rules that JAX asks for -----------------------------------------------------------------


def as_jax(value: Any) -> Any:
    """JAX keeps arrays that a jitted function closes over as numpy's: rules get its own."""
    return jax.numpy.asarray(value) if isinstance(value, np.ndarray) else value


def _abstract_eval(
    op: Op, *avals: Any, implementation: str | None, tree: Any, devices: Any, **attributes: Any
) -> Any:
    del devices
    result = op.result(tree.unflatten(avals), **attributes)
    return jax.tree.map(functools.partial(abstract_like, sharding.first_on_mesh(avals)), result)


def _plain(op: Op, implementation: str | None, tree: Any, attributes: Any, *leaves: Any) -> Any:
    with ffi.chosen_implementation(implementation):
        return op.xla(**tree.unflatten(leaves)._asdict(), **attributes)


def _split(
    op: Op,
    implementation: str | None,
    tree: Any,
    avals: Sequence[Any],
    results: Sequence[Any],
    attributes: Any,
) -> sharding.Split | None:
    if op.sharding is None:
        return None
    rule = op.sharding(tree.unflatten(avals), results, **attributes)
    bind = Bind(op, implementation, attributes)

    def local(leaves: Sequence[Array], pieces: sharding.Pieces) -> list[Array]:
        return jax.tree.leaves(rule.local(bind, tree.unflatten(leaves), pieces))

    return sharding.Split(rule, local)


def abstract_like(aval: Any, like: Any) -> Any:
    """An abstract value with another shape and dtype, that varies over the same manual axes."""
    whole = NamedSharding(aval.sharding.mesh, PartitionSpec(*[None] * len(like.shape)))
    return aval.update(shape=like.shape, dtype=like.dtype, weak_type=False, sharding=whole)


def _jvp(
    op: Op,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    implementation: str | None,
    tree: Any,
    devices: Any,
    **attributes: Any,
) -> tuple[Any, Any]:
    del devices
    linear = tuple(key for key in op.transpose if isinstance(key, str))
    rule = op.jvp or functools.partial(multilinear_jvp, linear)
    known = [None if isinstance(t, ad.Zero) else as_jax(t) for t in tangents]
    bind = Bind(op, implementation, attributes)
    result, tangent = rule(bind, tree.unflatten(map(as_jax, primals)), tree.unflatten(known))
    zero = jax.tree.map(lambda each: ad.Zero(jax.typeof(each).to_tangent_aval()), result)
    return result, zero if tangent is None else tangent


def _transpose(
    op: Op,
    cotangent: Any,
    *leaves: Any,
    implementation: str | None,
    tree: Any,
    devices: Any,
    **attributes: Any,
) -> list[Any]:
    del devices
    bind = Bind(op, implementation, attributes)
    operands = tree.unflatten(map(as_jax, leaves))
    positions = tree.unflatten(range(len(leaves)))
    wanted = [
        name
        for name, x in operands._asdict().items()
        if any(map(ad.is_undefined_primal, x if isinstance(x, tuple) else (x,)))
    ]
    cotangents = cotangent if op.several else [cotangent]
    known = [None if isinstance(ct, ad.Zero) else ct for ct in cotangents]
    found: dict[str, Any] = {}
    if all(ct is None for ct in known):
        found = {
            name: jax.tree.map(
                _zero_cotangent, getattr(operands, name), is_leaf=ad.is_undefined_primal
            )
            for name in wanted
        }
    together = {
        name: key for key in op.transpose for name in (key if isinstance(key, tuple) else (key,))
    }
    for name in wanted:
        if name not in found:
            key = together[name]
            cts = op.transpose[key](bind, known if op.several else known[0], operands)
            found |= zip(key, cts, strict=True) if isinstance(key, tuple) else {name: cts}
    result: list[Any] = [None] * len(leaves)
    for name in wanted:
        place, ct = getattr(positions, name), found[name]
        for i, each in zip(place, ct, strict=True) if isinstance(place, tuple) else [(place, ct)]:
            result[i] = each
    return result


def _zero_cotangent(x: Any) -> Any:
    return ad.Zero(x.aval.to_ct_aval()) if ad.is_undefined_primal(x) else None


def _batch(
    op: Op,
    leaves: Sequence[Any],
    dims: Sequence[int | None],
    *,
    implementation: str | None,
    tree: Any,
    devices: Any,
    **attributes: Any,
) -> tuple[Any, Any]:
    del devices
    bind = Bind(op, implementation, attributes)
    batched = [dim is not None for dim in dims]
    moved = [
        as_jax(leaf) if dim is None else jax.numpy.moveaxis(leaf, dim, 0)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]
    size = next(x.shape[0] for x, is_batched in zip(moved, batched, strict=True) if is_batched)
    if size == 0:  # rules divide by it
        each = [
            jax.ShapeDtypeStruct(x.shape[1:] if is_batched else x.shape, x.dtype)
            for x, is_batched in zip(moved, batched, strict=True)
        ]
        result = jax.tree.map(
            lambda one: jax.numpy.zeros((0, *one.shape), one.dtype),
            op.result(tree.unflatten(each), **attributes),
        )
    else:

        def of_leaves(*leaves: Any) -> Any:
            return op.batch(bind, jax.tree.unflatten(tree, leaves), tree.unflatten(batched), size)

        result = sharding.batch_over_auto_axes(of_leaves, moved, batched)
    return result, jax.tree.map(lambda _: 0, result)


def lower(op: Op, platform: str, ctx: Any, *values: Any, **params: Any) -> Any:
    """Lowers an op for a platform, or ``"xla"``: to a custom call or to plain XLA."""
    with sharding.enable_x64_for(ctx.avals_in):
        return _lowered(op, platform, ctx, *values, **params)


def _lowered(
    op: Op,
    platform: str,
    ctx: Any,
    *values: Any,
    implementation: str | None,
    tree: Any,
    devices: Any,
    **attributes: Any,
) -> Any:
    del devices
    if implementation not in (None, "xla", platform):
        raise ValueError(
            f"{op.name}: implementation={implementation!r} was asked for, but this computation is "
            f"compiled for {' and '.join(ctx.platforms or ctx.module_context.platforms)}"
        )
    plain = functools.partial(_plain, op, implementation, tree, attributes)
    split = None
    # Plain XLA that was asked for is XLA's to split, and exported programs know no rules.
    if implementation != "xla" and sharding.is_partitioned(ctx):
        split = _split(op, implementation, tree, ctx.avals_in, ctx.avals_out, attributes)
    if split is not None:
        return mlir.lower_fun(split.auto(), multiple_results=True)(ctx, *values)
    call = None
    if implementation != "xla":
        leaves = [
            Operand(aval, functools.partial(_value, value))
            for aval, value in zip(ctx.avals_in, values, strict=True)
        ]
        operands = tree.unflatten(leaves)
        function = op.composition(platform, implementation, operands, **attributes)
        if function is not None:

            def composed(*leaves: Any) -> Any:
                return function(**tree.unflatten(leaves)._asdict())

            return mlir.lower_fun(composed, multiple_results=op.several)(ctx, *values)
        if platform in op.platforms and (
            implementation is not None or not _prefers_xla(op, platform, operands, **attributes)
        ):
            call = op.call(platform, operands, **attributes)
    if call is None:
        return mlir.lower_fun(plain, multiple_results=op.several)(ctx, *values)
    state = ffi.STATUS[platform]
    if op.name not in state.targets:
        missing = (
            f"{op.name} has no {platform} kernel here: {state.reason}. What to do: {state.hint}."
        )
        if implementation is not None:
            raise ValueError(missing)
        warnings.warn(f"{missing} Using plain XLA instead.", RuntimeWarning, stacklevel=2)
        return mlir.lower_fun(plain, multiple_results=op.several)(ctx, *values)
    workspaces = [jax.core.ShapedArray(w.shape, w.dtype) for w in call.workspaces]
    inner = ctx.replace(
        avals_in=[operand.aval for operand in call.operands],
        avals_out=[*ctx.avals_out, *workspaces],
    )
    # The workspaces are results that nobody reads.
    lowering = jax.ffi.ffi_lowering(ffi.TARGET_PREFIX + op.name)
    arguments = [operand.lower(ctx) for operand in call.operands]
    results = lowering(inner, *arguments, **call.attributes)[: len(ctx.avals_out)]
    if call.finish is None:
        return results
    last = ctx.replace(avals_in=[*ctx.avals_out, *inner.avals_in])
    finish = mlir.lower_fun(call.finish, multiple_results=op.several)
    return finish(last, *results, *arguments)


def _prefers_xla(op: Op, *arguments: Any, **attributes: Any) -> bool:
    try:
        return op.prefers_xla(*arguments, **attributes)
    except UnknownSize:
        return False


def _value(value: Any, ctx: Any) -> Any:
    del ctx
    return value


def varying_axes(aval: Any) -> frozenset[str]:
    """The manual mesh axes that an abstract value varies over."""
    manual = getattr(aval, "manual_axis_type", None)
    return manual.varying if manual is not None else aval.vma


def align_varying(operands: Sequence[Any]) -> list[Any]:
    """Casts all operands to vary over the union of their manual mesh axes, as ``jax.numpy`` does.

    The cast transposes into a sum over the axes: gradients to replicated operands of a sharded
    computation come out right.
    """
    varying = [varying_axes(jax.typeof(operand)) for operand in operands]
    union = frozenset().union(*varying)
    return [
        jax.lax.pcast(operand, tuple(sorted(union - have)), to="varying")
        if union - have
        else operand
        for operand, have in zip(operands, varying, strict=True)
    ]


def gradients_at_once(x: Array, kernel: Array) -> tuple[Array, Array]:
    """Both as they are. On several devices nothing waits for the gradient to x but that to both.

    XLA would compute those to the kernels of all layers while the last rows travel, and keep what
    each needs so long.
    """
    if not varying_axes(jax.typeof(x)):
        return x, kernel
    x, kernel = align_varying([x, kernel])
    return _at_once(x, kernel)


@jax.custom_jvp
def _at_once(x: Array, kernel: Array) -> tuple[Array, Array]:
    return x, kernel


def _at_once_jvp(primals: Any, tangents: Any) -> Any:
    if not any(isinstance(each, SymbolicZero) for each in tangents):
        tangents = jax.lax.optimization_barrier(tuple(tangents))
    return primals, tuple(tangents)


_at_once.defjvp(_at_once_jvp, symbolic_zeros=True)
