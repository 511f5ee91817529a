"""Objects of all public classes go to another process and back, by pickle and cloudpickle."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import os
import pickle
import pkgutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import GRAPH, HETERO, HYPERGRAPH, LAYERS, RELATIONAL
from test_predictor import predictor_of

import flax_layers
import jax_gnn
from flax_layers.training import LINK_RECIPES, RECIPES
from jax_gnn import convert, datasets, sampling, sharding

ROWS = np.ones((6, 4), np.float32)
WORKER = """
import pickle, sys
import cloudpickle
data = pickle.load(sys.stdin.buffer)
values = {name: (pickle.loads(a), cloudpickle.loads(b)) for name, (a, b) in data.items()}
data = {name: (pickle.dumps(a), cloudpickle.dumps(b)) for name, (a, b) in values.items()}
sys.stdout.buffer.write(pickle.dumps(data))
"""
WITHOUT_OBJECTS = {"Lifted", "Program"}  # see test_lift.py, test_program.py


def modules() -> Iterator[Any]:
    """Yield all public modules."""
    for package in (jax_gnn, flax_layers):
        yield package
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "._" not in info.name and info.name != "jax_gnn.training":  # moved, an error
                yield importlib.import_module(info.name)


def exported(is_kind: Callable[[Any], bool]) -> dict[str, Any]:
    """Return public objects of a kind, by their full name."""
    names = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules()
        for name in getattr(module, "__all__", ())
    }
    return {name: value for name, value in names.items() if is_kind(value)}


# Typed dicts are plain dicts once they are made.
CLASSES = {kind for kind in exported(inspect.isclass).values() if not typing.is_typeddict(kind)}


def containers() -> Iterator[Any]:
    yield from (GRAPH, HETERO, HYPERGRAPH, RELATIONAL, jax_gnn.batch([GRAPH, GRAPH]))
    yield jax_gnn.SegmentIndex.from_ids(np.array([0, 1, 1]), 2)
    yield jax_gnn.TypePlan.from_types(np.array([0, 1, 1]), 2)
    yield convert.Data(GRAPH, {None: {"x": ROWS}})


def samples() -> Iterator[Any]:
    with jax_gnn.host_arrays():
        graph = jax_gnn.Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
    batch = sampling.neighbor_batches(graph, [0, 1], 2, (2,), x=np.ones((3, 2)))[0]
    yield from (batch, batch.blocks, sampling.FeatureCache(ROWS, [1]))
    yield sampling.EdgeTime.from_times(GRAPH, np.arange(GRAPH.num_edges))
    yield sampling.EdgeProbability.from_weights(GRAPH, np.ones(GRAPH.num_edges))
    yield sampling.node_chunks(GRAPH, 4)
    yield sampling.induced_subgraph(GRAPH, jnp.array([0, 1]))


def parts() -> Iterator[Any]:
    mesh = jax.make_mesh((min(2, jax.device_count()),), ("nodes",))
    for graph in (GRAPH, RELATIONAL, HYPERGRAPH):
        sharded = sharding.shard_graph(graph, mesh, "nodes")
        yield from (sharded, sharded.part)
        if graph is not HYPERGRAPH:
            batch = sharded.neighbor_batches([0], 1, (2,))[0]
            yield from (batch, sharded.cached(sharded.shard(ROWS), batch, 1))
    yield sharding.HostRows.put(ROWS)


def recipes_and_predictors() -> Iterator[Any]:
    yield from RECIPES.values()
    yield from LINK_RECIPES.values()
    for name in ("gcn", "gcn-graph", "gcn-link"):
        predictor, inputs = predictor_of(name)
        predictor(**inputs)
        yield from (predictor, predictor.preprocessing)


def modules_within(layer) -> Iterator[Any]:
    yield from (module for _, module in nnx.iter_modules(layer) if type(module) in CLASSES)


def filled_object(kind) -> Any:
    """Return an object of a named tuple or data class, with arbitrary values, or None."""
    if issubclass(kind, tuple):
        return kind(*(np.arange(2) for _ in kind._fields))
    if not dataclasses.is_dataclass(kind):
        return None
    # The fields may be checked by __init__, which is left out.
    value = object.__new__(kind)
    for field in dataclasses.fields(kind):
        missing = field.default is dataclasses.MISSING
        object.__setattr__(value, field.name, np.arange(2) if missing else field.default)
    return value


@functools.cache
def objects() -> dict[str, Any]:
    """Return one or more objects of each public class, by name."""
    values = [*containers(), *samples(), *parts(), *recipes_and_predictors()]
    for case in LAYERS.values():
        values += modules_within(case.make(jnp.float32))
    values.append(datasets.PickleFormatError("damaged"))
    # Plain records that none of the cases uses are filled with any values.
    kinds = {type(value) for value in values}
    values += [filled_object(kind) for kind in CLASSES - kinds]
    return {
        f"{type(value).__name__}-{i}": value for i, value in enumerate(values) if value is not None
    }


def contents(value) -> Any:
    """Return the contents of an object, for comparison by ``==``."""
    # Arrays are compared by bytes, so that NaN equals NaN.
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, nnx.Module):
        value = nnx.to_pure_dict(nnx.state(value))
    if isinstance(value, Mapping):
        return [(name, contents(item)) for name, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [contents(item) for item in value]
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__qualname__
    if hasattr(value, "__dict__"):
        return type(value).__qualname__, contents(vars(value))
    return repr(value)


def check_same(name: str, value) -> None:
    expected = objects()[name]
    assert type(value) is type(expected), name
    assert contents(value) == contents(expected), name


@functools.cache
def pickled() -> dict[str, tuple[bytes, bytes]]:
    return {name: (pickle.dumps(v), cloudpickle.dumps(v)) for name, v in objects().items()}


def test_objects_are_of_all_public_classes() -> None:
    kinds = {type(value) for value in objects().values()}
    assert {kind.__name__ for kind in CLASSES - kinds} == WITHOUT_OBJECTS


def test_objects_are_copied() -> None:
    for name, value in objects().items():
        check_same(name, copy.deepcopy(value))
        check_same(name, copy.copy(value))
        for data in pickled()[name]:
            check_same(name, pickle.loads(data))


def test_objects_of_another_process() -> None:
    # A layer's function is pickled by its name, in `layer_cases`.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": "2",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    worker = subprocess.run(
        [sys.executable, "-P", "-c", WORKER],
        input=pickle.dumps(pickled()),
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )
    returned = pickle.loads(worker.stdout)
    assert returned.keys() == objects().keys()
    for name, pickles in returned.items():
        for data in pickles:
            check_same(name, pickle.loads(data))


@pytest.mark.parametrize("module", [jax_gnn, jax_gnn.extend, sampling, sharding, flax_layers])
def test_functions_are_pickled_by_name(module) -> None:
    for name in module.__all__:
        function = getattr(module, name)
        if inspect.isfunction(function):
            assert pickle.loads(pickle.dumps(function)) is function
            assert cloudpickle.loads(cloudpickle.dumps(function)) is function


def test_sharded_graph_where_its_devices_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    if jax.device_count() == 1:
        pytest.skip("needs two devices")
    mesh = jax.make_mesh((2,), ("nodes",), devices=jax.devices()[-2:])
    sharded = sharding.shard_graph(GRAPH, mesh, "nodes")
    data = pickle.dumps(sharded)
    assert pickle.loads(data).node_ids.sharding == sharded.node_ids.sharding
    # The unpickling process has one device alone.
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: first)
    with pytest.raises(ValueError, match=r"^ShardedGraph must be unpickled where JAX has its dev"):
        pickle.loads(data)
