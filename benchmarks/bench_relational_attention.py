"""One layer of RGAT or HGT on a graph with relations, and with its gradients to x and all weights.

A mode names layer, heads and whether gradients are wanted; a case's width is that of nodes before
and after the layer. Of RGAT, relations share their attention vectors, as in PyG; of HGT, all nodes
have one type and maps have no biases. float32 may be multiplied as TF32 in every family.

The floor reads features, weights and 12 bytes for each edge once and writes the result once; it
knows nothing of what a way moves in between, which the family ``counted`` says: what launches are
expected to take by counts. Results are checked at some nodes, gradients of graphs that can be
afforded whole.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.definition import TF32_TOLERANCE, Candidate, Case, Family, Op, Problem
from benchmarks.peers import bounded, jax_candidate, torch_candidate
from benchmarks.problems import CHECKED_NUMBERS, Expected, features, numpy_dtype, once
from benchmarks.report import OURS
from benchmarks.workloads import Triples, relational_graphs

INPUTS = {
    "rgat": ("x", "kernel", "dst_attention", "src_attention"),
    "hgt": ("x", "key", "query", "value", "attention", "message", "output"),
}
HEADS: dict[int, tuple[int, ...]] = {1: (), 4: (64,), 8: (64,)}
"""Numbers of heads, and the widths that each is run at; empty for all."""

GRADIENTS = {"rgat": 8, "hgt": 3}
"""Times the tolerance of results. Gradients to the vectors of RGAT's attention are sums over all
edges of terms that cancel at each destination, as a softmax's do: factors rounded to TF32 move them
twice as much as the others. On AIFB at 4 heads plain JAX and this library miss alike, by 1.7e-2."""

METHODS = ("source_pairs", "destination_pairs")
FOLDED = "weights folded"
SLOPE = 0.2
GATE = float(1 / (1 + np.exp(-1.0)))  # of a skip connection that is not trained yet


def _parts(case: Case) -> tuple[str, int, bool]:
    """Layer, number of heads, and whether gradients are wanted."""
    kind, heads, mode = case.mode.split(" ")
    return kind, int(heads[1:]), mode == "training"


# --- The definition in float64 -------------------------------------------------------------------


def problem(graph: Triples, case: Case) -> Problem:
    """The result at some nodes and, if wanted, the gradients."""
    kind, heads, training = _parts(case)
    width, dtype = case.width, case.dtype
    inputs: dict[str, Any] = {"x": features("x", graph.num_nodes, width, dtype)}
    inputs |= _weights(kind, graph.num_relations, heads, width, dtype)
    layer = _Layer(graph, kind, heads, inputs)
    expected = [layer.result()]
    if training:
        inputs["cotangent"] = features("cotangent", graph.num_nodes, width, dtype)
        expected += layer.gradients(inputs["cotangent"])
    edges = {"src": graph.src, "dst": graph.dst, "rel": graph.rel}
    factor = GRADIENTS[kind] if training else 1
    return Problem(
        inputs={**inputs, **edges},
        expected=tuple(expected),
        output_dtype=numpy_dtype(dtype),
        tolerance=factor * TF32_TOLERANCE if dtype == "float32" else None,
    )


@once
def _weights(
    kind: str, relations: int, heads: int, width: int, dtype: str
) -> dict[str, np.ndarray]:
    depth = width // heads
    if kind == "rgat":
        shapes = {
            "kernel": (relations, width, width),
            "dst_attention": (heads, depth),
            "src_attention": (heads, depth),
        }
    else:
        shapes = dict.fromkeys(("key", "query", "value", "output"), (width, width))
        shapes |= dict.fromkeys(("attention", "message"), (relations, heads, depth, depth))
    rng = np.random.default_rng([relations, heads, width])
    return {
        name: (rng.standard_normal(shape) / np.sqrt(shape[-2 + (len(shape) == 2)])).astype(
            numpy_dtype(dtype)
        )
        for name, shape in shapes.items()
    }


class _Layer:
    """A layer from its definition, edge by edge."""

    def __init__(self, graph: Triples, kind: str, heads: int, inputs: dict[str, Any]) -> None:
        self.graph, self.kind, self.heads = graph, kind, heads
        self.x = inputs["x"]
        self.weights = {
            name: inputs[name].astype(np.float64) for name in INPUTS[kind] if name != "x"
        }
        self.width = self.x.shape[1]

    def result(self) -> Expected:
        """Of some nodes, with all edges into them."""
        graph = self.graph
        order, starts = graph.by(graph.dst, graph.num_nodes)
        counts = np.diff(starts).astype(np.int64)
        chosen = np.random.default_rng(0).permutation(graph.num_nodes)
        chosen = np.sort(chosen[np.cumsum(counts[chosen]) * self.width <= CHECKED_NUMBERS // 4])
        edges = np.concatenate([order[starts[i] : starts[i + 1]] for i in chosen])
        place = np.repeat(np.arange(len(chosen)), counts[chosen])
        forward = _Edges(self, edges, place, len(chosen))
        y = forward.finished(self.x.rows(chosen))
        return Expected(y, (graph.num_nodes, self.width), chosen)

    def gradients(self, ct: Any) -> list[Expected]:
        """To all inputs; of large graphs their shapes alone are checked."""
        graph = self.graph
        shapes = [self.x.shape, *(each.shape for each in self.weights.values())]
        if graph.num_edges * self.width > 8 * CHECKED_NUMBERS:
            none = np.zeros(0, np.int64)
            return [Expected(np.zeros((0, *shape[1:])), shape, none) for shape in shapes]
        every = np.arange(graph.num_edges)
        forward = _Edges(self, every, graph.dst.astype(np.int64), graph.num_nodes)
        nodes = np.arange(graph.num_nodes)
        found = forward.gradients(self.x.rows(nodes), ct.rows(nodes))
        return [Expected.whole(found[name]) for name in INPUTS[self.kind]]


class _Edges:
    """Scores, softmax and sums of some edges, all of those into some nodes.

    Attributes:
        value: ``(edges, heads, depth)``, what an edge carries.
        share: ``(edges, heads)``, the softmax.
        y: ``(nodes, width)``, the sums.
    """

    def __init__(self, layer: _Layer, edges: np.ndarray, place: np.ndarray, size: int) -> None:
        graph = layer.graph
        self.layer, self.place, self.size = layer, place, size
        self.heads, self.weights = layer.heads, layer.weights
        self.rel = graph.rel[edges]
        self.src, self.dst = graph.src[edges], graph.dst[edges]
        self.at_src, self.at_dst = layer.x.rows(self.src), layer.x.rows(self.dst)
        self.by_relation = [(r, np.flatnonzero(self.rel == r)) for r in np.unique(self.rel)]
        score = self._rgat() if layer.kind == "rgat" else self._hgt()
        top = np.full((size, self.heads), -np.inf)
        np.maximum.at(top, place, score)
        powers = np.exp(score - top[place])
        self.share = powers / self.total(powers)[place]
        self.y = self.total(self.share[..., None] * self.value).reshape(size, -1)

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sums into nodes."""
        return _total(values, self.place, self.size)

    def split(self, x: np.ndarray) -> np.ndarray:
        """``(…, width)`` by head."""
        return x.reshape(*x.shape[:-1], self.heads, -1)

    def _rgat(self) -> np.ndarray:
        kernel, a = self.weights["kernel"], self.weights["dst_attention"]
        self.value = self.split(self._times(self.at_src, kernel))
        self.vectors = np.einsum("rkhd,hd->rkh", self.split(kernel), a)
        z = np.sum(self.value * self.weights["src_attention"], -1)
        for relation, rows in self.by_relation:
            z[rows] += self.at_dst[rows] @ self.vectors[relation]
        self.slope = np.where(z > 0, 1, SLOPE)
        return self.slope * z

    def _hgt(self) -> np.ndarray:
        w = self.weights
        self.query = self.split(self.at_dst @ w["query"])
        self.plain_key, self.plain_value = (
            self.split(self.at_src @ w[name]) for name in ("key", "value")
        )
        self.key = self._times(self.plain_key, w["attention"])
        self.value = self._times(self.plain_value, w["message"])
        self.scale = 1 / np.sqrt(self.query.shape[2])
        return self.scale * np.sum(self.query * self.key, -1)

    def _times(self, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """Rows times their relation's weights, of heads each with its own."""
        y = np.empty_like(x)
        for relation, rows in self.by_relation:
            y[rows] = _by_head(_by_head(x[rows]) @ kernel[relation])
        return y

    def _outer(self, x: np.ndarray, y: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """The gradient to such weights."""
        found = np.zeros_like(kernel)
        for relation, rows in self.by_relation:
            found[relation] = _by_head(x[rows]).swapaxes(-1, -2) @ _by_head(y[rows])
        return found

    def finished(self, x: np.ndarray) -> np.ndarray:
        """What follows the sums: of HGT a map, and the skip connection."""
        if self.layer.kind == "rgat":
            return self.y
        return GATE * _gelu(self.y)[0] @ self.weights["output"] + (1 - GATE) * x

    def gradients(self, x: np.ndarray, ct: np.ndarray) -> dict[str, np.ndarray]:
        """To all inputs, of all edges."""
        w, nodes = self.weights, len(x)
        found: dict[str, np.ndarray] = {"x": np.zeros_like(x)}
        if self.layer.kind == "hgt":
            found["x"] += (1 - GATE) * ct
            gelu, slope = _gelu(self.y)
            found["output"] = GATE * gelu.T @ ct
            ct = GATE * ct @ w["output"].T * slope
        g = self.split(ct)[self.dst]
        to_value = self.share[..., None] * g
        dots = np.sum(g * self.value, -1)
        to_score = self.share * (dots - self.total(self.share * dots)[self.place])
        if self.layer.kind == "rgat":
            to_score *= self.slope
            to_value += to_score[..., None] * w["src_attention"]
            found["src_attention"] = np.einsum("eh,ehd->hd", to_score, self.value)
            to_value = to_value.reshape(len(to_value), -1)
            found["kernel"] = self._outer(self.at_src, to_value, w["kernel"])
            to_src = self._times(to_value, w["kernel"].swapaxes(1, 2))
            to_vectors, to_dst = np.zeros_like(self.vectors), np.empty_like(self.at_dst)
            for relation, rows in self.by_relation:
                to_vectors[relation] = self.at_dst[rows].T @ to_score[rows]
                to_dst[rows] = to_score[rows] @ self.vectors[relation].T
            of_kernel = to_vectors[..., None] * w["dst_attention"]
            found["kernel"] += of_kernel.reshape(w["kernel"].shape)
            split = self.split(w["kernel"])
            found["dst_attention"] = np.einsum("rkh,rkhd->hd", to_vectors, split)
        else:
            to_query = self.scale * to_score[..., None] * self.key
            to_key = self.scale * to_score[..., None] * self.query
            found["attention"] = self._outer(self.plain_key, to_key, w["attention"])
            found["message"] = self._outer(self.plain_value, to_value, w["message"])
            to_key = self._times(to_key, w["attention"].swapaxes(2, 3))
            to_value = self._times(to_value, w["message"].swapaxes(2, 3))
            flat = (each.reshape(len(each), -1) for each in (to_query, to_key, to_value))
            to_query, to_key, to_value = flat
            found["query"] = self.at_dst.T @ to_query
            found["key"], found["value"] = self.at_src.T @ to_key, self.at_src.T @ to_value
            to_dst = to_query @ w["query"].T
            to_src = to_key @ w["key"].T + to_value @ w["value"].T
        found["x"] += _total(to_src, self.src, nodes) + _total(to_dst, self.dst, nodes)
        return found


def _by_head(x: np.ndarray) -> np.ndarray:
    """Rows of heads as matrices of rows, or these as the first."""
    return x.swapaxes(0, 1) if x.ndim == 3 else x


def _total(values: np.ndarray, segment: np.ndarray, size: int) -> np.ndarray:
    """Sums of rows, as the product with a matrix of ones: a tenth of the time of ``np.add.at``."""
    from scipy.sparse import csr_array

    ones, rows = np.ones(len(segment)), np.arange(len(segment))
    matrix = csr_array((ones, (segment, rows)), (size, len(segment)))
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    return (matrix @ flat).reshape(size, *values.shape[1:])


def _gelu(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """And its slope."""
    from scipy.special import erf

    share = (1 + erf(y / np.sqrt(2))) / 2
    return y * share, share + y * np.exp(-(y**2) / 2) / np.sqrt(2 * np.pi)


# --- This library --------------------------------------------------------------------------------


def _layer(graph: Triples, case: Case, method: str) -> Callable[..., Any]:
    """From weights by name to the layer that has them."""
    import jax.numpy as jnp
    from flax import nnx

    from flax_layers import HGTConv, RGATConv

    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    kind, heads, _ = _parts(case)
    options: Any = {
        "num_relations": graph.num_relations,
        "heads": heads,
        "method": method,
        "use_bias": False,
        "param_dtype": jnp.dtype(case.dtype),
    }
    layer = RGATConv if kind == "rgat" else HGTConv
    conv = nnx.eval_shape(lambda: layer(case.width, case.width, **options, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(conv)

    def layer_of(weights: dict[str, Any]) -> Any:
        dtype = next(iter(weights.values())).dtype
        if kind == "rgat":
            for name in ("dst_attention", "src_attention"):
                shape = graph.num_relations, *weights[name].shape
                weights[name] = jnp.broadcast_to(weights[name], shape)
        else:
            for name in ("key", "query", "value", "output"):
                weights[name] = weights[name][None]
            weights["prior"] = jnp.ones((graph.num_relations, heads), dtype)
            weights["skip"] = jnp.ones((1,), dtype)
        new = nnx.State({name: state[name] for name in state})
        nnx.replace_by_pure_dict(new, {**nnx.to_pure_dict(state), **weights})
        conv = nnx.merge(graphdef, new)
        conv.eval()
        return conv

    return layer_of


def _candidate(
    name: str, method: str, graph: Triples, case: Case, problem: Problem, *, folded: bool = False
) -> Candidate:
    """The layer; ``folded``: what is made of weights alone is an argument."""
    import jax

    inputs = INPUTS[_parts(case)[0]]
    weights, layer_of = inputs[1:], _layer(graph, case, method)

    def forward(x: Any, *rest: Any) -> Any:
        graph, *given = rest[len(weights) :]
        conv = layer_of(dict(zip(weights, rest, strict=False)))
        return conv(graph, x, folded=given[0]) if given else conv(graph, x)

    operands: tuple[Any, ...] = (graph.graph,)
    if folded:
        arrays = {name: problem.inputs[name] for name in weights}
        operands += (jax.jit(lambda arrays: layer_of(dict(arrays)).folded())(arrays),)
    return jax_candidate(name, forward, problem, operands, inputs)


def jax_gnn_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The layer as users call it, which chooses a way, and each of the others that it has.

    In inference also with the products of its weights made before.
    """
    _, choice = _counted(graph, case, problem)
    yield _candidate(OURS, "auto", graph, case, problem)
    if not _parts(case)[2]:
        yield _candidate(FOLDED, "auto", graph, case, problem, folded=True)
    for way in METHODS:
        if way != choice:  # whose program is that of the first
            yield _candidate(way, way, graph, case, problem)


def _counted(graph: Triples, case: Case, problem: Problem) -> tuple[dict[Any, float], str]:
    """What each way is expected to take, and what is chosen."""
    import jax

    from jax_gnn._ops.relational_aggregate.api import counts_of
    from jax_gnn._ops.relational_attention.schedule import chosen, expected

    kind, heads, _ = _parts(case)
    shape = (graph.num_relations, case.width, case.width)
    counts = counts_of(graph.graph, jax.ShapeDtypeStruct(shape, problem.output_dtype))
    options: Any = {"heads": heads, "dots": kind == "hgt"}
    return expected(counts, **options), chosen(counts, **options)


def launches(candidate: Candidate) -> int:
    """Kernels in the compiled program: what is neither a shape, a constant nor a tuple."""
    import jax

    def shaped(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, getattr(leaf, "dtype", None) or leaf.pool.dtype)

    arguments = jax.tree.map(shaped, candidate.arguments)
    program = jax.jit(candidate.function).lower(*arguments).compile().as_text() or ""
    entry = program[program.index("\nENTRY ") :]
    kinds = re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(", entry, re.MULTILINE)
    free = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
    return sum(kind not in free for kind in kinds)


def counted_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What each way is expected to take, what is chosen, and its launches: nothing is run."""
    times, choice = _counted(graph, case, problem)
    words = ", ".join(f"{time:.1f} us by {way}" for way, time in times.items())
    reason = f"{words}; chosen: {choice}"
    for candidate in jax_gnn_candidates(graph, case, problem):
        if candidate.name in (OURS, FOLDED):
            reason += f"; {launches(candidate)} launches of {candidate.name}"
    yield Candidate("counted", lambda: (), (), skip=reason)


# --- Plain JAX -----------------------------------------------------------------------------------

BY_PAIR, BY_EDGE = "ragged_dot by pair", "ragged_dot by edge"


def plain_jax_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Products of all nodes with all relations, of each edge, and of each (source, relation)."""
    row = case.width * problem.output_dtype.itemsize
    pairs, edges = len(_pairs(graph)[0]), graph.num_edges
    dense = graph.num_nodes * graph.num_relations * row
    masked = graph.num_relations * row  # a masked copy of all rows for each relation
    forms = {
        "products with every relation": (_every, (graph.src, graph.rel, graph.dst), dense),
        BY_EDGE: (_by_edge, _by_relation(graph), masked * edges),
        BY_PAIR: (_by_pair, (*_pairs(graph), graph.rel, graph.dst), masked * pairs),
    }
    for name, (form, operands, num_bytes) in forms.items():
        forward = form(graph, case)
        inputs = INPUTS[_parts(case)[0]]
        candidate = bounded(jax_candidate(name, forward, problem, operands, inputs), num_bytes)
        if name == BY_EDGE and edges > 1.5 * pairs and not candidate.skip:
            more = f"{edges / pairs:.1f} times the products of {BY_PAIR}, else the same"
            candidate = replace(candidate, skip=more)
        yield candidate


@once
def _by_relation(graph: Triples) -> tuple[np.ndarray, ...]:
    order, starts = graph.by(graph.rel, graph.num_relations)
    sizes = np.diff(starts).astype(np.int32)
    return graph.src[order], graph.rel[order], graph.dst[order], sizes


@once
def _pairs(graph: Triples) -> tuple[np.ndarray, ...]:
    """The source of each pair, sorted by relation, their numbers, and each edge's pair."""
    keys = graph.rel.astype(np.int64) * graph.num_nodes + graph.src
    pairs, of_edges = np.unique(keys, return_inverse=True)
    sizes = np.bincount(pairs // graph.num_nodes, minlength=graph.num_relations)
    sources = (pairs % graph.num_nodes).astype(np.int32)
    return sources, sizes.astype(np.int32), of_edges.ravel().astype(np.int32)


def _plain(
    graph: Triples,
    case: Case,
    products: Callable[..., Any],
    ends: Callable[..., tuple[Any, Any]],
    *,
    is_sorted: bool,
) -> Callable[..., Any]:
    """A layer of edges' rows times their relations' weights, which ``products`` gives."""
    import jax
    import jax.numpy as jnp

    kind, heads, _ = _parts(case)
    size, names = graph.num_nodes, INPUTS[kind][1:]

    def attend(score: Any, value: Any, dst: Any) -> Any:
        def sums(values: Any) -> Any:
            return jax.ops.segment_sum(values, dst, size, indices_are_sorted=is_sorted)

        top = jax.ops.segment_max(score, dst, size, indices_are_sorted=is_sorted)
        powers = jnp.exp(score - jax.lax.stop_gradient(top)[dst])
        share = powers / sums(powers)[dst]
        y = sums((share[..., None] * value).astype(value.dtype))
        return y.reshape(size, -1)

    def forward(x: Any, *rest: Any) -> Any:
        w, operands = dict(zip(names, rest, strict=False)), rest[len(names) :]
        rel, dst = ends(*operands)

        def split(x: Any) -> Any:
            return x.reshape(*x.shape[:-1], heads, -1)

        if kind == "rgat":
            value = split(products(x, w["kernel"], *operands))
            vectors = jnp.einsum("rkhd,hd->rkh", split(w["kernel"]), w["dst_attention"])
            of_dst = jnp.einsum("nk,rkh->nrh", x, vectors)
            z = of_dst[dst, rel] + jnp.sum(value * w["src_attention"], -1)
            z = z.astype(jnp.float32)
            return attend(jnp.where(z > 0, z, SLOPE * z), value, dst)
        # Weights of nodes and of relations are multiplied first: a product of edges or pairs less.
        key, value = (
            products(
                x,
                jnp.einsum("khd,rhde->rkhe", split(w[name]), w[by]).reshape(
                    graph.num_relations, case.width, case.width
                ),
                *operands,
            )
            for name, by in (("key", "attention"), ("value", "message"))
        )
        query = split(x @ w["query"])[dst]
        score = jnp.sum((query * split(key)).astype(jnp.float32), -1) / np.sqrt(query.shape[2])
        y = attend(score, split(value), dst).astype(x.dtype)
        y = jax.nn.gelu(y, approximate=False)
        return (GATE * y @ w["output"] + (1 - GATE) * x).astype(x.dtype)

    return forward


def _every(graph: Triples, case: Case) -> Callable[..., Any]:
    import jax.numpy as jnp

    def products(x: Any, rhs: Any, src: Any, rel: Any, dst: Any) -> Any:
        del dst
        return jnp.einsum("nk,rkm->rnm", x, rhs)[rel, src]

    return _plain(graph, case, products, lambda src, rel, dst: (rel, dst), is_sorted=True)


def _by_edge(graph: Triples, case: Case) -> Callable[..., Any]:
    import jax

    def products(x: Any, rhs: Any, src: Any, rel: Any, dst: Any, sizes: Any) -> Any:
        del rel, dst
        return jax.lax.ragged_dot(x[src], rhs, sizes)

    return _plain(graph, case, products, lambda _, rel, dst, __: (rel, dst), is_sorted=False)


def _by_pair(graph: Triples, case: Case) -> Callable[..., Any]:
    import jax

    def products(x: Any, rhs: Any, src: Any, sizes: Any, pair: Any, rel: Any, dst: Any) -> Any:
        del rel, dst
        return jax.lax.ragged_dot(x[src], rhs, sizes)[pair]

    return _plain(graph, case, products, lambda *edges: edges[-2:], is_sorted=True)


# --- PyG -----------------------------------------------------------------------------------------


def pyg_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """``RGATConv`` and ``HGTConv``, which uses pyg-lib's grouped products where that is there."""
    import torch
    from torch_geometric import nn, typing

    torch.set_float32_matmul_precision("high")
    kind, heads, _ = _parts(case)
    width, depth, relations = case.width, case.width // heads, graph.num_relations
    row = width * problem.output_dtype.itemsize
    with torch.device("cpu"):
        if kind == "rgat":
            options = {"heads": heads, "bias": False, "negative_slope": SLOPE}
            conv = nn.RGATConv(width, depth, relations, **options)
            num_bytes = graph.num_edges * width * row  # weights for each edge
        else:
            ends = [("n", str(relation), "n") for relation in range(relations)]
            conv = nn.HGTConv(width, width, (["n"], ends), heads=heads)
            num_bytes = graph.num_nodes * relations * row  # a copy of nodes for each relation
    conv = conv.to(getattr(torch, case.dtype)).to(torch.get_default_device())

    def spread(vectors: Any) -> Any:
        own = torch.eye(heads, dtype=vectors.dtype, device=vectors.device)
        return (vectors[:, :, None] * own[:, None, :]).reshape(width, heads)

    def rgat(x: Any, kernel: Any, dst: Any, src: Any, edges: Any, types: Any, _: Any) -> Any:
        params = {"weight": kernel, "q": spread(dst), "k": spread(src)}
        return torch.func.functional_call(conv, params, (x, edges, types))

    def hgt(x: Any, *rest: Any) -> Any:
        key, query, value, attention, message, output, edges, _, starts = rest
        zeros = torch.zeros(3 * width, dtype=x.dtype, device=x.device)
        params = {
            "kqv_lin.lins.n.weight": torch.cat([key, query, value], 1).T,
            "kqv_lin.lins.n.bias": zeros,
            "out_lin.lins.n.weight": output.T,
            "out_lin.lins.n.bias": zeros[:width],
            "k_rel.weight": attention.transpose(0, 1).reshape(-1, depth, depth),
            "v_rel.weight": message.transpose(0, 1).reshape(-1, depth, depth),
        }
        by_relation = {
            ("n", str(relation), "n"): edges[:, starts[relation] : starts[relation + 1]]
            for relation in range(relations)
        }
        return torch.func.functional_call(conv, params, ({"n": x}, by_relation))["n"]

    src, _, dst, sizes = _by_relation(graph)
    edges = np.stack([src, dst]).astype(np.int64), np.sort(graph.rel).astype(np.int64)
    starts = tuple(np.concatenate([[0], np.cumsum(sizes)]).tolist())
    with_lib = kind == "hgt" and typing.WITH_PYG_LIB
    name = f"PyG {type(conv).__name__}" + (" with pyg-lib" if with_lib else "")
    forward = rgat if kind == "rgat" else hgt
    candidate = torch_candidate(name, forward, problem, (*edges, starts), INPUTS[kind])
    yield bounded(candidate, num_bytes, torch.get_default_device().type)


OP = Op(
    name="relational_attention",
    title="One RGAT or HGT layer: inference, and value and gradients",
    workloads=relational_graphs,
    modes={
        f"{kind} h{heads} {mode}": widths
        for heads, widths in HEADS.items()
        for kind in INPUTS
        for mode in ("inference", "training")
    },
    widths={"cpu": (64,), "gpu": (32, 64, 128)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn", "flax_layers"), jax_gnn_candidates),
        Family("counted", "numpy", ("jax_gnn", "flax_layers"), counted_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
    ),
    baseline=BY_PAIR,
)
