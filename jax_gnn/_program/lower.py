"""Lowering: from rows to arrays, each row by the op of its pattern.

All ops are differentiable, so that JAX differentiates programs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core.arguments import precision_level
from jax_gnn._core.arrays import FLOATS, accumulator_dtype, as_matrix
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.relations import Pairs
from jax_gnn._ops.attention import scores as kinds
from jax_gnn._ops.attention.primitive import attend
from jax_gnn._ops.relational_aggregate.xla import EdgesByRelation
from jax_gnn._ops.relational_aggregate.xla import product as product_of_pairs
from jax_gnn._ops.relational_attention.methods import TypedEdges
from jax_gnn._ops.segment_matmul.primitive import grouped_product
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn._program import patterns, relational
from jax_gnn._program.derivatives import differentiated_as, zero_where_uncounted
from jax_gnn._program.einsum import Labelled, arranged, einsum, multiply
from jax_gnn._program.match import Matcher, needed_rows, rows_taken
from jax_gnn._program.matrices import Matrices
from jax_gnn._program.normal import is_view, summed_labels
from jax_gnn._program.patterns import (
    HGT,
    RGAT,
    Arranged,
    EdgeScores,
    Factor,
    LeakyScores,
    Scores,
    SumScores,
    TypedScores,
    width,
)
from jax_gnn._program.reference import (
    apply_to_rows,
    is_empty,
    spread,
    without_padding,
)
from jax_gnn._program.rows import (
    REACHED,
    Apply,
    Constant,
    Contract,
    Index,
    Input,
    Labels,
    Pull,
    Push,
    Row,
    Softmax,
    sizes_of,
)
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Space
from jax_gnn.relational import RelationalGraph

Sizes = Mapping[int, int]


class Lowering:
    """Computes the arrays of a program's rows, each once.

    Attributes:
        matrices: The graph.
        matcher: The patterns.
        sides: Sides of nodes' rows.
        inputs: The arguments, and the arrays that the program closes over.
    """

    def __init__(
        self, matrices: Matrices, matcher: Matcher, sides: Sides, inputs: Sequence[ArrayLike]
    ) -> None:
        self.matrices = matrices
        self.matcher = matcher
        self.sides = sides
        self.inputs = inputs
        self._arrays: dict[Row, Array] = {}
        self._functions: dict[Hashable, Sequence[Array]] = {}
        self._grouped: dict[Hashable, Array] = {}

    def results(self, rows: Sequence[Row]) -> list[Array]:
        """Return the results of a program, zero at padding."""
        for row in needed_rows(rows, self.matcher):
            self.array(row)
        return [
            # Regions write zeros to padding themselves.
            self.array(row)
            if row in self.matcher.regions and row.space is Space.EDGE
            else without_padding(row, self.array(row), self.matrices)
            for row in rows
        ]

    def array(self, row: Row) -> Array:
        """Return ``(rows, *shape)`` of a row; ``shape`` of a shared one."""
        if row not in self._arrays:
            if row in self.matcher.regions:
                region = self.matcher.regions[row]
                if region in self.matcher.softmaxes:
                    self._arrays |= self.matcher.softmaxes[region].lower(self)
                else:
                    self._arrays.update(zip(region.results, region.lower(self), strict=True))
            else:
                self._arrays[row] = self._make(row)
        return self._arrays[row]

    def _make(self, row: Row) -> Array:
        match row.op:
            case Input(index=index):
                return self._input(row, index)
            case Constant(value=value):
                return jnp.asarray(value)
            case Index():
                return jnp.arange(self.matrices.parts.rows[row.space], dtype=row.dtype)
            case Pull(way=way):
                side = self.sides.of(row) if row.space is Space.NODE else ""
                return self.matrices.gather(self.array(row.operands[0]), row.space, way, side)
            case Softmax():
                return self._softmax(row)
            case Apply():
                return self._apply(row)
            case Contract():
                return self._product(row)
            case Push():
                return self._push(row)

    def _input(self, row: Row, index: int) -> Array:
        x = jnp.asarray(self.inputs[index])
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.extended)
        if row.space is not Space.EDGE or is_empty(x) or is_key:
            return x
        return zero_where_uncounted(x, self.matrices.counted(Space.EDGE))

    def as_passed(self, row: Row) -> Array:
        """Return the array of a row; arguments with what their padding holds."""
        if isinstance(row.op, Input) and row.space is Space.EDGE:
            return jnp.asarray(self.inputs[row.op.index])
        return self.array(row)

    def _apply(self, row: Row) -> Array:
        """Return one result of a function; all of its results are computed at once."""
        assert isinstance(row.op, Apply)
        if row.op.name == REACHED:
            assert isinstance(row.op.key, tuple)
            return self._zero_where_empty(self.array(row.operands[0]), row.op.key[1])
        key = row.op.function, row.operands
        if key not in self._functions:
            operands = [self._safe_operand(row, operand) for operand in row.operands]
            self._functions[key] = apply_to_rows(row, operands)
        result: Array = self._functions[key][row.op.index]
        return result

    def _zero_where_empty(self, x: Array, way: str) -> Array:
        is_reached = self.matrices.degrees(jnp.int32, way) > 0
        return jnp.where(spread(is_reached, x), x, jnp.zeros((), x.dtype))

    def _safe_operand(self, row: Row, operand: Row) -> Array:
        """Return an operand of a function, with harmless values in rows that do not count.

        A function that is not finite there would spoil gradients of shared operands; gradients of
        linear functions do not depend on operands. Functions that are finite at 0 get zeros
        (padding holds zeros anyway), those that are finite at 1 get ones, which XLA fuses; others
        get the first row that counts, for which XLA computes x twice.
        """
        assert isinstance(row.op, Apply)
        x = self.array(operand)
        is_power = row.op.name == "integer_pow" and row.op.params["y"] > 0
        is_finite = is_power or row.op.name in _FINITE_AT_ZERO
        is_harmless = row.op.name in LINEAR or (is_finite and not may_be_unread(row))
        if operand.is_shared or is_empty(x) or is_harmless:
            return x
        counted = self.matrices.counted(row.space, row.op.read_by)
        if counted is None or is_finite:
            return zero_where_uncounted(x, counted)
        if row.op.name in _FINITE_AT_ONE:
            return jnp.where(spread(counted, x), x, jnp.ones((), x.dtype))
        first = jnp.argmax(counted) if row.op.read_by else 0  # padding comes last
        # Rows that do not count have no gradient, which XLA would sum over all edges.
        return jnp.where(spread(counted, x), x, jax.lax.stop_gradient(x[first])[None])

    def _product(self, row: Row) -> Array:
        """Return a product; only its derivatives mask the rows that do not count.

        These are padding of arguments, which a sum of products would store another time without
        it, and rows that no edge reads of products that a pass moved.
        """
        assert isinstance(row.op, Contract)
        rows = list(dict.fromkeys(rows_taken(row, self.matcher)))
        reads_padding = summed_labels(row) and any(
            isinstance(x.op, Input) and x.space is row.space is Space.EDGE and x.size >= row.size
            for x in rows
        )
        counted = None
        if reads_padding or may_be_unread(row):
            counted = self.matrices.counted(row.space, row.op.read_by)
        if counted is None:
            return self._contract(row)
        # The rows are arguments, since JAX differentiates with respect to arguments alone.
        matcher, sides = self.matcher, self.sides  # not self: JAX keeps what functions close over

        def product(graph: Any, counted: Array, *arrays: Array) -> Array:
            lowering = Lowering(Matrices(graph), matcher, sides, ())
            lowering._arrays.update(zip(rows, arrays, strict=True))
            y = lowering._contract(row)
            return zero_where_uncounted(y, counted) if reads_padding else y

        def masked_product(graph: Any, counted: Array, *arrays: Array) -> Array:
            masked = (
                zero_where_uncounted(x, counted) if operand.space is row.space else x
                for operand, x in zip(rows, arrays, strict=True)
            )
            return product(graph, counted, *masked)

        # Masks are then made where the weights' gradients need them.
        call = differentiated_as(product, masked_product, keeps_values=True)
        result: Array = call(self.matrices.structure, counted, *map(self.as_passed, rows))
        return result

    # --- Products ------------------------------------------------------------------------------

    def _contract(self, row: Row) -> Array:
        assert isinstance(row.op, Contract)
        pattern = self.matcher(row)
        sizes = sizes_of(row.operands, row.op.terms)
        match pattern:
            case patterns.TypedProduct():
                array, labels = self._typed_product(row, pattern, sizes)
            case patterns.NodeDots():
                array, labels = self._node_dots(row, pattern), pattern.heads
            case patterns.TypedDots():
                array, labels = self._typed_dots(row, pattern, sizes), pattern.heads
            case patterns.EdgeDots():
                array, labels = self._edge_dots(pattern, sizes), pattern.heads
            case _:
                return einsum(row, [(self.array(x), not x.is_shared) for x in row.operands])
        return arranged(Labelled(array, labels, True), row.op.out, row.shape)

    def _typed_product(
        self, row: Row, pattern: patterns.TypedProduct, sizes: Sizes
    ) -> tuple[Array, Labels]:
        """Multiply rows with the weights of their relation or type."""
        x, weight, batch, summed, x_only, out = pattern
        kernel = self.grouped(weight.base, weight.labels, (batch, summed, out))
        matrix, source, pairs = self._rows_of_product(row.space, x)
        features = self.grouped(source, x.labels, (batch, x_only, summed))

        def by_rows(x: Array, kernel: Array) -> Array:
            return self._multiply(x, kernel, row, matrix, pairs)

        # Kernels multiply matrices of rows. Labels that only `x` has share the weights, and batch
        # labels have weights of their own, hence the two maps over axis 1.
        by_x = jax.vmap(by_rows, (1, None), 1) if x_only else by_rows
        by_batch = jax.vmap(by_x, (1, 1), 1) if batch else by_x
        if not x_only:
            features = features.reshape(*features.shape[:-2], features.shape[-1])
        if not batch:
            features, kernel = features[:, 0], kernel[:, 0]
        y = by_batch(features, kernel)
        labels = (*batch, *x_only, *out)
        return _split(y, labels, sizes), labels

    def _rows_of_product(
        self, space: Space, x: Factor
    ) -> tuple[Any, Row, Pairs | EdgesByRelation | None]:
        """Return the matrix that gathers the rows of a product, their source, and its groups."""
        matrices = self.matrices
        if space is Space.NODE:
            return None, x.row, None
        if space is Space.EDGE:
            relations = matrices.parts.rows[Space.RELATION]
            edges = EdgesByRelation.of(matrices.relational, relations)
            if x.way in ("src", "dst"):
                return (edges.sources if x.way == "src" else edges.destinations), x.base, edges
            return edges.to_weights.T, x.row, edges
        pairs = matrices.pairs(space)
        if x.way in ("src", "dst"):
            return pairs.gather, x.base, pairs
        return pairs.numbering, x.row, pairs

    def _multiply(
        self,
        x: Array,
        kernel: Array,
        row: Row,
        matrix: Any,
        groups: Pairs | EdgesByRelation | None,
    ) -> Array:
        assert isinstance(row.op, Contract)
        precision = precision_level(row.op.precision)
        if isinstance(groups, Pairs):
            return product_of_pairs(x, kernel, groups, matrix, precision=precision)
        if isinstance(groups, EdgesByRelation):
            sizes, to_weights = groups.sizes(kernel.shape[0]), groups.to_weights
        else:
            sizes, to_weights = jnp.asarray(self._graph.node_type_sizes, jnp.int32), None
        # Rows are sorted by relation or type, and `sizes` gives the number of rows of each group.
        options: Any = {"gather": matrix, "scatter": to_weights, "precision": precision}
        return grouped_product(x, kernel, sizes, **options)

    def _typed_dots(self, row: Row, pattern: patterns.TypedDots, sizes: Sizes) -> Array:
        """Compute dot products of rows with those of their relation."""
        x, vector, heads, summed = pattern
        matrices, order, num_heads = self.matrices, (*heads, *summed), width(heads, sizes)
        vectors = as_matrix(self.grouped(vector.base, vector.labels, (order,)))
        # A pair's dot product reads a node's row and a relation's row, which is a sampled product
        # over the incidence of nodes and relations: no row per pair is formed.
        if row.space is not Space.EDGE and x.way in ("src", "dst"):
            pairs = matrices.pairs(row.space)
            nodes = as_matrix(self.grouped(x.base, x.labels, (order,)))
            operands = (nodes, vectors) if pairs.by_node else (vectors, nodes)
            dots = sddmm(*operands, pairs.incidence, heads=num_heads)
        else:
            rows = as_matrix(self.grouped(x.row, x.labels, (order,)))
            by_relation, by_row = matrices.matrix(row.space, "relation")
            by_relation = replace(by_relation, order=by_relation.cols)
            dots = sddmm(rows, vectors, SparseMatrix(by_row, by_relation), heads=num_heads)
        return _split(dots.astype(row.dtype), heads, sizes)

    def _node_dots(self, row: Row, pattern: patterns.NodeDots) -> Array:
        """Compute dots of nodes with vectors of all relations, and look up those of pairs."""
        assert isinstance(row.op, Contract)
        counted, x, vector = self.matrices.counted, pattern.x, pattern.vector.row
        masks = counted(Space.NODE, [x.way]), counted(Space.RELATION, ["relation"])
        table = relational.node_dots(
            self.array(x.base), self.array(vector), pattern, row.op.precision, *masks
        )
        return gather(table, self.matrices.pairs(row.space).table).astype(row.dtype)

    def _edge_dots(self, pattern: patterns.EdgeDots, sizes: Sizes) -> Array:
        """Compute dot products of rows of destinations and sources."""
        dst, src, heads, summed = pattern
        a, b = (self._with_all_heads(factor, heads, summed, sizes) for factor in (dst, src))
        dest = Space.NODE if dst.way == "dst" else Space.DESTINATION_PAIR
        matrix = self.matrices.edges(src.way, dest)
        dots = sddmm(a, b, matrix, heads=width(heads, sizes)).astype(a.dtype)
        return _split(dots, heads, sizes)

    def _with_all_heads(self, factor: Factor, heads: Labels, summed: Labels, sizes: Sizes) -> Array:
        """Return ``(rows, heads · features)`` of rows that may share some heads."""
        present = tuple(label for label in heads if label in factor.labels)
        x = self.grouped(factor.base, factor.labels, (present, summed))
        return _repeat_heads(x, present, heads, sizes)

    def grouped(self, row: Row, labels: Labels, groups: Sequence[Labels]) -> Array:
        """Return ``(rows, *groups)``, with the axes of a group as one."""
        order = tuple(labels.index(label) for group in groups for label in group)
        # Several patterns may read one row in the same grouping; a shared array lets XLA transpose
        # it once, and spares work in tracing.
        key = row, order, tuple(map(len, groups))
        if key not in self._grouped:
            x = self.array(row)
            sizes = [math.prod(row.shape[labels.index(i)] for i in group) for group in groups]
            x = x.transpose(0, *(1 + axis for axis in order))
            self._grouped[key] = x.reshape(x.shape[0], *sizes)
        return self._grouped[key]

    # --- Over edges ----------------------------------------------------------------------------

    def _softmax(self, row: Row) -> Array:
        assert isinstance(row.op, Softmax)
        x = self._at_rows(row.operands[0], row.space)
        matrix = self.matrices.matrix(row.space, row.op.way)
        scores = as_matrix(x).astype(accumulator_dtype(x.dtype))
        # The op makes NaN of rows whose scores are all -inf; here -inf leaves an edge out.
        is_out = scores == -jnp.inf
        scores = jnp.where(is_out, jnp.finfo(scores.dtype).min, scores)
        shares = jnp.where(is_out, 0, segment_softmax(scores, matrix))
        return shares.astype(x.dtype).reshape(x.shape)

    def _entries(self, row: Row, dtype: DTypeLike) -> Array:
        """Return ``(edges, numbers)`` for an op, which ignores padding itself."""
        x = self._at_rows(row) if row.is_shared else self.as_passed(row)
        return as_matrix(x.astype(accumulator_dtype(dtype)))

    def _at_rows(self, row: Row, space: Space = Space.EDGE) -> Array:
        x = self.array(row)
        if row.is_shared:
            return jnp.broadcast_to(x, (self.matrices.parts.rows[space], *x.shape))
        return x

    def _push(self, row: Row) -> Array:
        pattern = self.matcher(row)
        match pattern:
            case patterns.Count():
                return self._count(pattern)
            case patterns.PairSum(operand):
                matrix = self.matrices.matrix(Space.DESTINATION_PAIR, "dst")
                summed: Array = total(self.array(operand), matrix)
                return summed
            case patterns.Sum():
                return self._sum(row, pattern)
            case RGAT() | HGT():
                return self._relational_attention(row, pattern)
        raise AssertionError(pattern)

    def _count(self, pattern: patterns.Count) -> Array:
        """Reduce rows that all edges of an end, or all nodes of a graph, share."""
        operand, reduce, way = pattern
        x = self.array(operand if operand.is_shared else operand.operands[0])
        counts = self.matrices.degrees(jnp.int32, way)
        # All edges of an end have equal rows, so that no edge is visited: a sum is the row
        # times the degree, and other reductions are the row itself.
        x = jnp.broadcast_to(x, (counts.shape[0], *operand.shape))
        if reduce == "sum":
            acc = accumulator_dtype(x.dtype) if x.dtype in FLOATS else x.dtype
            summed = x.astype(acc) * spread(counts.astype(acc), x)
            return self._zero_where_empty(summed.astype(x.dtype), way)
        neutral = {"mean": 0, "max": _lowest(x.dtype), "min": _highest(x.dtype)}[reduce]
        return jnp.where(spread(counts > 0, x), x, jnp.asarray(neutral, x.dtype))

    def _sum(self, row: Row, pattern: patterns.Sum) -> Array:
        value, weight, scores, heads, out, after, reduce, dest, to = pattern
        source, way = pattern.source
        # Kernels reduce rows of floats that belong to nodes, pairs or edges.
        if source.dtype not in FLOATS or source.is_shared:
            return self._sum_by_xla(self._at_rows(value.row), row, pattern)
        matrix = self.matrices.edges(way, dest, to)
        if weight is None and scores is None:
            y = segment_reduce(self.array(source), None, matrix, reduce=reduce, heads=1)
            summed = Labelled(y.astype(row.dtype), value.labels, True)
            return self._multiply_after(summed, out, after, row)
        sizes = dict(zip(value.labels, value.row.shape, strict=True))
        # Kernels expect rows `(heads, features)` as one axis. A value without some of the heads is
        # repeated for them, since weights or scores differ between heads.
        present = tuple(label for label in heads if label in value.labels)
        features = tuple(label for label in value.labels if label not in heads)
        x = self.grouped(source, value.labels, (present, features))
        if weight is not None:
            sizes = dict(zip(heads, weight.shape, strict=True)) | sizes
        elif scores is not None:
            sizes = dict(zip(heads, _score_shape(scores, heads, sizes), strict=True)) | sizes
        num_heads = width(heads, sizes)
        x = _repeat_heads(x, present, heads, sizes)
        entries = None if weight is None else self._entries(weight, x.dtype)
        if scores is None:
            y = segment_reduce(x, entries, matrix, reduce=reduce, heads=num_heads)
        else:
            kernel_scores = self._scores(scores, value, x)
            slope = getattr(scores, "slope", 1.0)
            y, _ = attend(x, kernel_scores, entries, matrix, heads=num_heads, slope=slope)
        labels = (*heads, *features)
        y = _split(y.astype(row.dtype), labels, sizes)
        return self._multiply_after(Labelled(y, labels, True), out, after, row)

    def _relational_attention(self, row: Row, pattern: RGAT | HGT) -> Array:
        """Compute RGAT's or HGT's attention as their layers do."""
        value, weight, _, heads, out, after, *_ = pattern.sum
        precision = precision_level(_precision_of_operand(row))
        if isinstance(pattern, HGT):
            scale = None if pattern.scale is None else self.array(pattern.scale)
            y = relational.hgt(pattern, self._graph, self._arrange, scale, precision)
        else:
            terms = [self._entries(term, row.dtype) for term in pattern.terms]
            added = functools.reduce(jnp.add, terms) if terms else None
            scale = None if weight is None else self._entries(weight, row.dtype)
            y = relational.rgat(pattern, self._graph, self._arrange, added, scale, precision)
        labels = (*heads, *(label for label in value.labels if label not in heads))
        y = y.astype(row.dtype)
        y = y if len(labels) == 1 else _split(y, labels, dict(zip(out, row.shape, strict=True)))
        return self._multiply_after(Labelled(y, labels, True), out, after, row)

    @property
    def _graph(self) -> RelationalGraph:
        """The graph, which has relations."""
        assert isinstance(self.matrices.graph, RelationalGraph)
        return self.matrices.graph

    def _arrange(self, arrangement: Arranged) -> Array:
        """Return ``(rows, *groups)``, or ``groups`` of a shared row."""
        row, groups = arrangement
        if not row.is_shared:
            return self.grouped(row, tuple(range(len(row.shape))), groups)
        x = self.array(row).transpose([axis for group in groups for axis in group])
        return x.reshape([math.prod(row.shape[i] for i in group) for group in groups])

    def _scores(self, scores: Scores, value: Factor, x: Array) -> kinds.Scores:
        """Return the scores of attention's kernels."""
        acc = accumulator_dtype(x.dtype)
        if isinstance(scores, SumScores):
            row, col = (
                as_matrix(self.array(term)).astype(acc) for term in (scores.row, scores.col)
            )
            return kinds.AdditiveScores(row, col)
        if isinstance(scores, EdgeScores):
            return kinds.EntryScores(self._entries(scores.score, x.dtype))
        if isinstance(scores, TypedScores):
            return self._typed_scores(scores, x)
        row_key, col_key = (
            as_matrix(self.array(scores.row_key)),
            as_matrix(self.array(scores.col_key)),
        )
        # Keys that are the values are passed once.
        key = None if scores.col_key is value.base or col_key is x else col_key
        if isinstance(scores, LeakyScores):
            vector = self.array(scores.vector).astype(acc).reshape(1, -1)
            return kinds.GATv2Scores(row_key, key, vector)
        scale = jnp.ones((), row_key.dtype) if scores.scale is None else self.array(scores.scale)
        return kinds.DotScores(row_key, key, scale.astype(acc).reshape(1, 1))

    def _typed_scores(self, scores: TypedScores, x: Array) -> kinds.TypedScores:
        rows, acc = self.matrices.parts.rows, accumulator_dtype(x.dtype)
        vector = self._arrange(scores.vector)
        heads, features = vector.shape[-2:]
        vectors = as_matrix(jnp.broadcast_to(vector, (rows[Space.RELATION], heads, features)))
        terms = [self._entries(term, x.dtype) for term in scores.terms]
        added = sum(terms, jnp.zeros((rows[Space.EDGE], heads), acc))
        types = self.matrices.relational.types
        types_of_pairs = TypedEdges(self._graph, None).types_of_source_pairs()
        return kinds.TypedScores(vectors, added, None, None, types, types_of_pairs)

    def _sum_by_xla(self, x: Array, row: Row, pattern: patterns.Sum) -> Array:
        """Reduce dtypes that kernels do not support."""
        reduce = pattern.reduce
        matrix = self.matrices.edges("", row.space, pattern.way)
        ids, size = matrix.by_col.cols, matrix.by_row.num_rows
        # Padding has negative ids, which JAX would count from the end; ids out of range are
        # dropped.
        ids = jnp.where(ids < 0, size, ids)
        if reduce == "mean":
            sums = jax.ops.segment_sum(x, ids, size)
            degrees = self.matrices.degrees(x.dtype, pattern.way)
            return sums / spread(jnp.maximum(degrees, 1), sums)
        result: Array = getattr(jax.ops, f"segment_{reduce}")(x, ids, size)
        return result

    def _multiply_after(self, y: Labelled, out: Labels, after: Sequence[Factor], row: Row) -> Array:
        """Multiply a reduction with its shared factors, and arrange its axes."""
        for factor in after:
            shared = Labelled(self.array(factor.row), factor.labels, False)
            y = y._replace(array=multiply(y, shared, y.labels))
        if after and row.space is not Space.DESTINATION_PAIR:  # factors may be infinite
            assert isinstance(row.op, Push)
            y = y._replace(array=self._zero_where_empty(y.array, row.op.way))
        return arranged(y, out, row.shape)


def _precision_of_operand(row: Row) -> Any:
    op = row.operands[0].op
    return op.precision if isinstance(op, Contract) else None


def _score_shape(scores: Scores, heads: Labels, sizes: Sizes) -> Sequence[int]:
    if isinstance(scores, SumScores):
        return scores.row.shape
    if isinstance(scores, EdgeScores):
        return scores.score.shape
    if isinstance(scores, TypedScores):
        return [sizes[label] for label in heads]
    return scores.row_key.shape[: len(heads)]


# --- Arrays --------------------------------------------------------------------------------------


def _split(x: Array, labels: Labels, sizes: Sizes) -> Array:
    """Return ``(rows, numbers)`` with an axis for each label."""
    return x.reshape(x.shape[0], *(sizes[label] for label in labels))


def _repeat_heads(x: Array, present: Labels, heads: Labels, sizes: Sizes) -> Array:
    """Return ``(rows, heads · features)`` of ``(rows, present heads, features)``."""
    if present != heads:
        shape = [sizes[label] if label in present else 1 for label in heads]
        x = x.reshape(x.shape[0], *shape, x.shape[-1])
        x = jnp.broadcast_to(x, (x.shape[0], *(sizes[label] for label in heads), x.shape[-1]))
    return as_matrix(x)


def may_be_unread(row: Row) -> bool:
    """Whether a pass moved a row to a space in which edges may not read all rows."""
    if not isinstance(row.op, Apply | Contract) or is_view(row):
        return False
    spaces = Space.NODE, Space.RELATION, Space.TYPE, Space.GRAPH
    return row.op.read_by is not None and row.space in spaces


def _lowest(dtype: DTypeLike) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else _integers(dtype).min


def _highest(dtype: DTypeLike) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else _integers(dtype).max


def _integers(dtype: DTypeLike) -> Any:
    return jnp.iinfo(dtype)  # type: ignore[no-untyped-call,unused-ignore]


_FINITE_AT_ZERO = {REACHED}.union(
    """
    abs add and asinh atan ceil clamp concatenate convert_element_type copy cos eq erf exp exp2
    expand_dims expm1 floor ge gt iota le leaky_relu log1p logaddexp logistic lt max min mul ne neg
    not one_minus_square or pad reduce_max reduce_min reduce_sum relu relu6 reshape rev round
    select_n sign sin slice split square squeeze sub tanh transpose
    """.split()  # noqa: SIM905 (a list would take a line for each name)
)
"""Functions that are finite at 0, with all derivatives."""

LINEAR = {"add", "concatenate", "neg", "pad", "reshape", "rev", "slice", "split", "squeeze", "sub"}
"""Linear functions."""

_FINITE_AT_ONE = set("atan2 cbrt div integer_pow log pow reciprocal rsqrt sqrt".split())  # noqa: SIM905
"""Functions that are finite at 1, with all derivatives."""
