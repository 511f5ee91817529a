"""From rows to arrays: each row by the op that its pattern names.

All ops are differentiable, so JAX differentiates whatever is put together of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_gnn._core.arguments import precision_level
from jax_gnn._core.arrays import FLOATS, accumulator_dtype, as_matrix
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.op import replace_items
from jax_gnn._ops.attention import scores as kinds
from jax_gnn._ops.attention.primitive import attend
from jax_gnn._ops.relational_aggregate.primitive import relational_aggregate
from jax_gnn._ops.relational_aggregate.xla import EdgesByRelation
from jax_gnn._ops.relational_attention.methods import TypedEdges
from jax_gnn._ops.relational_attention.primitive import product as product_of_pairs
from jax_gnn._ops.segment_matmul.primitive import segment_matmul
from jax_gnn._ops.segment_reduce.primitive import sddmm, segment_reduce, total
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn._program import patterns, relational
from jax_gnn._program.einsum import einsum, placed, times
from jax_gnn._program.maps import Maps
from jax_gnn._program.match import Matcher, needed, taken
from jax_gnn._program.normal import is_view
from jax_gnn._program.patterns import (
    HGT,
    RGAT,
    Arranged,
    Ends,
    Factor,
    Leaky,
    Scores,
    Typed,
    is_read,
    width,
)
from jax_gnn._program.reference import each_row, finished, is_empty
from jax_gnn._program.rows import (
    REACHED,
    Apply,
    Constant,
    Contract,
    Given,
    Labels,
    Place,
    Pull,
    Push,
    Row,
    Softmax,
    sizes_of,
)
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Space
from jax_gnn.relational import RelationalGraph


class Lowering:
    """Computes the rows of a program, each once.

    Attributes:
        maps: The graph.
        matcher: Finds patterns.
        sides: Which nodes rows are of.
        given: The arguments.
    """

    def __init__(self, maps: Maps, matcher: Matcher, sides: Sides, given: Sequence[Any]) -> None:
        self.maps = maps
        self.matcher = matcher
        self.sides = sides
        self.given = given
        self._found: dict[Row, Array] = {}
        self._several: dict[Any, Sequence[Array]] = {}
        self._flat: dict[tuple[Row, Labels], Array] = {}

    def results(self, rows: Sequence[Row]) -> list[Array]:
        """What a program gives."""
        for row in needed(rows, self.matcher):
            self.array(row)
        regions = self.matcher.regions  # which leave zeros where there is padding
        return [
            self.array(row) if row in regions else finished(row, self.array(row), self.maps)
            for row in rows
        ]

    def array(self, row: Row) -> Array:
        """``(rows, *shape)`` of a row; ``shape`` of a shared one."""
        if row not in self._found:
            self._found[row] = self._make(row)
        return self._found[row]

    def _make(self, row: Row) -> Array:
        if row in self.matcher.regions:
            region = self.matcher.regions[row]
            self._found.update(zip(region.results, region.lowered(self), strict=True))
            return self._found[row]
        match row.op:
            case Given(index=index):
                return self._argument(row, index)
            case Constant(value=value):
                return jnp.asarray(value)
            case Place():
                return jnp.arange(self.maps.parts.rows[row.space], dtype=row.dtype)
            case Pull(way=way):
                of = row.operands[0]
                side = self.sides.of(row) if row.space is Space.NODE else ""
                return self.maps.read(self.array(of), row.space, way, side)
            case Softmax():
                return self._softmax(row)
            case Apply():
                return self._apply(row)
            case Contract():
                return self._contract(row) if row.op.read_by is None else self._read_product(row)
            case Push():
                return self._push(row)

    def _argument(self, row: Row, index: int) -> Array:
        x = jnp.asarray(self.given[index])
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.extended)
        if row.space is not Space.EDGE or is_empty(x) or is_key:
            return x
        valid = self.maps.counted(Space.EDGE)  # padding may hold anything
        return jnp.where(_spread(valid, x), x, jnp.zeros((), x.dtype))

    def _apply(self, row: Row) -> Array:
        """One result of a function, all of which are computed at once."""
        assert isinstance(row.op, Apply)
        if row.op.name == REACHED:
            return _where_positive(self.maps.degrees(jnp.int32), self.array(row.operands[0]))
        key = row.op.function, row.operands
        if key not in self._several:
            self._several[key] = each_row(row, [self._safe(row, each) for each in row.operands])
        return self._several[key][row.op.index]

    def _safe(self, row: Row, operand: Row) -> Array:
        """An operand of a function, where rows that do not count are like the first that does.

        A function that is not finite at them would spoil gradients to what rows share. Functions
        that are finite at zeros get zeros; what padding holds is zeros anyway.
        """
        assert isinstance(row.op, Apply)
        x = self.array(operand)
        is_finite = row.op.name in _FINITE
        if operand.space is Space.SHARED or is_empty(x) or (is_finite and not _has_unread(row)):
            return x
        counted = self.maps.counted(row.space, row.op.read_by)
        if counted is None:
            return x
        first = jnp.argmax(counted) if row.op.read_by else 0  # padding comes last
        other = jnp.zeros((), x.dtype) if is_finite else x[first][None]
        return jnp.where(_spread(counted, x), x, other)

    def _read_product(self, row: Row) -> Array:
        """A product that a pass moved: derivatives do not see rows that no edge reads."""
        counted = self.maps.counted(row.space, row.op.read_by) if _has_unread(row) else None  # type: ignore[union-attr]
        if counted is None:
            return self._contract(row)
        matcher, sides = self.matcher, self.sides  # JAX keeps what the functions close over
        rows = list(dict.fromkeys(taken(row, matcher)))

        def product(graph: Any, counted: Any, *arrays: Array) -> Array:
            lowering = Lowering(Maps(graph), matcher, sides, ())
            lowering._found.update(zip(rows, arrays, strict=True))
            return lowering._contract(row)

        def counting(graph: Any, counted: Any, *arrays: Array) -> Array:
            safe = (
                jnp.where(_spread(counted, x), x, jnp.zeros((), x.dtype))
                if of.space is row.space
                else x
                for of, x in zip(rows, arrays, strict=True)
            )
            return product(graph, counted, *safe)

        call = derived_from(product, counting)
        return call(self.maps.graph, counted, *map(self.array, rows))

    # --- Products ------------------------------------------------------------------------------

    def _contract(self, row: Row) -> Array:
        assert isinstance(row.op, Contract)
        pattern = self.matcher(row)
        sizes = sizes_of(row.operands, row.op.terms)
        found: Array
        match pattern:
            case patterns.TypedProduct():
                found, labels = self._typed_product(row, pattern, sizes)
            case patterns.TypedDots():
                found, labels = self._typed_dots(row, pattern, sizes), pattern.heads
            case patterns.EdgeDots():
                found, labels = self._edge_dots(pattern, sizes), pattern.heads
            case _:
                return einsum(
                    row, [(self.array(x), x.space is not Space.SHARED) for x in row.operands]
                )
        return placed(found, labels, row.op.out, row.shape, leading=True)

    def _typed_product(
        self, row: Row, pattern: patterns.TypedProduct, sizes: Mapping[int, int]
    ) -> tuple[Array, Labels]:
        """Rows times the weights of their relation or type."""
        x, w, batch, summed, more, out = pattern
        precision = precision_level(row.op.precision)  # type: ignore[union-attr]
        kernel = self.laid_out(w.base, w.labels, (batch, summed, out))
        matrix, rows, pairs = self._rows_of(row.space, x)
        features = self.laid_out(rows, x.labels, (batch, more, summed))

        def of_rows(x: Array, kernel: Array) -> Array:
            return self._multiplied(x, kernel, row, matrix, pairs, precision)

        by_more = jax.vmap(of_rows, (1, None), 1) if more else of_rows
        by_batch = jax.vmap(by_more, (1, 1), 1) if batch else by_more
        if not more:
            features = features.reshape(*features.shape[:-2], features.shape[-1])
        if not batch:
            features, kernel = features[:, 0], kernel[:, 0]
        y = by_batch(features, kernel)
        labels = (*batch, *more, *out)
        return y.reshape(y.shape[0], *(sizes[label] for label in labels)), labels

    def _rows_of(self, space: Space, x: Factor) -> tuple[Any, Row, Any]:
        """What a product reads its rows by, of which row; and the pairs or edges by relation."""
        maps = self.maps
        if space is Space.EDGE:
            edges = EdgesByRelation.of(maps.relational, maps.parts.rows[Space.RELATION])
            if x.way in ("src", "dst"):
                return (edges.sources if x.way == "src" else edges.destinations), x.base, edges
            return edges.to_weights.T, x.row, edges
        if space is Space.NODE:
            return None, x.row, None
        pairs = maps.pairs(space)
        if x.way in ("src", "dst"):
            return pairs.gather, x.base, pairs
        return pairs.numbering, x.row, pairs

    def _multiplied(
        self, x: Array, kernel: Array, row: Row, matrix: Any, pairs: Any, precision: Any
    ) -> Array:
        if isinstance(pairs, EdgesByRelation):
            sizes, to = pairs.sizes(kernel.shape[0]), pairs.to_weights
        elif row.space is Space.NODE:
            types = self.maps.graph.node_type_sizes  # type: ignore[union-attr]
            sizes, to = jnp.asarray(types, jnp.int32), None
        else:
            return product_of_pairs(x, kernel, pairs, matrix, precision=precision)
        zero = jnp.zeros((1,), jnp.int32)
        return segment_matmul(
            *(x, kernel, None, None, None, sizes, zero, matrix, to),
            transposed=False,
            precision=precision,
            activation=None,
            dtype=x.dtype,
        )

    def _typed_dots(self, row: Row, pattern: patterns.TypedDots, sizes: Mapping[int, int]) -> Array:
        """Dot products of rows with those of their relation."""
        x, vector, heads, summed = pattern
        maps, order = self.maps, (*heads, *summed)
        vectors = as_matrix(self.laid_out(vector.base, vector.labels, (order,)))
        options: Any = {"heads": width(heads, sizes)}
        pairs = None if row.space is Space.EDGE else maps.pairs(row.space)
        if pairs is not None and x.way in ("src", "dst"):
            both = as_matrix(self.laid_out(x.base, x.labels, (order,))), vectors
            found = sddmm(*(both if pairs.by_node else both[::-1]), pairs.incidence, **options)
        else:
            rows = as_matrix(self.laid_out(x.row, x.labels, (order,)))
            of_relations, own = maps.matrix(row.space, "relation")
            by_relation = replace(of_relations, order=of_relations.cols)
            found = sddmm(rows, vectors, SparseMatrix(own, by_relation), **options)
        found = found.astype(row.dtype)
        return found.reshape(found.shape[0], *(sizes[label] for label in heads))

    def _edge_dots(self, pattern: patterns.EdgeDots, sizes: Mapping[int, int]) -> Array:
        """Dot products of rows of both ends."""
        dst, src, heads, summed = pattern
        a, b = (self._of_all_heads(each, heads, summed, sizes) for each in (dst, src))
        into = Space.NODE if dst.way == "dst" else Space.DESTINATION_PAIR
        matrix = self.maps.edges(src.way, into)
        found = sddmm(a, b, matrix, heads=width(heads, sizes)).astype(a.dtype)
        return found.reshape(found.shape[0], *(sizes[label] for label in heads))

    def _of_all_heads(
        self, factor: Factor, heads: Labels, summed: Labels, sizes: Mapping[int, int]
    ) -> Array:
        """``(rows, heads · features)`` of rows that have all heads, or share some."""
        own = tuple(label for label in heads if label in factor.labels)
        x = self.laid_out(factor.base, factor.labels, (own, summed))
        return _repeated(x, own, heads, sizes)

    def laid_out(self, row: Row, labels: Labels, groups: Sequence[Labels]) -> Array:
        """``(rows, *groups)``, the axes of a group as one."""
        key = (
            row,
            (*labels, *(-2 - len(group) for group in groups), *(i for g in groups for i in g)),
        )
        if key not in self._flat:
            x = self.array(row)
            order = [labels.index(label) for group in groups for label in group]
            sizes = [math.prod(row.shape[labels.index(i)] for i in group) for group in groups]
            x = x.transpose(0, *(1 + axis for axis in order))
            self._flat[key] = x.reshape(x.shape[0], *sizes)
        return self._flat[key]

    # --- Over edges ----------------------------------------------------------------------------

    def _softmax(self, row: Row) -> Array:
        x = self._at_edges(row.operands[0])
        acc = accumulator_dtype(x.dtype)
        matrix = self.maps.matrix(Space.EDGE, "dst")
        return segment_softmax(as_matrix(x).astype(acc), matrix).astype(x.dtype).reshape(x.shape)

    def _entries(self, row: Row, dtype: Any) -> Array:
        """``(edges, numbers)`` for an op, which leaves out padding whatever it holds."""
        given = isinstance(row.op, Given) and row.space is Space.EDGE
        x = jnp.asarray(self.given[row.op.index]) if given else self._at_edges(row)  # type: ignore[union-attr]
        return as_matrix(x.astype(accumulator_dtype(dtype)))

    def _at_edges(self, row: Row) -> Array:
        x = self.array(row)
        if row.space is Space.SHARED:
            return jnp.broadcast_to(x, (self.maps.parts.rows[Space.EDGE], *x.shape))
        return x

    def _push(self, row: Row) -> Array:
        pattern = self.matcher(row)
        match pattern:
            case patterns.Count(of, reduce):
                return self._count(of, reduce)
            case patterns.PairSum(of):
                x = self.array(of)
                return total(x, self.maps.matrix(Space.DESTINATION_PAIR, "dst"))
            case patterns.RelationalSum():
                return self._relational_sum(row, pattern)
            case patterns.Sum():
                return self._sum(row, pattern)
            case RGAT() | HGT():
                return self._relational_attention(row, pattern)
        raise AssertionError(pattern)

    def _count(self, of: Row, reduce: str) -> Array:
        """Of what all edges into a destination share."""
        base = of if of.space is Space.SHARED else of.operands[0]
        x = self.array(base)
        counts = self.maps.degrees(jnp.int32)
        x = jnp.broadcast_to(x, (counts.shape[0], *of.shape))
        if reduce == "sum":
            acc = accumulator_dtype(x.dtype) if x.dtype in FLOATS else x.dtype
            total = x.astype(acc) * _spread(counts.astype(acc), x)
            return _where_positive(counts, total.astype(x.dtype))
        empty = {"mean": 0, "max": _lowest(x.dtype), "min": _highest(x.dtype)}[reduce]
        return jnp.where(_spread(counts > 0, x), x, jnp.asarray(empty, x.dtype))

    def _relational_sum(self, row: Row, pattern: patterns.RelationalSum) -> Array:
        x, weight, edge_weight, summed, rest, out, after = pattern
        kernel = self.laid_out(weight.base, weight.labels, (summed, rest))
        features = self.laid_out(x.base, x.labels, (summed,))
        entries = None
        if edge_weight is not None:
            entries = self._entries(edge_weight, features.dtype)[:, 0]
        y = relational_aggregate(
            *(features, kernel, entries, self.maps.relational),
            transposed=False,
            method=None,
            precision=precision_level(self._precision(row)),
        )
        return self._after(y, rest, out, after, row)

    @staticmethod
    def _precision(row: Row) -> Any:
        of = row.operands[0].op
        return of.precision if isinstance(of, Contract) else None

    def _sum(self, row: Row, pattern: patterns.Sum) -> Array:
        value, weight, scores, heads, out, after, reduce, into = pattern
        readable = is_read(value, into)
        of, way = (value.base, value.way) if readable else (value.row, "")
        matrix = self.maps.edges(way, into)
        sizes = dict(zip(value.labels, value.row.shape, strict=True))
        if of.dtype not in FLOATS or of.space is Space.SHARED:
            x = self._at_edges(value.row)
            return self._plain(x, row, reduce)
        own = tuple(label for label in heads if label in value.labels)
        features = tuple(label for label in value.labels if label not in heads)
        x = self.laid_out(of, value.labels, (own, features))
        weighted = {}
        if weight is not None:
            weighted = dict(zip(heads, weight.shape, strict=True))
        elif scores is not None:
            weighted = dict(zip(heads, _score_shape(scores, pattern, sizes), strict=True))
        sizes = weighted | sizes
        count = width(heads, sizes)
        x = _repeated(x, own, heads, sizes)
        entries = None if weight is None else self._entries(weight, x.dtype)
        if scores is None:
            y = segment_reduce(x, entries, matrix, reduce=reduce, heads=count)
        else:
            y, _ = attend(
                *(x, self._scores(scores, value, x), entries, matrix),
                heads=count,
                slope=getattr(scores, "slope", 1.0),
            )
        labels = (*heads, *features)
        y = y.astype(row.dtype).reshape(y.shape[0], *(sizes[label] for label in labels))
        return self._after(y, labels, out, after, row)

    def _relational_attention(self, row: Row, pattern: RGAT | HGT) -> Array:
        """RGAT or HGT, as its layer has it."""
        value, weight, _, heads, out, after, *_ = pattern.sum
        graph, precision = self._graph, precision_level(self._precision(row))
        if isinstance(pattern, HGT):
            scale = None if pattern.scale is None else self.array(pattern.scale)
            y = relational.hgt(pattern, graph, self._arranged, scale, precision)
        else:
            terms = [self._entries(each, row.dtype) for each in pattern.numbers]
            numbers = functools.reduce(jnp.add, terms) if terms else None
            scale = None if weight is None else self._entries(weight, row.dtype)
            y = relational.rgat(pattern, graph, self._arranged, numbers, scale, precision)
        labels = (*heads, *(label for label in value.labels if label not in heads))
        return self._after(y.astype(row.dtype), labels, out, after, row)

    @property
    def _graph(self) -> RelationalGraph:
        """The graph, which has relations."""
        assert isinstance(self.maps.graph, RelationalGraph)
        return self.maps.graph

    def _arranged(self, of: Arranged) -> Array:
        """``(rows, *groups)``, or ``groups`` of a shared row."""
        if of.row.space is not Space.SHARED:
            return self.laid_out(of.row, tuple(range(len(of.row.shape))), of.groups)
        x = self.array(of.row).transpose([axis for group in of.groups for axis in group])
        return x.reshape([math.prod(of.row.shape[i] for i in group) for group in of.groups])

    def _scores(self, scores: Scores, value: Factor, x: Array) -> kinds.Scores:
        """Scores of arrays, as attention takes them."""
        acc = accumulator_dtype(x.dtype)
        if isinstance(scores, Ends):
            return kinds.AdditiveScores(
                *(as_matrix(self.array(each)).astype(acc) for each in (scores.row, scores.col))
            )
        if isinstance(scores, patterns.Given):
            return kinds.EntryScores(self._entries(scores.score, x.dtype))
        if isinstance(scores, Typed):
            return self._typed_scores(scores, x)
        row_key, col_key = (
            as_matrix(self.array(scores.row_key)),
            as_matrix(self.array(scores.col_key)),
        )
        keys = row_key, None if scores.col_key is value.base or col_key is x else col_key
        if isinstance(scores, Leaky):
            return kinds.GATv2Scores(*keys, self.array(scores.vector).astype(acc).reshape(1, -1))
        scale = jnp.ones((), row_key.dtype) if scores.scale is None else self.array(scores.scale)
        return kinds.DotScores(*keys, scale.astype(acc).reshape(1, 1))

    def _typed_scores(self, scores: Typed, x: Array) -> kinds.TypedScores:
        maps, acc = self.maps, accumulator_dtype(x.dtype)
        vector = self._arranged(scores.vector)
        heads, features = vector.shape[-2:]
        of_value = jnp.broadcast_to(vector, (maps.parts.rows[Space.RELATION], heads, features))
        terms = [self._entries(each, x.dtype) for each in scores.numbers]
        numbers = sum(terms, jnp.zeros((maps.parts.rows[Space.EDGE], heads), acc))
        return kinds.TypedScores(
            *(as_matrix(of_value), numbers, None, None),
            *(maps.relational.types, TypedEdges(self._graph, None).types_of_source_pairs()),
        )

    def _plain(self, x: Array, row: Row, reduce: str) -> Array:
        """Of numbers that kernels do not take."""
        matrix = self.maps.edges("", row.space)
        ids, size = matrix.by_row.rows, matrix.by_row.num_rows
        ids = jnp.where(ids < 0, size, ids)
        if reduce == "mean":
            sums = jax.ops.segment_sum(x, ids, size)
            counts = jnp.maximum(self.maps.degrees(x.dtype), 1)
            return sums / _spread(counts, sums)
        return getattr(jax.ops, f"segment_{reduce}")(x, ids, size)

    def _after(
        self, y: Array, labels: Labels, out: Labels, after: Sequence[Factor], row: Row
    ) -> Array:
        """The result with its shared factors, its axes in order."""
        if y.ndim == 2 and len(labels) != 1:
            sizes = dict(zip(out, row.shape, strict=True))
            y = y.reshape(y.shape[0], *(sizes[label] for label in labels))
        found: Any = (y, labels, True)
        for each in after:
            found = (
                times(found, (self.array(each.row), each.labels, False), labels),
                labels,
                True,
            )
        if after and row.space is Space.NODE:
            found = (_where_positive(self.maps.degrees(jnp.int32), found[0]), labels, True)
        return placed(found[0], labels, out, row.shape, leading=True)


def _score_shape(scores: Scores, pattern: patterns.Sum, sizes: Mapping[int, int]) -> Sequence[int]:
    if isinstance(scores, Ends):
        return scores.row.shape
    if isinstance(scores, patterns.Given):
        return scores.score.shape
    if isinstance(scores, Typed):
        return [sizes[label] for label in pattern.heads]
    return scores.row_key.shape[: len(pattern.heads)]


# --- Arrays --------------------------------------------------------------------------------------


def _repeated(x: Array, own: Labels, heads: Labels, sizes: Mapping[int, int]) -> Array:
    """``(rows, heads · features)`` of ``(rows, own heads, features)``."""
    if own != heads:
        spread = [sizes[label] if label in own else 1 for label in heads]
        full = [sizes[label] for label in heads]
        x = x.reshape(x.shape[0], *spread, x.shape[-1])
        x = jnp.broadcast_to(x, (x.shape[0], *full, x.shape[-1]))
    return as_matrix(x)


def derived_from(function: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """A function of pytrees that is differentiated as another function of the same values."""

    def call(*operands: Any) -> Any:
        leaves, tree = jax.tree.flatten(operands)

        @jax.custom_jvp
        def values(*leaves: Any) -> Any:
            return function(*jax.tree.unflatten(tree, leaves))

        def derivative(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            moving = [i for i, x in enumerate(tangents) if not isinstance(x, SymbolicZero)]

            def moved(*some: Any) -> Any:
                every = replace_items(list(primals), moving, some)
                return other(*jax.tree.unflatten(tree, every))

            at, along = ([each[i] for i in moving] for each in (primals, tangents))
            return jax.jvp(moved, at, along)

        values.defjvp(derivative, symbolic_zeros=True)
        return values(*leaves)

    return call


def _has_unread(row: Row) -> bool:
    """Whether a pass moved a row to a space which may have rows that no edge reads."""
    is_moved = isinstance(row.op, Apply) or (isinstance(row.op, Contract) and not is_view(row))
    spaces = Space.NODE, Space.RELATION, Space.TYPE
    return is_moved and row.op.read_by is not None and row.space in spaces  # type: ignore[union-attr]


def _where_positive(counts: Array, x: Array) -> Array:
    return jnp.where(_spread(counts > 0, x), x, jnp.zeros((), x.dtype))


def _spread(mask: Any, x: Array) -> Array:
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


# Functions that are finite at zeros, derivatives included: what padding holds does not matter.
_FINITE = frozenset(
    (
        *("abs", "add", "and", "ceil", "clamp", "concatenate", "convert_element_type", "copy"),
        *("cos", "eq", "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "iota", "le"),
        *(
            "leaky_relu",
            "logistic",
            "lt",
            "max",
            "min",
            "mul",
            "ne",
            "neg",
            "not",
            "one_minus_square",
            REACHED,
            "or",
            "pad",
        ),
        *("reduce_max", "reduce_min", "reduce_sum", "reshape", "rev", "round", "select_n"),
        *("sign", "sin", "slice", "square", "squeeze", "sub", "tanh", "transpose"),
    )
)
