"""From kernels to JAX primitives.

This module loads the compiled modules, registers their handlers as XLA custom-call targets, and
turns an op's rules into a primitive. It is the only one that touches ``jax.extend``,
``jax.interpreters`` and ``jax.ffi``.
"""

from __future__ import annotations

import functools
import importlib
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.export
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

Implementation = Literal["cuda", "cpu", "xla"]
Platform = Literal["cuda", "cpu"]

_TARGET_PREFIX = "jax_gnn_"
_XLA_PLATFORM = {"cuda": "CUDA", "cpu": "cpu"}  # as jax.ffi.register_ffi_target spells them


# --- Compiled modules ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PlatformStatus:
    """What a platform offers; ``reason`` and ``hint``: why it offers nothing, what to do."""

    platform: Platform
    available: bool
    targets: tuple[str, ...]
    reason: str | None = None
    hint: str | None = None
    build: str | None = None


def _load(name: str) -> types.ModuleType:
    return importlib.import_module(f"jax_gnn.{name}")


def _register(module: types.ModuleType, platform: Platform) -> tuple[str, ...]:
    targets = module.targets()
    for name, handler in targets.items():
        jax.ffi.register_ffi_target(
            _TARGET_PREFIX + name, handler, platform=_XLA_PLATFORM[platform]
        )
    return tuple(sorted(targets))


def _load_cpu() -> PlatformStatus:
    try:
        module = _load("_cpu")
    except ModuleNotFoundError as error:
        raise ImportError(
            "jax_gnn is not built: its compiled module jax_gnn._cpu is missing. Install the "
            "package with 'pip install .' in its source folder, and do not import it from there."
        ) from error
    return PlatformStatus("cpu", True, _register(module, "cpu"), build=module.compiler)


def _load_cuda() -> PlatformStatus:
    reason = _load("_cpu").cuda_build
    if reason:
        return PlatformStatus(
            "cuda",
            False,
            (),
            reason=reason,
            hint="put nvcc on the PATH, or get a compiler from PyPI with pip install "
            "'jax-gnn[cuda-compiler]'; then reinstall jax-gnn from source on the machine with the "
            "GPU, or give -C cmake.define.JAX_GNN_CUDA_ARCHITECTURES=90a (README, section CUDA)",
        )
    try:
        module = _load("_cuda")
    except ImportError as error:
        return PlatformStatus("cuda", False, (), reason=str(error), hint="reinstall jax-gnn")
    build = f"{module.compiler}, architectures {module.architectures}"
    return PlatformStatus("cuda", True, _register(module, "cuda"), build=build)


_STATUS: dict[str, PlatformStatus] = {"cpu": _load_cpu(), "cuda": _load_cuda()}


def host_function(name: str) -> Callable[..., None]:
    """A compiled function on numpy arrays."""
    return getattr(_load("_cpu"), name)


def status() -> list[PlatformStatus]:
    """What each platform with kernels offers, for ``jax-gnn info``."""
    return list(_STATUS.values())


# --- Choice of the implementation ----------------------------------------------------------------

# A user context is part of the keys of JAX's caches, so that a change retraces what was jitted
# before.
_implementation = jax.make_user_context(default_value=None)


def check_implementation(name: Any) -> None:
    """One of the implementations, or None."""
    if name is not None and (not isinstance(name, str) or name not in get_args(Implementation)):
        raise ValueError(
            f"implementation must be None or one of {get_args(Implementation)}, got {name!r}"
        )


def implementation(name: Implementation | None) -> AbstractContextManager[None]:
    """Selects the implementation of all ops called inside a ``with`` block.

    Args:
        name: ``"cuda"`` or ``"cpu"`` demand this library's kernels (compilation for another
            platform then fails), ``"xla"`` takes the plain ``jax.numpy`` version, None (the
            default) takes the kernels of the platform at hand where there are any. An op's own
            ``implementation`` argument goes first.

    Raises:
        ValueError: the name is none of these.

    Example:
        >>> with implementation("xla"):  # plain jax.numpy, as a reference
        ...     segment_sum(jnp.array([1.0, 2.0]), jnp.array([0, 0]), 1)
        Array([3.], dtype=float32)
    """
    check_implementation(name)
    return _implementation(name)


# --- Primitives ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bind:
    """Applies a primitive to operands; its rules get it as their first argument."""

    primitive: Primitive
    implementation: str | None
    attributes: Mapping[str, Any] = field(hash=False)

    def __call__(self, *operands: Any, **changes: Any) -> Any:
        """Applies the primitive, with its attributes but for the ``changes``."""
        leaves, tree = jax.tree.flatten(operands)
        return self.primitive.bind(
            *_align_varying(leaves),
            implementation=self.implementation,
            tree=tree,
            **{**self.attributes, **changes},
        )


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

    def map(self, function: Callable[[Array], Array], dtype: Any) -> Operand:
        """The operand after an elementwise function, with another dtype."""
        aval = self.aval.update(dtype=np.dtype(dtype), weak_type=False)

        def lower(ctx: Any) -> Any:
            inner = ctx.replace(avals_in=[self.aval], avals_out=[aval])
            return mlir.lower_fun(function, multiple_results=False)(inner, self.lower(ctx))[0]

        return Operand(aval, lower)


@dataclass(frozen=True)
class Call:
    """A custom call: what a kernel gets.

    Attributes:
        operands: those of the primitive's operands that the kernel wants.
        attributes: numpy scalars, by name.
        workspaces: shapes and dtypes of the scratch memory, which are further results.
    """

    operands: Sequence[Operand]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    workspaces: Sequence[jax.ShapeDtypeStruct] = ()


@dataclass(frozen=True)
class Rules:
    """Everything that is particular to one primitive.

    A primitive maps operands, which are pytrees of arrays, to one array, or to several: a list. It
    is linear in each operand that ``transpose`` names; these are single arrays. Its attributes are
    static keyword arguments: ``result``, ``xla`` and ``call`` get them, the others find them in
    ``bind``.

    Attributes:
        result: maps the operands' avals to shape and dtype of the result; of each, in a list.
        xla: the same function in plain ``jax.numpy``, or in other primitives.
        call: maps a platform and :class:`Operand` trees to what that platform's kernel gets, or to
            None where ``xla`` is meant to do the work. By default, all operands.
        prefers_xla: whether plain XLA is faster than that kernel, which is not asked where an
            implementation is demanded. Called like ``call``.
        transpose: for the position of each linear operand, a function of (bind, cotangent,
            operands) that gives the operand's cotangent; the operand itself is not to be read. For
            several positions in a tuple, where it is linear in all these operands together, a
            function that gives the cotangent of each. Of several results, ``cotangent`` is a list,
            with None for zero.
        batch: a function of (bind, operands, batched, size) in which batched operands carry the
            batch as their first axis; gives the result with the batch as first axis.
        jvp: a function of (bind, primals, tangents), where None is a zero tangent, that gives
            (result, tangent). Left out, the sum over the linear operands.
        several: whether there are several results.
    """

    result: Callable[..., Any]
    xla: Callable[..., Any]
    transpose: Mapping[int | tuple[int, ...], Callable[[Bind, Any, Sequence[Any]], Any]]
    batch: Callable[[Bind, Sequence[Any], Sequence[Any], int], Any]
    call: Callable[..., Call | None] = lambda platform, *operands: Call(jax.tree.leaves(operands))
    prefers_xla: Callable[..., bool] = lambda platform, *operands, **attributes: False
    jvp: Callable[[Bind, Sequence[Any], Sequence[Any]], tuple[Any, Any]] | None = None
    several: bool = False


PRIMITIVES: dict[str, tuple[Primitive, Rules]] = {}


def export_checks() -> tuple[jax.export.DisabledSafetyCheck, ...]:
    """What :mod:`jax.export` must be told: that all custom calls of this library may be trusted."""
    return tuple(
        jax.export.DisabledSafetyCheck.custom_call(_TARGET_PREFIX + name) for name in PRIMITIVES
    )


def define_primitive(name: str, rules: Rules) -> Callable[..., Any]:
    """Makes a primitive of which each platform's target is called ``name``.

    Returns:
        A function of the operands, the keyword ``implementation`` and the attributes.
    """
    primitive = Primitive(f"{_TARGET_PREFIX}{name}")
    primitive.multiple_results = rules.several
    PRIMITIVES[name] = (primitive, rules)

    def apply(*operands: Any, implementation: str | None = None, **attributes: Any) -> Any:
        check_implementation(implementation)
        return Bind(primitive, implementation or _implementation.value, attributes)(*operands)

    def abstract_eval(*avals: Any, implementation: str | None, tree: Any, **attributes: Any) -> Any:
        result = rules.result(*tree.unflatten(avals), **attributes)
        if any(axis is not None for aval in avals for axis in aval.sharding.spec):
            raise ValueError(
                f"{name} got an operand that is sharded over an explicit mesh axis, "
                f"{', '.join(map(str, avals))}; call it inside jax.shard_map"
            )
        # All operands vary over the same manual axes: any one passes them on.
        return jax.tree.map(
            lambda each: avals[0].update(
                shape=each.shape,
                dtype=each.dtype,
                weak_type=False,
                sharding=NamedSharding(
                    avals[0].sharding.mesh, PartitionSpec(*[None] * len(each.shape))
                ),
            ),
            result,
        )

    def jvp(
        primals: Sequence[Any],
        tangents: Sequence[Any],
        *,
        implementation: str | None,
        tree: Any,
        **attributes: Any,
    ) -> tuple[Any, Any]:
        linear = tuple(key for key in rules.transpose if isinstance(key, int))
        rule = rules.jvp or functools.partial(multilinear_jvp, linear)
        known = [None if isinstance(t, ad.Zero) else t for t in tangents]
        bind = Bind(primitive, implementation, attributes)
        result, tangent = rule(bind, tree.unflatten(primals), tree.unflatten(known))
        zero = jax.tree.map(lambda each: ad.Zero(jax.typeof(each).to_tangent_aval()), result)
        return result, zero if tangent is None else tangent

    def transpose(
        cotangent: Any,
        *leaves: Any,
        implementation: str | None,
        tree: Any,
        **attributes: Any,
    ) -> list[Any]:
        bind = Bind(primitive, implementation, attributes)
        operands, positions = tree.unflatten(leaves), tree.unflatten(range(len(leaves)))
        wanted = [i for i, operand in enumerate(operands) if ad.is_undefined_primal(operand)]
        cotangents = cotangent if rules.several else [cotangent]
        known = [None if isinstance(ct, ad.Zero) else ct for ct in cotangents]
        found: dict[int, Any] = {}
        if all(ct is None for ct in known):
            found = {i: ad.Zero(operands[i].aval.to_ct_aval()) for i in wanted}
        together = {
            i: key for key in rules.transpose for i in (key if isinstance(key, tuple) else (key,))
        }
        for i in wanted:
            if i not in found:
                key = together[i]
                cts = rules.transpose[key](bind, known if rules.several else known[0], operands)
                found |= zip(key, cts, strict=True) if isinstance(key, tuple) else {i: cts}
        result: list[Any] = [None] * len(leaves)
        for i in wanted:
            result[positions[i]] = found[i]
        return result

    def batch(
        leaves: Sequence[Any],
        dims: Sequence[int | None],
        *,
        implementation: str | None,
        tree: Any,
        **attributes: Any,
    ) -> tuple[Any, Any]:
        bind = Bind(primitive, implementation, attributes)
        batched = [dim is not None for dim in dims]
        moved = [
            leaf if dim is None else jax.numpy.moveaxis(leaf, dim, 0)
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
                rules.result(*tree.unflatten(each), **attributes),
            )
        else:
            result = rules.batch(bind, tree.unflatten(moved), tree.unflatten(batched), size)
        return result, jax.tree.map(lambda _: 0, result)

    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(abstract_eval)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, functools.partial(_lower, name, rules, "xla"))
    for platform in get_args(Platform):
        mlir.register_lowering(
            primitive, functools.partial(_lower, name, rules, platform), platform=platform
        )
    return apply


def multilinear_jvp(
    linear: Sequence[int], bind: Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    """Value and derivative of a function that is linear in each of the operands ``linear``."""
    terms = [
        bind(*primals[:i], tangents[i], *primals[i + 1 :])
        for i in linear
        if tangents[i] is not None
    ]
    return bind(*primals), functools.reduce(jax.numpy.add, terms) if terms else None


def _lower(
    name: str,
    rules: Rules,
    platform: str,
    ctx: Any,
    *values: Any,
    implementation: str | None,
    tree: Any,
    **attributes: Any,
) -> Any:
    if implementation not in (None, "xla", platform):
        raise ValueError(
            f"{name}: implementation={implementation!r} was asked for, but this computation is "
            f"compiled for {' and '.join(ctx.platforms or ctx.module_context.platforms)}"
        )

    def plain(*leaves: Any) -> Any:
        with _implementation(implementation):
            return rules.xla(*tree.unflatten(leaves), **attributes)

    call = None
    if platform != "xla" and implementation != "xla":
        operands = [
            Operand(aval, functools.partial(_value, value))
            for aval, value in zip(ctx.avals_in, values, strict=True)
        ]
        arguments = platform, *tree.unflatten(operands)
        if implementation is not None or not _prefers_xla(rules, *arguments, **attributes):
            call = rules.call(*arguments, **attributes)
    if call is None:
        return mlir.lower_fun(plain, multiple_results=rules.several)(ctx, *values)
    state = _STATUS[platform]
    if name not in state.targets:
        missing = f"{name} has no {platform} kernel here: {state.reason}. What to do: {state.hint}."
        if implementation is not None:
            raise ValueError(missing)
        warnings.warn(f"{missing} Using plain XLA instead.", RuntimeWarning, stacklevel=2)
        return mlir.lower_fun(plain, multiple_results=rules.several)(ctx, *values)
    workspaces = [jax.core.ShapedArray(w.shape, w.dtype) for w in call.workspaces]
    inner = ctx.replace(
        avals_in=[operand.aval for operand in call.operands],
        avals_out=[*ctx.avals_out, *workspaces],
    )
    # The workspaces are results that nobody reads.
    lowering = jax.ffi.ffi_lowering(_TARGET_PREFIX + name)
    operands = [operand.lower(ctx) for operand in call.operands]
    return lowering(inner, *operands, **call.attributes)[: len(ctx.avals_out)]


def _prefers_xla(rules: Rules, *arguments: Any, **attributes: Any) -> bool:
    try:
        return rules.prefers_xla(*arguments, **attributes)
    except jax.errors.InconclusiveDimensionOperation:  # of symbolic sizes
        return False


def _value(value: Any, ctx: Any) -> Any:
    del ctx
    return value


def _varying(aval: Any) -> frozenset[str]:
    manual = getattr(aval, "manual_axis_type", None)
    return manual.varying if manual is not None else aval.vma


def _align_varying(operands: Sequence[Any]) -> list[Any]:
    """Casts all operands to vary over the union of their manual mesh axes, as ``jax.numpy`` does.

    The cast transposes into a sum over the axes: gradients to replicated operands of a sharded
    computation come out right.
    """
    varying = [_varying(jax.typeof(operand)) for operand in operands]
    union = frozenset().union(*varying)
    return [
        jax.lax.pcast(operand, tuple(sorted(union - have)), to="varying")
        if union - have
        else operand
        for operand, have in zip(operands, varying, strict=True)
    ]
