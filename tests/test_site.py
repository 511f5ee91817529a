"""The build of the site: what becomes a link, a formula and a mark of a block."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("site_conf", ROOT / "docs" / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("spmm", "jax_gnn.spmm"),
        ("GCNConv", "flax_layers.GCNConv"),
        ("spmm(graph, x)", "jax_gnn.spmm"),
        ("@program", "jax_gnn.program"),
        ("Graph.from_edges", "jax_gnn.Graph.from_edges"),
        ("graph.edge_values(weight)", "jax_gnn.Graph.edge_values"),
        ("data.report", "jax_gnn.convert.Data"),  # a field: the text of the class
        ("jax_gnn.load", "jax_gnn.load"),
        ("jax_gnn.sampling", "jax_gnn.sampling"),
        ("load", None),
        ("batch", None),  # an argument, too
        ("train", None),
        ("train()", None),  # of any model
        ("negative_edges", None),  # of two modules
        ("jax.jit", None),
        ("graph.no_such", None),
        ("x + spmm", None),
    ],
)
def test_names_lead_to_entries(conf: ModuleType, text: str, entry: str | None) -> None:
    assert conf.entry_of(text) == entry


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("D^-1/2 (A + I) X Theta", r"D^{-1/2} (A + I) X \Theta"),
        ("Σ softmax(s)[e] x_j", r"\sum  \text{softmax}(s)_{e} x_{j}"),
        ("Dv_out H (W De) Hᵀ", r"D_{v,\text{out}} H (W D_{e}) H^{\top}"),
        ("W_dir(r) · dst_score[i]", r"W_{\text{dir}}(r) \cdot  \text{dst\_score}_{i}"),
    ],
)
def test_formulas_become_tex(conf: ModuleType, formula: str, expected: str) -> None:
    assert conf.latex(formula) == expected
    assert "<math" in conf.tex2mathml(conf.latex(formula))


def test_blocks_say_what_they_need(conf: ModuleType) -> None:
    loaded, assigned = conf.names_of("import numpy as np\ny = np.sin(x)\ndef f(): return graph")
    assert {"x", "graph"} <= loaded
    assert assigned == {"np", "y", "f"}


def test_each_topic_has_names(conf: ModuleType) -> None:
    """A pattern that matches nothing names something that is gone."""
    for module, headings in conf.TOPICS.items():
        assert conf.topics(module, conf.importlib.import_module(module).__all__).keys() >= {
            *headings
        }
