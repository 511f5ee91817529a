"""The rules that split ops on a sparse matrix over devices: by features and heads, blocks, entries.

Factors of the rules in :mod:`jax_gnn._core.sharding`: ``h`` are heads, ``b`` the blocks of a matrix
that is a batch, and ``e`` the entries of another matrix, of which each device has a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import scatter_rows, take
from jax_gnn._core.csr import Csr, EdgeSplit, SparseMatrix
from jax_gnn._core.ids import PADDING, in_range
from jax_gnn._core.op import Bind
from jax_gnn._core.sharding import UNSPLIT, Piece, Pieces, Sharding, parse_axes
from jax_gnn._core.types import Attribute, Aval, IdArray, PyTree
from jax_gnn._ops.segment_order.primitive import sorted_ids


def matrix_sharding(
    operands: Mapping[str, str],
    *results: str,
    runs: bool = True,
    across: Callable[[Bind, Any, Piece], Any] | None = None,
    transposed: bool = False,
    reduces: Sequence[str] = (),
) -> Callable[..., Sharding]:
    """Return the rule of an op whose operands lie along rows, columns and entries of its matrix.

    Args:
        operands: the factors of all axes of each operand, by name; ``scores.row`` names a field,
            ``arrays.0`` an element of a tuple. ``rows``, ``cols``, ``entries`` and ``weights`` (in
            the order of the weights) stand for factors of the matrix, ``features`` for those of all
            axes but the first.
        results: the factors of each result, which is reduced over factors that it lacks.
        runs: whether pieces may be runs of entries.
        across: maps (bind, operands, piece), a device's run of the operands, to the results, for
            results that are no sums.
        transposed: whether the op reads both halves of the matrix. The half by column of a run is
            sorted anew, which needs ids of rows and columns.
        reduces: the reduction of each result; by default all are sums.
    """

    def rule(named: PyTree, result_avals: Sequence[Aval], **attributes: Attribute) -> Sharding:
        csr = named.matrix.by_row
        is_gather = transposed and (csr.rows is None or csr.cols is None)
        # A gather has no ids of rows, by which its transposed half could be sorted.
        words = _words(csr, runs and not is_gather)
        # Rows and columns of results, which each device adds up, may follow the split of entries.
        ends = {"rows": "o", "cols": "i"} if words["entries"] == "e" else {}
        followers = {axis: factor for axis, factor in ends.items() if words[axis] == UNSPLIT}
        result_words = words | followers
        words["out"] = result_words["rows"]
        heads = attributes["heads"] if "heads" in attributes else _num_heads(named, operands)
        sizes = {"h": heads} | block_sizes(named.matrix)

        def text(factors: str, shape: Sequence[int], words: Mapping[str, str] = words) -> str:
            axes = [words.get(word, word) for word in parse_axes(factors)]
            if "features" in axes:
                at, count = axes.index("features"), len(shape) - len(axes) + 1
                axes[at : at + 1] = ["(h k)"] if count == 1 else [f"f{i}" for i in range(count)]
            if shape and shape[0] <= 1 and axes[0] in words.values():
                axes[0] = UNSPLIT  # one row for all, or no rows
            for axis, size in zip(axes, shape, strict=True):
                outer, *inner = axis.strip("()").split()
                sizes.update({name: size // max(sizes[outer], 1) for name in inner})
            return " ".join(axes)

        texts: list[str] = []
        for name, value in zip(named._fields, named, strict=True):
            if name == "matrix":
                texts += jax.tree.leaves(_texts(value, words["entries"], transposed))
                continue
            for path, x in jax.tree_util.tree_leaves_with_path(value):
                path = (jax.tree_util.GetAttrKey(name), *path)
                key = jax.tree_util.keystr(path, simple=True, separator=".")
                texts.append(text(operands[key], x.shape))

        def local(bind: Bind, arrays: PyTree, pieces: Pieces) -> list[Array]:
            if "h" in pieces and "heads" in bind.attributes:
                heads = bind.attributes["heads"] // pieces["h"].count
                bind = replace(bind, attributes={**bind.attributes, "heads": heads})
            if "b" in pieces:
                arrays = arrays._replace(matrix=local_blocks(arrays.matrix, pieces["b"]))
            elif "e" in pieces:
                order = arrays.matrix.by_row.order
                weights = [name for name, factors in operands.items() if "weights" in factors]
                arrays = _local_run(arrays, weights, pieces["e"])
                # Each device sorts its run by column, as the whole half by column is no run.
                if transposed:
                    arrays = arrays._replace(matrix=_both_halves(arrays.matrix))
                if across is not None and csr.rows is not None:
                    without_runs = {name: piece for name, piece in pieces.items() if name != "e"}
                    local_results = jax.tree.leaves(across(bind, arrays, pieces["e"]))
                    return split.joined(local_results, without_runs)
                if order is not None:
                    # Gradients to weights go back to the positions that the order names.
                    local_results = [
                        scatter_rows(x, order, csr.count) if "weights" in factors else x
                        for x, factors in zip(jax.tree.leaves(bind(arrays)), results, strict=True)
                    ]
                    return split.joined(local_results, pieces, reduces)
            return split.joined(jax.tree.leaves(bind(arrays)), pieces, reduces)

        of_results = [
            text(factors, x.shape, result_words)
            for factors, x in zip(results, result_avals, strict=True)
        ]
        split = Sharding(texts, of_results, local, sizes, dict.fromkeys(followers.values(), "e"))
        return split

    return rule


def _num_heads(named: PyTree, operands: Mapping[str, str]) -> int:
    """Return the size of the axis ``h`` of an operand that has one; 1 if none has."""
    for name, factors in operands.items():
        if "h" in parse_axes(factors) and (x := getattr(named, name, None)) is not None:
            return cast(int, x.shape[parse_axes(factors).index("h")])
    return 1


def _words(csr: Csr, runs: bool) -> dict[str, str]:
    """Return the factors of rows, columns, entries and weights of a matrix."""
    if csr.blocks > 1:
        return {"rows": "(b r)", "cols": "(b n)", "entries": "(b e)", "weights": "(b e)"}
    entries = "e" if runs else UNSPLIT
    return {
        "rows": entries if csr.rows is None else UNSPLIT,
        "cols": entries if csr.cols is None or csr.resorted or csr.own_cols else UNSPLIT,
        "entries": entries,
        "weights": entries if csr.order is None else UNSPLIT,
    }


def _texts(matrix: SparseMatrix, entries: str, transposed: bool) -> SparseMatrix:
    """Return the factors of the arrays of a matrix."""
    by_row, by_col = matrix
    if transposed:
        col_entries = UNSPLIT if by_row.blocks == 1 else entries
        return SparseMatrix(half_factors(by_row, entries), half_factors(by_col, col_entries, "t"))
    if by_row.resorted:  # plain XLA reads unsorted ids, and each device sorts its run
        row_entries = UNSPLIT if by_row.blocks == 1 else entries
        return SparseMatrix(half_factors(by_row, row_entries), half_factors(by_col, entries))
    return SparseMatrix(half_factors(by_row, entries), unread(by_col))


def half_factors(csr: Csr, entries: str, slots: str = "s") -> Csr:
    """Return the factors of the arrays of a half that is read, from those of entries and slots."""
    ids: dict[str, Any] = {name: None if getattr(csr, name) is None else entries for name in _IDS}
    slot_factors = f"(b {slots}) {UNSPLIT}" if csr.blocks > 1 else f"{UNSPLIT} {UNSPLIT}"
    return replace(
        csr,
        **ids,
        indptr=None if csr.indptr is None else UNSPLIT,
        slots=None if csr.slots is None else EdgeSplit(slot_factors, slot_factors),
    )


_IDS = "rows", "cols", "order"


def unread(tree: PyTree) -> Any:
    """Return the factors of arrays that nothing reads."""
    return jax.tree.map(lambda x: " ".join([UNSPLIT] * len(x.shape)), tree)


def block_sizes(matrix: SparseMatrix) -> dict[str, int]:
    """Return the sizes of the factors of rows, columns, entries and slots."""
    by_row, by_col = matrix
    sizes = {"r": by_row.num_rows, "n": by_col.num_rows, "e": by_row.count}
    for name, csr in (("s", by_row), ("t", by_col)):
        if csr.slots is not None:
            sizes[name] = csr.slots.places.shape[0]
    blocks = by_row.blocks
    return {"b": blocks} | {name: size // blocks for name, size in sizes.items()}


def local_blocks(matrix: SparseMatrix, piece: Piece) -> SparseMatrix:
    """Return a device's blocks, whose ids count from the first of them."""
    by_row, by_col = matrix
    num_rows, num_cols = (half.num_rows // piece.count for half in matrix)
    return SparseMatrix(
        _half_block(by_row, num_rows, num_cols, piece),
        _half_block(by_col, num_cols, num_rows, piece),
    )


def _half_block(csr: Csr, num_rows: int, num_cols: int, piece: Piece) -> Csr:
    count = csr.count

    def local(ids: IdArray, size: int) -> Any:
        return None if ids is None else ids - (piece.index * size).astype(ids.dtype)

    # Row pointers and slots of a block are contiguous, too.
    indptr, slots = csr.indptr, csr.slots
    if indptr is not None:
        starts = jax.lax.dynamic_slice_in_dim(indptr, piece.index * num_rows, num_rows + 1)
        indptr = local(starts, count)
    if slots is not None:
        rows = local(slots.places[:, 0], num_rows)
        places = jnp.stack([rows, slots.places[:, 1]], 1)
        slots = EdgeSplit(local(slots.ids, num_cols), places)
    return replace(
        csr,
        rows=local(csr.rows, num_rows),
        cols=local(csr.cols, num_cols),
        order=local(csr.order, count),
        indptr=indptr,
        slots=slots,
        num_rows=num_rows,
        blocks=csr.blocks // piece.count,
    )


def _local_run(operands: PyTree, weights: Sequence[str], piece: Piece) -> Any:
    """Return a device's run of entries, with its weights in the order of the entries."""
    csr = operands.matrix.by_row
    if csr.resorted:
        return operands
    present = {name: x for name in weights if (x := getattr(operands, name)) is not None}
    operands = operands._replace(**{name: take(x, csr.order) for name, x in present.items()})
    cols, num_rows = csr.cols, csr.count if csr.rows is None else csr.num_rows
    by_col = operands.matrix.by_col
    if csr.own_cols:
        local = cols - (piece.index * csr.count).astype(cols.dtype)
        cols = jnp.where(in_range(cols, csr.count * piece.count), local, PADDING)
        by_col = replace(by_col, num_rows=csr.count)
    if csr.order is not None:  # an entry without a weight is padding
        cols = jnp.arange(csr.count, dtype=csr.order.dtype) if cols is None else cols
        cols = jnp.where(in_range(csr.order, csr.count * piece.count), cols, PADDING)
    by_row = Csr(csr.rows, cols, num_rows=num_rows)
    return operands._replace(matrix=SparseMatrix(by_row, by_col))


def _both_halves(matrix: SparseMatrix) -> SparseMatrix:
    """Return a run of entries by row, and by column."""
    by_row, num_cols = matrix.by_row, matrix.by_col.num_rows
    cols, order = sorted_ids(by_row.cols, num_cols)
    return SparseMatrix(by_row, Csr(cols, by_row.rows[order], order, num_rows=num_cols))
