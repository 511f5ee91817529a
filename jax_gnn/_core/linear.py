"""Functions that are linear in some of their operands, declared with their transposes.

JAX transposes a linear function equation by equation. Some functions have a better transpose as a
whole, such as one kernel with all gradients in place of one kernel for each term. A `Linear` is
such a function, in other primitives, and its transpose: JVP and batching follow from both. All
`Linear` functions share one primitive, which has no kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.tree_util import PyTreeDef

from jax_gnn._core import ffi
from jax_gnn._core.op import abstract_like, align_varying, as_jax, move_batch_axes, replace_items
from jax_gnn._core.public import check_implementation, chosen_implementation
from jax_gnn._core.sharding import batch_over_auto_axes, first_on_mesh, needs_devices
from jax_gnn._core.types import Attribute, Aval, Leaf, PyTree


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """A function of ``residuals`` and ``moving`` operands that is linear in the latter together.

    Residuals are a pytree of arrays, ``moving`` is a tuple, named or not, of single arrays, with
    None for zeros. All three functions get its attributes, which are static keyword arguments.

    Attributes:
        name: for messages and printed programs.
        result: maps (residuals, moving), whose arrays have only shapes and dtypes, to a list with
            the shape and dtype of each result.
        function: maps (residuals, moving) to the list of results. JAX differentiates it in the
            residuals.
        transpose: maps (residuals, moving, cotangents), where arrays of ``moving`` have only shapes
            and dtypes, and None is a zero cotangent, to a tuple with the cotangent of each operand
            in ``moving``. The cotangents of operands that are None are ignored.
    """

    name: str
    result: Callable[..., list[Any]]
    function: Callable[..., list[Array]]
    transpose: Callable[..., Sequence[Array | None]]

    def __post_init__(self) -> None:
        """Register the function in `LINEARS`."""
        LINEARS[self.name] = self

    def __call__(
        self,
        residuals: PyTree,
        moving: Sequence[Array | None],
        *,
        implementation: str | None = None,
        **attributes: Attribute,
    ) -> list[Array]:
        """Return the list of results; ``implementation`` is that of all primitives in it."""
        check_implementation(implementation)
        chosen = implementation or chosen_implementation.value
        return _Call(self, chosen, attributes, None, ()).bind(residuals, moving)

    def __repr__(self) -> str:
        """Return the name, for printed programs."""
        return self.name


LINEARS: dict[str, Linear] = {}


@dataclass(frozen=True)
class _Call:
    """The parameters of an equation."""

    linear: Linear  # the function
    implementation: str | None  # of the primitives in the function
    attributes: Any  # of the function
    tree: PyTreeDef  # the structure of (residuals, moving)
    # For each batch, the innermost first, the axis of the batch in each leaf: 0 or None.
    axes: tuple[tuple[int | None, ...], ...]

    @staticmethod
    def of(
        linear: Linear,
        implementation: str | None,
        tree: PyTreeDef,
        axes: PyTree,
        **attributes: Attribute,
    ) -> _Call:
        del attributes["devices"]
        return _Call(linear, implementation, attributes, tree, axes)

    def bind(self, residuals: PyTree, moving: PyTree, axes: PyTree = ()) -> list[Array]:
        leaves, tree = jax.tree.flatten((residuals, moving))
        result: list[Array] = PRIMITIVE.bind(
            *align_varying(leaves),
            linear=self.linear,
            implementation=self.implementation,
            tree=tree,
            axes=axes,
            devices=needs_devices(),
            **self.attributes,
        )
        return result

    def bind_leaves(self, leaves: Sequence[Array]) -> list[Array]:
        residuals, moving = self.tree.unflatten(leaves)
        return self.bind(residuals, moving, self.axes)

    def bind_tangents(
        self, leaves: Sequence[Array], tangents: Sequence[Array | None]
    ) -> list[Array]:
        """Apply the function to tangents in place of moving leaves; None stands for zeros."""
        num_residuals = self.num_residuals
        present = [i for i, t in enumerate(tangents) if i < num_residuals or t is not None]
        if any(all(axes[i] is None for i in present) for axes in self.axes):
            # A leaf that alone has a batch stays, as it determines the size of the batch.
            tangents = [
                jnp.zeros_like(leaf) if t is None else t
                for leaf, t in zip(leaves, tangents, strict=True)
            ]
            present = list(range(len(leaves)))
        axes = tuple(tuple(axes[i] for i in present) for axes in self.axes)
        residuals, moving = self.tree.unflatten(
            [*leaves[:num_residuals], *tangents[num_residuals:]]
        )
        return self.bind(residuals, moving, axes)

    @property
    def num_residuals(self) -> int:
        return cast(int, self.tree.children()[0].num_leaves)

    def run(self, *leaves: Array) -> list[Array]:
        """Apply the function to leaves with all their batches."""

        def function(*leaves: Array) -> list[Array]:
            with chosen_implementation(self.implementation):
                return self.linear.function(*self.tree.unflatten(leaves), **self.attributes)

        # Batches were added from the inside out, so that vmap wraps in the same order.
        for axes in self.axes:
            function = jax.vmap(function, axes)
        return function(*leaves)

    def run_transpose(self, leaves: Sequence[Leaf], cts: list[Array | None]) -> list[Any]:
        """Apply the transpose to residuals and cotangents; moving leaves are only shapes."""
        num_residuals = self.num_residuals
        _, moving = self.tree.unflatten(self.unbatched(leaves))
        present = [i for i, operand in enumerate(moving) if operand is not None]

        def function(residuals: Sequence[Array], cts: list[Array | None]) -> list[Array | None]:
            residuals, _ = self.tree.unflatten([*residuals, *[None] * len(present)])
            with chosen_implementation(self.implementation):
                results = self.linear.transpose(residuals, moving, cts, **self.attributes)
            return [results[i] for i in present]

        for axes in self.axes:
            function = _batched_transpose(function, axes, num_residuals)
        return function(leaves[:num_residuals], cts)

    def unbatched(self, leaves: Sequence[Leaf]) -> list[jax.ShapeDtypeStruct]:
        """Return shapes and dtypes of leaves without their batches."""
        return [
            jax.ShapeDtypeStruct(leaf.shape[sum(axis == 0 for axis in axes) :], leaf.dtype)
            for leaf, *axes in zip(leaves, *self.axes, strict=True)
        ]

    def sizes(self, leaves: Sequence[Leaf]) -> tuple[int, ...]:
        """Return the sizes of the batches, the outermost first."""
        sizes: list[int] = []
        for i, axes in enumerate(self.axes):
            leaf = axes.index(0)
            position = sum(outer[leaf] == 0 for outer in self.axes[i + 1 :])
            sizes.append(leaves[leaf].shape[position])
        return tuple(sizes[::-1])


def _batched_transpose(
    function: Callable[..., list[Array | None]], leaf_axes: Sequence[int | None], num_residuals: int
) -> Callable[..., list[Array | None]]:
    def batched(residuals: Sequence[Array], cts: list[Array | None]) -> list[Array | None]:
        axes = list(leaf_axes[:num_residuals]), [None if ct is None else 0 for ct in cts]
        results = jax.vmap(function, axes)(residuals, cts)
        return [
            ct if ct is None or axis == 0 else jnp.sum(ct, 0)
            for ct, axis in zip(results, leaf_axes[num_residuals:], strict=True)
        ]

    return batched


# --- The rules that JAX asks for -----------------------------------------------------------------


def _abstract_eval(*avals: Aval, **params: Attribute) -> list[Any]:
    call = _Call.of(**params)
    residuals, moving = call.tree.unflatten(call.unbatched(avals))
    sizes = call.sizes(avals)
    shapes = [
        jax.ShapeDtypeStruct((*sizes, *result.shape), result.dtype)
        for result in call.linear.result(residuals, moving, **call.attributes)
    ]
    return [abstract_like(first_on_mesh(avals), shape) for shape in shapes]


def _jvp(
    primals: Sequence[Leaf], tangents: Sequence[Leaf], **params: Attribute
) -> tuple[list[Array], list[Array]]:
    call = _Call.of(**params)
    leaves = [as_jax(x) for x in primals]
    directions = [None if isinstance(t, ad.Zero) else as_jax(t) for t in tangents]
    num_residuals, terms = call.num_residuals, []
    if any(t is not None for t in directions[num_residuals:]):
        terms.append(call.bind_tangents(leaves, directions))
    # JAX differentiates the function in its residuals, equation by equation.
    differentiated = [i for i, t in enumerate(directions[:num_residuals]) if t is not None]
    if differentiated:

        def of_residuals(*values: Array) -> list[Array]:
            return call.run(*replace_items(leaves, differentiated, values))

        at, along = ([values[i] for i in differentiated] for values in (leaves, directions))
        terms.append(jax.jvp(of_residuals, at, along)[1])
    tangent = terms[0] if len(terms) == 1 else [x + y for x, y in zip(*terms, strict=True)]
    return call.bind_leaves(leaves), tangent


def _transpose(cts: Sequence[Leaf], *leaves: Leaf, **params: Attribute) -> list[Any]:
    call = _Call.of(**params)
    num_residuals = call.num_residuals
    residuals = [as_jax(x) for x in leaves[:num_residuals]]
    avals = [x.aval if ad.is_undefined_primal(x) else jax.typeof(x) for x in leaves[num_residuals:]]
    cotangents = [None if isinstance(ct, ad.Zero) else as_jax(ct) for ct in cts]
    if all(ct is None for ct in cotangents):
        results: list[Any] = [ad.Zero(aval.to_ct_aval()) for aval in avals]
    else:
        results = call.run_transpose([*residuals, *avals], cotangents)
    return [None] * num_residuals + [
        ct if ad.is_undefined_primal(x) else None
        for x, ct in zip(leaves[num_residuals:], results, strict=True)
    ]


def _batch(
    leaves: Sequence[Leaf], dims: Sequence[int | None], **params: Attribute
) -> tuple[list[Array], list[int]]:
    # A batch is another entry of `axes`: the function itself is batched only when it is applied.
    axes = (*params.pop("axes"), tuple(None if dim is None else 0 for dim in dims))
    bind = functools.partial(PRIMITIVE.bind, axes=axes, **params)
    leaves, batched = move_batch_axes(leaves, dims), [dim is not None for dim in dims]
    results = batch_over_auto_axes(bind, leaves, batched)
    return results, [0] * len(results)


def apply_equation(*leaves: Array, **params: Attribute) -> list[Array]:
    """Return the results of an equation of `PRIMITIVE`, by the primitives of its function."""
    return _Call.of(**params).run(*leaves)


PRIMITIVE = Primitive(f"{ffi.TARGET_PREFIX}linear")
PRIMITIVE.multiple_results = True
PRIMITIVE.def_impl(functools.partial(xla.apply_primitive, PRIMITIVE))
PRIMITIVE.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[PRIMITIVE] = _jvp
ad.primitive_transposes[PRIMITIVE] = _transpose
batching.primitive_batchers[PRIMITIVE] = _batch
mlir.register_lowering(PRIMITIVE, mlir.lower_fun(apply_equation, multiple_results=True))
