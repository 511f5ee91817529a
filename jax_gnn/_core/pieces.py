"""How ops on a sparse matrix are split over devices: by features and heads, blocks, and entries.

Factors of the rules in :mod:`jax_gnn._core.sharding`: ``h`` are heads, ``b`` the blocks of a matrix
that is a batch, and ``e`` the entries of one that is not, of which a device has a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import scatter_rows, take
from jax_gnn._core.csr import Csr, EdgeSplit, SparseMatrix
from jax_gnn._core.ids import PADDING, in_range
from jax_gnn._core.op import Bind
from jax_gnn._core.sharding import UNSPLIT, Piece, Pieces, Sharding, parse_axes
from jax_gnn._core.sort import sorted_ids


def matrix_sharding(
    operands: Mapping[str, str],
    *results: str,
    runs: bool = True,
    across: Callable[[Bind, Any, Piece], Any] | None = None,
    transposed: bool = False,
    reduces: Sequence[str] = (),
) -> Callable[..., Sharding]:
    """The rule of an op whose operands lie along the rows, columns and entries of its ``matrix``.

    Args:
        operands: by their names, ``scores.row`` that of a field, the factors of all axes.
            ``rows``, ``cols``, ``entries``, and ``weights``, which entries name by their order,
            stand for those of the matrix, ``features`` for those of all axes but the first. Of a
            field that is a tuple ``arrays.0`` is the first.
        results: the same of the results, which are put together over pieces of what is no factor of
            theirs.
        runs: whether pieces may be runs of entries.
        across: maps (bind, operands, runs), a device's run of the operands, to the results, where
            these are no sums.
        transposed: whether the op reads both halves of the matrix. Of a run, the half by column is
            sorted anew, for which it needs ids of rows and columns.
        reduces: for each result how, if they are not all sums.
    """

    def rule(named: Any, found: Sequence[Any], **attributes: Any) -> Sharding:
        csr = named.matrix.by_row
        is_gather = transposed and (csr.rows is None or csr.cols is None)
        words = _words(csr, runs and not is_gather)
        heads = attributes["heads"] if "heads" in attributes else _num_heads(named, operands)
        sizes = {"h": heads} | block_sizes(named.matrix)

        def text(of: str, shape: Sequence[int]) -> str:
            named = [words.get(word, word) for word in parse_axes(of)]
            if "features" in named:
                at, count = named.index("features"), len(shape) - len(named) + 1
                named[at : at + 1] = ["(h k)"] if count == 1 else [f"f{i}" for i in range(count)]
            if shape and shape[0] <= 1 and named[0] in words.values():
                named[0] = UNSPLIT  # one for all, or none
            for axis, size in zip(named, shape, strict=True):
                outer, *inner = axis.strip("()").split()
                sizes.update({name: size // max(sizes[outer], 1) for name in inner})
            return " ".join(named)

        texts: list[str] = []
        for name, value in zip(named._fields, named, strict=True):
            if name == "matrix":
                texts += jax.tree.leaves(_texts(value, words["entries"], transposed))
                continue
            for path, x in jax.tree_util.tree_leaves_with_path(value):
                key = jax.tree_util.keystr(
                    (jax.tree_util.GetAttrKey(name), *path), simple=True, separator="."
                )
                texts.append(text(operands[key], x.shape))

        def local(bind: Bind, own: Any, pieces: Pieces) -> list[Array]:
            if "h" in pieces and "heads" in bind.attributes:
                heads = bind.attributes["heads"] // pieces["h"].count
                bind = replace(bind, attributes={**bind.attributes, "heads": heads})
            if "b" in pieces:
                own = own._replace(matrix=local_blocks(own.matrix, pieces["b"]))
            elif "e" in pieces:
                order = own.matrix.by_row.order
                weights = [name for name, of in operands.items() if "weights" in of]
                own = _run(own, weights, pieces["e"])
                if transposed:
                    own = own._replace(matrix=_both_halves(own.matrix))
                if across is not None and csr.rows is not None:
                    rest = {name: piece for name, piece in pieces.items() if name != "e"}
                    return split.joined(jax.tree.leaves(across(bind, own, pieces["e"])), rest)
                if order is not None:
                    # Gradients to weights go back to where the entries' order names these.
                    local_results = [
                        scatter_rows(x, order, csr.count) if "weights" in of else x
                        for x, of in zip(jax.tree.leaves(bind(own)), results, strict=True)
                    ]
                    return split.joined(local_results, pieces, reduces)
            return split.joined(jax.tree.leaves(bind(own)), pieces, reduces)

        split = Sharding(
            texts,
            [text(*each) for each in zip(results, (x.shape for x in found), strict=True)],
            local,
            sizes,
        )
        return split

    return rule


def _num_heads(named: Any, operands: Mapping[str, str]) -> int:
    """Return the size of the axis ``h`` of an operand that has one; 1 if none has."""
    for name, factors in operands.items():
        if "h" in parse_axes(factors) and (x := getattr(named, name, None)) is not None:
            return x.shape[parse_axes(factors).index("h")]
    return 1


def _words(csr: Csr, runs: bool) -> dict[str, str]:
    """The factors of what lies along a matrix."""
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
    """The factors of a matrix's arrays."""
    by_row, by_col = matrix
    if transposed:
        of_cols = UNSPLIT if by_row.blocks == 1 else entries
        return SparseMatrix(half_factors(by_row, entries), half_factors(by_col, of_cols, "t"))
    if by_row.resorted:  # plain XLA reads ids as they were, and a run is sorted by itself
        whole = UNSPLIT if by_row.blocks == 1 else entries
        return SparseMatrix(half_factors(by_row, whole), half_factors(by_col, entries))
    return SparseMatrix(half_factors(by_row, entries), unread(by_col))


def half_factors(csr: Csr, entries: str, slots: str = "s") -> Csr:
    """The factors of the arrays of a half that is read, by those of its entries.

    Args:
        csr: the half.
        entries: the factors.
        slots: the name of that of slots, where there are blocks.
    """
    ids: dict[str, Any] = {name: None if getattr(csr, name) is None else entries for name in _IDS}
    of_slots = f"(b {slots}) {UNSPLIT}" if csr.blocks > 1 else f"{UNSPLIT} {UNSPLIT}"
    return replace(
        csr,
        **ids,
        indptr=None if csr.indptr is None else UNSPLIT,
        slots=None if csr.slots is None else EdgeSplit(of_slots, of_slots),
    )


_IDS = "rows", "cols", "order"


def unread(tree: Any) -> Any:
    """The factors of arrays that nothing reads."""
    return jax.tree.map(lambda x: " ".join([UNSPLIT] * len(x.shape)), tree)


def block_sizes(matrix: SparseMatrix) -> dict[str, int]:
    """Of the factors of rows, columns, entries and slots."""
    by_row, by_col = matrix
    found = {"b": by_row.blocks}
    found |= {"r": by_row.num_rows, "n": by_col.num_rows, "e": by_row.count}
    for name, csr in (("s", by_row), ("t", by_col)):
        found |= {} if csr.slots is None else {name: csr.slots.places.shape[0]}
    return {name: size if name == "b" else size // by_row.blocks for name, size in found.items()}


def local_blocks(matrix: SparseMatrix, piece: Piece) -> SparseMatrix:
    """A device's blocks, of which ids count from their start."""
    by_row, by_col = matrix
    num_rows, num_cols = (half.num_rows // piece.count for half in matrix)
    return SparseMatrix(
        _half_block(by_row, num_rows, num_cols, piece),
        _half_block(by_col, num_cols, num_rows, piece),
    )


def _half_block(csr: Csr, num_rows: int, num_cols: int, piece: Piece) -> Csr:
    count = csr.count

    def local(ids: Any, size: int) -> Any:
        return None if ids is None else ids - (piece.index * size).astype(ids.dtype)

    indptr, slots = csr.indptr, csr.slots
    if indptr is not None:
        own = jax.lax.dynamic_slice_in_dim(indptr, piece.index * num_rows, num_rows + 1)
        indptr = local(own, count)
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


def _run(own: Any, weights: Sequence[str], piece: Piece) -> Any:
    """A device's run of entries, whose weights, which lie in another order, it takes for itself."""
    csr = own.matrix.by_row
    if csr.resorted:
        return own
    there = {name: x for name in weights if (x := getattr(own, name)) is not None}
    own = own._replace(**{name: take(x, csr.order) for name, x in there.items()})
    cols, num_rows = csr.cols, csr.count if csr.rows is None else csr.num_rows
    by_col = own.matrix.by_col
    if csr.own_cols:
        local = cols - (piece.index * csr.count).astype(cols.dtype)
        cols = jnp.where(in_range(cols, csr.count * piece.count), local, PADDING)
        by_col = replace(by_col, num_rows=csr.count)
    if csr.order is not None:  # entries whose order names no weight are padding
        cols = jnp.arange(csr.count, dtype=csr.order.dtype) if cols is None else cols
        cols = jnp.where(in_range(csr.order, csr.count * piece.count), cols, PADDING)
    by_row = Csr(csr.rows, cols, num_rows=num_rows)
    return own._replace(matrix=SparseMatrix(by_row, by_col))


def _both_halves(matrix: SparseMatrix) -> SparseMatrix:
    """A run, and the same entries by column."""
    by_row, num_cols = matrix.by_row, matrix.by_col.num_rows
    cols, order = sorted_ids(by_row.cols, num_cols)
    return SparseMatrix(by_row, Csr(cols, by_row.rows[order], order, num_rows=num_cols))
