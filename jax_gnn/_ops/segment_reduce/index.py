"""An index of segments whose ids are constant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arguments import as_array, check_ids, check_size
from jax_gnn._core.arrays import DTYPES, STATIC
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import PADDING, index_dtype, to_device
from jax_gnn._core.public import Implementation, public, selects_implementation
from jax_gnn._ops.segment_reduce.primitive import total


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SegmentIndex:
    """Constant ids: gather and segment sum, which are transposes of each other, by kernels.

    Code that closes over the senders and receivers of a fixed mesh, as weather models do, sorts ids
    once, on the host; nothing is sorted or scattered later, forward or backward::

        senders = SegmentIndex.from_ids(senders, num_nodes)
        receivers = SegmentIndex.from_ids(receivers, num_nodes)

        def step(nodes, edges):
            messages = mlp(edges, senders.gather(nodes), receivers.gather(nodes))
            return receivers.segment_sum(messages)

    A pytree: close over it, or pass it through ``jax.jit``. Elements with an id out of range are
    padding: they get zeros, and are not summed.

    Attributes:
        ids: ``(num_elements,)``, the segment of each element.
        rows: ``(num_elements,)``, the ids in ascending order; None if ``ids`` ascend.
        order: ``(num_elements,)``, the position among ``ids`` of each of ``rows``; None if ``ids``
            ascend.
        num_segments: number of segments.

    Example:
        >>> senders = SegmentIndex.from_ids([2, 0, 2], num_segments=3)
        >>> senders.gather(jnp.array([1.0, 2.0, 3.0]))
        Array([3., 1., 3.], dtype=float32)
        >>> senders.segment_sum(jnp.array([1.0, 2.0, 3.0]))
        Array([2., 0., 4.], dtype=float32)
    """

    ids: Array
    rows: Array | None = None
    order: Array | None = None
    num_segments: int = field(kw_only=True, metadata=STATIC)

    @property
    def matrix(self) -> SparseMatrix:
        """The sparse matrix whose rows have the elements of a segment."""
        matrix = segments(self.ids, self.num_segments)
        if self.rows is None:
            return matrix
        return matrix._replace(by_row=Csr(self.rows, self.order, num_rows=self.num_segments))

    @classmethod
    def from_ids(cls, ids: ArrayLike, num_segments: int) -> SegmentIndex:
        """Build the index.

        Args:
            ids: ``(num_elements,)`` concrete integers, the segment of each element, in any order.
            num_segments: number of segments, which are the rows that :meth:`gather` reads.

        Raises:
            TypeError: ids are traced or not integers, or ``num_segments`` is not an integer.
            ValueError: ids are not one-dimensional, or ``num_segments`` is negative.
        """
        if isinstance(ids, jax.core.Tracer):
            raise TypeError(
                f"ids must be concrete: build the SegmentIndex outside of jax.jit, got {ids}"
            )
        num_segments = check_size("num_segments", num_segments)
        array: Any = check_ids("ids", ids)
        rows: Any = None
        order: Any = None
        dtype = index_dtype(num_segments, len(array))
        array = np.clip(array, PADDING, num_segments).astype(dtype)
        if (array[1:] < array[:-1]).any():
            order = np.argsort(array, kind="stable").astype(dtype)
            rows = array[order]
        return cast(SegmentIndex, to_device(cls(array, rows, order, num_segments=num_segments)))

    @selects_implementation
    def gather(self, x: Array, *, implementation: Implementation | None = None) -> Array:
        """Return the row of x of each id.

        Args:
            x: ``(num_segments, *features)``, of a dtype that :func:`segment_sum` has kernels for.
            implementation: see :func:`jax_gnn.implementation`.

        Returns:
            ``(num_elements, *features)``.

        Raises:
            TypeError: another dtype.
            ValueError: another number of rows.
        """
        return _total("x", x, self.matrix.T)

    @selects_implementation
    def segment_sum(self, data: Array, *, implementation: Implementation | None = None) -> Array:
        """Return the sum of each segment.

        Args:
            data: ``(num_elements, *features)``, of a dtype that :func:`segment_sum` has kernels
                for.
            implementation: see :func:`jax_gnn.implementation`.

        Returns:
            ``(num_segments, *features)``.

        Raises:
            TypeError: another dtype.
            ValueError: another number of rows.
        """
        return _total("data", data, self.matrix)


def _total(name: str, x: ArrayLike, matrix: SparseMatrix) -> Array:
    x = as_array(name, x)
    if x.dtype not in DTYPES:
        names = ", ".join(jnp.dtype(dtype).name for dtype in DTYPES)
        raise TypeError(f"{name} must be one of {names}, got {x.dtype}")
    size = matrix.by_col.num_rows
    if x.ndim == 0 or x.shape[0] != size:
        raise ValueError(f"{name} must be ({size}, *features), got shape {x.shape}")
    return total(x, matrix)
