"""Functions of edges from known models as regions, and the same in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from op_spec import Incidence

from jax_gnn import Graph, host_arrays
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._ops.edge_region.primitive import edge_region
from jax_gnn._ops.edge_region.region import Region, Sink
from jax_gnn._ops.edge_region.row_program import Access


class Model(NamedTuple):
    """A function of an edge.

    Attributes:
        function: Maps rows to a list of rows.
        rows: Access and shape of each argument.
        outputs: Destination and reduction of each result.
    """

    function: Callable[..., list[Array]]
    rows: Sequence[tuple[Access, tuple[int, ...]]]
    outputs: Sequence[Sink]

    @property
    def accesses(self):
        return [access for access, _ in self.rows]

    def region(self, dtype="float32"):
        rows = [jax.ShapeDtypeStruct(shape, dtype) for _, shape in self.rows]
        return Region.of(self.function, rows, self.accesses, self.outputs)


def gated_gcn(a, b, e, v):
    z = a + b + e
    gate = jax.nn.sigmoid(z)
    return [gate * v, gate, z]


def cg_conv(a, b, e):
    z = a + b + e
    return [jax.nn.sigmoid(z[0]) * jax.nn.softplus(z[1])]


def cf_conv(x, distance, centers, w1, w2):
    basis = jnp.exp(-3 * (distance - centers) ** 2)
    filters = (jax.nn.softplus(basis @ w1) - 0.5) @ w2
    cutoff = jnp.where(distance < 1, 0.5 * (jnp.cos(distance * 3) + 1), 0)
    return [x * filters * cutoff, jnp.sum(filters)]


def painn(phi, s, v, direction):
    gates = phi.reshape(3, -1) * s.reshape(3, -1)
    turned = gates[2] * direction[:, None]
    return [gates[0], v * gates[1] + turned]


def edge_conv(x, y, weight):
    return [jnp.tanh((y - x) @ weight + x[0])]


def pna(x, e):
    m = x * e
    return [m, m**2, m, m]


def sums_to_sources(a, b, w):
    y = jnp.tanh(a * b @ w)
    return [y, jnp.sqrt(1 + y**2), jnp.outer(a, y), y[::-1]]


def moves(a, b, e):
    """Move elements, reduce rows and compare."""
    x = jax.nn.softmax(a.T @ b.reshape(2, 2))
    padded = jnp.pad(x, ((1, 0), (0, 1)), constant_values=2)[:, ::-1]
    c = jnp.stack([b, jnp.roll(b, 1)]).max(0) * jnp.prod(1 + e**2) + jnp.repeat(e, 2)
    return [
        jnp.log1p(jnp.abs(padded)),
        jnp.concatenate([c, jnp.where(b > 0, b, -2 * b)]),
        jax.nn.gelu(c) + jnp.clip(b, -1, 1) - jnp.expm1(-(b**2)),
    ]


def ties(x):
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
    "sums_to_sources": Model(
        sums_to_sources,
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
    """A matrix and its entries without padding.

    Attributes:
        matrix: The matrix.
        rows: Row of each entry, in the matrix's order.
        cols: Column of each entry.
        count: Number of entries with padding.
    """

    matrix: SparseMatrix
    rows: np.ndarray
    cols: np.ndarray
    count: int

    @property
    def sizes(self):
        by_row, by_col = self.matrix
        return {"row": by_row.num_rows, "col": by_col.num_rows, "edge": self.count}

    @staticmethod
    def random(rng, scenario):
        incidence = Incidence.random(rng, scenario)
        sizes = {"num_src": incidence.num_left, "num_dst": incidence.num_right}
        with host_arrays():
            graph = Graph.from_edges(incidence.left, incidence.right, **sizes, validate=False)
        matrix = graph.matrix(weighted=True)
        rows, cols = matrix.by_row.rows, matrix.by_row.cols
        valid = rows >= 0
        matrix = jax.tree.map(jnp.asarray, matrix)
        return Edges(matrix, rows[valid], cols[valid], len(rows))

    def arrays(self, rng, model, dtype):
        """Draw the arrays of a model, with NaN where only padding reads."""
        arrays = []
        for access, shape in model.rows:
            rows = () if access == "shared" else (self.sizes[access],)
            x = rng.normal(size=(*rows, *shape)).astype(jnp.dtype(dtype))
            if access == "edge":
                x[len(self.rows) :] = np.nan
            arrays.append(x)
        return arrays

    def region(self, model, implementation=None):
        """Return the region of a model as a function of its arrays."""

        def function(*arrays):
            args = model.function, arrays, model.accesses, model.outputs, self.matrix
            return edge_region(*args, implementation=implementation)

        return function

    def plain(self, model, arrays):
        """Compute the results in plain JAX, from entries without padding."""
        ids = {"row": self.rows, "col": self.cols, "edge": np.arange(len(self.rows))}
        rows = [
            x if access == "shared" else x[ids[access]]
            for x, access in zip(arrays, model.accesses, strict=True)
        ]
        axes = [None if access == "shared" else 0 for access in model.accesses]
        values = jax.vmap(model.function, axes, axis_size=len(self.rows))(*rows)
        return [
            self._reduce(x, dest, reduce)
            for x, (dest, reduce) in zip(values, model.outputs, strict=True)
        ]

    def _reduce(self, x, dest, reduce):
        if dest == "edge":
            padding = self.count - len(self.rows)
            return jnp.pad(x, ((0, padding), *((0, 0) for _ in x.shape[1:])))
        ids, size = jnp.zeros(len(self.rows), int), 1
        if dest != "all":
            ids, size = {"row": self.rows, "col": self.cols}[dest], self.sizes[dest]
        result = getattr(jax.ops, f"segment_{reduce}")(x, ids, size)
        return result[0] if dest == "all" else result
