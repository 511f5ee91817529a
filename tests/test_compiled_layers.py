"""What stands between the products and the custom calls of a compiled model: no copies."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from op_suite import KERNELS
from primitive_cases import needs_kernels

import flax_layers
import jax_gnn
from jax_gnn import Graph, Hypergraph, RelationalGraph

NODES, HYPEREDGES, ENTRIES, WIDTH = 900, 700, 40_000, 32
"""As many nodes as nothing else has, and enough for kernels to be chosen on a CPU."""


def graph():
    rng = np.random.default_rng(0)
    return Graph.from_edges(*rng.integers(NODES, size=(2, ENTRIES)), num_nodes=NODES)


def hypergraph():
    rng = np.random.default_rng(0)
    ids = rng.integers(NODES, size=ENTRIES), rng.integers(HYPEREDGES, size=ENTRIES)
    return Hypergraph.from_incidence(*ids, num_nodes=NODES, num_hyperedges=HYPEREDGES)


class Instruction(NamedTuple):
    kind: str  # the opcode; of a fusion those of what it is made of, but parameters and constants
    operands: list[str]
    rows: bool  # has a row a node


def program(text):
    """The instructions of all computations of a compiled program, by name."""
    instructions: dict[str, Instruction] = {}
    bodies: dict[str, set[str]] = {}
    body: set[str] = set()
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            body = bodies.setdefault(head[1], set())
        match = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", line)
        if not match:
            continue
        name, shape, kind, arguments = match.groups()
        body.add(kind)
        if called := re.search(r"calls=%?([\w.\-]+)", arguments):
            kind = " ".join(sorted(bodies[called[1]] - {"parameter", "constant"}))
        if target := re.search(r'custom_call_target="([^"]+)"', arguments):
            kind = target[1]
        operands = re.findall(r"%([\w.\-]+)", arguments.split("), ")[0])
        instructions[name] = Instruction(kind, operands, f"[{NODES}," in shape)
    return instructions


def between(instructions):
    """Return the kinds of the instructions whose rows of nodes this library's calls read."""
    transparent = {"bitcast", "get-tuple-element", "reshape", "tuple"}

    def maker(name):
        instruction = instructions[name]
        return maker(instruction.operands[0]) if instruction.kind in transparent else instruction

    return [
        maker(operand).kind
        for instruction in instructions.values()
        if instruction.kind.startswith("jax_gnn")
        for operand in set(instruction.operands)
        if instructions[operand].rows
    ]


MOVES = {"slice", "dynamic-slice", "copy", "concatenate", "pad", "transpose", "gather"}
ARITHMETIC = {"add", "multiply", "maximum", "select", "subtract"}

# Elementwise passes whose results calls read, forward, after products, which XLA may join: what
# follows that of GraphSAGE unless the product comes first (root term, bias and ReLU), HGNN's bias,
# UniGCNII's mix with what went into the product, and its ReLU after the first map.
CASES = {
    "GCN": (flax_layers.GCN, (WIDTH, WIDTH, WIDTH), graph, 0),
    "GIN": (flax_layers.GIN, (WIDTH, WIDTH, WIDTH), graph, 0),
    "SAGE": (flax_layers.SAGE, (WIDTH, WIDTH, WIDTH), graph, 2),
    "SAGE, product first": (flax_layers.SAGE, (WIDTH, 16, 8), graph, 0),
    "HGNN": (flax_layers.HGNN, (WIDTH, WIDTH, WIDTH), hypergraph, 2),
    "UniGIN": (flax_layers.UniGIN, (WIDTH, WIDTH, WIDTH), hypergraph, 0),
    "UniGCNII": (flax_layers.UniGCNII, (WIDTH, WIDTH, WIDTH), hypergraph, 4),
}


@needs_kernels
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_copied_for_a_call(name, trains):
    model, sizes, make, passes = CASES[name]
    definition, parameters, state = nnx.split(model(*sizes, rngs=nnx.Rngs(0)), nnx.Param, ...)

    def forward(parameters, state, graph, x):
        return nnx.merge(definition, parameters, state)(graph, x, deterministic=True)

    def loss(*operands):
        return jnp.sum(forward(*operands) ** 2)

    function = jax.grad(loss) if trains else forward
    operands = parameters, state, make(), jnp.ones((NODES, WIDTH))
    read_kinds = between(program(jax.jit(function).lower(*operands).compile().as_text()))
    assert read_kinds
    # A pass that multiplies what it reads may read a slice: XLA joins products of one cotangent.
    kinds = [set(kind.split()) for kind in read_kinds]
    assert not [kind for kind in kinds if MOVES & kind and not ARITHMETIC & kind]
    if not trains and jax.default_backend() == "cpu":
        assert sum(bool(ARITHMETIC & kind) for kind in kinds) == passes


# --- How many launches a layer takes -------------------------------------------------------------

# Of one head, in a program for a CPU that calls CUDA kernels: launches at most, and calls of this
# library among them. A GPU's programs have up to two fifths less, as its products read and write
# in any layout, and have more of what comes before and after them as parts. Inference also with
# the products of weights made before. A launch is what is neither a shape, a constant nor a tuple.
LAUNCHES = {
    ("RGATConv", "inference"): (3, 2),
    ("RGATConv", "weights folded"): (2, 2),
    ("RGATConv", "training"): (17, 9),
    ("HGTConv", "inference"): (13, 3),
    ("HGTConv", "weights folded"): (7, 3),
    ("HGTConv", "training"): (43, 13),
}
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


FEW = {"RGATConv": 10_000}
"""Edges, few enough to a pair for scores of rows, as AIFB's are; else as many as above."""


def typed_graph(count):
    """Return a random graph with a tenth of AIFB's relations."""
    rng = np.random.default_rng(0)
    src, dst = rng.geometric(0.01, count) % NODES, rng.integers(NODES, size=count)
    sizes = {"num_nodes": NODES, "num_relations": 9}
    return RelationalGraph.from_triples(src, rng.integers(9, size=count), dst, **sizes)


@pytest.mark.skipif("cuda" not in KERNELS, reason="launches are those of a GPU's kernels")
@pytest.mark.parametrize(("name", "mode"), LAUNCHES)
def test_launches_of_attention_over_relations(name, mode):
    layer = getattr(flax_layers, name)
    module = layer(WIDTH, WIDTH, num_relations=9, use_bias=False, rngs=nnx.Rngs(0))
    definition, parameters, state = nnx.split(module, nnx.Param, ...)
    operands = [parameters, typed_graph(FEW.get(name, ENTRIES)), jnp.ones((NODES, WIDTH))]

    def forward(parameters, graph, x, *folded):
        options = {"folded": folded[0]} if folded else {}
        return nnx.merge(definition, parameters, state)(graph, x, **options)

    def training(parameters, graph, x, cotangent):
        y, vjp = jax.vjp(lambda *operands: forward(operands[0], graph, operands[1]), parameters, x)
        return y, vjp(cotangent)

    if mode == "weights folded":
        operands.append(module.folded())
    if mode == "training":
        operands.append(jnp.ones((NODES, WIDTH)))
    with jax_gnn.implementation("cuda"):
        compiled = jax.jit(training if mode == "training" else forward).lower(*operands).compile()
    entry = compiled.as_text().split("\nENTRY ")[1]
    kinds = re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(", entry, re.MULTILINE)
    counts = sum(kind not in FREE for kind in kinds), entry.count('custom_call_target="jax_gnn')
    most, calls = LAUNCHES[name, mode]
    assert counts[1] == calls
    assert counts[0] <= most
