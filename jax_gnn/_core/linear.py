"""A function that is linear in some of its operands, given with its transpose.

JAX transposes a linear function equation by equation. Where the whole has a better transpose, such
as one kernel with all gradients in place of one for each term, a :class:`Linear` says so: it is
made of other primitives, and JVP, transpose and batching follow from its two functions. All share
one primitive, and none has a kernel of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jax_gnn._core import ffi
from jax_gnn._core.op import abstract_like, align_varying, as_jax, replace_items
from jax_gnn._core.sharding import batch_over_auto_axes, first_on_mesh, needs_devices


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """A function of ``known`` and ``moving`` operands that is linear in the latter together.

    ``known`` is a pytree of arrays, ``moving`` a tuple, named or not, of single arrays, with None
    for zeros. Its attributes are static keyword arguments, which all three functions get.

    Attributes:
        name: what messages and printed programs call it.
        result: maps (known, moving), of which arrays have only shapes and dtypes, to the shape and
            dtype of each result, in a list.
        function: maps (known, moving) to the results, in a list. It is differentiated in what is
            known.
        transpose: maps (known, moving, cotangents), where the arrays of ``moving`` have only shapes
            and dtypes, and a cotangent may be None for zeros, to a tuple: the cotangent of each
            operand in ``moving``. What it gives for a None is not looked at.
    """

    name: str
    result: Callable[..., list[Any]]
    function: Callable[..., list[Array]]
    transpose: Callable[..., Sequence[Array | None]]

    def __post_init__(self) -> None:
        """Lists it in `LINEARS`."""
        LINEARS[self.name] = self

    def __call__(
        self,
        known: Any,
        moving: Sequence[Array | None],
        *,
        implementation: str | None = None,
        **attributes: Any,
    ) -> list[Array]:
        """The results, as a list; ``implementation`` is that of all primitives in it."""
        ffi.check_implementation(implementation)
        chosen = implementation or ffi.chosen_implementation.value
        return _Call(self, chosen, attributes, None, ()).bind(known, moving)

    def __repr__(self) -> str:
        """Its name: as in a printed program."""
        return self.name


LINEARS: dict[str, Linear] = {}


@dataclass(frozen=True)
class _Call:
    """What an equation knows, operands aside.

    Attributes:
        linear: the function.
        implementation: of the primitives in it.
        attributes: its own.
        tree: of (known, moving).
        axes: for each batch, the innermost first, whether a leaf has it as its first axis: 0 or
            None.
    """

    linear: Linear
    implementation: str | None
    attributes: Any
    tree: Any
    axes: tuple[tuple[int | None, ...], ...]

    @staticmethod
    def of(
        *,
        linear: Linear,
        implementation: Any,
        tree: Any,
        axes: Any,
        devices: Any,
        **attributes: Any,
    ) -> _Call:
        del devices
        return _Call(linear, implementation, attributes, tree, axes)

    def bind(self, known: Any, moving: Any, axes: Any = ()) -> list[Array]:
        leaves, tree = jax.tree.flatten((known, moving))
        return PRIMITIVE.bind(
            *align_varying(leaves),
            linear=self.linear,
            implementation=self.implementation,
            tree=tree,
            axes=axes,
            devices=needs_devices(),
            **self.attributes,
        )

    def bind_leaves(self, leaves: Sequence[Array]) -> list[Array]:
        known, moving = self.tree.unflatten(leaves)
        return self.bind(known, moving, self.axes)

    def bind_tangents(
        self, leaves: Sequence[Array], tangents: Sequence[Array | None]
    ) -> list[Array]:
        """With tangents in place of leaves that move; None stands for zeros."""
        known = range(self.num_known)
        there = [i for i, t in enumerate(tangents) if t is not None]
        if any(all(of_batch[i] is None for i in (*known, *there)) for of_batch in self.axes):
            # What alone has a batch stays, as nothing else would say that there is one.
            tangents = [
                jnp.zeros_like(leaf) if t is None else t
                for leaf, t in zip(leaves, tangents, strict=True)
            ]
            there = list(range(len(leaves)))
        given = [*leaves[: len(known)], *tangents[len(known) :]]
        kept = sorted({*known, *there})
        axes = tuple(tuple(of_batch[i] for i in kept) for of_batch in self.axes)
        known, moving = self.tree.unflatten(given)
        return self.bind(known, moving, axes)

    @property
    def num_known(self) -> int:
        return self.tree.children()[0].num_leaves

    def run(self, *leaves: Array) -> list[Array]:
        """The function, of leaves with all their batches."""

        def function(*leaves: Array) -> list[Array]:
            with ffi.chosen_implementation(self.implementation):
                return self.linear.function(*self.tree.unflatten(leaves), **self.attributes)

        for of_batch in self.axes:
            function = jax.vmap(function, of_batch)
        return function(*leaves)

    def run_transpose(self, leaves: Sequence[Any], cts: list[Array | None]) -> list[Any]:
        """The transpose, likewise; leaves that move are shapes."""
        num_known = self.num_known
        _, moving = self.tree.unflatten(self.unbatched(leaves))
        there = [i for i, each in enumerate(moving) if each is not None]

        def function(known: Sequence[Array], cts: list[Array | None]) -> list[Array | None]:
            both = self.tree.unflatten([*known, *[None] * len(there)])
            with ffi.chosen_implementation(self.implementation):
                found = self.linear.transpose(both[0], moving, cts, **self.attributes)
            return [found[i] for i in there]

        for of_batch in self.axes:
            function = _batched_transpose(function, of_batch, num_known)
        return function(leaves[:num_known], cts)

    def unbatched(self, leaves: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of leaves without their batches."""
        return [
            jax.ShapeDtypeStruct(leaf.shape[sum(axis == 0 for axis in axes) :], leaf.dtype)
            for leaf, *axes in zip(leaves, *self.axes, strict=True)
        ]

    def sizes(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """Of the batches, the outermost first."""
        found: list[int] = []
        for i, of_batch in enumerate(self.axes):
            leaf = next(k for k, axis in enumerate(of_batch) if axis == 0)
            found.append(leaves[leaf].shape[sum(axes[leaf] == 0 for axes in self.axes[i + 1 :])])
        return tuple(found[::-1])


def _batched_transpose(function: Any, of_batch: Sequence[int | None], num_known: int) -> Any:
    def batched(known: Sequence[Array], cts: list[Array | None]) -> list[Array | None]:
        axes = list(of_batch[:num_known]), [None if ct is None else 0 for ct in cts]
        found = jax.vmap(function, axes)(known, cts)
        return [
            ct if ct is None or axis == 0 else jnp.sum(ct, 0)
            for ct, axis in zip(found, of_batch[num_known:], strict=True)
        ]

    return batched


# --- The rules that JAX asks for -----------------------------------------------------------------


def _abstract_eval(*avals: Any, **params: Any) -> list[Any]:
    call = _Call.of(**params)
    known, moving = call.tree.unflatten(call.unbatched(avals))
    sizes = call.sizes(avals)
    return [
        abstract_like(first_on_mesh(avals), jax.ShapeDtypeStruct((*sizes, *each.shape), each.dtype))
        for each in call.linear.result(known, moving, **call.attributes)
    ]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Array], list[Array]]:
    call = _Call.of(**params)
    leaves = [as_jax(x) for x in primals]
    given = [None if isinstance(t, ad.Zero) else as_jax(t) for t in tangents]
    num_known = call.num_known
    terms = []
    if any(t is not None for t in given[num_known:]):
        terms.append(call.bind_tangents(leaves, given))
    moved = [i for i, t in enumerate(given[:num_known]) if t is not None]
    if moved:

        def of_known(*values: Array) -> list[Array]:
            return call.run(*replace_items(leaves, moved, values))

        at, along = ([each[i] for i in moved] for each in (leaves, given))
        terms.append(jax.jvp(of_known, at, along)[1])
    tangent = terms[0] if len(terms) == 1 else [x + y for x, y in zip(*terms, strict=True)]
    return call.bind_leaves(leaves), tangent


def _transpose(cts: Sequence[Any], *leaves: Any, **params: Any) -> list[Any]:
    call = _Call.of(**params)
    num_known = call.num_known
    known = [as_jax(x) for x in leaves[:num_known]]
    avals = [x.aval if ad.is_undefined_primal(x) else jax.typeof(x) for x in leaves[num_known:]]
    given = [None if isinstance(ct, ad.Zero) else as_jax(ct) for ct in cts]
    if all(ct is None for ct in given):
        found: list[Any] = [ad.Zero(aval.to_ct_aval()) for aval in avals]
    else:
        found = call.run_transpose([*known, *avals], given)
    return [None] * num_known + [
        ct if ad.is_undefined_primal(x) else None
        for x, ct in zip(leaves[num_known:], found, strict=True)
    ]


def _batch(
    leaves: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Array], list[int]]:
    moved = [
        as_jax(leaf) if dim is None else jnp.moveaxis(leaf, dim, 0)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]
    axes = (*params.pop("axes"), tuple(None if dim is None else 0 for dim in dims))
    bind = functools.partial(PRIMITIVE.bind, axes=axes, **params)
    results = batch_over_auto_axes(bind, moved, [dim is not None for dim in dims])
    return results, [0] * len(results)


def apply_equation(*leaves: Array, **params: Any) -> list[Array]:
    """The results of an equation of `PRIMITIVE`, by the primitives that its function applies."""
    return _Call.of(**params).run(*leaves)


PRIMITIVE = Primitive(f"{ffi.TARGET_PREFIX}linear")
PRIMITIVE.multiple_results = True
PRIMITIVE.def_impl(functools.partial(xla.apply_primitive, PRIMITIVE))
PRIMITIVE.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[PRIMITIVE] = _jvp
ad.primitive_transposes[PRIMITIVE] = _transpose
batching.primitive_batchers[PRIMITIVE] = _batch
mlir.register_lowering(PRIMITIVE, mlir.lower_fun(apply_equation, multiple_results=True))
