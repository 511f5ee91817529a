"""The record of an op, and the JAX primitive that its construction makes.

This module, :mod:`jax_gnn._core.linear` and :mod:`jax_gnn._core.ffi` are the only ones that touch
``jax.extend``, ``jax.interpreters`` and ``jax.ffi``.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from jax_gnn._core import ffi, sharding
from jax_gnn._core.ffi import Platform
from jax_gnn._core.ids import UnknownSize
from jax_gnn._core.public import check_implementation, chosen_implementation
from jax_gnn._core.schedule import Family
from jax_gnn._core.types import Attribute, Aval, Leaf, LoweringContext, PyTree, Shaped


@dataclass(frozen=True)
class Bind:
    """An op with its attributes, which applies it to operands; the first argument of its rules."""

    op: Op
    implementation: str | None
    attributes: Mapping[str, Any] = field(hash=False)

    def __call__(self, operands: PyTree, **changes: object) -> Any:
        """Apply the op to its operands, with ``changes`` of its attributes."""
        leaves, tree = jax.tree.flatten(operands)
        bind = replace(self, attributes={**self.attributes, **changes})

        def call(*leaves: Array) -> Any:
            return self.op.primitive.bind(
                *leaves,
                implementation=self.implementation,
                tree=tree,
                devices=sharding.needs_devices(),
                **bind.attributes,
            )

        # The result of an op on a mesh with explicit axes has a split that only its rule knows: the
        # call runs over automatic axes, and the rule supplies the split of each result.
        leaves = align_varying(leaves)
        avals = [jax.typeof(x) for x in leaves]
        if not sharding.is_explicit(avals):
            return call(*leaves)
        results = self.op.result(jax.tree.unflatten(tree, avals), **bind.attributes)
        results, result_tree = jax.tree.flatten(results)
        split = _split(bind, tree, avals, results)
        specs = split.result_specs(avals, results) if split else [PartitionSpec() for _ in results]
        return sharding.over_auto_axes(call, leaves, jax.tree.unflatten(result_tree, specs))

    def plain(self, operands: Any) -> Any:
        """Apply the op by the primitives of its plain version."""
        return self.op.xla(**operands._asdict(), **self.attributes)


@dataclass(frozen=True)
class Operand:
    """An operand of a custom call."""

    aval: Aval  # abstract value of the array
    lower: Callable[[Any], Any]  # maps the context of a lowering to the value

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return cast(tuple[int, ...], self.aval.shape)

    @property
    def dtype(self) -> Any:
        """Dtype of the array."""
        return self.aval.dtype

    @staticmethod
    def of(function: Callable[..., Array], *operands: Operand) -> Operand:
        """Return the result of a function of operands, computed before the custom call."""
        avals = [operand.aval for operand in operands]
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        aval = abstract_like(avals[0], jax.eval_shape(function, *shapes))

        def lower(ctx: LoweringContext) -> Any:
            inner = ctx.replace(avals_in=avals, avals_out=[aval])
            values = [operand.lower(ctx) for operand in operands]
            return mlir.lower_fun(function, multiple_results=False)(inner, *values)[0]

        return Operand(aval, lower)


@dataclass(frozen=True)
class Call:
    """A custom call to a kernel.

    Attributes:
        operands: the operands of the kernel, which handlers take by position. An absent operand is
            replaced by any other, and an attribute says that it is absent.
        attributes: numpy scalars, by name.
        workspaces: shapes and dtypes of the scratch memory, which are further results.
        finish: maps the kernel's results and its operands to the op's results, of the same shapes;
            None where both results are the same.
    """

    operands: Sequence[Operand]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    workspaces: Sequence[jax.ShapeDtypeStruct] = ()
    finish: Callable[..., Any] | None = None


class Cost(NamedTuple):
    """Lower bounds of the work of a call."""

    bytes: int  # of memory, each array of a kernel counted once
    flops: int  # additions and multiplications


@dataclass(frozen=True, kw_only=True, eq=False)
class Op:
    """The description of one primitive; calling it applies the primitive.

    A primitive maps operands, which are pytrees of arrays, to one array or to a list of several. It
    is linear in each operand that ``transpose`` names; these are single arrays. Its attributes are
    static keyword arguments: ``result``, ``xla`` and ``call`` get them, the others find them in
    ``bind``. Rules get all operands, their tangents, and whether they are batched, as a named tuple
    of the type ``operands``.

    Attributes:
        name: of the primitive, and of the target of each platform.
        operands: the named tuple of its operands.
        result: maps the operands' avals to shape and dtype of the result, or a list of them.
        xla: the same function in plain ``jax.numpy`` or in other primitives; it gets operands and
            attributes as keyword arguments.
        transpose: for the name of each linear operand, a function of (bind, cotangent, operands)
            that returns the operand's cotangent without reading the operand. For a tuple of names,
            in which the primitive is linear together, it returns a cotangent for each. Of several
            results, ``cotangent`` is a list, with None for zero. For an operand that is a tuple of
            arrays it returns a tuple, with None for each array that is known.
        batch: a function of (bind, operands, batched, size), where the batch is the first axis of
            batched operands and of the result; by default ``xla`` is mapped over the batch.
        platforms: the platforms whose compiled modules have a kernel of this name.
        call: maps a platform and the operands, with an :class:`Operand` for each array, to the
            custom call, or to None where ``xla`` does the work. By default it passes all operands.
        prefers_xla: whether plain XLA is faster than the kernel, with the arguments of ``call``. It
            is not asked where an implementation is demanded.
        jvp: a function of (bind, primals, tangents), where None is a zero tangent, that returns
            (result, tangent); by default the sum over the linear operands.
        several: whether there are several results.
        composition: maps a platform, the demanded implementation, if any, and the operands, as for
            ``call``, to the same function in primitives with kernels, or to None.
        flops: maps the operands' avals to the number of additions and multiplications.
        family: the schedules of its kernels, if any.
        sharding: maps the avals of operands, and a list of those of results, to the rule that
            splits the work over devices. None: each device does it all or, over explicit axes, the
            primitives of ``xla`` are split.
    """

    name: str
    operands: Callable[..., Any]
    result: Callable[..., Any]
    xla: Callable[..., Any]
    transpose: Mapping[str | tuple[str, ...], Callable[[Bind, Any, Any], Any]] = field(
        default_factory=dict
    )
    platforms: tuple[Platform, ...] = get_args(Platform)
    call: Callable[..., Call | None] = lambda platform, operands, **attributes: Call(
        jax.tree.leaves(operands)
    )
    prefers_xla: Callable[..., bool] = lambda platform, operands, **attributes: False
    jvp: Callable[[Bind, Any, Any], tuple[Any, Any]] | None = None
    batch: Callable[[Bind, Any, Any, int], Any] = lambda *args: composed_batch(Bind.plain, *args)
    several: bool = False
    composition: Callable[..., Callable[..., Any] | None] = lambda *_, **attributes: None
    flops: Callable[..., int] = lambda operands, **attributes: 0
    family: Family[Any] | None = None
    sharding: Callable[..., sharding.Sharding] | None = None
    primitive: Primitive = field(init=False)

    def __post_init__(self) -> None:
        """Make the primitive: abstract evaluation, JVP, transpose, batching and lowerings."""
        primitive = Primitive(f"{ffi.TARGET_PREFIX}{self.name}")
        primitive.multiple_results = self.several
        object.__setattr__(self, "primitive", primitive)
        OPS[self.name] = self
        primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
        primitive.def_abstract_eval(functools.partial(_abstract_eval, self))
        ad.primitive_jvps[primitive] = functools.partial(_apply_rule, _jvp, self)
        ad.primitive_transposes[primitive] = functools.partial(_apply_rule, _transpose, self)
        batching.primitive_batchers[primitive] = functools.partial(_apply_rule, _batch, self)
        mlir.register_lowering(primitive, functools.partial(lower, self, "xla"))
        for platform in get_args(Platform):
            rule = functools.partial(lower, self, platform)
            mlir.register_lowering(primitive, rule, platform=platform)

    def __call__(
        self, *operands: PyTree, implementation: str | None = None, **attributes: Attribute
    ) -> Any:
        """Apply the primitive to operands, in the order of their names."""
        check_implementation(implementation)
        chosen = implementation or chosen_implementation.value
        return Bind(self, chosen, attributes)(self.operands(*operands))

    def cost(self, *operands: PyTree, platform: Platform = "cuda", **attributes: Attribute) -> Cost:
        """Return the minimal cost of a call, from the operands' shapes and dtypes."""
        named = self.operands(*operands)
        arrays = jax.tree.map(
            lambda x: Operand(jax.core.ShapedArray(x.shape, x.dtype), lambda _: None), named
        )
        has_kernel = platform in self.platforms
        call = self.call(platform, arrays, **attributes) if has_kernel else None
        # An array that several operands share is read once.
        inputs = jax.tree.leaves(arrays) if call is None else call.operands
        results = jax.tree.leaves(self.result(named, **attributes))
        transferred = [*{id(operand): operand for operand in inputs}.values(), *results]
        num_bytes = sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in transferred)
        return Cost(num_bytes, self.flops(named, **attributes))


OPS: dict[str, Op] = {}


def export_checks() -> tuple[jax.export.DisabledSafetyCheck, ...]:
    """Return the checks of :mod:`jax.export` that the custom calls of this library need off."""
    return tuple(
        jax.export.DisabledSafetyCheck.custom_call(ffi.TARGET_PREFIX + name) for name in OPS
    )


def multilinear_jvp(
    linear: Sequence[str], bind: Bind, primals: PyTree, tangents: PyTree
) -> tuple[Array, Array | None]:
    """Return value and tangent of a function that is linear in each of the operands ``linear``."""
    terms = [
        bind(primals._replace(**{name: tangent}))
        for name in linear
        if (tangent := getattr(tangents, name)) is not None
    ]
    return bind(primals), functools.reduce(jnp.add, terms) if terms else None


def composed_jvp(
    function: Callable[[Bind, Any], Any], bind: Bind, primals: PyTree, tangents: PyTree
) -> tuple[Any, Any]:
    """Return value and tangent of a function of (bind, operands) that composes the op of others."""
    leaves, tree = jax.tree.flatten(primals)
    directions: list[Any] = tree.flatten_up_to(tangents)  # type: ignore[attr-defined]
    moving = [i for i, direction in enumerate(directions) if direction is not None]

    def of_moving(values: Sequence[Array]) -> Any:
        return function(bind, jax.tree.unflatten(tree, replace_items(leaves, moving, values)))

    at, along = ([values[i] for i in moving] for values in (leaves, directions))
    return jax.jvp(of_moving, (at,), (along,))


def composed_batch(
    function: Callable[[Bind, Any], Any], bind: Bind, operands: PyTree, batched: PyTree, size: int
) -> Any:
    """Map a function of (bind, operands) that composes the op of others over a batch."""
    axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
    return jax.vmap(functools.partial(function, bind), (axes,), axis_size=size)(operands)


def replace_items(
    leaves: Sequence[Leaf], positions: Sequence[int], values: Sequence[object]
) -> list[Any]:
    """Return the leaves, with other values at some positions."""
    result = list(leaves)
    for i, value in zip(positions, values, strict=True):
        result[i] = value
    return result


# --- The rules that JAX asks for -----------------------------------------------------------------


def as_jax(value: Leaf) -> Any:
    """Convert arrays of numpy, as which JAX keeps those that a jitted function closes over."""
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def _parse(
    op: Op, *, implementation: str | None, tree: PyTreeDef, devices: object, **attributes: object
) -> tuple[Bind, Any]:
    """Return the parameters of an equation as its `Bind` and the structure of its operands."""
    return Bind(op, implementation, attributes), tree


def _apply_rule(rule: Callable[..., Any], op: Op, *args: Any, **params: Attribute) -> Any:
    """Apply a rule to an equation; ops in it have the implementation of the equation's."""
    bind, tree = _parse(op, **params)
    with chosen_implementation(bind.implementation):
        return rule(bind, tree, *args)


def _abstract_eval(op: Op, *avals: Aval, **params: Attribute) -> Any:
    bind, tree = _parse(op, **params)
    result = op.result(tree.unflatten(avals), **bind.attributes)
    return jax.tree.map(functools.partial(abstract_like, sharding.first_on_mesh(avals)), result)


def _split(
    bind: Bind, tree: PyTreeDef, avals: Sequence[Aval], results: PyTree
) -> sharding.Split | None:
    if bind.op.sharding is None:
        return None
    rule = bind.op.sharding(tree.unflatten(avals), results, **bind.attributes)

    def local(leaves: Sequence[Array], pieces: sharding.Pieces) -> list[Array]:
        with chosen_implementation(bind.implementation):
            return jax.tree.leaves(rule.local(bind, tree.unflatten(leaves), pieces))

    return sharding.Split(rule, local)


def abstract_like(aval: Aval, like: Shaped) -> Any:
    """Return an abstract value with the shape and dtype of ``like`` on the mesh of ``aval``.

    It varies over the same manual axes.
    """
    replicated = NamedSharding(aval.sharding.mesh, PartitionSpec(*[None] * len(like.shape)))
    return aval.update(shape=like.shape, dtype=like.dtype, weak_type=False, sharding=replicated)


def _jvp(
    bind: Bind, tree: PyTreeDef, primals: Sequence[Leaf], tangents: Sequence[Leaf]
) -> tuple[Any, Any]:
    linear = tuple(key for key in bind.op.transpose if isinstance(key, str))
    rule = bind.op.jvp or functools.partial(multilinear_jvp, linear)
    directions = [None if isinstance(t, ad.Zero) else as_jax(t) for t in tangents]
    result, tangent = rule(bind, tree.unflatten(map(as_jax, primals)), tree.unflatten(directions))
    zero = jax.tree.map(lambda x: ad.Zero(jax.typeof(x).to_tangent_aval()), result)
    return result, zero if tangent is None else tangent


def _transpose(bind: Bind, tree: PyTreeDef, cotangent: PyTree, *leaves: Leaf) -> list[Any]:
    op, operands = bind.op, tree.unflatten(map(as_jax, leaves))
    positions = tree.unflatten(range(len(leaves)))
    linear = [
        name
        for name, x in operands._asdict().items()
        if any(map(ad.is_undefined_primal, x if isinstance(x, tuple) else (x,)))
    ]
    cotangents = [
        None if isinstance(ct, ad.Zero) else ct for ct in (cotangent if op.several else [cotangent])
    ]
    results: dict[str, Any] = {}
    if all(ct is None for ct in cotangents):
        for name in linear:
            x = getattr(operands, name)
            results[name] = jax.tree.map(_zero_cotangent, x, is_leaf=ad.is_undefined_primal)
    # A key is the name of one operand, or the names of operands with a common rule.
    keys = {
        name: key for key in op.transpose for name in (key if isinstance(key, tuple) else (key,))
    }
    for name in linear:
        if name not in results:
            key = keys[name]
            cts = op.transpose[key](bind, cotangents if op.several else cotangents[0], operands)
            results |= zip(key, cts, strict=True) if isinstance(key, tuple) else {name: cts}
    flat: list[Any] = [None] * len(leaves)
    for name in linear:
        position, ct = getattr(positions, name), results[name]
        if not isinstance(position, tuple):
            position, ct = (position,), (ct,)
        flat = replace_items(flat, position, ct)
    return flat


def _zero_cotangent(x: Leaf) -> Any:
    return ad.Zero(x.aval.to_ct_aval()) if ad.is_undefined_primal(x) else None


def move_batch_axes(leaves: Sequence[Leaf], dims: Sequence[int | None]) -> list[Any]:
    """Return the leaves with the axis of the batch, where they have one, as the first."""
    return [
        as_jax(leaf) if dim is None else jnp.moveaxis(leaf, dim, 0)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]


def _batch(
    bind: Bind, tree: PyTreeDef, leaves: Sequence[Leaf], dims: Sequence[int | None]
) -> tuple[Any, Any]:
    op, batched = bind.op, [dim is not None for dim in dims]
    leaves = move_batch_axes(leaves, dims)
    size = next(x.shape[0] for x, is_batched in zip(leaves, batched, strict=True) if is_batched)
    if size == 0:  # rules divide by it
        shapes = [
            jax.ShapeDtypeStruct(x.shape[1:] if is_batched else x.shape, x.dtype)
            for x, is_batched in zip(leaves, batched, strict=True)
        ]
        result = jax.tree.map(
            lambda x: jnp.zeros((0, *x.shape), x.dtype),
            op.result(tree.unflatten(shapes), **bind.attributes),
        )
    else:

        def of_leaves(*leaves: Array) -> Any:
            return op.batch(bind, jax.tree.unflatten(tree, leaves), tree.unflatten(batched), size)

        result = sharding.batch_over_auto_axes(of_leaves, leaves, batched)
    return result, jax.tree.map(lambda _: 0, result)


def lower(op: Op, platform: str, ctx: LoweringContext, *values: Leaf, **params: Attribute) -> Any:
    """Lower an op for a platform, or ``"xla"``: to a custom call or to plain XLA."""
    with sharding.enable_x64_for(ctx.avals_in):
        return _lower(platform, ctx, values, *_parse(op, **params))


def _lower(
    platform: str, ctx: LoweringContext, values: Sequence[Leaf], bind: Bind, tree: PyTreeDef
) -> Any:
    op, implementation, attributes = bind.op, bind.implementation, bind.attributes
    if implementation not in (None, "xla", platform):
        raise ValueError(
            f"{op.name}: implementation={implementation!r} was asked for, but this computation is "
            f"compiled for {' and '.join(ctx.platforms or ctx.module_context.platforms)}"
        )

    def lower_function(function: Callable[..., Any]) -> Any:
        def of_leaves(*leaves: Array) -> Any:
            with chosen_implementation(implementation):
                return function(**tree.unflatten(leaves)._asdict())

        return mlir.lower_fun(of_leaves, multiple_results=op.several)(ctx, *values)

    plain = functools.partial(op.xla, **attributes)
    if implementation == "xla":
        return lower_function(plain)
    # XLA itself splits plain XLA that was demanded, and exported programs have no rules.
    split = None
    if sharding.is_partitioned(ctx):
        split = _split(bind, tree, ctx.avals_in, ctx.avals_out)
    if split is not None:
        return mlir.lower_fun(split.auto(), multiple_results=True)(ctx, *values)
    # Kernels see operands as lazy values: a composition or a call may use few of them.
    operands = tree.unflatten(
        [
            Operand(aval, lambda _, value=value: value)  # type: ignore[misc]
            for aval, value in zip(ctx.avals_in, values, strict=True)
        ]
    )
    composed = op.composition(platform, implementation, operands, **attributes)
    if composed is not None:
        return lower_function(composed)
    if platform not in op.platforms or (
        implementation is None and _prefers_xla(op, platform, operands, **attributes)
    ):
        return lower_function(plain)
    call = op.call(platform, operands, **attributes)
    if call is None:
        return lower_function(plain)
    # A kernel that was not built is an error only where it was demanded.
    state = ffi.STATUS[platform]
    if op.name not in state.targets:
        problem = (
            f"{op.name} has no {platform} kernel here: {state.reason}. What to do: {state.hint}."
        )
        if implementation is not None:
            raise ValueError(problem)
        warnings.warn(f"{problem} Using plain XLA instead.", RuntimeWarning, stacklevel=2)
        return lower_function(plain)
    return _lower_call(op, call, ctx)


def _lower_call(op: Op, call: Call, ctx: LoweringContext) -> Any:
    """Lower a custom call, whose workspaces are results that nothing reads."""
    workspaces = [jax.core.ShapedArray(w.shape, w.dtype) for w in call.workspaces]
    inner = ctx.replace(
        avals_in=[operand.aval for operand in call.operands],
        avals_out=[*ctx.avals_out, *workspaces],
    )
    lowering = jax.ffi.ffi_lowering(ffi.TARGET_PREFIX + op.name)
    arguments = [operand.lower(ctx) for operand in call.operands]
    results = lowering(inner, *arguments, **call.attributes)[: len(ctx.avals_out)]
    if call.finish is None:
        return results
    # `finish` computes on the kernel's results, such as dots to be scattered, within one lowering.
    finish_ctx = ctx.replace(avals_in=[*ctx.avals_out, *inner.avals_in])
    finish = mlir.lower_fun(call.finish, multiple_results=op.several)
    return finish(finish_ctx, *results, *arguments)


def _prefers_xla(op: Op, *arguments: Any, **attributes: object) -> bool:
    try:
        return op.prefers_xla(*arguments, **attributes)
    except UnknownSize:
        return False


# --- Manual mesh axes ----------------------------------------------------------------------------


def varying_axes(aval: Aval) -> frozenset[str]:
    """Return the manual mesh axes that an abstract value varies over."""
    manual = getattr(aval, "manual_axis_type", None)
    return cast(frozenset[str], manual.varying if manual is not None else aval.vma)


def align_varying(operands: Sequence[PyTree]) -> list[Any]:
    """Cast all operands to vary over the union of their manual mesh axes, as ``jax.numpy`` does.

    The cast transposes into a sum over the axes, so that gradients to replicated operands of a
    sharded computation come out right.
    """
    varying = [varying_axes(jax.typeof(operand)) for operand in operands]
    union = frozenset().union(*varying)
    return [
        jax.lax.pcast(operand, tuple(sorted(union - axes)), to="varying")
        if union - axes
        else operand
        for operand, axes in zip(operands, varying, strict=True)
    ]


def gradients_at_once(x: Array, kernel: Array) -> tuple[Array, Array]:
    """Return x and kernel unchanged; across devices, schedule their gradients together.

    XLA would delay the gradients to the kernels of all layers until the last rows have arrived, and
    keep their operands in memory until then.
    """
    if not varying_axes(jax.typeof(x)):
        return x, kernel
    x, kernel = align_varying([x, kernel])
    return _at_once(x, kernel)


@jax.custom_jvp
def _at_once(x: Array, kernel: Array) -> tuple[Array, Array]:
    return x, kernel


def _at_once_jvp(primals: PyTree, tangents: PyTree) -> Any:
    if not any(isinstance(tangent, SymbolicZero) for tangent in tangents):
        tangents = jax.lax.optimization_barrier(tuple(tangents))
    return primals, tuple(tangents)


_at_once.defjvp(_at_once_jvp, symbolic_zeros=True)
