"""Neighbourhoods sampled on the parts of a graph: those of one device, by questions to owners."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from op_spec import assert_close
from sampling_checks import check_distribution
from test_sharded_graph import (
    TYPES,
    mesh_of,
    random_graph,
    random_hypergraph,
    random_relational,
    sharded,
)

from flax_layers import RGCN, SAGE
from jax_gnn import Graph, RelationalGraph
from jax_gnn.relational import edges_of
from jax_gnn.sampling import SeedBatch
from jax_gnn.sharding import ShardedGraph, _owners, load_parts, save_parts, shard_graph
from jax_gnn.sharding._owners import Owners

pytest.importorskip("grain")
METHODS = ("hash", "contiguous", "random", "one part")


@pytest.fixture(autouse=True)
def room(rng, monkeypatch) -> None:
    """Let half of the tests ask owners in rounds, as is done for more places."""
    if rng.integers(2):
        monkeypatch.setattr(_owners, "MAX_SLOTS", 0)


def split_graph(rng: np.random.Generator, num_parts: int, method: str, relational: bool):
    graph = random_relational(rng, bool(rng.integers(2))) if relational else random_graph(rng)
    return graph, sharded(rng, graph, mesh_of(num_parts), method)


def draw(split: ShardedGraph, batch, **rows) -> SeedBatch:
    """Return the samples of all devices, with a leading axis of devices."""

    def sample(part, batch, rows):
        return batch.sample(part, **rows)

    return jax.jit(lambda *args: args[0].apply(sample, *args[1:]))(split, batch, rows)


@pytest.mark.parametrize("relational", [False, True], ids=["graph", "relational"])
@pytest.mark.parametrize("options", [{}, {"tree": True}, {"disjoint": True}], ids=str)
@pytest.mark.parametrize("num_parts", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_all_neighbours_are_the_whole_graph(method, num_parts, options, relational, rng):
    """Outputs and gradients of a step, to parameters and features, are those of the whole graph."""
    graph, split = split_graph(rng, num_parts, method, relational)
    rngs = nnx.Rngs(int(rng.integers(1000)))
    x = rng.normal(size=(60, 4)).astype(np.float32)
    if relational:
        count = graph.num_relations - graph.self_relation
        model = RGCN(4, 8, 3, num_relations=count, num_layers=2, rngs=rngs)
    else:
        model = SAGE(4, 8, 3, num_layers=2, rngs=rngs)
    definition, params, rest = nnx.split(model, nnx.Param, ...)
    y = rng.normal(size=(60, 3)).astype(np.float32)
    seeds = rng.permutation(60)[:37]
    weight = np.zeros((60, 1), np.float32)
    weight[seeds] = 1

    def single(params, x):
        return jnp.sum(
            nnx.merge(definition, params, rest)(graph, x, deterministic=True) * y * weight
        )

    def parallel(params, x, batch):
        def outputs(part, x, y, batch, params):
            sample = batch.sample(part, x=x, y=y)
            z = nnx.merge(definition, params, rest)(sample.blocks, sample.x, deterministic=True)
            return jnp.sum(z * sample.y, where=sample.seeds[:, None] >= 0)

        return split.apply(outputs, split.shard(x), split.shard(y), batch, params=params).sum()

    expected = jax.jit(jax.value_and_grad(single, (0, 1)))(params, x)
    step = jax.jit(jax.value_and_grad(parallel, (0, 1)))
    results = [
        step(params, x, batch) for batch in split.neighbor_batches(seeds, 9, (-1, -1), **options)
    ]
    sums = jax.tree.map(lambda *leaves: np.sum(leaves, 0), *results)
    for a, b in zip(jax.tree.leaves(sums), jax.tree.leaves(expected), strict=True):
        assert_close(a, b, 1e-4, "of all batches")


@pytest.mark.parametrize("relational", [False, True], ids=["graph", "relational"])
@pytest.mark.parametrize("num_parts", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_samples_are_of_the_graph(method, num_parts, relational, rng):
    """Edges, relations and rows are the whole graph's, as many into each node as are drawn."""
    graph, split = split_graph(rng, num_parts, method, relational)
    edges, x = edges_of(graph), rng.normal(size=(60, 2)).astype(np.float32)
    y, replaced = np.arange(60), bool(rng.integers(2))
    seeds, fanouts = rng.integers(0, 60, 40), (3, 2)
    epoch = split.neighbor_batches(seeds, 16, fanouts, seed=7, replace=replaced)
    drawn_seeds: list[int] = []
    for batch in epoch:
        results = draw(split, batch, x=split.shard(x), y=split.shard(y))
        for device in range(num_parts):
            blocks, _, rows, labels, _ = jax.tree.map(lambda leaf, i=device: leaf[i], results)
            ids = np.asarray(blocks.node_ids)
            assert_close(rows, np.where(ids[:, None] >= 0, x[ids], 0), 0, "rows of sources")
            valid = batch.seeds[device] >= 0
            np.testing.assert_array_equal(labels[valid], ids[:16][valid])
            drawn_seeds += ids[:16][valid].tolist()
            assert (
                not blocks.overflow and len({*ids[ids >= 0]} - {*ids[:16]}) == (ids[16:] >= 0).sum()
            )
            for block, fanout in zip(blocks.graphs, fanouts[::-1], strict=True):
                local = edges_of(block)
                count, places = int(local.indptr[-1]), np.asarray(local.edge_ids)
                assert (places[count:] == -1).all() and (places[:count] >= 0).all()
                src, dst = np.asarray(local.cols)[:count], np.asarray(local.rows)[:count]
                np.testing.assert_array_equal(ids[src], np.asarray(edges.cols)[places[:count]])
                np.testing.assert_array_equal(ids[dst], np.asarray(edges.rows)[places[:count]])
                nodes = ids[: local.num_dst]
                degrees = np.where(nodes < 0, 0, np.diff(edges.indptr)[nodes])
                # The edge of a node to itself comes in addition to those that are drawn.
                extra = (degrees > 0) & getattr(graph, "self_relation", False)
                degrees = degrees - extra
                most = np.where(degrees > 0, fanout, 0) if replaced else np.minimum(degrees, fanout)
                expected = most + extra
                np.testing.assert_array_equal(np.diff(local.indptr), expected)
                assert int(local.num_input_edges) == edges.num_edges
                if isinstance(block, RelationalGraph):
                    block.check_arrays()
                    types = np.asarray(graph.edge_types)[places[:count]]
                    np.testing.assert_array_equal(np.asarray(block.edge_types)[:count], types)
    np.testing.assert_array_equal(np.sort(drawn_seeds), np.sort(seeds))


@pytest.mark.parametrize("replaced", [False, True], ids=["distinct", "replace"])
@pytest.mark.parametrize("num_parts", [1, 3, 4])
def test_distribution(num_parts, replaced, rng):
    """All edges into a node are equally likely, in the layer of the seeds and in the next one."""
    src, dst = rng.integers(0, 12, (2, 70))
    dst[:20] = 5
    graph = Graph.from_edges(src, dst, num_nodes=13)
    split = shard_graph(graph, mesh_of(num_parts), "nodes", "hash")
    counts = np.zeros((2, graph.num_edges))
    epoch = split.neighbor_batches(np.arange(13), 13, (2, 3), replace=replaced, tree=True)
    run = jax.jit(lambda batch: split.apply(lambda part, batch: batch.sample(part).blocks, batch))
    for batch in epoch.repeat(150):
        for layer, ids in enumerate(reversed(run(batch).edge_ids)):
            counts[layer] += np.bincount(ids[ids >= 0], minlength=graph.num_edges)
    degrees = np.diff(graph.indptr)
    for layer, fanout in enumerate((2, 3)):
        for node in range(13):  # other numbers depend on how often a node was reached
            row = slice(int(graph.indptr[node]), int(graph.indptr[node + 1]))
            if replaced or degrees[node] <= fanout:
                check_distribution(counts[layer, row], np.ones(degrees[node]))
            else:  # draws of one node are dependent: their counts vary less
                total = counts[layer, row].sum()
                chance = fanout / degrees[node]
                error = (counts[layer, row] - total / degrees[node]) ** 2
                times = total / fanout
                assert (error < 25 * times * chance * (1 - chance) + 1).all()


@pytest.mark.parametrize("num_parts", [1, 3, 4])
@pytest.mark.parametrize("spread", ["random", "one owner", "padding"])
def test_every_question_is_answered(spread, num_parts, rng):
    """Rows come however many questions one owner gets; gradients of repeated rows are summed."""
    mesh, count = mesh_of(num_parts), 50
    x = rng.normal(size=(num_parts, 11, 2)).astype(np.float32)
    places = rng.integers(-1, 11 * num_parts, (num_parts, count)).astype(np.int32)
    if spread == "one owner":
        places = places % 11
    elif spread == "padding":
        places[1:] = -1
    target = rng.normal(size=(num_parts, count, 2)).astype(np.float32)
    spec, expected = P("nodes"), int(rng.integers(20))  # bounds a round, not what is answered

    def of_dtypes(x):  # numbers of one size share a message
        half = x.astype(jnp.bfloat16)
        return x, half, half.astype(jnp.float16), (10 * x[:, 0]).astype(int), x > 0, x * 1j

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def fetch(places, x):
        fetched = Owners("nodes", 11, expected).fetch(places[0], of_dtypes(x[0]))
        pairs = zip(fetched, of_dtypes(fetched[0]), strict=True)
        is_equal = [jnp.array_equal(*pair) for pair in pairs]
        return jnp.where(jnp.stack(is_equal).all(), fetched[0], jnp.nan)[None]

    rows, pullback = jax.vjp(lambda x: jax.jit(fetch)(places, x), x)
    whole = x.reshape(-1, 2)
    np.testing.assert_array_equal(rows, np.where(places[..., None] >= 0, whole[places], 0))
    (gradient,) = pullback(target)
    expected = np.zeros_like(whole)
    np.add.at(expected, places[places >= 0], target[places >= 0])
    assert_close(gradient.reshape(-1, 2), expected, 1e-5, "gradient")
    _, tangent = jax.jvp(lambda x: jax.jit(fetch)(places, x), (x,), (x,))
    np.testing.assert_array_equal(tangent, rows)


@pytest.mark.parametrize("relational", [False, True], ids=["graph", "relational"])
@pytest.mark.parametrize("num_parts", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_cached_rows_are_the_rows(method, num_parts, relational, rng):
    """Samples do not depend on copies of rows, of few nodes or of all; these name their nodes."""
    _, split = split_graph(rng, num_parts, method, relational)
    wide = rng.normal(size=(60, 2, 3)).astype(np.float32)
    x = {"wide": wide, "ids": np.arange(60), "half": rng.random(60) < 0.5}
    x = jax.tree.map(split.shard, x)
    options = [{}, {"tree": True}, {"disjoint": True, "replace": True}][rng.integers(3)]
    epoch = split.neighbor_batches(rng.integers(0, 60, 40), 8, (3, 2), **options)
    expected = [draw(split, batch, x=x) for batch in epoch]
    for num_rows in (1, int(rng.integers(2, 40)), 1000):
        cached = split.cached(epoch[0], x, num_rows)
        assert cached.places.shape == (
            num_parts,
            min(num_rows, max(num_parts - 1, 1) * x["ids"].shape[1]),
        )
        ids = np.asarray(cached.node_ids)
        for device in range(num_parts):
            copied = ids[device][ids[device] >= 0]
            assert len({*copied}) == len(copied) and not {*copied} & {
                *split.node_ids[device].tolist()
            }
        np.testing.assert_array_equal(cached.copies["ids"], np.maximum(ids, 0))
        for batch, sample in zip(epoch, expected, strict=True):
            jax.tree.map(np.testing.assert_array_equal, draw(split, batch, x=cached), sample)
    assert cached.expected == 0 and repr(cached).startswith("CachedRows(num_copies=")


def test_copies_are_of_the_rows_that_are_asked_for_most(rng):
    """Their numbers of requests, and those of all others, are as expected."""
    weights = rng.permutation(np.arange(1, 301) ** -0.8)
    src = rng.choice(300, 4000, p=weights / weights.sum())
    graph = Graph.from_edges(src, rng.integers(0, 300, 4000), num_nodes=300)
    split = shard_graph(graph, mesh_of(3), "nodes", "hash")
    epoch, count = split.neighbor_batches(np.arange(300), 5, (4, 3)), 50
    cached = split.cached(epoch[0], split.shard(np.zeros(300)), count)
    owner = np.zeros(300, int)
    for device, ids in enumerate(np.asarray(split.node_ids)):
        owner[ids[ids >= 0]] = device
    times, num_batches = np.zeros((3, 300)), 3 * len(epoch)
    run = jax.jit(lambda batch: split.apply(lambda part, batch: batch.sample(part).blocks, batch))
    for batch in epoch.repeat(3):
        for device, ids in enumerate(np.asarray(run(batch).node_ids)):
            times[device, ids[ids >= 0]] += 1
    most = least = 0
    for device, ids in enumerate(np.asarray(cached.node_ids)):
        remote = np.where(owner == device, 0, times[device])
        most, least = most + remote[ids].sum(), least + np.sort(remote)[-count:].sum()
        times[device] = np.where(np.isin(np.arange(300), ids), 0, remote)
    assert most > 0.9 * least
    pairs = [times[device, owner == other].sum() for device in range(3) for other in range(3)]
    assert abs(max(pairs) / num_batches - cached.expected) < 0.15 * cached.expected + 1


def test_cached_rows_have_no_gradient(rng):
    """Gradients to rows with copies are an error; those of a model on such rows are not."""
    graph = random_graph(rng)
    split = sharded(rng, graph, mesh_of(3), "hash")
    x, batch = split.shard(rng.normal(size=(60, 2))), split.neighbor_batches([1, 2], 2, (2, 2))[0]
    cached = split.cached(batch, x, 5)

    def loss(cached, scale):
        sums = split.apply(lambda part, x, b: b.sample(part, x=x).x.sum(), cached, batch)
        return sums.sum() * scale

    assert_close(jax.jit(jax.grad(loss, 1))(cached, 2.0), loss(cached, 1.0), 1e-6, "scale")
    with pytest.raises(ValueError, match="x must have no gradient if it is CachedRows"):
        jax.grad(lambda rows: loss(replace(cached, rows=rows), 1.0))(x)
    with pytest.raises(ValueError, match="x must have no gradient if it is CachedRows"):
        jax.jit(jax.grad(loss, allow_int=True))(cached, 1.0)


@pytest.mark.parametrize("relational", [False, True], ids=["graph", "relational"])
@pytest.mark.parametrize("num_parts", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_rows_of_the_host_are_the_rows(method, num_parts, relational, rng, tmp_path):
    """Arrays of numpy, HostRows and files give what arrays of the devices give, in any round."""
    graph = random_relational(rng, True) if relational else random_graph(rng)
    parts = np.zeros(60, int) if method == "one part" else rng.integers(0, 5, 60)
    nodes = {"x": rng.normal(size=(60, 3)), "y": np.arange(60)}
    nodes |= {"typed": {"a": rng.random((TYPES["a"], 2)), "b": None}} if relational else {}
    save_parts(tmp_path, graph, 5, parts, nodes=nodes)
    split, values = load_parts(tmp_path, mesh_of(num_parts), "nodes")
    again, files = load_parts(
        tmp_path, mesh_of(num_parts), "nodes", on_disk=[*nodes.keys() - {"y"}]
    )
    jax.tree.map(np.testing.assert_array_equal, (split, values["y"]), (again, files["y"]))
    assert files["x"].shape == (60, 3)
    x, y = values["x"], values["y"]
    host = np.asarray(split.unshard(x))
    epoch = split.neighbor_batches(rng.integers(0, 60, 40), 8, (5, 4))
    if rng.integers(2):  # several rounds
        epoch = epoch.map(lambda batch: replace(batch, expected=(0,) * 3))
    sources = [
        ((host, {"y": y}), y),
        ((x, {"y": np.arange(60)}), np.arange(60)),
        (({"x": split.host_rows(host, block_rows=7)}, y), None),
        (files["x"], {"y": files["y"], "host": np.arange(60)}),
    ]
    on_devices = [((x, {"y": y}), y)] * 2 + [(({"x": x}, y), None), (x, {"y": y, "host": y})]
    sources.append((files.get("typed"), None))
    on_devices.append((values.get("typed"), None))
    for (rows, labels), (device_rows, device_labels) in zip(sources, on_devices, strict=True):
        samples = split.fetch_ahead(epoch, x=rows, y=labels, ahead=int(rng.integers(1, 9)))
        for batch, sample in zip(epoch, samples, strict=True):
            expected = draw(split, batch, x=device_rows, y=device_labels)
            jax.tree.map(np.testing.assert_array_equal, sample, expected)


def test_epochs(rng):
    """Each epoch has each seed once in another order, evenly over batches, and is repeatable."""
    graph, split = random_graph(rng), None
    split = sharded(rng, graph, mesh_of(3), "random")
    epochs = split.neighbor_batches(np.arange(60), 4, (2,), seed=3).repeat(2)
    first, second = (
        [*epochs[half]] for half in (slice(0, len(epochs) // 2), slice(len(epochs) // 2, None))
    )
    orders = []
    for epoch in (first, second):
        seeds = np.stack([batch.seeds for batch in epoch], 1)
        counts = (seeds >= 0).sum(2)
        assert (counts.max(1) - counts.min(1) <= 1).all()
        ids = [split.node_ids[d][rows[rows >= 0]] for d, rows in enumerate(seeds)]
        np.testing.assert_array_equal(np.sort(np.concatenate(ids)), np.arange(60))
        orders.append(seeds)
    assert (orders[0] != orders[1]).any()
    again = split.neighbor_batches(np.arange(60), 4, (2,), seed=3).repeat(2)
    for number in (len(epochs) - 1, 0):
        np.testing.assert_array_equal(again[number].seeds, epochs[number].seeds)
        np.testing.assert_array_equal(again[number].keys, epochs[number].keys)
    keys = np.concatenate([batch.keys for batch in epochs])
    assert len(np.unique(keys, axis=0)) == len(keys)


def test_rows_in_half_types_on_the_wire(rng):
    """Rows of other devices are rounded, ids and rows of own nodes are not."""
    graph, x = random_graph(rng), rng.normal(size=(60, 3)).astype(np.float32)
    draws = []
    for wire_dtype in ("bfloat16", None):
        split = shard_graph(graph, mesh_of(3), "nodes", "hash", wire_dtype=wire_dtype)
        batch = split.neighbor_batches(np.arange(60), 20, (4, 3))[0]
        rows = split.shard(x)
        draws.append(draw(split, batch, x=rows))
        others = (
            draw(split, batch, x=split.cached(batch, rows, 20)),
            *split.fetch_ahead([batch], x=x),
        )
        for other in others:
            np.testing.assert_array_equal(other.x, draws[-1].x)
    sample, exact = draws
    ids, expected = np.asarray(sample.blocks.node_ids), np.asarray(exact.x)
    np.testing.assert_array_equal(ids, exact.blocks.node_ids)
    is_own = np.stack([np.isin(ids[i], split.node_ids[i]) for i in range(3)])[..., None]
    rounded = np.asarray(jnp.asarray(expected, jnp.bfloat16), np.float32)
    np.testing.assert_array_equal(sample.x, np.where(is_own, expected, rounded))
    assert (rounded != expected)[~is_own[..., 0]].any()


def test_overflow_is_reported(rng):
    """Blocks that are too small say so, as those of one device do."""
    graph = random_graph(rng)
    split = sharded(rng, graph, mesh_of(3), "hash")
    epoch = split.neighbor_batches(np.arange(60), 20, (-1, -1), capacity=(30, 30))
    blocks = draw(split, epoch[0]).blocks
    assert blocks.overflow.any() and blocks.node_ids.shape == (3, 30)


def test_errors(rng):
    graph = random_graph(rng)
    split = sharded(rng, graph, mesh_of(3), "hash")
    batches = functools.partial(split.neighbor_batches, [1, 2], 2, (2, 2))
    batch = batches()[0]
    with pytest.raises(ValueError, match="seeds must be below num_nodes = 60"):
        split.neighbor_batches([60], 2, (2,))
    with pytest.raises(ValueError, match="fanouts must be"):
        split.neighbor_batches([1], 2, (0,))
    with pytest.raises(ValueError, match="batch_size must be positive"):
        split.neighbor_batches([1], 0, (1,))
    with pytest.raises(ValueError, match=r"x must be \(20, \*features\), got \(3,\)"):
        split.apply(lambda part, batch: batch.sample(part, x=jnp.ones(3)), batch)
    x = split.shard(np.ones((60, 2)))
    for num_rows, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="num_rows must be"):
            split.cached(batch, x, num_rows)
    with pytest.raises(ValueError, match=r"x must have the shape \(3, 20, ...\)"):
        split.cached(batch, np.ones((60, 2)), 1)
    with pytest.raises(TypeError, match=r"batch must be a .*ShardedSeeds"):
        split.cached(batches(), x, 1)
    with pytest.raises(TypeError, match="x must be known"):
        jax.jit(lambda x: split.cached(batch, x, 1))(x)
    host_rows = split.host_rows(np.ones((60, 2)))
    for rows in (host_rows, [split.cached(batch, x, 1)]):
        with pytest.raises(TypeError, match=r"x must be arrays of the device, got .*fetch_ahead"):
            split.apply(lambda part, batch, x: batch.sample(part, x=x), batch, rows)
    with pytest.raises(ValueError, match=r"x must be \(num_nodes = 60, ...\), got shape \(59,\)"):
        split.fetch_ahead([batch], x=np.ones(59))
    with pytest.raises(ValueError, match=r"y must have the shape \(3, 20, ...\)"):
        split.fetch_ahead([batch], y=jnp.ones(60))
    with pytest.raises(TypeError, match="x must be arrays of numpy or of the devices, HostRows"):
        split.fetch_ahead([batch], x=split.cached(batch, x, 1))
    with pytest.raises(TypeError, match=r"batches must be a .*ShardedSeeds"):
        next(split.fetch_ahead([1]))
    with pytest.raises(ValueError, match="ahead must be positive"):
        split.fetch_ahead([batch], ahead=0)
    with pytest.raises(ValueError, match=r"part must be within ShardedGraph\.apply"):
        batch.sample(split.part)
    hypergraph = shard_graph(random_hypergraph(rng), mesh_of(3), "nodes")
    with pytest.raises(TypeError, match=r"sharded must be a graph .* outside jax\.jit"):
        hypergraph.neighbor_batches([1], 2, (2,))
    with pytest.raises(TypeError, match=r"outside jax\.jit"):
        jax.jit(lambda split: split.neighbor_batches([1], 2, (2,)))(split)
    assert repr(replace(batch, seeds=batch.seeds[:, :1])) == "ShardedSeeds(seeds=(3, 1))"
