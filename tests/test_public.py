"""The public surface: names, modules and signatures."""

from __future__ import annotations

import importlib
import inspect
import operator
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from argument_calls import CALLS
from flax import nnx
from op_spec import strict

import flax_layers
import jax_gnn
from jax_gnn._core.public import one_call

FUNCTIONS = sorted(
    name
    for name in jax_gnn.__all__
    if inspect.isfunction(getattr(jax_gnn, name)) and name not in ("program", "lift")
)
MOVED = {"jax_gnn.training"}  # says where it is now
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_plain(name: str) -> None:
    function = getattr(jax_gnn, name)
    kinds = {p.kind for p in inspect.signature(function).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert (function.__name__, function.__module__) == (name, "jax_gnn")


def test_options_are_in_signatures() -> None:
    for function in (jax_gnn.segment_var, jax_gnn.segment_std):
        assert inspect.signature(function).parameters["ddof"].default == 0
    assert "ddof" not in inspect.signature(jax_gnn.segment_sum).parameters


HOST_FUNCTIONS = {"implementation", "host_arrays", "batch", "batch_budget", "pack", "unbatch"}
HOST_FUNCTIONS |= {"load", "save", "shared_library"}


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - HOST_FUNCTIONS))
def test_profiles_show_the_name(name: str) -> None:
    """Operations of a compiled program say which public function they belong to.

    None of them promotes dtypes or ranks.
    """
    function, arguments, _ = CALLS[name]
    # Arrays of floats are traced; index arrays stay constants, as some ops read them.
    arrays = {
        argument: value
        for argument, value in arguments.items()
        if isinstance(value, np.ndarray) and value.dtype == np.float32
    }

    def call(arrays: dict[str, Any]) -> Any:
        return function(**{**arguments, **arrays})

    with strict():
        # Names are in the debug locations of the module, which profilers show.
        text = jax.jit(call).lower(arrays).as_text(debug_info=True)
    assert re.search(rf'"[^"]*\b{name}\b[^"]*/[^"]*"', text)


def modules(package) -> Iterator[str]:
    yield package.__name__
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield info.name


def is_public(module: str) -> bool:
    return not any(part.startswith("_") for part in module.split("."))


def test_public_modules_are_documented() -> None:
    """Modules without an underscore are in the documented list of public modules."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    listed = re.search(r"Public modules: (.*?)\.\n", text, re.S)
    assert listed
    names = set(re.findall(r"`([a-z_.]+)`", listed.group(1)))
    public = {name for name in modules(jax_gnn) if is_public(name)} - MOVED
    assert public <= names, "the rest wants an underscore, or a word in docs/architecture.md"


@pytest.mark.parametrize("name", jax_gnn.__all__)
def test_names_are_no_modules(name: str) -> None:
    """``import jax_gnn.spmm`` is no module, as ``jax_gnn.spmm`` is a function."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"jax_gnn.{name}")


def test_a_call_outside_of_transformations_is_one_program() -> None:
    """Eager calls on arrays are compiled; other arguments and tracers pass unchanged."""
    # The body runs once for each program: a second call with "a" must not trace again.
    seen: list[Any] = []

    @one_call("how")
    def scaled(x, scale=2.0, *, how=None) -> Any:
        seen.append((x, scale, how))
        return x * scale

    x, traced = jnp.arange(3.0), jax.core.Tracer
    for how in ("a", "a", "b", None):
        assert scaled(x, x, how=how).tolist() == [0, 1, 4]
    assert [how for *_, how in seen] == ["a", "b", None]
    assert all(isinstance(argument, traced) for *arrays, _ in seen for argument in arrays)
    seen.clear()
    # Numbers, arrays of numpy, and options that cannot be hashed are not compiled.
    plain: list[tuple[tuple[Any, ...], Any]] = [
        ((x, 2.0), "a"),
        ((np.ones(3),), "a"),
        ((x, x), ["a"]),
    ]
    for arguments, how in plain:
        scaled(*arguments, how=how)
        *operands, named = seen.pop()
        assert named is how
        assert all(map(operator.is_, operands, arguments))
    assert jax.grad(lambda x: scaled(x, x, how="a").sum())(x).tolist() == [0, 2, 4]


def test_sums_outside_of_transformations() -> None:
    """Eager calls give the values and the errors of compiled calls."""
    graph = jax_gnn.Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
    x, weight = jnp.arange(6.0).reshape(3, 2), jnp.array([0.5, 1.0, 2.0])
    want = jax.jit(jax_gnn.spmm)(graph, x, weight)
    np.testing.assert_array_equal(jax_gnn.spmm(graph, x, weight), want)
    np.testing.assert_array_equal(jax_gnn.spmm(graph, np.asarray(x), weight), want)
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ((graph, x[:2]), {}, "x must"),
        ((graph, x, weight[:2]), {}, "weight must"),
        ((graph, x), {"reduce": "median"}, "reduce"),
        ((graph, x), {"reduce": ["sum"]}, "reduce"),
        ((graph, "x"), {}, "x must"),
        ((x, x), {}, "graph must"),
    ]
    # Errors are raised by the function itself, not by the compiled wrapper.
    for arguments, options, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            jax_gnn.spmm(*arguments, **options)


DEFAULTS: dict[str, dict[str, Any]] = {
    "AllDeepSetsConv": {"reduce": "sum"},
    "AllSetTransformerConv": {"heads": 1, "negative_slope": 0.2},
    "CompGCNConv": {"composition": "mult", "normalization": "symmetric", "use_bias": True},
    **{name: {"num_layers": 3} for name in ("GCN", "GIN", "SAGE")},
    "ConvE": {"height": 10, "filters": 200, "kernel_size": 7, "dropout_rate": 0.3},
    "GATConv": {"add_self_loops": True},
    "GATv2Conv": {"add_self_loops": True, "share_weights": False},
    "GCNConv": {"add_self_loops": True, "normalization": "symmetric"},
    "GINConv": {"eps": 0.0, "learn_eps": False},
    "HGNNConv": {"normalization": "symmetric"},
    "HGTConv": {"heads": 1, "use_bias": True},
    "HeteroConv": {"reduce": "sum"},
    "HypergraphAttentionConv": {"softmax_by": "node", "degrees": "ones"},
    "RGATConv": {"attention": "additive", "softmax": "across", "negative_slope": 0.2},
    "RGCNConv": {"normalization": "mean", "self_weight": True, "use_bias": True},
    "SAGEConv": {"reduce": "mean", "self_weight": True, "l2_normalize": False},
    "TransformerConv": {"heads": 1, "concat": True, "gated": False, "self_weight": True},
    "UniGATConv": {"residual": False, "l2_normalize": False},
    "UniGCNIIConv": {"alpha": 0.1, "lamda": 0.5},
    "UniGINConv": {"hyperedge_reduce": "mean", "eps": 0.0, "learn_eps": False},
    "UniSAGEConv": {"hyperedge_reduce": "mean", "node_reduce": "sum", "l2_normalize": False},
}
"""Defaults of arguments that select a layer's published formula."""


def test_defaults_are_the_published_ones() -> None:
    for name, defaults in DEFAULTS.items():
        parameters = inspect.signature(getattr(flax_layers, name).__init__).parameters
        assert {option: parameters[option].default for option in defaults} == defaults, name


def test_signatures_of_layers() -> None:
    """Signatures of models, of classes that users derive, and of calls."""

    class Derived(flax_layers.GCNConv):
        def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
            super().__init__(width, width, rngs=rngs)

    assert [*inspect.signature(flax_layers.GCN).parameters][:3] == [
        "in_features",
        "hidden_features",
        "out_features",
    ]
    assert [*inspect.signature(Derived).parameters] == ["width", "rngs"]
    assert [*inspect.signature(Derived(3, rngs=nnx.Rngs(0))).parameters][:2] == ["graph", "x"]
