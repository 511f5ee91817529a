"""Saved, loaded and exported models: the same bits, and errors that name the mistake."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import emulation
import jax
import jax.export
import jax.numpy as jnp
import layer_cases
import numpy as np
import pytest
import test_training
import test_training_graphs
import test_training_links
from flax import nnx

import flax_layers
import jax_gnn
from flax_layers._base import inverse_root
from flax_layers.training import (
    LINK_RECIPES,
    RECIPES,
    Predictor,
    Preprocessing,
    TrainedLinks,
    TrainedModel,
)
from flax_layers.training.checkpoint import _make, _module_description, _variables
from flax_layers.training.data import fingerprint, settled
from flax_layers.training.link_models import make_link_model
from flax_layers.training.link_tasks import link_task
from flax_layers.training.trained import make_model, raw_inputs
from jax_gnn import Graph, Hypergraph
from jax_gnn._core import ffi
from jax_gnn.datasets import ATOM_FEATURES, GraphsDataset, RelationalDataset

pytestmark = pytest.mark.usefixtures("strict_promotion")
ROOT = Path(__file__).parents[1]
needs_own_names = pytest.mark.skipif(emulation.WANTED, reason="emulated kernels have other names")
CONFIG = {"splits": 1, "hidden_features": 8, "feature_normalization": "row"}


def predictor_of(name):
    """Return the predictor of a recipe, and its inputs."""
    if name in LINK_RECIPES:
        return link_predictor_of(name)
    recipe, options = RECIPES[name], CONFIG
    if recipe.dataset is GraphsDataset:
        dataset = test_training_graphs.rings_and_trees(np.random.default_rng(0), 8)
        if name == "schnet":
            x = np.random.default_rng(0).uniform(1, 3, (dataset.num_nodes, 4))
            x[:, 0] = 6
            dataset = dataclasses.replace(dataset, x=x, feature_names=ATOM_FEATURES)
            options = CONFIG | {"feature_normalization": "none"}
    else:
        dataset = test_training.dataset_for(recipe.config)
    config = settled(dataset, recipe.config(**options))
    graph, x, *edges = raw_inputs(dataset, config)
    model = make_model(config, graph, x, dataset.num_classes, seed=0)
    named = dict(zip(("edge_features",), edges, strict=False))
    return TrainedModel(model, config), {"graph": graph, "x": x, **named}


def link_predictor_of(name):
    recipe, ids = LINK_RECIPES[name], jnp.array([0, 1])
    facts = recipe.dataset is RelationalDataset
    sizes = {"embedding_features": 8, "hidden_features": 8}
    config = recipe.config(**sizes | ({"num_blocks": 2} if name == "rgcn-link" else {}))
    dataset = test_training_links.make_dataset() if facts else test_training_links.make_graph()
    task = link_task(dataset, config)
    model = make_link_model(config, **task.sizes)
    if facts:
        inputs = {"graph": task.graph, "x": (ids, ids)}
    else:
        inputs = {"graph": task.split.train_graph, "x": jnp.asarray(dataset.x)}
    return TrainedLinks(model, config, fingerprint(dataset), task.sizes["num_relations"]), inputs


def ring(size):
    nodes = np.arange(size)
    return Graph.from_edges(nodes, (nodes + 1) % size, num_nodes=size + 1)


# --- Export --------------------------------------------------------------------------------------

RUN_ALL = """
import os, sys
import numpy
code, *folders = sys.argv[1:]
for folder in folders:
    os.chdir(folder)
    names = {}
    exec(code, names)
    numpy.save("results.npy", names["y"])
assert not {"jax_gnn", "flax_layers", "flax"} & sys.modules.keys()
"""


@needs_own_names
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the page registers handlers of a CPU")
def test_exports_run_without_this_package(tmp_path):
    # The lines of the page run the programs of all recipes, with JAX alone.
    page = (ROOT / "docs" / "export.md").read_text()
    (code,) = re.findall(r"^```python\n(import ctypes\n.*?)^```", page, re.M | re.S)
    expected = {}
    for name in [*RECIPES, *LINK_RECIPES]:
        predictor, inputs = predictor_of(name)
        expected[tmp_path / name] = predictor(**inputs)
        (tmp_path / name).mkdir()
        predictor.export(tmp_path / name / "gcn.npz", **inputs)
        np.savez(tmp_path / name / "arrays.npz", **predictor.arrays(**inputs))
        os.symlink(jax_gnn.shared_library(), tmp_path / name / "kernels.so")
    command = [sys.executable, "-P", "-c", RUN_ALL, code, *map(str, expected)]
    flag = str(int(jax.config.values["jax_disable_most_optimizations"]))
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": flag}
    subprocess.run(command, check=True, env=environment)
    for folder, logits in expected.items():
        results = np.load(folder / "results.npy")
        assert np.isfinite(results).all()
        np.testing.assert_array_equal(results, logits, folder.name)


@needs_own_names
def test_program_for_any_size(tmp_path):
    path = tmp_path / "program"
    hypergraph = Hypergraph.from_incidence(*np.indices((6, 4)).reshape(2, -1))
    larger_hypergraph = Hypergraph.from_incidence(*np.indices((9, 4)).reshape(2, -1))
    empty = Hypergraph.from_incidence([], [], num_nodes=5, num_hyperedges=0)
    half = {"dtype": jnp.float32, "param_dtype": jnp.bfloat16}
    cases = [
        (flax_layers.GCN, {}, ring(4), ring(30)),
        (flax_layers.GCN, {}, ring(4), Graph.from_edges([], [], num_nodes=5)),
        (flax_layers.GCN, half, ring(4), ring(30)),
        (flax_layers.GAT, {}, ring(4), Graph.from_edges([], [], num_nodes=0)),
        (flax_layers.HypergraphAttention, {}, hypergraph, empty),
        (flax_layers.AllSetTransformer, {}, hypergraph, empty),
        (flax_layers.HGNN, {}, hypergraph, larger_hypergraph),
    ]
    for kind, options, graph, larger in cases:
        model = kind(3, 4, 2, **options, rngs=nnx.Rngs(0))
        predictor = Predictor(model, preprocessing=Preprocessing.of(rows="row"))
        predictor.export(path, graph, jnp.ones((graph.num_nodes, 3)), any_size=True)
        parameters = dict(np.load(path))
        program = jax.export.deserialize(bytearray(parameters.pop("program")))
        for structure in (graph, larger):
            x = jnp.arange(3.0 * structure.num_nodes).reshape(-1, 3)
            y = program.call(parameters, predictor.arrays(structure, x))
            np.testing.assert_allclose(y, predictor(structure, x), rtol=1e-5, atol=1e-6)
    # Arrays of edges have symbolic rows, too; equal sizes would have one symbol.
    attr = {"edge_features": jnp.ones((ring(4).num_edges, 2))}
    predictor = Predictor(flax_layers.GATv2(3, 4, 2, edge_in_features=2, rngs=nnx.Rngs(0)))
    predictor.export(path, ring(4), jnp.ones((5, 3)), any_size=True, **attr)
    with pytest.raises(ValueError, match=r"sizes differ .* got {'nodes': 3, 'edges': 3}"):
        predictor.export(path, Graph.from_edges([0, 1, 2], [1, 2, 0]), any_size=True)
    with pytest.raises(TypeError, match=r"must be of a jax_gnn\.Graph or .*, got dict"):
        predictor.export(path, {}, any_size=True)


def test_missing_numbers_are_seen():
    # A missing number makes its row, and all that depends on it, NaN: never zeros.
    preprocessing = Preprocessing.of(rows="row")
    x = np.array([[1, -3], [np.nan, 2], [0, 0]], np.float32)
    np.testing.assert_array_equal(preprocessing(x), [[0.25, -0.75], [np.nan] * 2, [0, 0]])
    np.testing.assert_array_equal(inverse_root(np.array([4, -1, 0, np.nan])), [0.5, 0, 0, np.nan])


@pytest.mark.parametrize("name", ["_cpu", "_cuda", "_cuda_emulated"])
def test_handlers_are_symbols(name):
    # Compiled modules export the handlers of all targets, and their stages.
    module = pytest.importorskip(f"jax_gnn.{name}")
    library = ctypes.CDLL(module.__file__)
    targets = module.targets()
    assert len(targets) > 10
    for target, handler in targets.items():
        stages = [f"_{stage}" for stage in handler] if isinstance(handler, dict) else [""]
        for stage in stages:
            assert getattr(library, f"jax_gnn_{target}{stage}"), (target, stage)


def test_shared_library(monkeypatch):
    assert jax_gnn.shared_library() == importlib.import_module("jax_gnn._cpu").__file__
    with pytest.raises(ValueError, match=r"platform must be one of \('cuda', 'cpu'\), got 'tpu'"):
        jax_gnn.shared_library("tpu")
    missing = ffi.PlatformStatus("cuda", False, (), reason="no compiler")
    monkeypatch.setitem(ffi.STATUS, "cuda", missing)
    with pytest.raises(ValueError, match="'cuda' has no kernels here: no compiler"):
        jax_gnn.shared_library("cuda")


# --- Save and load -------------------------------------------------------------------------------


class Net(nnx.Module):
    """A model of a user: a list of layers, statistics, dropout, and an input of edges."""

    def __init__(self, width, *, rngs):
        self.layers = nnx.List(
            [flax_layers.GCNConv(3, width, rngs=rngs), flax_layers.GCNConv(width, 2, rngs=rngs)]
        )
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, graph, x, edge_weight=None):
        first, second = self.layers
        return second(graph, self.dropout(self.norm(first(graph, x, edge_weight))), edge_weight)


class Wider(Net):
    """A model of another class with the same variables."""


MEAN, STD = np.array([1.0, 2.0, 0.5], "f"), np.array([0.1, 3.0, 1.0], "f")


def make_net():
    model = Net(4, rngs=nnx.Rngs(0))
    model(ring(3), jnp.arange(12.0).reshape(4, 3))  # which updates the statistics
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "net"
    jax_gnn.save(path, make_net(), arguments={"width": 4}, mean=MEAN, std=STD, rows="row")
    return path


def test_model_of_ones_own(saved, rng):
    graph, model = ring(6), make_net()
    x, weight = (jnp.asarray(rng.uniform(1, 2, shape), jnp.float32) for shape in ((7, 3), 6))
    predictor = Predictor(model, preprocessing=Preprocessing.of(MEAN, STD, "row"))
    y = predictor(graph, x, edge_weight=weight)
    assert not model.dropout.deterministic
    scaled = (x - MEAN[None]) / STD[None]
    model.eval()
    expected = model(graph, scaled / jnp.abs(scaled).sum(1, keepdims=True), weight)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    for factory in (Net, lambda width, rngs: Net(width, rngs=rngs), Net(4, rngs=nnx.Rngs(1))):
        loaded = jax_gnn.load(saved, factory)
        np.testing.assert_array_equal(loaded(graph, x, edge_weight=weight), y)
    assert predictor(graph, x).tolist() != y.tolist()


def test_saved_again(saved, tmp_path):
    # A loaded model has all that it needs to be saved.
    loaded = jax_gnn.load(saved, Net)
    jax_gnn.save(tmp_path / "again", loaded, arguments={"width": 4})
    again, x = jax_gnn.load(tmp_path / "again", Net), jnp.ones((4, 3))
    np.testing.assert_array_equal(again(ring(3), x), loaded(ring(3), x))
    np.testing.assert_array_equal(again.preprocessing.std, STD)


def test_models_of_this_package(tmp_path):
    # Models are made again from their own arguments.
    # Types are not in the order of their names, and one is named like a key of descriptions.
    rngs = nnx.Rngs(0)
    typed = {"node_types": ("class", "b"), "relation_ends": (("class", "b"), ("b", "class"))}
    inner = flax_layers.HGT(8, 8, 2, heads=2, num_relations=2, **typed, rngs=rngs)
    models = [
        flax_layers.GCN(3, 4, 2, num_layers=3, precision="high", rngs=rngs),
        flax_layers.RGCN(5, 4, 2, num_relations=3, num_bases=2, rngs=rngs),
        flax_layers.CompGCN(3, 4, 2, num_relations=2, composition="sub", rngs=rngs),
        flax_layers.GINClassifier(3, 4, 2, num_layers=2, learn_eps=True, rngs=rngs),
        flax_layers.GraphClassifier(
            3, 4, 2, layers="GAT", heads=2, param_dtype=jnp.bfloat16, rngs=rngs
        ),
        flax_layers.SchNet(4, 6, 1, num_layers=1, num_filters=5, cutoff=3.0, rngs=rngs),
        flax_layers.GAE(flax_layers.GCN(3, 4, 2, use_bias=False, rngs=rngs)),
        flax_layers.VGAE(flax_layers.GCN(3, 4, 2, rngs=rngs), rngs=rngs),
        layer_cases.link_predictor(jnp.float32),
        flax_layers.HeteroConv({("class", "r", "a"): flax_layers.SAGEConv((3, 2), 4, rngs=rngs)}),
        flax_layers.HeteroModel({"b": 3, "class": 2}, inner, param_dtype=jnp.bfloat16, rngs=rngs),
    ]
    for number, model in enumerate(models):
        jax_gnn.save(tmp_path / f"{number}", model)
        loaded = jax_gnn.load(tmp_path / f"{number}").model
        states = [nnx.split(module, nnx.RngState, ...)[2] for module in (model, loaded)]
        assert type(loaded) is type(model)
        jax.tree.map(np.testing.assert_array_equal, *states)
    assert list(loaded.in_features.items()) == [("b", 3), ("class", 2)]


def test_modules_by_their_arguments():
    # All modules, but for those whose argument is a module of another package or a function.
    for name, case in layer_cases.LAYERS.items():
        if name in ("AttentionReadout", "ProgramModel"):
            continue
        model = case.make(jnp.float32 if name == "Set2Set" else jnp.bfloat16)
        for _, module in nnx.iter_modules(model):
            if getattr(flax_layers, type(module).__name__, None) is not type(module):
                continue
            described = json.loads(json.dumps(_module_description(module)))
            again = _make(described["class"], described["arguments"])
            assert type(again) is type(module)
            assert _variables(again) == _variables(module), (name, described)
            assert json.loads(json.dumps(_module_description(again))) == described


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, r"net holds a Net, a class that .* load it with jax_gnn\.load\(path, model\)"),
        (Wider, "net holds a Net, got a Wider$"),
        (
            lambda width, rngs: Net(width + 1, rngs=rngs),
            r"layers\.0\.bias is float32\[4\] in the checkpoint, float32\[5\] in the model",
        ),
        (
            lambda width, rngs: flax_layers.GCNConv(3, width, rngs=rngs),
            r"got a GCNConv: layers.0.bias is float32\[4\] in the checkpoint, nothing in the model",
        ),
        (lambda rngs: Net(3, rngs=rngs), r"the arguments \{'width': 4\}, of which .* TypeError"),
        (3, "needs a model that is or makes a flax.nnx.Module, got int"),
        (dict, "needs a model that is or makes a flax.nnx.Module, got dict"),
    ],
)
def test_another_model(saved, model, message):
    with pytest.raises(ValueError, match=message) as raised:
        jax_gnn.load(saved, model)
    assert "\n" not in str(raised.value)


def test_a_recipe_needs_no_model(tmp_path):
    for name in ("gcn", "gcn-link", "compgcn-link"):
        trained, inputs = predictor_of(name)
        jax_gnn.save(tmp_path / name, trained)
        loaded = jax_gnn.load(tmp_path / name)
        assert type(loaded) is type(trained)
        np.testing.assert_array_equal(loaded(**inputs), trained(**inputs))
    with pytest.raises(ValueError, match="holds a gcn, which is made without model; got model=Net"):
        jax_gnn.load(tmp_path / "gcn", Net)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"mean": [[1.0]]}, ValueError, r"of shape \(features,\), got \{'mean': \(1, 1\)\}"),
        ({"mean": [1.0], "std": [1.0, 2.0]}, ValueError, r"'mean': \(1,\), 'std': \(2,\)"),
        ({"std": [1.0, 0.0]}, ValueError, r"std must be positive numbers, got \[1\.0, 0\.0\]"),
        ({"mean": [np.nan]}, ValueError, "mean must be finite numbers"),
        ({"rows": "l2"}, ValueError, "rows must be 'none' or 'row', got 'l2'"),
        ({"arguments": {"size": {1, 2}}}, TypeError, "arguments must be what JSON has, got .*1"),
        ({"arguments": {"size": (1, 2)}}, TypeError, "lists and text as keys are what JSON has"),
        ({"model": 3}, TypeError, r"must be a flax.nnx.Module, .*, got int"),
        ({"model": Predictor(make_net()), "rows": "row"}, ValueError, "rows must not be given"),
    ],
)
def test_what_cannot_be_saved(tmp_path, options, kind, message):
    with pytest.raises(kind, match=message):
        jax_gnn.save(tmp_path / "model", **{"model": Net(4, rngs=nnx.Rngs(0)), **options})
    assert not (tmp_path / "model").exists()


# Where one array cannot be written, Orbax may drop the others' writes half-way, as it does reads.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_full_disk_leaves_the_model_before(tmp_path, capfd, small_files):
    # One line, where Orbax logs tracebacks and its storage raises a long text.
    folder = tmp_path / "model"
    # The second model is larger than the limit of files.
    for width in (4, 300):
        model = flax_layers.GCN(3, width, 2, rngs=nnx.Rngs(0))
        if width == 4:
            jax_gnn.save(folder, model)
            continue
        with small_files(100_000), pytest.raises(OSError) as raised:
            jax_gnn.save(folder, model)
        assert str(raised.value) == f"[Errno 27] File too large: '{folder}'"
    assert "Traceback" not in capfd.readouterr().err
    assert [*tmp_path.iterdir()] == [folder]
    assert jax_gnn.load(folder).model.hidden_features == 4
    jax_gnn.save(folder, model)
    assert jax_gnn.load(folder).model.hidden_features == 300
    (tmp_path / "file").write_text("of another kind")
    with pytest.raises(NotADirectoryError):
        jax_gnn.save(tmp_path / "file", model)
    assert {file.name for file in tmp_path.iterdir()} == {"model", "file"}


def test_features_of_another_width():
    for name in ("mean", "std"):
        preprocessing = Preprocessing.of(**{name: np.ones(5)})
        message = rf"x must have 5 features, as {name} has, got shape \(120, 3\)"
        with pytest.raises(ValueError, match=message):
            preprocessing(np.ones((120, 3)))


def test_file_that_names_another_class(saved, tmp_path):
    # No name in a file is looked up but in the list of this package's models.
    from flax_layers.training import checkpoint

    for name in ("os", "link_metrics", "LinearOptions", "__doc__"):
        with pytest.raises(ValueError, match=f"{name}', which is no model of flax_layers"):
            checkpoint._model_factory({"class": name, "arguments": {}}, None)()
    description = json.loads((saved / "config" / "metadata").read_text())
    assert description["class"] == "own" and description["arguments"] == {"width": 4}
