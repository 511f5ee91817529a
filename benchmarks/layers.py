"""Layers made of programs: PyG's layers with the same weights, and programs run as plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import flax_layers
import jax_gnn
from benchmarks.edge_models import PlainView
from benchmarks.workloads import PlainGraph
from flax_layers import gps
from jax_gnn import Batch, Graph, HeteroGraph, RelationalGraph
from jax_gnn._program.api import Program
from jax_gnn._program.matrices import Matrices
from jax_gnn._program.reference import apply_to_rows
from jax_gnn._program.rows import Apply, Constant, Input, Pull, Push, Row, Softmax
from jax_gnn._program.rows import topological_order as ordered

HEADS = 4
RELATIONS = 4
NODE_TYPES = 2
TYPES = [("n", f"r{k}", "n") for k in range(RELATIONS)]
EDGE_FEATURES = 16
BASIS = 32
FILTER = 32
"""Features inside the network that makes NNConv's matrices."""


# --- Programs as plain JAX -----------------------------------------------------------------------

_IS_PLAIN = ContextVar("is_plain", default=False)


@contextmanager
def plain_jax() -> Iterator[None]:
    """Run programs that are called inside as plain JAX, and other ops of this library by XLA."""
    token = _IS_PLAIN.set(True)
    try:
        with jax_gnn.implementation("xla"):
            yield
    finally:
        _IS_PLAIN.reset(token)


def run_plain(program: Any, graph: Any, *args: Any, **kwargs: Any) -> tuple[Any, list[Row]]:
    """Run a program on arrays of all edges: gathers, and segment ops of sorted edges.

    Gathers of half types, and sums, are in float32, as are their gradients.
    """
    call = program._call(graph, args, kwargs)
    traced, _ = program._traced(call)
    matrices = Matrices(call.graph)
    inputs = [*call.arrays, *traced.closed_over]
    src, dst = matrices.edge_ids("src"), matrices.edge_ids("dst")
    view = PlainView(dst, src, matrices.parts.num_dst)
    arrays: dict[Row, Any] = {}
    for row in ordered(traced.results):
        operands = [arrays[operand] for operand in row.operands]
        if isinstance(row.op, Push | Softmax):
            (x,) = operands
            if row.operands[0].is_shared:
                x = jnp.broadcast_to(x, (len(dst), *x.shape))
            if row.op.way != "dst":
                raise ValueError(f"{program._name}: {row.op} is not along the edges")
        match row.op:
            case Input(index=index):
                arrays[row] = jnp.asarray(inputs[index])
            case Constant(value=number):
                arrays[row] = jnp.asarray(number)
            case Pull(way="src" | "dst" as way):
                arrays[row] = getattr(view, way)(operands[0])
            case Pull(way="relation"):
                arrays[row] = operands[0][matrices.edge_ids("relation")]
            case Push(reduce=reduce):
                arrays[row] = getattr(view, reduce)(x)
            case Softmax():
                arrays[row] = view.softmax(x)
            case Apply(index=index):
                arrays[row] = apply_to_rows(row, operands)[index]
            case _:
                raise ValueError(f"{program._name}: {row.op} has no plain form")
    results = [arrays[row] for row in traced.results]
    return jax.tree.unflatten(traced.tree, results), traced.results


def dense_attention(
    batch: Any, query: Any, key: Any, value: Any, max_nodes: int, implementation: Any = "xla"
) -> Any:
    """Attend within the graphs of a batch, on rows that are padded to ``(num_graphs, max_nodes)``.

    As `flax_layers.gps.attention_within_graphs`.
    """
    starts = jnp.cumsum(batch.num_nodes) - batch.num_nodes
    places = batch.graph_ids, jnp.arange(len(query)) - starts[batch.graph_ids]
    shape = batch.num_graphs, max_nodes, *query.shape[1:]
    q, k, v = (jnp.zeros(shape, x.dtype).at[places].set(x) for x in (query, key, value))
    return attention_of_padded(q, k, v, batch.num_nodes, implementation)[places]


def attention_of_padded(query: Any, key: Any, value: Any, sizes: Any, implementation: Any) -> Any:
    """Attend within graphs of these numbers of nodes, with padded rows; None for none."""
    lengths = {"query_seq_lengths": sizes, "key_value_seq_lengths": sizes}
    return jax.nn.dot_product_attention(
        *(query, key, value), **lengths, implementation=implementation
    )


def _install() -> None:
    """Make `plain_jax` reach the calls of programs and of attention."""
    run, attention = Program._run, gps.attention_within_graphs

    def run_program(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (run_plain if _IS_PLAIN.get() else run)(self, *args, **kwargs)

    def attend(*args: Any, **kwargs: Any) -> Any:
        return (dense_attention if _IS_PLAIN.get() else attention)(*args, **kwargs)

    Program._run, gps.attention_within_graphs = run_program, attend  # type: ignore[method-assign]


_install()


# --- Graphs --------------------------------------------------------------------------------------

BLOCK = 64
"""Nodes of a graph of the batch, where a plain graph stands for one."""


def graph_sizes(graph: PlainGraph) -> np.ndarray:
    """Return the number of nodes of each graph of a batch, or of `BLOCK` rows of another graph."""
    if graph.sizes is not None:
        return graph.sizes
    starts = np.arange(0, graph.num_nodes, BLOCK)
    return np.minimum(graph.num_nodes - starts, BLOCK)


def container(kind: str, graph: PlainGraph, relations: np.ndarray) -> Any:
    """Return a graph of this library, with its edges in the same order."""
    ends, count = (graph.cols, graph.rows), graph.num_nodes
    if kind == "relational":
        return RelationalGraph.from_triples(ends[0], relations, ends[1], count, RELATIONS)
    if kind == "hetero":
        parts = [relations == k for k in range(RELATIONS)]
        edges = {key: [e[part] for e in ends] for key, part in zip(TYPES, parts, strict=True)}
        return HeteroGraph.from_edges(edges, {"n": count}).with_graphs()
    plain = Graph.from_edges(*ends, num_nodes=count)
    if kind == "graph":
        return plain
    sizes = graph_sizes(graph)
    ids = np.repeat(np.arange(len(sizes)), sizes)
    num_edges = np.bincount(ids[graph.rows], minlength=len(sizes))[:, None]
    arrays = ids, sizes, num_edges, len(sizes)
    of_nodes, num_nodes, num_inputs, num_graphs = (jnp.asarray(a, jnp.int32) for a in arrays)
    return Batch(plain, of_nodes, num_nodes, num_inputs, None, num_graphs)


# --- Layers --------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """A layer, and PyG's.

    Attributes:
        kind: Class of `flax_layers`.
        options: Arguments of it, or a function of width and graph.
        inputs: Names of the differentiable arguments of a call beside x.
        theirs: Function of `torch_geometric.nn`, width and graph that returns PyG's module.
        names: Its parameters or modules by path of ours; a tuple is not transposed, a list is of
            parts along the first axis.
        call: Function of PyG's module, x, edges and the other arguments by name; by default edges
            and features of edges come after x.
        structure: Container of the call: "graph", "relational", "hetero" or "batch".
        is_local: Whether results depend on the edges into a node alone.
        others: Names of arguments that are not differentiable.
    """

    kind: str
    options: Any = {}  # noqa: RUF012 (never changed)
    inputs: tuple[str, ...] = ()
    theirs: Callable[[Any, int, PlainGraph], Any] | None = None
    names: Mapping[str, Any] = {}
    call: Callable[..., Any] | None = None
    structure: str = "graph"
    is_local: bool = True
    others: tuple[str, ...] = ()

    def make(self, width: int, graph: PlainGraph, dtype: Any) -> Any:
        """Return the layer of a width; parameters are to be replaced by `with_parameters`."""
        options = self.options(width, graph) if callable(self.options) else self.options
        common = {"param_dtype": dtype, "rngs": nnx.Rngs(0)}
        if self.structure == "hetero":
            return flax_layers.HANConv({"n": width}, width, **options, **common)
        if self.structure == "batch":
            local = flax_layers.GINEConv(width, width, edge_in_features=EDGE_FEATURES, **common)
            return flax_layers.GPSConv(width, local, **options, **common)
        return getattr(flax_layers, self.kind)(width, width, **options, **common)

    def __call__(self, layer: Any, graph: Any, max_nodes: int, x: Any, **inputs: Any) -> Any:
        """Call the layer."""
        if self.structure == "hetero":
            return layer(graph, {"n": x})["n"]
        if self.structure == "batch":
            return layer(graph, x, inputs["edge_features"], max_nodes=max_nodes)
        return layer(graph, x, **inputs)


def _mlp(*sizes: int, between: Any = None) -> Any:
    import torch

    make = between or torch.nn.ReLU
    parts = [part for pair in pairwise(sizes) for part in (torch.nn.Linear(*pair), make())]
    return torch.nn.Sequential(*parts[:-1])


def _pna(nn: Any, width: int, graph: PlainGraph) -> Any:
    import torch

    reductions = ["mean", "min", "max", "std"]
    scalers = ["identity", "amplification", "attenuation"]
    degrees = torch.tensor(degree_histogram(graph))
    return nn.PNAConv(width, width, reductions, scalers, degrees, edge_dim=EDGE_FEATURES)


def _cf(nn: Any, width: int, _: PlainGraph) -> Any:
    from torch_geometric.nn.models import schnet

    mlp = _mlp(BASIS, width, width, between=schnet.ShiftedSoftplus)
    return schnet.CFConv(width, width, width, mlp, 10.0)


def _gps(nn: Any, width: int, _: PlainGraph) -> Any:
    local = nn.GINEConv(_mlp(width, width, width), edge_dim=EDGE_FEATURES)
    return nn.GPSConv(width, local, heads=HEADS)


def _points(module: Any, x: Any, edges: Any, named: Any) -> Any:
    return module(x, named["pos"], edges)


_EDGES, _KNOWN = {"edge_in_features": EDGE_FEATURES}, ("edge_features",)
_GINE = {"edge": "lin", "built_mlp.layers": "nn"}
_GAUSSIANS = {"kernel": "g", "mean": "mu", "deviation": "sigma"}
_RELATIONS = {"num_relations": RELATIONS}

LAYERS = {
    "gine": Layer(
        *("GINEConv", _EDGES, _KNOWN),
        lambda nn, d, _: nn.GINEConv(_mlp(d, d, d), edge_dim=EDGE_FEATURES),
        _GINE,
    ),
    "gated_gcn": Layer("GatedGCNConv", lambda d, _: {"edge_in_features": d}, _KNOWN),
    "res_gated": Layer(
        *("ResGatedGraphConv", _EDGES, _KNOWN),
        lambda nn, d, _: nn.ResGatedGraphConv(d, d, edge_dim=EDGE_FEATURES),
        {"key": "lin_key", "query": "lin_query", "value": "lin_value"}
        | {"root": "lin_skip.weight", "bias": "bias"},
    ),
    "pna": Layer(
        "PNAConv",
        lambda _, graph: _EDGES | {"degree_histogram": degree_histogram(graph)},
        _KNOWN,
        _pna,
        {"pre": "pre_nns", "post": "post_nns", "output": "lin", "edge": "edge_encoder"},
    ),
    "edge_conv": Layer(
        "EdgeConv", theirs=lambda nn, d, _: nn.EdgeConv(_mlp(2 * d, d, d)), names={"mlp": "nn"}
    ),
    "nn_conv": Layer(
        "NNConv",
        _EDGES | {"mlp_features": FILTER},
        _KNOWN,
        lambda nn, d, _: nn.NNConv(d, d, _mlp(EDGE_FEATURES, FILTER, d * d)),
        {"mlp": "nn", "root": "lin.weight", "bias": "bias"},
    ),
    "cg_conv": Layer(
        *("CGConv", _EDGES, _KNOWN),
        lambda nn, d, _: nn.CGConv(d, EDGE_FEATURES),
        {"gate": "lin_f", "core": "lin_s"},
    ),
    "cf_conv": Layer(
        "CFConv",
        {"edge_in_features": BASIS},
        ("edge_features", "distance"),
        _cf,
        {"kernel": "lin1.weight", "filters": "nn", "output": "lin2"},
        lambda m, x, edges, named: m(x, edges, named["distance"], named["edge_features"]),
    ),
    "painn": Layer("PaiNNConv", {}, ("vectors", "pos")),
    "egnn": Layer("EGNNConv", {"edge_in_features": 4}, ("pos", "edge_features")),
    "film": Layer(
        *("FiLMConv", _RELATIONS, ()),
        lambda nn, d, _: nn.FiLMConv(d, d, RELATIONS),
        {
            "kernel": lambda m: [lin.weight for lin in m.lins],
            "film": lambda m: [lin.weight for lin in m.films],
            "film_bias": lambda m: [lin.bias for lin in m.films],
            "root": "lin_skip.weight",
            "root_film": "film_skip.weight",
        },
        lambda m, x, edges, named: m(x, edges, named["relations"]),
        "relational",
    ),
    "rgin": Layer("RGINConv", _RELATIONS, structure="relational"),
    "simple_hgn": Layer("SimpleHGNConv", _RELATIONS | {"heads": HEADS}, structure="relational"),
    "super_gat": Layer(
        *("SuperGATConv", {"heads": HEADS}, ()),
        lambda nn, d, _: nn.SuperGATConv(d, d // HEADS, HEADS).eval(),  # draws no other pairs
        {"kernel": "lin.weight", "bias": "bias"}
        | {"src_attention": "att_l", "dst_attention": "att_r"},
    ),
    "heat": Layer(
        "HEATConv",
        _EDGES | _RELATIONS | {"num_node_types": NODE_TYPES, "heads": HEADS},
        _KNOWN,
        lambda nn, d, _: nn.HEATConv(
            *(d, d // HEADS, NODE_TYPES, RELATIONS, 64, EDGE_FEATURES, 64, HEADS)
        ),
        {
            "types.kernel": lambda m: (m.hetero_lin.weight,),
            "types.bias": lambda m: (m.hetero_lin.bias,),
            "embedding": lambda m: (m.edge_type_emb.weight,),
            "edge": "edge_attr_emb",
            "attention": "att.weight",
            "value": "lin",
        },
        lambda m, x, edges, named: m(
            *(x, edges, named["node_types"], named["relations"], named["edge_features"])
        ),
        "relational",
        others=("node_types",),
    ),
    "han": Layer(
        *("HANConv", {"edge_types": TYPES, "heads": HEADS}, ()),
        lambda nn, d, _: nn.HANConv({"n": d}, d, (["n"], TYPES), HEADS),
        {"semantic": "k_lin", "query": lambda m: (m.q,), "input.layers.members.0": "proj.n"}
        | {
            f"{end}_attention.members.{i}": lambda m, key=key, end=end: (
                getattr(m, f"lin_{end}")["__".join(key)],
            )
            for i, key in enumerate(TYPES)
            for end in ("src", "dst")
        },
        lambda m, x, edges, named: m({"n": x}, named["by_type"])["n"],
        "hetero",
        is_local=False,
    ),
    "gen": Layer(
        "GENConv",
        _EDGES | {"learn_t": True, "mlp_norm": None},
        _KNOWN,
        lambda nn, d, _: nn.GENConv(d, d, learn_t=True, norm=None, edge_dim=EDGE_FEATURES),
        {"edge": "lin_edge", "built_mlp.layers": "mlp", "learned_t": "aggr_module.t"},
    ),
    "gmm": Layer(
        "GMMConv",
        {"edge_in_features": 3, "kernel_size": 3},
        _KNOWN,
        lambda nn, d, _: nn.GMMConv(d, d, 3, 3),
        {ours: lambda m, n=name: (getattr(m, n),) for ours, name in _GAUSSIANS.items()}
        | {"root": "root.weight", "bias": "bias"},
    ),
    "fa": Layer(
        *("FAConv", {}, ("x0",)),
        lambda nn, d, _: nn.FAConv(d, cached=True),
        {"src_attention": "att_l.weight", "dst_attention": "att_r.weight"},
        lambda m, x, edges, named: m(x, named["x0"], edges),
        others=("node_scale",),
    ),
    "agnn": Layer("AGNNConv", theirs=lambda nn, d, _: nn.AGNNConv(), names={"beta": "beta"}),
    "point_transformer": Layer(
        *("PointTransformerConv", {}, ("pos",)),
        lambda nn, d, _: nn.PointTransformerConv(d, d),
        {"value": "lin.weight", "key": "lin_src.weight", "query": "lin_dst.weight"}
        | {"position": "pos_nn"},
        _points,
    ),
    "point_net": Layer(
        *("PointNetConv", {}, ("pos",)),
        lambda nn, d, _: nn.PointNetConv(_mlp(d + 3, d, d), _mlp(d, d)),
        {"local": "local_nn", "output": "global_nn"},
        _points,
    ),
    "pdn": Layer(
        *("PDNConv", _EDGES, _KNOWN),
        lambda nn, d, _: nn.PDNConv(d, d, EDGE_FEATURES, d),
        {"kernel": "lin.weight", "mlp": "mlp", "bias": "bias"},
        is_local=False,  # weights are scaled by their sums at both ends
    ),
    "gps": Layer(
        *("GPSConv", {"heads": HEADS}, _KNOWN),
        _gps,
        {
            "attention_in.kernel": "attn.in_proj_weight",
            "attention_in.bias": "attn.in_proj_bias",
            "attention_out": "attn.out_proj",
            "mlp": "mlp",
        }
        | {f"conv.{ours}": f"conv.{name}" for ours, name in _GINE.items()}
        | {f"norms.{i}.scale": f"norm{i + 1}.module.weight" for i in range(3)}
        | {f"norms.{i}.bias": f"norm{i + 1}.module.bias" for i in range(3)},
        lambda m, x, edges, named: m(
            x, edges, named["graph_ids"], edge_attr=named["edge_features"]
        ),
        "batch",
        is_local=False,
    ),
}


def degree_histogram(graph: PlainGraph) -> list[int]:
    """Return the number of nodes of each in-degree."""
    return np.bincount(np.diff(graph.indptr)).tolist()


def row_shape(layer: Layer, name: str, width: int, options: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a row of an input."""
    if name == "edge_features":
        return (options["edge_in_features"] if layer.structure != "batch" else EDGE_FEATURES,)
    return {"distance": (), "pos": (3,), "vectors": (3, width)}.get(name, (width,))


# --- Parameters ----------------------------------------------------------------------------------


def parameter_shapes(layer: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter by path, such as "mlp.0.kernel"."""
    flat: Any = nnx.to_flat_state(nnx.state(layer, nnx.Param))
    return {".".join(map(str, path)): param.shape for path, param in flat}


def with_parameters(layer: Any) -> Callable[[list[Any]], Any]:
    """Return the function of parameters, in the order of `parameter_shapes`, to the layer."""
    split: Any = nnx.split(layer, nnx.Param, ...)
    definition, params, others = split
    flat: Any = nnx.to_flat_state(params)

    def merge(arrays: list[Any]) -> Any:
        pairs = zip(flat, arrays, strict=True)
        new = [(path, param.replace(a.reshape(param.shape))) for (path, param), a in pairs]
        return nnx.merge(definition, nnx.from_flat_state(new), others, copy=True)

    return merge


def torch_parameters(layer: Layer, module: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyG's parameter for each of `names`, the paths of ours."""
    import torch

    def pairs(path: str, part: Any) -> Iterator[tuple[str, Any]]:
        if not isinstance(part, torch.nn.Module):
            yield path, part
            return
        children = [child for child in part.children() if [*child.parameters()]]
        for i, child in enumerate(children):
            yield from pairs(f"{path}.{i}", child)
        if not children:
            path = path if f"{path}.kernel" in names else f"{path}.0"
            yield f"{path}.kernel", part.weight
            if part.bias is not None:
                yield f"{path}.bias", part.bias

    def attribute(value: Any, path: str) -> Any:
        for name in path.split("."):
            value = getattr(value, name)
        return value

    found: dict[str, Any] = {}
    for path, other in layer.names.items():
        if not any(f"{name}.".startswith(f"{path}.") for name in names):
            continue  # such as a map that the layer needs at other widths
        part = other(module) if callable(other) else attribute(module, other)
        found |= dict(pairs(path, part))
    if found.keys() != names.keys():
        raise ValueError(f"{layer.kind}: parameters {sorted(found.keys() ^ names.keys())} differ")
    return {name: found[name] for name in names}


def tensors_of(parameter: Any) -> list[Any]:
    """Return the tensors of a parameter of PyG's, see `Layer.names`."""
    return [*parameter] if isinstance(parameter, tuple | list) else [parameter]


def as_ours(parameter: Any, tensors: list[Any], shape: tuple[int, ...]) -> Any:
    """Return tensors, such as gradients, of a parameter of PyG's in the shape of ours."""
    import torch

    if not isinstance(parameter, tuple):
        tensors = [t.T if t.ndim == 2 and t.shape[0] != 1 else t for t in tensors]
    return (torch.stack(tensors) if isinstance(parameter, list) else tensors[0]).reshape(shape)


def set_parameter(parameter: Any, value: np.ndarray) -> None:
    """Copy a parameter of ours into PyG's."""
    import torch

    tensors = tensors_of(parameter)
    for tensor, part in zip(
        tensors, value if isinstance(parameter, list) else [value], strict=True
    ):
        is_turned = not isinstance(parameter, tuple) and tensor.ndim == 2 and tensor.shape[0] != 1
        part = torch.tensor(part, device=tensor.device, dtype=tensor.dtype)
        tensor.data.copy_((part.T if is_turned else part).reshape(tensor.shape))
