"""Functions of JAX, jraph and e3nn-jax with this library's in their place."""

from __future__ import annotations

import contextlib
import functools
import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import assert_close

import jax_gnn
from jax_gnn import compat
from jax_gnn.compat import _segments

JAX_OPS = {name: getattr(jax.ops, f"segment_{name}") for name in ("sum", "max", "min", "prod")}
RAGGED_DOT = jax.lax.ragged_dot


@pytest.fixture(autouse=True)
def nothing_installed() -> Iterator[None]:
    yield
    compat.uninstall()


PRODUCT_TOLERANCE = 1e-5 if jax.default_backend() == "cpu" else 2e-2
"""GPUs round what they multiply, unless told not to."""


def replaced_and_original(function: Callable[..., Any], *arguments) -> tuple[Any, Any]:
    """Return the results of a function with the original, and with replaced functions."""
    want = function(*arguments)
    compat.install()
    got = function(*arguments)
    compat.uninstall()
    return got, want


def assert_same(got, want, tolerance: float = 1e-5) -> None:
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        for part in (jnp.real, jnp.imag) if jnp.iscomplexobj(b) else (lambda x: x,):
            assert_close(part(a), part(b), tolerance, "value or gradient")


def with_gradient(function: Callable[[Any], Any], x) -> tuple[Any, Any]:
    """Return the value, and its gradient under uneven cotangents."""
    # Uneven cotangents tell the rows apart.
    value, vjp = jax.vjp(function, x)
    return value, vjp(jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape))


def test_layers_of_jraph_are_lifted_where_they_are_made():
    jraph = pytest.importorskip("jraph")
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(6, size=(2, 17))
    x, e = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(17, 4)).astype(np.float32)
    counts = np.array([4, 2]), np.array([9, 8])
    graph = jraph.GraphsTuple(x, e, receivers, senders, np.ones((2, 4), np.float32), *counts)

    def update(*rows):
        return jnp.tanh(sum(rows[1:], rows[0]))

    def layers():
        return (
            jraph.GraphNetwork(update, update, update),
            jraph.InteractionNetwork(update, update, include_sent_messages_in_node_update=True),
            jraph.RelationNetwork(lambda *rows: update(*rows), lambda edges: edges),
            jraph.GraphConvolution(jnp.tanh),
            jraph.GAT(jnp.tanh, lambda s, r, e: (s * r + e).sum(-1, keepdims=True), jnp.tanh),
        )

    original = layers()
    assert "jraph.GraphNetwork" not in compat.install()
    assert not any(isinstance(layer, jax_gnn.lift(len).__class__) for layer in layers())
    assert "jraph.GraphNetwork" in compat.install(lift=True)
    replaced = layers()
    assert "jraph.GraphNetwork" in compat.uninstall()
    assert "jraph.GraphNetwork" not in compat.install()
    for layer, lifted in zip(original, replaced, strict=True):
        assert "program" in lifted.explain(graph) or "runs as it is" in lifted.explain(graph)
        got, want = lifted(graph), layer(graph)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def random_ids(rng: np.random.Generator, kind: str, dtype=np.int32) -> np.ndarray:
    # Ids out of range, on both sides, belong to no segment.
    low, high = (0, 7) if kind == "in range" else (-3, 10)
    ids = rng.integers(low, high, 40).astype(dtype)
    return np.sort(ids) if kind == "sorted" else ids


@pytest.fixture(params=["sorted", "in range", "any"])
def ids(rng: np.random.Generator, request) -> np.ndarray:
    return random_ids(rng, request.param)


# --- jax.ops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("constant_ids", [False, True])
def test_segments_equal_jax_ops(
    rng: np.random.Generator, ids: np.ndarray, constant_ids: bool
) -> None:
    """All reductions equal those of JAX, for traced ids and for constant ids."""
    x, constants = rng.normal(size=(2, 40, 3)).astype(np.float32), jnp.asarray(ids)
    is_sorted = bool((np.diff(ids) >= 0).all())

    def all_calls(x, ids) -> Any:
        ids = constants if constant_ids else ids
        results = [jax.ops.segment_prod(x[0], ids, 7)]
        for name in ("sum", "max", "min"):
            op = getattr(jax.ops, f"segment_{name}")
            reduce = functools.partial(op, segment_ids=ids, num_segments=7)
            results += [
                with_gradient(reduce, x[0]),
                jax.vmap(reduce)(x),
                jax.jvp(reduce, (x[0],), (x[1],)),
                reduce(x[0], indices_are_sorted=is_sorted),
            ]
        return results

    assert_same(*replaced_and_original(lambda: jax.jit(all_calls)(x, ids)))


def test_corners_of_segments(rng: np.random.Generator) -> None:
    """Calls that this library does not take go to the original, which raises the errors."""
    x, ids = rng.normal(size=(40, 3)).astype(np.float32), random_ids(rng, "any")
    positive, wide = np.abs(ids), random_ids(rng, "any", np.int64)
    op = jax.ops.segment_sum
    # Calls that differ in dtype, rank, mode or flags; each must give the result of JAX.
    corners: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "no number": ((x, positive), {}),
        "numpy's number": ((x, ids, np.int64(7)), {}),
        "no segments": ((x, ids, 0), {}),
        "nothing": ((x[:0], ids[:0], 3), {}),
        "no columns": ((x[:, :0], ids, 3), {}),
        "a vector": ((x[:, 0], ids, 7), {}),
        "a cube": ((x.reshape(40, 3, 1), ids, 7), {}),
        "one row for all": ((x[:1], ids, 7), {}),
        "wide ids": ((x, wide + 2**32, 7), {}),
        "unsigned ids": ((x, ids.astype(np.uint32), 7), {}),
        "small ids": ((x, ids.astype(np.int8), 300), {}),
        "clip": ((x, ids, 7), {"mode": "clip"}),
        "drop": ((x, ids, 7), {"mode": jax.lax.GatherScatterMode.FILL_OR_DROP}),
        "promise": ((x, positive % 7, 7), {"mode": "promise_in_bounds"}),
        "buckets": ((x, ids, 7), {"bucket_size": 8}),
        "by name": ((), {"segment_ids": ids, "num_segments": 7, "data": x}),
        "unique": ((x[:7], np.arange(7)[::-1].copy(), 7), {"unique_indices": True}),
        "weak": ((jnp.asarray(2.0) * jnp.ones(40), ids, 7), {}),
        **{
            str(dtype): (((10 * x).astype(dtype), ids, 7), {})
            for dtype in ("int32", "uint8", "complex64", "int64", "float64")
        },
        "bfloat16": ((jnp.asarray(x, jnp.bfloat16), positive % 40, 40), {}),
    }
    for name, (args, kwargs) in corners.items():
        got, want = replaced_and_original(lambda a=args, k=kwargs: jax.ops.segment_sum(*a, **k))
        assert_same(got, want, 0.02 if name == "bfloat16" else 1e-5)
    bools = replaced_and_original(lambda: jax.ops.segment_max(x > 0, ids, 7))
    assert_same(*bools)
    wrong: dict[str, Callable[[Any], Any]] = {
        "negative": lambda op: op(x, ids, -1),
        "traced": lambda op: jax.jit(op)(x, ids),
        "floats": lambda op: op(x, x[:, 0], 7),
        "a list": lambda op: op([1.0], ids, 7),
        "too many": lambda op: op(x, ids, 7, False, False, None, None, None, 1),
        "twice": lambda op: op(x, ids, 7, num_segments=7),
        "unknown": lambda op: op(x, ids, 7, size=3),
        "rows": lambda op: op(x[:3], ids, 7),
        "two axes of ids": lambda op: op(x.reshape(8, 5, 3), ids.reshape(8, 5), 7),
    }
    compat.install()
    for name, call in wrong.items():
        # Errors must be of the type and words of JAX, as users may match on them.
        errors = []
        for function in (op, jax.ops.segment_sum):
            try:
                call(function)
            except Exception as error:
                errors.append((type(error), str(error).splitlines()[0][:40]))
        assert len(errors) == 2 and errors[0] == errors[1], name


def test_wide_numbers(rng: np.random.Generator) -> None:
    with jax.enable_x64(True):
        x, ids = rng.normal(size=(40, 3)), random_ids(rng, "any", np.int64)

        def value(x, ids) -> Any:
            return with_gradient(lambda x: jax.ops.segment_sum(x, ids, 7), x)

        assert_same(*replaced_and_original(lambda: jax.jit(value)(x, ids)), 1e-13)
        assert_same(
            *replaced_and_original(lambda: jax.jit(value)((9 * x).astype(int).astype(float), ids)),
            0,
        )


def test_ids_are_inspected_once(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """A program looks once at a live JAX array of ids; eager calls do not look."""
    looks = []
    # A look reads ids of the device to see whether they are sorted: it is expensive.
    original = _segments._new_look
    monkeypatch.setattr(_segments, "_new_look", lambda *a: looks.append(1) or original(*a))
    x, ids = rng.normal(size=(40, 3)), jnp.asarray(random_ids(rng, "any"))
    compat.install()

    def twice(x, ids) -> Any:
        return jax.ops.segment_sum(x, ids, 7) + jax.ops.segment_max(x, ids, 7)

    twice(x, ids)
    jax.grad(lambda x: twice(x, ids).sum())(jnp.asarray(x))
    assert not looks and not _segments._looks
    text = str(jax.make_jaxpr(functools.partial(twice, ids=ids))(x))
    jax.make_jaxpr(lambda x: twice(2 * x, ids))(x)
    assert len(looks) == 1 and len(_segments._looks) == 1
    assert "segment_reduce" in text
    # The record of a look must not keep the array alive.
    ids = None
    jax.clear_caches()
    assert not _segments._looks


def test_sharded_arrays_keep_the_original(rng: np.random.Generator) -> None:
    mesh = jax.make_mesh((len(jax.devices()),), ("i",))
    x, ids = rng.normal(size=(40, 200)).astype(np.float32), random_ids(rng, "any")
    compat.install()
    program = jax.make_jaxpr(lambda x: jax.ops.segment_sum(x, ids, 7))
    assert "segment_reduce" in str(program(x))
    if mesh.size > 1:
        with jax.set_mesh(mesh):
            assert "segment_reduce" not in str(program(x))
    local = jax.shard_map(
        lambda x: jax.lax.psum(jax.ops.segment_sum(x, ids, 7), "i"),
        mesh=mesh,
        in_specs=jax.P(),
        out_specs=jax.P(),
    )
    want = mesh.size * JAX_OPS["sum"](x, ids, 7)
    assert_close(jax.jit(local)(x), want, 1e-5, "sum over devices")


# --- jax.lax.ragged_dot --------------------------------------------------------------------------


def test_ragged_dot(rng: np.random.Generator) -> None:
    lhs, rhs = rng.normal(size=(12, 4)), rng.normal(size=(3, 4, 5))
    lhs, rhs, sizes = lhs.astype(np.float32), rhs.astype(np.float32), np.array([5, 0, 4])

    def product(lhs, rhs, sizes) -> Any:
        def loss(lhs, rhs) -> Any:
            return jnp.sum(jnp.sin(jax.lax.ragged_dot(lhs, rhs, sizes)))

        return jax.value_and_grad(loss, (0, 1))(lhs, rhs)

    assert_same(
        *replaced_and_original(lambda: jax.jit(product)(lhs, rhs, sizes)), PRODUCT_TOLERANCE
    )
    half, bits = jnp.asarray(lhs, jnp.bfloat16), jnp.asarray(rhs, jnp.bfloat16)
    corners: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((lhs, rhs, sizes), {"precision": jax.lax.Precision.HIGHEST}),
        ((lhs, rhs[:1], sizes[:1]), {}),
        ((lhs, rhs, sizes), {"preferred_element_type": np.float32}),
        ((half, bits, sizes), {"preferred_element_type": np.float32}),
        ((half, bits, sizes), {}),
        (((3 * lhs).astype(np.int32), (3 * rhs).astype(np.int32), sizes), {}),
    ]
    for args, kwargs in corners:
        got, want = replaced_and_original(lambda a=args, k=kwargs: jax.lax.ragged_dot(*a, **k))
        assert_same(got, want, 0.02 if want.dtype == jnp.bfloat16 else PRODUCT_TOLERANCE)


def test_a_mixture_of_experts_trains_the_same(rng: np.random.Generator) -> None:
    """Train for twenty steps with two products by expert; each token has two of four experts."""
    tokens, experts = 24, 4
    x, target = rng.normal(size=(2, tokens, 8)).astype(np.float32)
    weights = {
        name: rng.normal(size=shape).astype(np.float32) / 3
        for name, shape in (("gate", (8, experts)), ("up", (experts, 8, 16)), ("down", (4, 16, 8)))
    }

    def layer(weights, x) -> Any:
        scores, chosen = jax.lax.top_k(jax.nn.softmax(x @ weights["gate"]), 2)
        # Tokens are sorted by expert, so that each expert multiplies a contiguous block.
        order = jnp.argsort(chosen.ravel(), stable=True)
        sizes = jnp.bincount(chosen.ravel(), length=experts)
        rows = jnp.take(x, order // 2, 0)
        rows = jax.nn.gelu(jax.lax.ragged_dot(rows, weights["up"], sizes))
        rows = jax.lax.ragged_dot(rows, weights["down"], sizes) * scores.ravel()[order][:, None]
        return jax.ops.segment_sum(rows, order // 2, tokens)

    assert_trains_the_same(lambda weights: jnp.mean((layer(weights, x) - target) ** 2), weights)


def assert_trains_the_same(loss: Callable[[Any], Any], weights) -> None:
    def trained() -> Any:
        def step(weights, _) -> Any:
            value, gradient = jax.value_and_grad(loss)(weights)
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

        return jax.jit(lambda weights: jax.lax.scan(step, weights, length=20))(weights)

    got, want = replaced_and_original(trained)
    losses = want[1]
    assert losses[-1] < losses[0]
    assert_same(got, want, PRODUCT_TOLERANCE)


# --- jraph ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("constant_ids", [False, True])
def test_utilities_of_jraph(rng: np.random.Generator, ids: np.ndarray, constant_ids: bool) -> None:
    """Utilities equal those of jraph, also for ids out of range."""
    jraph = pytest.importorskip("jraph")
    x, constants = rng.normal(size=(40, 3)).astype(np.float32), jnp.asarray(ids)

    def all_calls(x, ids) -> Any:
        ids = constants if constant_ids else ids
        names = ("sum", "mean", "variance", "normalize", "softmax")
        names += ("max", "min", "max_or_constant", "min_or_constant")
        return {
            name: with_gradient(
                functools.partial(
                    lambda name, x: getattr(jraph, f"segment_{name}")(x, ids, 7), name
                ),
                x,
            )
            for name in names
        }

    got, want = replaced_and_original(lambda: jax.jit(all_calls)(x, ids))
    for name in want:
        # Empty segments give NaN or infinities, which must stand at the same places.
        defined = jnp.isfinite(want[name][0])
        assert_same(
            jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0), got[name]),
            jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0), want[name]),
            2e-5,
        )
        assert (jnp.isfinite(got[name][0]) == defined).all(), name


def test_models_of_jraph_train_the_same(rng: np.random.Generator) -> None:
    """Default arguments of jraph are replaced, too."""
    jraph = pytest.importorskip("jraph")
    senders, receivers = rng.integers(0, 9, (2, 30))
    graph = jraph.GraphsTuple(
        nodes=rng.normal(size=(9, 4)).astype(np.float32),
        edges=rng.normal(size=(30, 4)).astype(np.float32),
        senders=senders,
        receivers=receivers,
        globals=np.ones((2, 4), np.float32),
        n_node=np.array([5, 4]),
        n_edge=np.array([17, 13]),
    )
    weights = {
        name: rng.normal(size=(size, 4)).astype(np.float32) / 4
        for name, size in (("edge", 16), ("node", 16), ("global", 12), ("gate", 4))
    }

    def loss(weights) -> Any:
        def update(name: str) -> Callable[..., Any]:
            return jraph.concatenated_args(lambda x: jnp.tanh(x @ weights[name]))

        network = jraph.GraphNetwork(
            update("edge"),
            update("node"),
            update("global"),
            attention_logit_fn=lambda edges, *_: edges @ weights["gate"],
            attention_reduce_fn=lambda edges, shares: edges * shares,
        )
        once = network(graph)
        return jnp.mean((once.globals - 1) ** 2) + jnp.mean(once.nodes**2)

    assert_trains_the_same(loss, weights)


# --- e3nn-jax ------------------------------------------------------------------------------------


def test_scatters_of_e3nn(rng: np.random.Generator, ids: np.ndarray) -> None:
    """Negative ids count from the end here."""
    e3nn = pytest.importorskip("e3nn_jax")
    x = rng.normal(size=(40, 4)).astype(np.float32)

    def all_calls(x, ids) -> Any:
        irreps = e3nn.IrrepsArray("0e + 1o", x)
        nel = jnp.array([3, 0, 30, 7])
        return [
            with_gradient(lambda x: e3nn.scatter_sum(x, dst=ids, output_size=7, mode="drop"), x),
            e3nn.scatter_sum(irreps, dst=ids, output_size=7).array,
            e3nn.scatter_mean(irreps, dst=ids, output_size=7).array,
            e3nn.scatter_mean(x, nel=nel),
            e3nn.scatter_max(x, nel=nel),
            e3nn.scatter_max(x, nel=nel, initial=0.5),
        ]

    assert_same(*replaced_and_original(lambda: jax.jit(all_calls)(x, ids)))


# --- What is replaced ----------------------------------------------------------------------------


def module_of(name: str = "a_users_module", **attributes) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    return module


def test_install_and_uninstall() -> None:
    module = module_of(segment_sum=JAX_OPS["sum"], other=len)
    names = compat.install(module)
    assert "a_users_module.segment_sum" in names and "jax.ops.segment_prod" in names
    assert "jax.lax.ragged_dot" in names and names == tuple(sorted(names))
    assert jax.ops.segment_sum is module.segment_sum is not JAX_OPS["sum"]
    assert jax.ops.segment_sum.__wrapped__ is JAX_OPS["sum"]
    assert module.other is len
    assert compat.install(module) == ()
    with compat.patched(module) as new_names:
        assert new_names == ()
    assert jax.ops.segment_sum is module.segment_sum is not JAX_OPS["sum"]
    assert compat.uninstall() == names
    assert compat.uninstall() == ()
    assert module.segment_sum is JAX_OPS["sum"]
    assert all(getattr(jax.ops, f"segment_{name}") is op for name, op in JAX_OPS.items())
    assert jax.lax.ragged_dot is RAGGED_DOT


def test_patching_one_module() -> None:
    """Patch names, defaults of arguments and attributes of classes; an error undoes it."""

    class Layer:
        reduce = staticmethod(JAX_OPS["max"])

        def call(self, x, *, op=JAX_OPS["min"]) -> Any:
            return op, x

    def function(x, op=JAX_OPS["sum"]) -> Any:
        return op, x

    module = module_of(Layer=Layer, function=function, total=JAX_OPS["sum"])
    # Only objects that the module itself defines are patched.
    Layer.__module__ = Layer.call.__module__ = function.__module__ = module.__name__
    with contextlib.suppress(KeyError), compat.patched(module) as names:
        assert names == (
            "a_users_module.Layer.call(*, …)",
            "a_users_module.Layer.reduce",
            "a_users_module.function(…)",
            "a_users_module.total",
        )
        assert JAX_OPS["sum"] is jax.ops.segment_sum
        assert module.total is function(0)[0] is not JAX_OPS["sum"]
        assert Layer().reduce is not JAX_OPS["max"] and Layer().call(0)[0] is not JAX_OPS["min"]
        raise KeyError
    assert module.total is function(0)[0] is JAX_OPS["sum"]
    assert Layer().reduce is JAX_OPS["max"] and Layer().call(0)[0] is JAX_OPS["min"]


def test_later_replacements_stay() -> None:
    module = module_of(total=JAX_OPS["sum"])
    compat.install(module)
    # A name that was set by others after install is not ours to restore.
    module.total = len
    assert "a_users_module.total" not in compat.uninstall()
    assert module.total is len


def test_names_imported_by_jraph() -> None:
    jraph = pytest.importorskip("jraph")
    utilities = importlib.import_module("jraph._src.utils")
    before = jraph.segment_mean
    with compat.patched(jraph) as names:
        assert {"jraph.segment_mean", "jraph._src.models.GraphNetwork(…)"} <= set(names)
        assert jraph.segment_mean is utilities.segment_mean is not before
    assert jraph.segment_mean is utilities.segment_mean is before


@pytest.mark.parametrize("function", [compat.install, lambda x: compat.patched(x).__enter__()])
def test_bad_modules(function) -> None:
    with pytest.raises(TypeError, match="modules must be modules, got 'jraph'"):
        function("jraph")
