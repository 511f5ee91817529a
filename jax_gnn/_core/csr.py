"""Sparse matrices of ones: the index structure of graphs, hypergraphs and segments.

A :class:`Csr` has its entries sorted by row, a :class:`SparseMatrix` by row and by column.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import ffi
from jax_gnn._core.arrays import STATIC
from jax_gnn._core.ids import PADDING, at_most, in_range, is_traced, namespace, pad_ids, row_ids
from jax_gnn._core.sharding import replicate
from jax_gnn._core.types import IdArray

SLOT_SIZE = 8


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Csr:
    """Entries of a sparse matrix, sorted by row.

    Ids out of range, of rows or of columns, make an entry padding: it is dropped, and what it
    points to is not read.

    Attributes:
        rows: ``(entries,)``, the row of each entry, ascending, with padding at both ends; None if
            entry e is all of row e.
        cols: ``(entries,)``, the row of the input that an entry reads; None if entry e reads row e.
        order: ``(entries,)``, the weight of an entry; None if entry e has weight e.
        indptr: ``(num_rows + 1,)``, row pointers; None where no op reads them.
        slots: the columns as an :class:`EdgeSplit`; None where no op reads them.
        num_rows: number of rows.
        resorted: whether ids were sorted at run time: plain XLA omits the sort, see
            :attr:`SparseMatrix.unsorted`.
        own_cols: whether each entry's column is the entry itself, or padding: a run of entries
            reads a run of columns.
        in_range: whether all columns are known to be in range, so that gathers need no masks.
        blocks: number of matrices of one shape, without common rows and columns, that it joins, see
            :func:`block_diagonal`.
    """

    rows: Any
    cols: Any = None
    order: Any = None
    indptr: Any = None
    slots: EdgeSplit | None = None
    num_rows: int = field(kw_only=True, metadata=STATIC)
    resorted: bool = field(default=False, kw_only=True, metadata=STATIC)
    own_cols: bool = field(default=False, kw_only=True, metadata=STATIC)
    in_range: bool = field(default=False, kw_only=True, metadata=STATIC)
    blocks: int = field(default=1, kw_only=True, metadata=STATIC)

    @property
    def ids(self) -> Any:
        """Rows of the entries, ``(entries,)``, or the columns if there are no rows."""
        return self.cols if self.rows is None else self.rows

    @property
    def count(self) -> int:
        """Number of entries, padding included."""
        return cast(int, self.ids.shape[0])

    @property
    def counts(self) -> Array:
        """Number of entries of each row, ``(num_rows,)``, by ``indptr``."""
        return jnp.diff(self.indptr)

    def valid(self, num_cols: int) -> Array:
        """Return ``(entries,)``: whether each entry is no padding."""
        sizes = (self.rows, self.num_rows), (self.cols, num_cols), (self.order, self.count)
        checks = [in_range(ids, size) for ids, size in sizes if ids is not None]
        return cast(Array, functools.reduce(operator.and_, checks))


class LastRows(NamedTuple):
    """The last rows of a matrix."""

    csr: Csr  # their entries; `order` is the position of each among all entries
    first: Any  # (1,), the number of entries before them

    @classmethod
    def of(cls, csr: Csr, num_before: int, first: Any, most: int) -> LastRows:
        """Return the rows after ``num_before`` others, which have at most ``most`` entries.

        ``first`` is the first of these. If they are fewer, the slice starts at entries of earlier
        rows, which become padding.
        """
        rows, cols, order = (
            jax.lax.dynamic_slice(ids, (first,), (most,)) for ids in (csr.rows, csr.cols, csr.order)
        )
        tail = Csr(rows - num_before, cols, order, num_rows=csr.num_rows - num_before)
        return cls(tail, jnp.reshape(first, 1))


class SparseMatrix(NamedTuple):
    """The same entries sorted by row and by column.

    Attributes:
        by_row: the entries as products with the matrix read them.
        by_col: the transpose; its ``order`` is the position of each entry in ``by_row``.
    """

    by_row: Csr
    by_col: Csr

    @property
    def T(self) -> SparseMatrix:
        """The transpose."""
        return SparseMatrix(self.by_col, self.by_row)

    @property
    def unsorted(self) -> Csr | None:
        """The entries by row in the order of the columns, where that omits a sort; else None."""
        by_row, by_col = self
        if by_row.resorted and by_row.cols is not None and by_col.rows is None:
            return Csr(by_col.cols, num_rows=by_row.num_rows, blocks=by_row.blocks)
        return None


def segments(ids: Array, num_segments: int) -> SparseMatrix:
    """Return the matrix of sorted ids: row r has the elements of segment r."""
    return SparseMatrix(Csr(ids, num_rows=num_segments), Csr(None, ids, num_rows=ids.shape[0]))


def permutation(order: Array, inverse: Array) -> SparseMatrix:
    """Return the matrix whose row i reads row ``order[i]``: a gather, as is its transpose."""
    count = order.shape[0]
    return SparseMatrix(Csr(None, order, num_rows=count), Csr(None, inverse, num_rows=count))


def inverse_permutation(order: Any) -> Any:
    """Return the inverse of a permutation; ids out of range are dropped, and leave -1."""
    count = order.shape[0]
    # A scatter; on the host without JAX, so that containers are built without compiling.
    if namespace(order) is np:
        valid = in_range(order, count)
        inverse = np.full_like(order, PADDING)
        inverse[order[valid]] = np.flatnonzero(valid)
        return inverse
    order = replicate(jnp.where(in_range(order, count), order, count))
    places = jnp.arange(count, dtype=order.dtype)
    return jnp.full_like(order, PADDING).at[order].set(places, mode="drop")


def orient_by_weights(a: Any, b: Any, matrix: SparseMatrix) -> tuple[Any, Any, SparseMatrix]:
    """Return (a, b, matrix) or (b, a, matrix.T), a belonging to rows and b to columns.

    The returned matrix has its entries in the order of the weights.
    """
    if matrix.by_row.order is None and matrix.by_row.rows is not None:
        return a, b, matrix
    return b, a, matrix.T


# --- Slots ---------------------------------------------------------------------------------------


class EdgeSplit(NamedTuple):
    """The rows of a CSR matrix in slots of 8 entries: even work, whatever the rows' lengths.

    This is HyperGef's fusion-workload-aware format, whose partitions are slots. An empty row has
    one slot. ``entries // 8 + num_rows + 1`` slots always suffice; at least the last is surplus.

    Attributes:
        ids: ``(num_slots, 8)``, the columns; -1 pads a row's last slot and surplus slots.
        places: ``(num_slots, 2)``, the row, and twice the slot's position in its row, plus 1 in the
            row's last slot; (-1, 1) for surplus slots, at which kernels stop.
    """

    ids: Any
    places: Any


def num_slots(num_rows: int, num_entries: int) -> int:
    """Return the number of slots of an :class:`EdgeSplit`."""
    return num_entries // SLOT_SIZE + num_rows + 1


def edge_split(indptr: IdArray, cols: IdArray) -> EdgeSplit:
    """Cut the rows of a CSR matrix into slots: natively, or in ``jax.numpy`` if traced.

    Row starts out of range, or before the end of the previous row, are clipped.

    Args:
        indptr: ``(num_rows + 1,)``, row pointers, int32 or int64.
        cols: ``(entries,)`` in the same dtype. Entries past the last row are ignored.

    Returns:
        numpy arrays for numpy arrays, else arrays of JAX, in the same dtype.
    """
    dtype, num_rows, count = indptr.dtype, indptr.shape[0] - 1, cols.shape[0]
    size = num_slots(num_rows, count)
    if not is_traced(indptr, cols):
        split = EdgeSplit(np.empty((size, SLOT_SIZE), dtype), np.empty((size, 2), dtype))
        ffi.host_function("edge_split")(
            indptr=np.ascontiguousarray(indptr), cols=np.ascontiguousarray(cols), **split._asdict()
        )
        return jax.device_put(split) if isinstance(indptr, jax.Array) else split
    starts = jax.lax.cummax(jnp.clip(jnp.asarray(indptr), 0, count))
    # Each slot finds its row from the slots before it, and its entries from its position in the
    # row. Lanes past the end of the row read an appended entry of padding.
    num_slots_of_row = jnp.maximum(-(-jnp.diff(starts) // SLOT_SIZE), 1)
    first = jnp.pad(jnp.cumsum(num_slots_of_row, dtype=dtype), (1, 0))
    rows = row_ids(first, size)
    position = jnp.arange(size, dtype=dtype) - first[rows]
    begin = starts[rows] + SLOT_SIZE * position
    remaining = jnp.where(rows == PADDING, 0, starts[rows + 1] - begin)
    lanes = jnp.arange(SLOT_SIZE, dtype=dtype)[None]
    entries = jnp.where(lanes < remaining[:, None], begin[:, None] + lanes, count)
    place = 2 * position + (remaining <= SLOT_SIZE).astype(dtype)
    place = jnp.where(rows == PADDING, 1, place)
    return EdgeSplit(pad_ids(jnp.asarray(cols), 1)[entries], jnp.stack([rows, place], 1))


# --- A batch of matrices -------------------------------------------------------------------------


def fits_block_diagonal(size: int, *matrices: SparseMatrix) -> bool:
    """Whether the ids of a batch of matrices, joined, fit the dtype of the ids."""
    ids = [half.ids for matrix in matrices for half in matrix]
    sizes = [half.num_rows for matrix in matrices for half in matrix] + [i.shape[1] for i in ids]
    limit = _max_id(ids[0])
    return all(at_most(size * count, limit) for count in sizes)


def _max_id(ids: Array) -> int:
    return int(np.iinfo(ids.dtype).max)


def block_diagonal(matrix: SparseMatrix) -> SparseMatrix:
    """Join a batch of matrices, the first axis of all arrays, to one without common rows."""
    by_row, by_col = matrix
    return SparseMatrix(_join(by_row, by_col.num_rows), _join(by_col, by_row.num_rows))


def _join(csr: Csr, num_cols: int) -> Csr:
    size, count = csr.ids.shape

    def shift(ids: Array, block: int) -> Array:
        return ids + jnp.arange(size, dtype=ids.dtype)[:, None] * block

    def join(ids: Array, valid: Array, block: int) -> Array:
        return jnp.where(valid, shift(ids, block), PADDING).ravel()

    rows, cols, order, num_rows = csr.rows, csr.cols, csr.order, csr.num_rows
    if order is not None:
        order = join(order, in_range(order, count), count)
    if rows is None:
        cols = join(cols, in_range(cols, num_cols), num_cols)
    else:  # rows stay sorted: padding gets the row before it, and columns mark it
        valid = in_range(rows, num_rows)
        rows = shift(jax.lax.cummax(jnp.where(valid, rows, 0), axis=1), num_rows).ravel()
        if cols is None:
            cols = jnp.broadcast_to(jnp.arange(count, dtype=rows.dtype), valid.shape)
        cols = join(cols, valid & in_range(cols, num_cols), num_cols)
    indptr = csr.indptr
    if indptr is not None:  # the last row of each block includes the block's padding
        num_entries = jnp.full((1,), size * count, indptr.dtype)
        indptr = jnp.concatenate([replicate(shift(indptr[:, :-1], count)).ravel(), num_entries])
    slots = None if csr.slots is None else _join_slots(csr.slots, num_rows, num_cols)
    return replace(
        csr,
        rows=rows,
        cols=cols,
        order=order,
        indptr=indptr,
        slots=slots,
        num_rows=size * num_rows,
        blocks=size * csr.blocks,
    )


def _join_slots(slots: EdgeSplit, num_rows: int, num_cols: int) -> EdgeSplit:
    """Join slots; surplus slots get a row past the last, at which kernels do not stop."""
    ids, places = slots
    # Kernels stop at a row of -1, so that only the last block may have one.
    block = jnp.arange(ids.shape[0], dtype=ids.dtype)[:, None]
    rows, place = places[..., 0], places[..., 1]
    rows = jnp.where(in_range(rows, num_rows), rows + block * num_rows, len(ids) * num_rows)
    ids = jnp.where(in_range(ids, num_cols), ids + block[..., None] * num_cols, PADDING)
    return EdgeSplit(ids.reshape(-1, ids.shape[-1]), jnp.stack([rows.ravel(), place.ravel()], 1))
