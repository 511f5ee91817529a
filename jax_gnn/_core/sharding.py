"""The split of a call over devices: the rule of an op, applied to JAX's two kinds of mesh axes.

A rule names the *factors* of each axis, as an einsum does: ``"f"`` is an axis of features,
``"(h k)"`` one of heads and their features, ``"."`` one that is not split. A factor in capitals is
not split either: ``"(h K)"`` is split by heads alone. Where mesh axes split a factor, each device
calls the same op on its piece. Arrays that no device reads may be declared unsplit: XLA drops their
transfer.

* Axes of type *auto*, where XLA's partitioner chooses: the call is lowered to a
  ``jax.experimental.custom_partitioning``, which derivatives and batching do not see.
* Axes of type *explicit*, where types say how arrays are split: these axes are made automatic
  around the call, and the rule determines the split of its results.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jax_gnn._core.types import Attribute, Aval, LoweringContext, PyTree, Shaped

UNSPLIT = "."


@dataclass(frozen=True)
class Piece:
    """A device's piece of a factor."""

    axes: tuple[str, ...]  # the mesh axes that split the factor
    count: int  # number of pieces, all of one size
    scatters: bool = False  # whether each device gets its share of the rows that are reduced

    @property
    def index(self) -> Array:
        """Index of the device's piece."""
        return jax.lax.axis_index(self.axes)

    def reduce(self, x: Array, how: str = "sum") -> Array:
        """Return the sum, or ``"max"`` or ``"min"``, of x over all pieces, perhaps scattered."""
        if not self.scatters:
            return _REDUCE[how](x, self.axes)
        if how == "sum":
            return cast(Array, jax.lax.psum_scatter(x, self.axes, tiled=True))
        return self.own(_REDUCE[how](x, self.axes), x.shape[0] // self.count)

    @property
    def whole(self) -> Piece:
        """The piece whose reductions are not scattered."""
        return replace(self, scatters=False)

    def own(self, x: Array, size: int) -> Array:
        """Return the device's ``size`` rows of x, if what is reduced is scattered; else x."""
        if not self.scatters:
            return x
        return jax.lax.dynamic_slice_in_dim(x, self.index * size, size)


Pieces = Mapping[str, Piece]

_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": jax.lax.psum,
    "max": jax.lax.pmax,
    "min": jax.lax.pmin,
}


def parse_axes(text: str) -> list[str]:
    """Return the axes of a rule's string; a bracket is one axis."""
    return re.findall(r"\([^)]*\)|\S+", text)


@dataclass(frozen=True)
class Sharding:
    """The rule of an op."""

    operands: Sequence[str]  # the factors of each array of the operands, in their order
    results: Sequence[str]  # the factors of each result
    # Maps (bind, operands, pieces), a device's operands and the pieces of the split factors, to the
    # device's results. It reduces a result over pieces of factors that the result lacks, such as an
    # axis that is summed over.
    local: Callable[[Any, Any, Pieces], Any]
    sizes: Mapping[str, int] = field(default_factory=dict)  # sizes of factors in brackets
    # Factors of first axes: such a factor is split by the mesh axes of the factor that it follows,
    # if an array is, and a result with it is scattered as it is reduced over the other.
    follows: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def _arrays(self) -> list[list[tuple[str, ...]]]:
        """Factors of each axis of all operands and results; unsplit axes are numbered."""
        arrays, num_unsplit = [], 0
        for text in (*self.operands, *self.results):
            axes = []
            for axis in parse_axes(text):
                names = tuple(axis.strip("()").split())
                if len(names) > 1:  # JAX takes no factor of size 1 in brackets
                    names = tuple(n for n in names if self.sizes[n] > 1) or names[-1:]
                if axis == UNSPLIT:
                    num_unsplit += 1
                    names = (f"UNSPLIT{num_unsplit}",)
                axes.append(names)
            arrays.append(axes)
        return arrays

    def pieces(self, mesh: Any, shapes: Sequence[Any], specs: Sequence[Any]) -> dict[str, Piece]:
        """Return the split factors, from the specs of the arrays; large arrays take precedence."""
        # Greedy: each mesh axis of the largest array goes to the first factor that it divides.
        sizes = dict(self.sizes)
        for shape, axes in zip(shapes, self._arrays, strict=True):
            pairs = zip(shape, axes, strict=True)
            sizes |= {names[0]: size for size, names in pairs if len(names) == 1}
        pieces: dict[str, Piece] = {}
        used_axes: set[str] = set()
        for i in sorted(range(len(specs)), key=lambda i: -math.prod(shapes[i])):
            for names, entry in zip(self._arrays[i], specs[i], strict=False):
                remaining = list(names)
                for axis in _names(entry):
                    while remaining and axis not in used_axes:
                        factor = remaining[0]
                        piece = pieces.get(factor, Piece((), 1))
                        count = piece.count * mesh.shape[axis]
                        is_free = not factor.isupper() and factor not in self.follows
                        if is_free and sizes[factor] % count == 0:
                            pieces[factor] = Piece((*piece.axes, axis), count)
                            used_axes.add(axis)
                        else:  # the next factor is split only inside of this one's single elements
                            remaining = remaining[1:] if piece.count == sizes[factor] else []
        pieces = {name: piece for name, piece in pieces.items() if piece.count > 1}
        for factor, leader in self.follows.items():
            asked = [
                _names(entry)
                for axes, spec in zip(self._arrays, specs, strict=True)
                for names, entry in zip(axes, spec, strict=False)
                if names == (factor,)
            ]
            of_leader = pieces.get(leader)
            if of_leader and of_leader.axes in asked and sizes[factor] % of_leader.count == 0:
                pieces |= {factor: of_leader, leader: replace(of_leader, scatters=True)}
        return pieces

    def largest_whole(self, pieces: Pieces, shapes: Sequence[Any]) -> int:
        """Return the most elements of a result that is reduced over devices, and not scattered."""
        all_axes = self._arrays[len(self.operands) :]
        sizes = [
            math.prod(shape)
            for shape, axes in zip(shapes, all_axes, strict=True)
            if axes and axes[0][0] not in pieces and self.follows.get(axes[0][0]) in pieces
        ]
        return max(sizes, default=0)

    def specs(self, pieces: Pieces) -> list[PartitionSpec]:
        """Return the specs of operands and results for pieces of factors."""

        def entry(names: tuple[str, ...]) -> tuple[str, ...] | None:
            return tuple(a for name in names if name in pieces for a in pieces[name].axes) or None

        return [PartitionSpec(*map(entry, axes)) for axes in self._arrays]

    def joined(
        self, results: Sequence[Array], pieces: Pieces, reduces: Sequence[str] = ()
    ) -> list[Array]:
        """Reduce a device's results over the pieces of factors that they lack.

        ``reduces`` has ``"sum"``, ``"max"`` or ``"min"`` for each result; by default all are sums.
        """
        joined = []
        all_axes = self._arrays[len(self.operands) :]
        reduces = reduces or ["sum"] * len(all_axes)
        for axes, result, reduce in zip(all_axes, results, reduces, strict=True):
            factors = {name for names in axes for name in names}
            present = factors | self.follows.keys()
            over = {name: piece for name, piece in pieces.items() if name not in present}
            for follower in factors & self.follows.keys() & pieces.keys():
                if piece := over.pop(self.follows[follower], None):
                    result = piece.reduce(result, reduce)
            axes_over = tuple(axis for piece in over.values() for axis in piece.axes)
            joined.append(_REDUCE[reduce](result, axes_over) if axes_over else result)
        return joined

    def einsum(self) -> tuple[str, dict[str, Any]]:
        """Return the rule and its options as JAX's partitioner takes them."""
        texts = [
            " ".join(names[0] if len(names) == 1 else f"({' '.join(names)})" for names in axes)
            for axes in self._arrays
        ]
        count = len(self.operands)
        inputs, outputs = (
            list(dict.fromkeys(name for axes in arrays for names in axes for name in names))
            for arrays in (self._arrays[:count], self._arrays[count:])
        )
        single = {names[0] for axes in self._arrays for names in axes if len(names) == 1}
        factors = list(dict.fromkeys([*inputs, *outputs]))  # Shardy wants the order of first use
        return f"{', '.join(texts[:count])} -> {', '.join(texts[count:])}", {
            "reduction_factors": tuple(n for n in inputs if n not in outputs and not n.isupper()),
            "need_replication_factors": tuple(n for n in factors if n.isupper()),
            **{n: self.sizes[n] for n in factors if n not in single},
        }


def _names(entry: object) -> tuple[str, ...]:
    """Return the mesh axes of an entry of a spec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def full_spec(aval: Aval) -> tuple[Any, ...]:
    """Return an entry for each axis of an array: the explicit mesh axes that split it."""
    spec = tuple(aval.sharding.spec)
    return spec + (None,) * (len(aval.shape) - len(spec))


def is_explicit(avals: Sequence[Aval]) -> bool:
    """Whether an array is split over an explicit mesh axis."""
    return any(axis is not None for aval in avals for axis in aval.sharding.spec)


def first_on_mesh(avals: Sequence[Aval]) -> Any:
    """Return the first abstract value on a mesh, as arrays that are closed over are on none.

    All operands vary over the same manual axes, so that any of them tells these axes.
    """
    return next((aval for aval in avals if not aval.sharding.mesh.empty), avals[0])


def _over(aval: Aval, *spec: object) -> NamedSharding:
    """Return a sharding over the mesh of an abstract value; no mesh need be set around."""
    return NamedSharding(aval.sharding.mesh, PartitionSpec(*spec))


def reshape(x: Array, *shape: int) -> Array:
    """Reshape x, also over explicit mesh axes; joined axes keep the split of the first."""
    aval = jax.typeof(x)
    if not is_explicit([aval]):
        return x.reshape(shape)
    spec: list[Any] = [None] * len(shape)
    # Walk through groups of axes of equal sizes in both shapes: x.shape[start:i], shape[target:j].
    i = j = 0
    while 0 not in shape and i < x.ndim and j < len(shape):
        source_size, target_size, start, target = x.shape[i], shape[j], i, j
        i, j = i + 1, j + 1
        while source_size != target_size:
            if source_size < target_size:
                source_size, i = source_size * x.shape[i], i + 1
            else:
                target_size, j = target_size * shape[j], j + 1
        start = next((k for k in range(start, i) if x.shape[k] > 1), start)
        target = next((k for k in range(target, j) if shape[k] > 1), target)
        axes = full_spec(aval)[start]
        count = math.prod(aval.sharding.mesh.shape[axis] for axis in _names(axes))
        if shape[target] % count == 0:
            spec[target] = axes
    return jax.lax.reshape(x, shape, out_sharding=_over(aval, *spec))


def reshard_like(x: Array, aval: Aval) -> Array:
    """Split x over explicit mesh axes as another array of its shape is."""
    avals = [aval, jax.typeof(x)]
    if not is_explicit(avals):
        return x
    split = next(aval for aval in avals if is_explicit([aval]))
    return cast(Array, jax.sharding.reshard(x, _over(split, *aval.sharding.spec)))


def where(mask: Array, x: Array, fill: ArrayLike) -> Array:
    """Return ``jnp.where``; a smaller mask is split over explicit mesh axes as ``x`` is."""
    aval = jax.typeof(x)
    if is_explicit([aval, jax.typeof(mask)]):
        mask = reshard_like(jax.numpy.broadcast_to(mask, x.shape), aval)
    return jax.numpy.where(mask, x, fill)


def replicate(x: Array, axes: int | None = None) -> Array:
    """Replicate all axes of x, or its first ``axes``, over explicit mesh axes."""
    if not isinstance(x, jax.Array) or not is_explicit([jax.typeof(x)]):
        return x
    aval, axes = jax.typeof(x), x.ndim if axes is None else axes
    result: Array = jax.sharding.reshard(x, _over(aval, *[None] * axes, *full_spec(aval)[axes:]))
    return result


def over_auto_axes(call: Callable[..., Any], operands: Sequence[PyTree], specs: PyTree) -> Any:
    """Call a function with its explicit mesh axes made automatic.

    Derivatives and batches of the function are traced over automatic axes, too, where arrays with
    different splits may meet. An array that occurs twice among the operands is passed once.
    ``specs`` are the splits of the results over the explicit axes.
    """
    # JAX maps over arrays only: other leaves are closed over.
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
    rule: Callable[..., Any], operands: Sequence[PyTree], batched: Sequence[bool]
) -> Any:
    """Call a batching rule; explicit mesh axes are made automatic if one of them splits the batch.

    The batch is the first axis of the operands that are ``batched``, and of all results.
    """
    entries = [
        full_spec(jax.typeof(x))[0]
        for x, is_batched in zip(operands, batched, strict=True)
        if is_batched
    ]
    entry = next((entry for entry in entries if entry is not None), None)
    if entry is None:
        return rule(*operands)
    return over_auto_axes(rule, operands, PartitionSpec(entry))


def auto_axes_like(position: int) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Decorate a function, so that its explicit mesh axes are made automatic.

    Rows of the result are split like those of the argument at ``position``.
    """

    def decorate(function: Callable[..., Array]) -> Callable[..., Array]:
        @functools.wraps(function)
        def call(*operands: PyTree, **options: Attribute) -> Array:
            spec = PartitionSpec(full_spec(jax.typeof(operands[position]))[0])
            arguments = operands, options
            result: Array = over_auto_axes(
                lambda args, kwargs: function(*args, **kwargs), arguments, spec
            )
            return result

        return call

    return decorate


LARGE = 2**24
"""Elements of a result that is worth a warning where all devices add it up whole."""


@functools.cache
def _warn_of_whole_rows() -> None:
    """Warn once that devices which share edges exchange all rows."""
    warnings.warn(
        "edges are split over devices, and the rows of a result are not: all devices add up all of "
        "them. Split arrays of nodes over the same mesh axis, into equal parts, and each gets its "
        "own rows. jax_gnn.sharding.shard_graph exchanges only the rows that a device reads",
        stacklevel=2,
    )


@dataclass(frozen=True)
class Split:
    """A call and the rule that splits it.

    Attributes:
        rule: the rule of the op.
        local: maps a list of a device's operands, and pieces, to a list of its results.
    """

    rule: Sharding
    local: Callable[[Sequence[Array], Pieces], list[Array]]

    def result_specs(self, avals: Sequence[Aval], results: Sequence[Aval]) -> list[PartitionSpec]:
        """Return the specs of results for operands that are split over explicit mesh axes."""
        mesh = first_on_mesh(avals).sharding.mesh
        specs = [*map(full_spec, avals), *[()] * len(results)]
        pieces = self.rule.pieces(mesh, [x.shape for x in (*avals, *results)], specs)
        return self.rule.specs(pieces)[len(avals) :]

    def auto(self) -> Callable[..., list[Array]]:
        """Return the call as a function whose operands XLA splits."""

        def partition(mesh: Any, operands: PyTree, results: PyTree) -> Any:
            arrays = [*operands, *results]
            shardings = [x.sharding for x in arrays]
            specs = [s.spec if isinstance(s, NamedSharding) else () for s in shardings]
            pieces = self.rule.pieces(mesh, [x.shape for x in arrays], specs)
            if self.rule.largest_whole(pieces, [x.shape for x in results]) >= LARGE:
                _warn_of_whole_rows()
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
    """Unset the mesh around the trace of one device's program, or of a function of one entry.

    XLA's partitioner calls with the user's mesh still set. Its explicit axes would become part of
    types, and so custom calls in the program of each device.
    """
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def enable_x64_for(arrays: Sequence[Shaped]) -> AbstractContextManager[Any]:
    """Enable 64 bits if an array has them.

    XLA's partitioner calls from a thread that lacks the user's ``jax.enable_x64``.
    """
    wide = any(x.dtype in _WIDE for x in arrays)
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


@functools.cache
def _needs_devices() -> tuple[Any, ...]:
    call = custom_partitioning(lambda x: x)
    call.def_partition(lambda *_: None, sharding_rule="i -> i")
    return (jax.make_jaxpr(call)(jax.ShapeDtypeStruct((1,), "float32")),)


def needs_devices() -> tuple[Any, ...]:
    """Return a parameter for equations that makes JAX tell the devices to their lowerings.

    JAX looks for programs like this among parameters, and refuses them for a mesh without devices.
    So there is none where XLA has nothing to choose: on one device, and on a mesh without automatic
    axes, as within ``jax.shard_map``.
    """
    mesh = jax.sharding.get_abstract_mesh()
    chooses = mesh.empty or AxisType.Auto in mesh.axis_types
    return _needs_devices() if chooses and jax.device_count() > 1 else ()


def is_partitioned(ctx: LoweringContext) -> bool:
    """Whether XLA's partitioner splits the program of a lowering over several devices."""
    devices = getattr(ctx.module_context.axis_context, "device_assignment", None)
    return (
        devices is not None
        and len(devices) > 1
        and getattr(jax.config, "jax_use_shardy_partitioner", True)
        and not ctx.module_context.lowering_parameters.for_export
    )
