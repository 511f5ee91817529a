"""Encoders of rows of tables, and a model of databases that reads them up to a time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory
from jax_gnn.extend import accumulator_dtype, as_array, check_instance, described, row_wise, take
from jax_gnn.sampling import Blocks

Table = Mapping[str, ArrayLike]
KINDS = "numbers", "categories", "cycles", "embeddings"
SECONDS_PER_DAY = 86400


class TableEncoder(LinearOptions):
    """Encoder of a table's rows: the sum of an encoding of each column, as in PyTorch Frame.

    Hu et al., arXiv 2404.00776. Numbers are standardised, and 0 where missing; each cycle of a date
    becomes a sine and a cosine; a linear map takes these and the given embeddings. Each category of
    a column has an embedding, and so has a missing category.

    Attributes:
        out_features: Features per row of the output.
        numbers: Mean and deviation of each column of numbers.
        num_categories: Number of categories of each column.
        num_cycles: Number of columns of times.
        embedding_features: Features of given embeddings.
        map: The linear map.
        categories: Embeddings of the categories, a missing one first in each column.

    Example:
        >>> table = {"numbers": np.array([[1.0], [np.nan]]), "categories": np.array([[1], [-1]])}
        >>> TableEncoder.of(table, 8, rngs=nnx.Rngs(0))(table).shape
        (2, 8)
    """

    out_features: int = field(kw_only=False)
    numbers: tuple[tuple[float, float], ...] = ()
    num_categories: tuple[int, ...] = ()
    num_cycles: int = 0
    embedding_features: int = 0

    @classmethod
    def of(cls, table: Table, out_features: int, **options: Any) -> Self:
        """Make an encoder of a table's columns, with the statistics of its rows.

        Args:
            table: Rows of training, as in a call, but with all categories.
            out_features: Features per row of the output.
            **options: Further arguments of the class, such as `rngs`.
        """
        check_instance("table", table, Mapping)
        rows = {kind: np.asarray(table.get(kind, np.zeros((0, 0)))) for kind in KINDS}
        # In float64 squares do not overflow, and equal numbers have no deviation.
        known = [column[np.isfinite(column)].astype(float) for column in rows["numbers"].T]
        return cls(
            out_features,
            numbers=tuple(
                (float(c.mean()), float(c.std()) if np.ptp(c) else 1.0) if c.size else (0.0, 1.0)
                for c in known
            ),
            num_categories=tuple(int(c.max(initial=-1)) + 1 for c in rows["categories"].T),
            num_cycles=rows["cycles"].shape[1],
            embedding_features=rows["embeddings"].shape[1],
            **options,
        )

    def _make_parameters(self, factory: ParameterFactory) -> None:
        width = len(self.numbers) + 12 * self.num_cycles + self.embedding_features
        # Rows without such columns have one zero, as checkpoints hold no empty arrays.
        self.map = factory.linear(width or 1, self.out_features)
        count, init = len(self.num_categories), nnx.initializers.normal(1.0)
        shape = sum(self.num_categories) + count, self.out_features
        self.categories = factory.kernel(*shape, init=init, when=count > 0)

    def __call__(self, table: Table) -> Array:
        """Encode rows, ``(rows, out_features)`` in `dtype`.

        Args:
            table: Arrays by kind of column, as `jax_gnn.convert.from_relbench` makes them:
                ``numbers`` ``(rows, columns)``, NaN or infinite if missing; ``categories`` ``(rows,
                columns)`` integers, -1 if missing or new; ``cycles`` ``(rows, columns, 6)``, shares
                of the year, month, week, day, hour and minute, NaN if missing; ``embeddings``
                ``(rows, features)``. Other kinds are ignored.

        Raises:
            ValueError: A kind of columns is missing, or has another number of columns.
        """
        check_instance("table", table, Mapping)
        counts = len(self.numbers), len(self.num_categories), self.num_cycles
        rows = {kind: as_array(f"table[{kind!r}]", values) for kind, values in table.items()}
        for kind, count in zip(KINDS, (*counts, self.embedding_features), strict=True):
            shape = rows[kind].shape[1:] if kind in rows else "none"
            if count and shape != ((count, 6) if kind == "cycles" else (count,)):
                raise ValueError(f"table[{kind!r}] must have {count} columns, got {shape}")
        columns = []
        if self.numbers:
            # Numbers may be large: they are standardised before they are rounded to half types.
            x = _as_wide(rows["numbers"])
            statistics = jnp.asarray(self.numbers, x.dtype).T[:, None]
            columns.append(_like((x - statistics[0]) / statistics[1], rows["numbers"]))
        if self.num_cycles:
            angles = 2 * np.pi * _as_wide(rows["cycles"]).reshape(-1, 6 * self.num_cycles)
            columns += [_like(wave(angles), rows["cycles"]) for wave in (jnp.sin, jnp.cos)]
        if self.embedding_features:
            columns.append(rows["embeddings"])
        if not columns:
            columns.append(jnp.zeros((len(next(iter(rows.values()), ())), 1), self.param_dtype))
        x = jnp.concatenate(base.promote(tuple(columns), None), 1)
        x = jnp.where(jnp.isfinite(x), x, jnp.zeros((), x.dtype))
        terms, start = [base.linear(self.map, x)], 0
        for column, size in enumerate(self.num_categories):
            ids = rows["categories"][:, column]
            ids = start + jnp.where((ids >= 0) & (ids < size), ids + 1, 0)
            terms.append(base.promote((self.categories[...],), self.dtype)[0][ids])
            start += size + 1
        return functools.reduce(operator.add, base.promote(tuple(terms), self.dtype))


def _as_wide(x: Array) -> Array:
    """Return numbers in float32 at least."""
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(accumulator_dtype(x.dtype) if is_float else jnp.float32)


def _like(y: Array, x: Array) -> Array:
    """Return y in the dtype of x, unless x has integers."""
    return y.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else y


class DatabaseModel(nnx.Module):
    """Model of rows of a database: encoders by table, their age, and a model of relations.

    The shape of RelBench's models (Robinson et al., NeurIPS 2024): each seed reads rows no later
    than its time, with a linear map of the logarithm of their age in days, and a ReLU.

    Attributes:
        encoders: `TableEncoder` by table, in the graph's order of node types.
        model: Model of graphs with relations, such as `RGCN`, whose `in_features` are the encoders'
            `out_features`.
        age: Linear map of the ages.

    Example:
        >>> edges = {("visit", "f2p_user", "user"): [[0, 1], [0, 0]]}
        >>> graph = HeteroGraph.from_edges(edges, {"user": 2, "visit": 2}, inverse=True)
        >>> tables, rngs = dict.fromkeys(graph.node_types, {"numbers": np.eye(2)}), nnx.Rngs(0)
        >>> encoders = {name: TableEncoder.of(tables[name], 8, rngs=rngs) for name in tables}
        >>> model = DatabaseModel(encoders, RGCN(8, 8, 1, num_relations=2, rngs=rngs), rngs=rngs)
        >>> blocks = sample_neighbors(graph, {"user": [0]}, (2, 2), jax.random.key(0))
        >>> model(blocks, tables, deterministic=True).shape
        (1, 1)
    """

    def __init__(self, encoders: Mapping[str, TableEncoder], model: Any, *, rngs: nnx.Rngs) -> None:
        """Take encoders, which must have as many features as the model takes, else ValueError."""
        width = model.in_features
        for name, encoder in encoders.items():
            check_instance(f"encoders[{name!r}]", encoder, TableEncoder)
            if encoder.out_features != width:
                raise ValueError(
                    f"encoders[{name!r}] must have out_features = {width} of the model, got "
                    f"{encoder.out_features}"
                )
        self.encoders, self.model = base.Named(encoders), model
        self.age = nnx.Linear(2, width, param_dtype=model.param_dtype, rngs=rngs)

    def __call__(
        self,
        blocks: Blocks,
        tables: Mapping[str, Table],
        seed_time: ArrayLike | None = None,
        **named: object,
    ) -> Array:
        """Return a row of outputs for each seed, ``(num_seeds, *outputs)``.

        Args:
            blocks: Neighbourhoods of the seeds, by `edge_time` if there are times.
            tables: All rows by table, see :meth:`TableEncoder.__call__`; also their ``time`` in
                seconds, ``(rows,)`` integers, where `seed_time` is given.
            seed_time: Times of the seeds in seconds, ``(num_seeds,)``, for ages; None without.
            **named: Further arguments of the model, such as `deterministic` and `rngs`.

        Raises:
            ValueError: Tables and encoders differ, `seed_time` has another shape, or as of
                `TableEncoder` and the model.
        """
        check_instance("blocks", blocks, Blocks)
        names, types = blocks.node_type_names, self.encoders.names
        base.check_types("tables", tables, types)
        if names is not None and names != types:
            raise ValueError(f"blocks must have the node types {types} in that order, got {names}")
        has_time = blocks.seed_ids is not None and all("time" in t for t in tables.values())
        if seed_time is not None and not has_time:
            raise ValueError(
                "seed_time must be None unless blocks are sampled by it, and tables have a time, "
                f"got {described(seed_time)}"
            )
        if seed_time is not None:
            seconds = base.check_vector(
                "seed_time", seed_time, "num_seeds", blocks.graphs[-1].num_dst
            )
        y: Any = 0
        for name, places in zip(types, blocks.places_of_types(), strict=True):
            # Sources of other tables have the place -1, for which zeros are taken.
            rows = {kind: take(jnp.asarray(a), places) for kind, a in tables[name].items()}
            encoded = self.encoders[name](rows)
            if seed_time is not None:
                times = take(seconds, blocks.seed_ids).astype(float)
                is_known = rows["time"] > np.iinfo(np.int32).min
                age = jnp.where(is_known, times - rows["time"].astype(float), 0)
                days = jnp.log1p(jnp.maximum(age, 0) / SECONDS_PER_DAY)
                ages = jnp.stack([days, is_known.astype(days.dtype)], 1)
                encoded = encoded + base.linear(self.age, ages.astype(encoded.dtype))
            y = jnp.where(row_wise(places >= 0, encoded), encoded, y)
        return self.model(blocks, jax.nn.relu(y), **named)
