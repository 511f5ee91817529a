"""How a call is split over devices: an op's rule, and what JAX's two kinds of mesh axes need of it.

A rule names the *factors* of each axis, as an einsum does. An axis of features is ``"f"``, one of
heads and their features ``"(h k)"``, one that stays whole ``"."``. A name in capitals stays whole,
too: ``"(h K)"`` is split by heads alone. Where mesh axes split a factor, each device calls the same
op on its piece. What no device reads may be called whole: XLA drops what would bring it there.

* Axes of type *auto*, where XLA's partitioner chooses: below the primitive, so that derivatives and
  batching do not see it, the call is a ``jax.experimental.custom_partitioning``.
* Axes of type *explicit*, where types say how arrays are split: these axes are made automatic
  around the call, and the rule says how its results are split.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec

UNSPLIT = "."


@dataclass(frozen=True)
class Piece:
    """A device's piece of a factor.

    Attributes:
        axes: of the mesh, over which it is split.
        count: of pieces, all of one size.
    """

    axes: tuple[str, ...]
    count: int

    @property
    def index(self) -> Array:
        """Which one the device has."""
        return jax.lax.axis_index(self.axes)

    def sum(self, x: Array) -> Array:
        """Over all pieces."""
        return jax.lax.psum(x, self.axes)

    def max(self, x: Array) -> Array:
        """Likewise."""
        return jax.lax.pmax(x, self.axes)

    def min(self, x: Array) -> Array:
        """Likewise."""
        return jax.lax.pmin(x, self.axes)


Pieces = Mapping[str, Piece]

_REDUCE = {"sum": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}


def parse_axes(text: str) -> list[str]:
    """The axes that a rule's string names, brackets in one."""
    return re.findall(r"\([^)]*\)|\S+", text)


@dataclass(frozen=True)
class Sharding:
    """An op's rule.

    Attributes:
        operands: a string for each array of the operands, in their order.
        results: a string for each result.
        local: maps (bind, operands, pieces), where the operands are a device's own, and pieces
            those of the factors that are split, to its results. Over pieces of what is no factor of
            a result, such as an axis that is summed over, it puts that together.
        sizes: of factors that are in brackets.
    """

    operands: Sequence[str]
    results: Sequence[str]
    local: Callable[[Any, Any, Pieces], Any]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @functools.cached_property
    def _arrays(self) -> list[list[tuple[str, ...]]]:
        """The factors of each axis of all operands and results, those without a name numbered."""
        found, unnamed = [], 0
        for text in (*self.operands, *self.results):
            axes = []
            for axis in parse_axes(text):
                names = tuple(axis.strip("()").split())
                if len(names) > 1:  # in brackets JAX takes no factor of size 1
                    names = tuple(n for n in names if self.sizes[n] > 1) or names[-1:]
                if axis == UNSPLIT:
                    unnamed += 1
                    names = (f"WHOLE{unnamed}",)
                axes.append(names)
            found.append(axes)
        return found

    def pieces(self, mesh: Any, shapes: Sequence[Any], specs: Sequence[Any]) -> dict[str, Piece]:
        """Which factors are split where specs split the arrays, of which the largest go first."""
        sizes = dict(self.sizes)
        for shape, axes in zip(shapes, self._arrays, strict=True):
            each = zip(shape, axes, strict=True)
            sizes |= {names[0]: size for size, names in each if len(names) == 1}
        found: dict[str, Piece] = {}
        taken: set[str] = set()
        for i in sorted(range(len(specs)), key=lambda i: -math.prod(shapes[i])):
            for names, entry in zip(self._arrays[i], specs[i], strict=False):
                left = list(names)
                for axis in _names(entry):
                    while left and axis not in taken:
                        old = found.get(left[0], Piece((), 1))
                        count = old.count * mesh.shape[axis]
                        if sizes[left[0]] % count == 0 and not left[0].isupper():
                            found[left[0]] = Piece((*old.axes, axis), count)
                            taken.add(axis)
                        else:  # pieces of the next would not lie side by side
                            left = left[1:] if old.count == sizes[left[0]] else []
        return {name: piece for name, piece in found.items() if piece.count > 1}

    def specs(self, pieces: Pieces) -> list[PartitionSpec]:
        """How operands and results are split then."""

        def entry(names: tuple[str, ...]) -> tuple[str, ...] | None:
            return tuple(a for name in names if name in pieces for a in pieces[name].axes) or None

        return [PartitionSpec(*map(entry, axes)) for axes in self._arrays]

    def joined(
        self, results: Sequence[Array], pieces: Pieces, reduces: Sequence[str] = ()
    ) -> list[Array]:
        """Each device's results, put together over pieces of what is no factor of theirs.

        Args:
            results: of the device.
            pieces: those of the factors that are split.
            reduces: for each result, if they are not all sums, ``"sum"``, ``"max"`` or ``"min"``.
        """
        found = []
        all_axes = self._arrays[len(self.operands) :]
        for axes, result, reduce in zip(
            all_axes, results, reduces or ["sum"] * len(all_axes), strict=True
        ):
            own = {name for names in axes for name in names}
            over = [a for name, piece in pieces.items() if name not in own for a in piece.axes]
            found.append(_REDUCE[reduce](result, tuple(over)) if over else result)
        return found

    def einsum(self) -> tuple[str, dict[str, Any]]:
        """The rule as JAX's partitioner wants it."""
        texts = [
            " ".join(names[0] if len(names) == 1 else f"({' '.join(names)})" for names in axes)
            for axes in self._arrays
        ]
        count = len(self.operands)
        first, last = (
            list(dict.fromkeys(name for axes in arrays for names in axes for name in names))
            for arrays in (self._arrays[:count], self._arrays[count:])
        )
        single = {names[0] for axes in self._arrays for names in axes if len(names) == 1}
        both = list(dict.fromkeys([*first, *last]))  # in the order of first use, as Shardy wants
        return f"{', '.join(texts[:count])} -> {', '.join(texts[count:])}", {
            "reduction_factors": tuple(n for n in first if n not in last and not n.isupper()),
            "need_replication_factors": tuple(n for n in both if n.isupper()),
            **{n: self.sizes[n] for n in both if n not in single},
        }


def _names(entry: Any) -> tuple[str, ...]:
    """The mesh axes of an entry of a spec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def full_spec(aval: Any) -> tuple[Any, ...]:
    """How an array is split over explicit axes: an entry for each of its axes."""
    spec = tuple(aval.sharding.spec)
    return spec + (None,) * (len(aval.shape) - len(spec))


def is_explicit(avals: Sequence[Any]) -> bool:
    """Whether one of them is split over an explicit mesh axis."""
    return any(axis is not None for aval in avals for axis in aval.sharding.spec)


def first_on_mesh(avals: Sequence[Any]) -> Any:
    """Return the first abstract value on a mesh: arrays that are closed over are on none.

    Manual axes are those of any of them, as all operands vary over the same ones.
    """
    return next((aval for aval in avals if not aval.sharding.mesh.empty), avals[0])


def _over(aval: Any, *spec: Any) -> NamedSharding:
    """A spec over the mesh of an abstract value: there may be no mesh set around."""
    return NamedSharding(aval.sharding.mesh, PartitionSpec(*spec))


def reshape(x: Array, *shape: int) -> Array:
    """``x.reshape``, also over explicit axes, of which what are joined leave the first its own."""
    aval = jax.typeof(x)
    if not is_explicit([aval]):
        return x.reshape(shape)
    spec: list[Any] = [None] * len(shape)
    i = j = 0
    while 0 not in shape and i < x.ndim and j < len(shape):
        old, new, first, to = x.shape[i], shape[j], i, j
        i, j = i + 1, j + 1
        while old != new:  # up to where axes of both end
            if old < new:
                old, i = old * x.shape[i], i + 1
            else:
                new, j = new * shape[j], j + 1
        first = next((k for k in range(first, i) if x.shape[k] > 1), first)
        to = next((k for k in range(to, j) if shape[k] > 1), to)
        axes = full_spec(aval)[first]
        if shape[to] % math.prod(aval.sharding.mesh.shape[axis] for axis in _names(axes)) == 0:
            spec[to] = axes
    return jax.lax.reshape(x, shape, out_sharding=_over(aval, *spec))


def reshard_like(x: Array, aval: Any) -> Array:
    """Split over explicit axes as another array of its shape is."""
    if not is_explicit([aval, jax.typeof(x)]):
        return x
    split = next(each for each in (aval, jax.typeof(x)) if is_explicit([each]))
    return jax.sharding.reshard(x, _over(split, *aval.sharding.spec))


def where(mask: Array, x: Array, other: Any) -> Array:
    """``jnp.where``, where a smaller mask is split over explicit axes as ``x`` is."""
    aval = jax.typeof(x)
    if is_explicit([aval, jax.typeof(mask)]):
        mask = reshard_like(jax.numpy.broadcast_to(mask, x.shape), aval)
    return jax.numpy.where(mask, x, other)


def replicate(x: Array, axes: int | None = None) -> Array:
    """All of it on each device, of what is split over explicit axes; or its first ``axes``."""
    if not isinstance(x, jax.Array) or not is_explicit([jax.typeof(x)]):
        return x
    axes = x.ndim if axes is None else axes
    return jax.sharding.reshard(
        x, _over(jax.typeof(x), *[None] * axes, *full_spec(jax.typeof(x))[axes:])
    )


def over_auto_axes(call: Callable[..., Any], operands: Sequence[Any], specs: Any) -> Any:
    """Call a function with its explicit mesh axes made automatic.

    Its derivatives and batches are traced over automatic axes, too, where arrays that are split
    differently may meet.

    Args:
        call: the function.
        operands: its operands, pytrees; an array that occurs twice is passed as one.
        specs: the partition of each result over the explicit axes, in the results' structure.
    """
    leaves, tree = jax.tree.flatten(operands)
    arrays = {id(x): x for x in leaves if isinstance(x, jax.Array)}
    avals = [jax.typeof(x) for x in arrays.values()]
    if not is_explicit(avals):
        return call(*operands)

    def of_arrays(*values: Array) -> Any:
        by_id = dict(zip(arrays, values, strict=True))
        return call(*jax.tree.unflatten(tree, [by_id.get(id(x), x) for x in leaves]))

    mesh = first_on_mesh(avals).sharding.mesh
    axes = tuple(
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind is AxisType.Explicit
    )
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return jax.sharding.auto_axes(of_arrays, axes=axes, out_sharding=shardings)(*arrays.values())


def batch_over_auto_axes(
    rule: Callable[..., Any], operands: Sequence[Any], batched: Sequence[bool]
) -> Any:
    """Call a batching rule, with explicit axes made automatic if one of these splits the batch.

    Args:
        rule: maps the operands to results that have the batch as their first axis.
        operands: arrays, of which those that are ``batched`` have it, too.
        batched: whether each operand is.
    """
    of_batch = [x for x, is_batched in zip(operands, batched, strict=True) if is_batched]
    entries = [full_spec(jax.typeof(x))[0] for x in of_batch]
    entry = next((entry for entry in entries if entry is not None), None)
    if entry is None:
        return rule(*operands)
    return over_auto_axes(rule, operands, PartitionSpec(entry))


def auto_axes_like(position: int) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Decorate a function, so that its explicit mesh axes are made automatic.

    Args:
        position: the position of the argument like which the rows of the result are split.
    """

    def decorate(function: Callable[..., Array]) -> Callable[..., Array]:
        @functools.wraps(function)
        def call(*operands: Any, **options: Any) -> Array:
            spec = PartitionSpec(full_spec(jax.typeof(operands[position]))[0])
            both = operands, options
            return over_auto_axes(lambda args, kwargs: function(*args, **kwargs), both, spec)

        return call

    return decorate


@dataclass(frozen=True)
class Split:
    """A call, and the rule that splits it.

    Attributes:
        rule: of the op.
        local: maps a device's operands, in a list, and pieces to its results, likewise.
    """

    rule: Sharding
    local: Callable[[Sequence[Array], Pieces], list[Array]]

    def result_specs(self, avals: Sequence[Any], results: Sequence[Any]) -> list[PartitionSpec]:
        """Return how results are split where operands are split over explicit axes."""
        mesh = first_on_mesh(avals).sharding.mesh
        specs = [*map(full_spec, avals), *[()] * len(results)]
        pieces = self.rule.pieces(mesh, [each.shape for each in (*avals, *results)], specs)
        return self.rule.specs(pieces)[len(avals) :]

    def auto(self) -> Callable[..., list[Array]]:
        """The call, where XLA chooses how operands are split."""

        def partition(mesh: Any, operands: Any, results: Any) -> Any:
            each = [*operands, *results]
            given = [x.sharding.spec if isinstance(x.sharding, NamedSharding) else () for x in each]
            pieces = self.rule.pieces(mesh, [x.shape for x in each], given)
            chosen = [NamedSharding(mesh, spec) for spec in self.rule.specs(pieces)]

            def call(*local: Array) -> list[Array]:
                with enable_x64_for(local), without_mesh():
                    return self.local(local, pieces)

            return mesh, call, chosen[len(operands) :], tuple(chosen[: len(operands)])

        call = custom_partitioning(lambda *leaves: self.local(leaves, {}))
        text, options = self.rule.einsum()
        call.def_partition(partition, sharding_rule=text, **options)
        return call


def without_mesh() -> AbstractContextManager[None]:
    """Set no mesh around what is traced: code of one device, or of one entry's rows.

    XLA's partitioner calls with the user's mesh still set, of which explicit axes would go into
    the types, and so as custom calls into the program of each device.
    """
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def enable_x64_for(arrays: Sequence[Any]) -> AbstractContextManager[Any]:
    """Takes 64-bit arrays for what they are.

    XLA's partitioner calls from a thread that does not know of the user's ``jax.enable_x64``.
    """
    wide = any(x.dtype in _WIDE for x in arrays)
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


@functools.cache
def _needs_devices() -> tuple[Any, ...]:
    call = custom_partitioning(lambda x: x)
    call.def_partition(lambda *_: None, sharding_rule="i -> i")
    return (jax.make_jaxpr(call)(jax.ShapeDtypeStruct((1,), "float32")),)


def needs_devices() -> tuple[Any, ...]:
    """What an equation carries so that JAX tells its lowering the devices: a program that asks.

    JAX looks for such among the parameters, and lowers none for a mesh of no devices. So there is
    none where XLA has nothing to choose: on one device, and where a mesh has no automatic axes, as
    within ``jax.shard_map``.
    """
    mesh = jax.sharding.get_abstract_mesh()
    chooses = mesh.empty or AxisType.Auto in mesh.axis_types
    return _needs_devices() if chooses and jax.device_count() > 1 else ()


def is_partitioned(ctx: Any) -> bool:
    """Whether a lowering is of a program for several devices that XLA's partitioner splits."""
    devices = getattr(ctx.module_context.axis_context, "device_assignment", None)
    return (
        devices is not None
        and len(devices) > 1
        and getattr(jax.config, "jax_use_shardy_partitioner", True)
        and not ctx.module_context.lowering_parameters.for_export
    )
