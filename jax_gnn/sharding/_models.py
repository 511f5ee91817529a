"""Models with state in `ShardedGraph.apply`: batch norms over all devices, keys by device.

Only `apply` imports this module, and only for a model of Flax, which is not a dependency.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arrays import accumulator_dtype, row_wise
from jax_gnn._core.op import varying_axes


class BatchNorm(nnx.BatchNorm):
    """`nnx.BatchNorm` of the real nodes of all devices.

    Attributes:
        is_node: ``(num_own,)`` bool, rows that are no padding; None if all are none.
    """

    is_node: Array | None

    def __call__(
        self,
        x: ArrayLike,
        use_running_average: bool | None = None,
        *,
        mask: ArrayLike | None = None,
    ) -> Array:
        """Apply the norm; arguments as of `nnx.BatchNorm`, whose mask defaults to `is_node`."""
        running = self.use_running_average if use_running_average is None else use_running_average
        if running:
            return cast(Array, super().__call__(x, use_running_average=True))
        rows = jnp.asarray(x)
        is_node = jnp.ones(rows.shape[:1], bool) if self.is_node is None else self.is_node
        if mask is None and (rows.ndim < 2 or rows.shape[0] != len(is_node)):
            raise ValueError(
                f"x of nnx.BatchNorm must have num_own = {len(is_node)} rows on a part, or a "
                f"mask, got shape {rows.shape}"
            )
        valid = row_wise(is_node, rows) if mask is None else jnp.asarray(mask)
        axes = [self.axis] if isinstance(self.axis, int) else self.axis
        features = {axis % rows.ndim for axis in axes}
        reduced = tuple(i for i in range(rows.ndim) if i not in features)
        wide = rows.astype(accumulator_dtype(rows.dtype))

        def mean_of(values: Array) -> Array:
            total = jnp.where(valid, values, 0).sum(reduced, keepdims=True)
            return cast(Array, jax.lax.psum(total, self.axis_name)) / count

        shown = jnp.broadcast_to(valid, rows.shape).astype(wide.dtype)
        count = jnp.maximum(jax.lax.psum(shown.sum(reduced, keepdims=True), self.axis_name), 1)
        mean = mean_of(wide)
        centered = wide - mean
        stats = {
            "mean": mean.squeeze(reduced),
            "var": mean_of(centered * centered).squeeze(reduced),
        }
        # The batch's statistics stand in for the running ones while rows are normalised.
        averages = {name: getattr(self, name)[...] for name in stats}
        for name, value in stats.items():
            getattr(self, name)[...] = value.astype(averages[name].dtype)
        y = super().__call__(rows, use_running_average=True)
        for name, value in averages.items():
            new = jax.lax.stop_gradient(stats[name]).astype(value.dtype)
            getattr(self, name)[...] = self.momentum * value + (1 - self.momentum) * new
        return cast(Array, y)


class StatefulModel(NamedTuple):
    """A model, split into its definition, the state that calls may change, and the rest."""

    definition: Any
    state: Any
    rest: Any

    @classmethod
    def of(cls, model: object) -> StatefulModel | None:
        """Split a model; None for functions."""
        if not isinstance(model, nnx.Module):
            return None
        parts: Any = nnx.split(model, (nnx.BatchStat, nnx.RngState), ...)
        return cls(*parts)

    def call(
        self, state: Any, axis: str, is_node: Array | None, *args: Any, **named: Any
    ) -> tuple[Any, Any]:
        """Call the model on a device; return the result and the state that the call changed."""
        model, device = nnx.merge(self.definition, state, self.rest), jax.lax.axis_index(axis)
        for _, module in list(nnx.iter_graph(model)):
            if isinstance(module, nnx.RngKey):
                module[...] = jax.random.fold_in(module[...], device)
            elif isinstance(module, nnx.BatchNorm):
                norm: Any = module
                norm.__class__, norm.axis_name, norm.is_node = BatchNorm, axis, is_node
            elif isinstance(module, nnx.Module) and hasattr(module, "synchronize"):
                module.synchronize(axis, is_node)
        before = [value for _, value in _values(model)]
        result = model(*args, **named)
        # In evaluation nothing changes, so that the model may be one from outside of jax.jit.
        pairs = zip(_values(model), before, strict=True)
        changed = {path: value for (path, value), old in pairs if value is not old}
        return result, {path: _as_replicated(value, axis) for path, value in changed.items()}


def _values(model: nnx.Module) -> list[tuple[str, Array]]:
    """Return the statistics and the counts of keys of a model, by path."""
    state = nnx.state(model, (nnx.BatchStat, nnx.RngCount))
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(state)]


def update(model: Any, values: dict[str, Array]) -> None:
    """Set the values of a model that a call has changed."""
    if values:
        state = nnx.state(model, (nnx.BatchStat, nnx.RngCount))
        leaves, tree = jax.tree.flatten(state)
        paths = [path for path, _ in _values(model)]
        leaves = [values.get(path, leaf) for path, leaf in zip(paths, leaves, strict=True)]
        nnx.update(model, jax.tree.unflatten(tree, leaves))


def _as_replicated(leaf: Array, axis: str) -> Array:
    """Average statistics that differ between devices, of norms that do not synchronise them."""
    differs = axis in varying_axes(jax.typeof(leaf))
    return cast(Array, jax.lax.pmean(leaf, axis)) if differs else leaf
