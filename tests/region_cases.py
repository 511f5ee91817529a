"""Functions of edges that regions are made of, by the models they are from, and a plain version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from op_spec import Incidence

from jax_gnn import Graph, host_arrays
from jax_gnn._core.csr import SparseMatrix


class Model(NamedTuple):
    """A function of an edge.

    Attributes:
        function: Maps rows to a list of rows.
        rows: Of each argument how it is read, and its shape.
        outputs: Of each result where it goes, and how it is reduced.
    """

    function: Callable[..., list[Any]]
    rows: Sequence[tuple[Any, tuple[int, ...]]]
    outputs: Sequence[tuple[Any, str]]

    @property
    def reads(self) -> list[Any]:
        return [read for read, _ in self.rows]


def gated_gcn(a: Any, b: Any, e: Any, v: Any) -> list[Any]:
    z = a + b + e
    gate = jax.nn.sigmoid(z)
    return [gate * v, gate, z]


def cg_conv(a: Any, b: Any, e: Any) -> list[Any]:
    z = a + b + e
    return [jax.nn.sigmoid(z[0]) * jax.nn.softplus(z[1])]


def cf_conv(x: Any, distance: Any, centers: Any, first: Any, second: Any) -> list[Any]:
    basis = jnp.exp(-3 * (distance - centers) ** 2)
    filters = (jax.nn.softplus(basis @ first) - 0.5) @ second
    cutoff = jnp.where(distance < 1, 0.5 * (jnp.cos(distance * 3) + 1), 0)
    return [x * filters * cutoff, jnp.sum(filters)]


def painn(phi: Any, s: Any, v: Any, direction: Any) -> list[Any]:
    gates = phi.reshape(3, -1) * s.reshape(3, -1)
    turned = gates[2] * direction[:, None]
    return [gates[0], v * gates[1] + turned]


def edge_conv(x: Any, y: Any, weight: Any) -> list[Any]:
    return [jnp.tanh((y - x) @ weight + x[0])]


def pna(x: Any, e: Any) -> list[Any]:
    m = x * e
    return [m, m**2, m, m]


def both_ends(a: Any, b: Any, w: Any) -> list[Any]:
    y = jnp.tanh(a * b @ w)
    return [y, jnp.sqrt(1 + y**2), jnp.outer(a, y), y[::-1]]


def moves(a: Any, b: Any, e: Any) -> list[Any]:
    """What moves numbers, reduces rows, and compares."""
    x = jax.nn.softmax(a.T @ b.reshape(2, 2))
    padded = jnp.pad(x, ((1, 0), (0, 1)), constant_values=2)[:, ::-1]
    c = jnp.stack([b, jnp.roll(b, 1)]).max(0) * jnp.prod(1 + e**2) + jnp.repeat(e, 2)
    return [
        jnp.log1p(jnp.abs(padded)),
        jnp.concatenate([c, jnp.where(b > 0, b, -2 * b)]),
        jax.nn.gelu(c) + jnp.clip(b, -1, 1) - jnp.expm1(-(b**2)),
    ]


def ties(x: Any) -> list[Any]:
    return [jnp.round(2 * x) + 0 * x + jnp.where(x > 0, x, x) * 0 + x, jax.nn.relu(x)]


MODELS: dict[str, Model] = {
    "gated_gcn": Model(
        gated_gcn,
        [("row", (5,)), ("col", (5,)), ("edge", (5,)), ("col", (5,))],
        [("row", "sum"), ("row", "sum"), ("edge", "none")],
    ),
    "cg_conv": Model(
        cg_conv, [("row", (2, 8)), ("col", (2, 8)), ("edge", (2, 8))], [("row", "sum")]
    ),
    "cf_conv": Model(
        cf_conv,
        [("col", (6,)), ("edge", ()), ("shared", (4,)), ("shared", (4, 5)), ("shared", (5, 6))],
        [("row", "sum"), ("all", "sum")],
    ),
    "painn": Model(
        painn,
        [("edge", (12,)), ("col", (12,)), ("col", (3, 4)), ("edge", (3,))],
        [("row", "sum"), ("row", "sum")],
    ),
    "edge_conv": Model(
        edge_conv, [("row", (3,)), ("col", (3,)), ("shared", (3, 7))], [("row", "max")]
    ),
    "pna": Model(
        pna,
        [("col", (17,)), ("edge", (17,))],
        [("row", "sum"), ("row", "sum"), ("row", "max"), ("row", "min")],
    ),
    "both_ends": Model(
        both_ends,
        [("row", (3,)), ("col", (3,)), ("shared", (3, 4))],
        [("col", "sum"), ("col", "max"), ("all", "sum"), ("all", "max")],
    ),
    "moves": Model(
        moves,
        [("row", (2, 2)), ("col", (4,)), ("edge", (2,))],
        [("row", "sum"), ("col", "sum"), ("edge", "none")],
    ),
    "ties": Model(ties, [("col", (2,))], [("row", "max"), ("row", "min")]),
}


class Edges(NamedTuple):
    """A matrix, and its entries that are not padding, in its order.

    Attributes:
        matrix: The matrix.
        rows: Of these entries.
        cols: Likewise.
        count: Of all entries.
    """

    matrix: SparseMatrix
    rows: np.ndarray
    cols: np.ndarray
    count: int

    @property
    def sizes(self) -> dict[str, int]:
        by_row, by_col = self.matrix
        return {"row": by_row.num_rows, "col": by_col.num_rows, "edge": self.count}

    @staticmethod
    def random(rng: np.random.Generator, scenario: str) -> Edges:
        found = Incidence.random(rng, scenario)
        sizes = found.num_right, found.num_left
        num_dst, num_src = sizes
        ends = found.left, found.right
        with host_arrays():
            graph = Graph.from_edges(*ends, num_src=num_src, num_dst=num_dst, validate=False)
        matrix = graph.matrix(weighted=True)
        rows, cols = matrix.by_row.rows, matrix.by_row.cols
        valid = rows >= 0
        matrix = jax.tree.map(jnp.asarray, matrix)
        return Edges(matrix, rows[valid], cols[valid], len(rows))

    def arrays(self, rng: np.random.Generator, model: Model, dtype: str) -> list[np.ndarray]:
        """Random ones, NaN in what only padding reads."""
        found = []
        for read, shape in model.rows:
            lead = () if read == "shared" else (self.sizes[read],)
            x = rng.normal(size=(*lead, *shape)).astype(jnp.dtype(dtype))
            if read == "edge":
                x[len(self.rows) :] = np.nan
            found.append(x)
        return found

    def plain(self, model: Model, arrays: Sequence[Any]) -> list[Any]:
        """The results in plain JAX, of entries that are no padding."""
        ids = {"row": self.rows, "col": self.cols, "edge": np.arange(len(self.rows))}
        read = [
            x if by == "shared" else x[ids[by]] for x, by in zip(arrays, model.reads, strict=True)
        ]
        axes = [None if by == "shared" else 0 for by in model.reads]
        made = jax.vmap(model.function, axes, axis_size=len(self.rows))(*read)
        return [self._result(x, *to) for x, to in zip(made, model.outputs, strict=True)]

    def _result(self, x: Any, into: str, reduce: str) -> Any:
        if into == "edge":
            lost = self.count - len(self.rows)
            return jnp.pad(x, ((0, lost), *((0, 0) for _ in x.shape[1:])))
        ids, size = jnp.zeros(len(self.rows), int), 1
        if into != "all":
            ids, size = {"row": self.rows, "col": self.cols}[into], self.sizes[into]
        found = getattr(jax.ops, f"segment_{reduce}")(x, ids, size)
        return found[0] if into == "all" else found
