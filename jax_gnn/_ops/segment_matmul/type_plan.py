"""Sort of rows by type, which brings unsorted types to segmented products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arguments import as_array, as_ids, check_ids, check_size
from jax_gnn._core.csr import inverse_permutation, permutation
from jax_gnn._core.ids import in_range, index_dtype, is_traced, on_host, row_starts
from jax_gnn._core.public import public
from jax_gnn._ops.segment_order.primitive import sorted_ids
from jax_gnn._ops.segment_reduce.primitive import total


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class TypePlan:
    """Permutation of rows into the order of their types, and its inverse.

    A pytree, built once if types do not change, or inside ``jax.jit``::

        plan = TypePlan.from_types(types, num_types)
        y = plan.unsort(segment_matmul(plan.sort(x), weights, plan.group_sizes))

    Attributes:
        group_sizes: ``(num_types,)`` numbers of rows.
        order: ``(rows,)`` ids of the rows in sorted order; rows whose type is out of range come
            last. None if rows are already sorted.
        inverse: ``(rows,)`` places of the rows in sorted order; None if rows are already sorted.

    Example:
        >>> plan = TypePlan.from_types(jnp.array([1, 0, 1]), num_types=2)
        >>> plan.group_sizes
        Array([1, 2], dtype=int32)
        >>> x = plan.sort(jnp.array([[1.0], [2.0], [3.0]]))
        >>> x.ravel(), plan.unsort(x).ravel()
        (Array([2., 1., 3.], dtype=float32), Array([1., 2., 3.], dtype=float32))
    """

    group_sizes: Array
    order: Array | None = None
    inverse: Array | None = None

    @classmethod
    def from_types(cls, types: ArrayLike, num_types: int) -> TypePlan:
        """Sort rows by type, stably.

        Args:
            types: ``(rows,)`` integers in any order. Products of rows whose type is outside
                ``[0, num_types)`` are zero.
            num_types: number of types.

        Raises:
            TypeError: ``types`` are not integers.
            ValueError: ``types`` is not a vector, or ``num_types`` is negative.
        """
        num_types = check_size("num_types", num_types)
        if on_host.value and not is_traced(types):
            return cls(*_host_plan(check_ids("types", types), num_types))
        ids = as_ids("types", types)
        rows, order = sorted_ids(ids, num_types)
        starts = row_starts(rows, num_types)
        return cls(jnp.diff(starts).astype(order.dtype), order, inverse_permutation(order))

    @classmethod
    def from_sizes(cls, group_sizes: ArrayLike) -> TypePlan:
        """Return the plan of rows that are already sorted.

        Args:
            group_sizes: ``(num_types,)`` integers; rows past their sum have no type.
        """
        if on_host.value and not is_traced(group_sizes):
            sizes = check_ids("group_sizes", group_sizes)
            dtype = jax.dtypes.canonicalize_dtype(np.int64)
            return cls(np.minimum(sizes, np.iinfo(dtype).max).astype(dtype))
        return cls(as_ids("group_sizes", group_sizes))

    @property
    def num_types(self) -> int:
        """Number of types."""
        return self.group_sizes.shape[0]

    @property
    def num_rows(self) -> int | None:
        """Number of rows; None for rows that are already sorted, of any number."""
        return None if self.order is None else self.order.shape[0]

    def sort(self, x: ArrayLike) -> Array:
        """Return ``(rows, *features)`` in the order of their types.

        Raises:
            TypeError: ``x`` is not an array of numbers.
            ValueError: ``x`` has another number of rows.
        """
        return self._gather(x, self.order, self.inverse)

    def unsort(self, x: ArrayLike) -> Array:
        """Return rows in their order before :meth:`sort`."""
        return self._gather(x, self.inverse, self.order)

    def _gather(self, x: ArrayLike, ids: Array | None, inverse: Array | None) -> Array:
        x = as_array("x", x)
        if ids is None or inverse is None:
            return x
        rows = ids.shape[0]
        if x.ndim == 0 or x.shape[0] != rows:
            raise ValueError(f"x must be ({rows=}, *features), got shape {x.shape}")
        # The transpose of a permutation is a gather: no scatter in the backward pass.
        return total(x, permutation(ids, inverse))


def _host_plan(types: np.ndarray, num_types: int) -> tuple[Any, Any, Any]:
    """Return sizes, order and inverse, in numpy."""
    dtype = index_dtype(num_types, len(types))
    types = np.where(in_range(types, num_types), types, num_types)
    order = np.argsort(types, kind="stable").astype(dtype)
    sizes = np.bincount(types, minlength=num_types + 1)[:num_types].astype(dtype)
    return sizes, order, inverse_permutation(order)
