"""Descriptions of ops, their random inputs and their reference derivatives, for ``op_suite``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import jax.monitoring
import jax.numpy as jnp
import numpy as np

import jax_gnn

# --- Random inputs -------------------------------------------------------------------------------

# (left, right, entries) of a bipartite graph. Scenarios of one size share compiled programs.
_SIZE = (9, 6, 24)
_SIZES = {
    "no_entries": (9, 6, 0),
    "no_left": (0, 6, 0),
    "no_right": (9, 0, 0),
    "more_right_than_left": (4, 31, 24),
    "large": (1500, 700, 15000),  # enough for several threads
}
STACKABLE = ("random", "empty", "giant", "duplicates", "padding")  # all of size _SIZE
SCENARIOS = (*STACKABLE, "no_entries", "no_left", "no_right", "more_right_than_left")
OUT_OF_RANGE = (-1, np.iinfo(np.int32).min, np.iinfo(np.int32).max)


@dataclass(frozen=True)
class Incidence:
    """A random bipartite multigraph: what indices are to nearly all ops."""

    num_left: int
    num_right: int
    left: np.ndarray  # (entries,)
    right: np.ndarray  # (entries,)

    @property
    def valid(self) -> np.ndarray:
        """Entries that are not padding: both ids in range."""
        left_in_range = (self.left >= 0) & (self.left < self.num_left)
        return left_in_range & (self.right >= 0) & (self.right < self.num_right)

    def dense(self) -> np.ndarray:
        """``(num_left, num_right)`` float64: how often each pair occurs."""
        counts = np.zeros((self.num_left, self.num_right))
        np.add.at(counts, (self.left[self.valid], self.right[self.valid]), 1)
        return counts

    @classmethod
    def random(cls, rng: np.random.Generator, scenario: str) -> Incidence:
        num_left, num_right, size = _SIZES.get(scenario, _SIZE)
        # In these, two rows of both sides and the last, which ids wrap or clamp to, are empty.
        spare = 3 if scenario in ("empty", "padding") else 0
        lefts = rng.permutation(num_left - 1)[: num_left - spare] if spare else np.arange(num_left)
        rights = (
            rng.permutation(num_right - 1)[: num_right - spare] if spare else np.arange(num_right)
        )
        # Pairs are distinct where there are enough, as for edges of a simple graph.
        if size <= len(lefts) * len(rights) and scenario != "duplicates":
            pairs = rng.choice(len(lefts) * len(rights), size, replace=False)
        else:
            pairs = rng.integers(0, max(len(lefts) * len(rights), 1), size)
        src, dst = (
            ids[where] if size else np.zeros(0, np.int64)
            for ids, where in zip(
                (lefts, rights), np.divmod(pairs, max(len(rights), 1)), strict=True
            )
        )
        if scenario == "duplicates":
            src[size // 2 :], dst[size // 2 :] = (src[: size // 2], dst[: size // 2])
        if scenario == "giant":
            dst[:] = rng.integers(num_right)
        if scenario == "padding":
            for ids, sizes in ((src, num_left), (dst, num_right)):
                where = rng.choice(size, size // 5, replace=False)
                ids[where] = rng.choice([*OUT_OF_RANGE, sizes, sizes + 3], len(where))
        return cls(num_left, num_right, src, dst)


@dataclass(frozen=True)
class Case:
    """One input of an op.

    Attributes:
        index: integer operands, a pytree of arrays.
        plain: what the reference gets in place of ``index``, made without the library.
        operands: the float operands, in float64.
        padding: for each float operand a mask of the entries that must not be read, or None.
    """

    index: Any
    plain: Any
    operands: tuple[np.ndarray, ...]
    padding: tuple[np.ndarray | None, ...]


def padded(case: Case, value: float) -> tuple[np.ndarray, ...]:
    """The operands of a case, with a value where nothing may be read."""
    return tuple(
        x if mask is None else np.where(mask, value, x)
        for x, mask in zip(case.operands, case.padding, strict=True)
    )


# --- The description -----------------------------------------------------------------------------


@dataclass(frozen=True)
class OpSpec:
    """Everything that is particular to one op.

    Attributes:
        function: the op, a function of (index, *operands).
        reference: the same in plain numpy, a function of (plain, *operands).
        make_case: gives a Case from (rng, scenario, shape of the features); the scenarios are those
            of :class:`Incidence`.
        operands: names of the float operands; the result has the dtype of the first.
        linear: names of the operands that :func:`jax.linear_transpose` must work for.
        feature_axis: for each operand the axis that ``shard_map`` splits, None to replicate it.
        result_axis: likewise for the result.
        composed: whether XLA computes between kernels, which it may round otherwise where it
            compiles the whole at once.
        summed: operands whose gradients XLA sums over rows, on a CPU as its threads have them.
    """

    function: Callable[..., jax.Array]
    reference: Callable[..., np.ndarray]
    make_case: Callable[[np.random.Generator, str, tuple[int, ...]], Case]
    operands: tuple[str, ...]
    linear: tuple[str, ...] = ()
    feature_axis: tuple[int | None, ...] = ()
    result_axis: int | None = None
    composed: bool = False
    summed: tuple[str, ...] = ()

    @functools.cached_property
    def jitted(self) -> Callable[..., jax.Array]:
        return jax.jit(self.function)

    @functools.cached_property
    def positions(self) -> tuple[int, ...]:
        """Positions of the float operands among the arguments of ``function``."""
        return tuple(range(1, len(self.operands) + 1))

    @functools.cached_property
    def mapped(self) -> list[Callable[..., jax.Array]]:
        """The op with a batch of one float operand, for each of them."""
        arguments = (0, *self.positions)
        return [
            jax.jit(jax.vmap(self.function, [0 if at == position else None for at in arguments]))
            for position in self.positions
        ]

    def vjp(self, index, cotangent, *operands) -> tuple[jax.Array, ...]:
        """Gradients to all float operands."""
        return jax.vjp(functools.partial(self.function, index), *operands)[1](cotangent)

    @functools.cached_property
    def gradient(self) -> Callable[..., tuple[jax.Array, ...]]:
        return jax.jit(self.vjp)

    @functools.cached_property
    def jvp(self) -> Callable[..., tuple[jax.Array, jax.Array]]:
        """A function of (index, operands, tangents)."""
        return jax.jit(
            lambda index, operands, tangents: jax.jvp(
                functools.partial(self.function, index), operands, tangents
            )
        )

    @functools.cached_property
    def second_derivatives(self) -> Callable[..., Any]:
        """Return a program with both derivatives of both derivatives.

        It is a function of (index, operands, tangents, direction, cotangent). The JVP, whose
        tangents move like the operands, and the VJP are differentiated forward along the direction,
        then in reverse with the cotangent or the direction.
        """

        @jax.jit
        def derivatives(index, operands, tangents, direction, cotangent) -> Any:
            def forward(operands, tangents) -> jax.Array:
                return jax.jvp(functools.partial(self.function, index), operands, tangents)[1]

            def reverse(operands, cotangent) -> tuple[jax.Array, ...]:
                return self.vjp(index, cotangent, *operands)

            directions = direction, direction
            return (
                jax.jvp(forward, (operands, tangents), directions)[1],
                jax.jvp(reverse, (operands, cotangent), (direction, cotangent))[1],
                jax.vjp(forward, operands, direction)[1](cotangent),
                jax.vjp(reverse, operands, cotangent)[1](direction),
            )

        return derivatives


@contextmanager
def setting(implementation: str | None, dtype: str = "float32") -> Iterator[None]:
    """Choose the implementation, and enable 64 bits only for dtypes that need them."""
    with jax.enable_x64(dtype in ("float64", "int64")), jax_gnn.implementation(implementation):
        yield


@contextmanager
def strict() -> Iterator[None]:
    """Neither dtypes nor ranks are promoted: operands that differ are errors of tracing."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def typed(values: Sequence[np.ndarray], dtype: str) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(value).astype(jnp.dtype(dtype)) for value in values)


def wide(values) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(value).astype(np.float64) for value in values)


def random_like(rng: np.random.Generator, values, dtype: str) -> tuple[Any, ...]:
    return typed([rng.normal(size=np.shape(value)) for value in values], dtype)


def all_pairs(rng: np.random.Generator, rows) -> list[tuple[Any, ...]]:
    """Few of the rows that hold, for each two columns, all pairs of values that the rows hold."""

    def pairs(row) -> set[Any]:
        return set(itertools.combinations(enumerate(row), 2))

    missing = set().union(*map(pairs, rows))
    # Greedy covering: take the row with most pairs that no chosen row has.
    chosen = []
    while missing:
        best = max(rng.permutation(len(rows)), key=lambda at: len(pairs(rows[at]) & missing))
        chosen.append(rows[best])
        missing -= pairs(rows[best])
    return chosen


def stack(values, axis: int = 0) -> Any:
    """Stacks pytrees of arrays."""
    return jax.tree.map(lambda *arrays: np.stack(arrays, axis), *values)


def on_host(tree) -> Any:
    return jax.tree.map(np.asarray, tree)


def assert_close(got, want, tolerance: float, what: str) -> None:
    """Compare with an error bound relative to the largest finite expected value."""
    assert np.shape(got) == np.shape(want), what
    got, want = wide((got, want))
    bound = tolerance * np.abs(want[np.isfinite(want)]).max(initial=1.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=bound, err_msg=what)


@contextmanager
def programs() -> Iterator[list[str]]:
    """Yield a list to which each trace, lowering and compilation of JAX is appended."""
    # Only events of compilation are recorded, not those of caches.
    seen: list[str] = []

    def listen(event: str, duration: float, **_) -> None:
        if event.startswith("/jax/core/compile/"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def same_bits(first, second) -> bool:
    leaves = [jax.tree.leaves(tree) for tree in (first, second)]
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(*leaves, strict=True)
    )


# --- Derivatives of the reference ----------------------------------------------------------------

# Complex steps have no cancellation, so that derivatives are exact to rounding.
_STEP = 1e-40


def slope(function: Callable[..., np.ndarray], values, directions) -> np.ndarray:
    """Derivative of a function of pytrees of float64 along directions."""
    points = jax.tree.map(lambda x, dx: x + 1j * _STEP * dx, tuple(values), tuple(directions))
    return function(*points).imag / _STEP


def reference_tangent(spec: OpSpec, plain, operands, tangents) -> np.ndarray:
    return slope(functools.partial(spec.reference, plain), wide(operands), wide(tangents))


def reference_gradients(spec: OpSpec, plain, operands, cotangent) -> list[np.ndarray]:
    operands, (cotangent,) = wide(operands), wide((cotangent,))
    gradients = []
    for i, operand in enumerate(operands):
        gradient = np.zeros(operand.shape)
        for position in np.ndindex(operand.shape):
            tangents = [np.zeros(x.shape) for x in operands]
            tangents[i][position] = 1
            tangent = reference_tangent(spec, plain, operands, tangents)
            gradient[position] = np.sum(cotangent * tangent)
        gradients.append(gradient)
    return gradients


@dataclass(frozen=True)
class Dual:
    """``value + derivative ε`` with ε² = 0: one element of an array of objects.

    References compute on such arrays as they do on numbers, so that derivatives are exact to
    rounding, close to a kink too. Both parts are complex vectors, whose imaginary parts carry the
    derivatives along as many directions by complex step; duals are ordered by their real value,
    which all share.
    """

    value: np.ndarray
    derivative: np.ndarray

    @staticmethod
    def of(number) -> Dual:
        return number if isinstance(number, Dual) else Dual(np.array([number + 0j]), np.zeros(1))

    def chain(self, value: np.ndarray, slope: np.ndarray) -> Dual:
        return Dual(value, slope * self.derivative)

    def __add__(self, operand) -> Dual:
        operand = Dual.of(operand)
        return Dual(self.value + operand.value, self.derivative + operand.derivative)

    def __mul__(self, operand) -> Dual:
        operand = Dual.of(operand)
        derivative = self.value * operand.derivative + self.derivative * operand.value
        return Dual(self.value * operand.value, derivative)

    def __pow__(self, exponent: float) -> Dual:
        return self.chain(self.value**exponent, exponent * self.value ** (exponent - 1))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dual:
        return self * -1

    def __sub__(self, operand) -> Dual:
        return self + -operand

    def __rsub__(self, operand) -> Dual:
        return -self + operand

    def __truediv__(self, operand) -> Dual:
        return self * operand**-1.0

    def __rtruediv__(self, operand) -> Dual:
        return self**-1.0 * operand

    def __gt__(self, operand) -> bool:
        return bool(self.value[0].real > Dual.of(operand).value[0].real)

    def __ge__(self, operand) -> bool:
        return bool(self.value[0].real >= Dual.of(operand).value[0].real)

    # Methods that numpy calls for its functions of the same names.

    def exp(self) -> Dual:
        return self.chain(np.exp(self.value), np.exp(self.value))

    def log(self) -> Dual:
        return self.chain(np.log(self.value), 1 / self.value)

    def tanh(self) -> Dual:
        return self.chain(np.tanh(self.value), 1 - np.tanh(self.value) ** 2)


def reference_second_derivative(
    spec: OpSpec, plain, operands, direction
) -> tuple[np.ndarray, np.ndarray]:
    """Jacobian of the reference and its derivative along a direction.

    Both have the elements of all operands, one operand after another, along a last axis.
    """
    count = sum(np.size(operand) for operand in operands)
    # Each element of an operand gets a step of its own, so that one evaluation has all derivatives.
    steps, points = iter(1j * _STEP * np.eye(count)), []
    for operand, along in zip(wide(operands), wide(direction), strict=True):
        duals = np.empty(operand.shape, object)
        for at in np.ndindex(operand.shape):
            duals[at] = Dual(operand[at] + next(steps), np.full(count, along[at]))
        points.append(duals)
    result = spec.reference(plain, *points)
    jacobian, derivative = np.zeros((2, *result.shape, count))
    for at in np.ndindex(result.shape):
        dual = Dual.of(result[at])
        jacobian[at], derivative[at] = dual.value.imag / _STEP, dual.derivative.imag / _STEP
    return jacobian, derivative


def check_second_derivatives(
    spec: OpSpec, rng: np.random.Generator, case: Case, tolerance: float
) -> None:
    """Compare both derivatives of the JVP and of the VJP, in float64, with the reference."""
    operands = wide(case.operands)
    tangents, direction = (random_like(rng, operands, "float64") for _ in range(2))
    jacobian, derivative = reference_second_derivative(spec, case.plain, operands, direction)
    (cotangent,) = random_like(rng, [jacobian[..., 0]], "float64")
    flat_tangents, flat_direction = (
        np.concatenate([np.ravel(x) for x in xs]) for xs in (tangents, direction)
    )

    def split(gradients: np.ndarray) -> list[np.ndarray]:
        parts = np.split(gradients, np.cumsum([x.size for x in operands])[:-1])
        return [part.reshape(x.shape) for part, x in zip(parts, operands, strict=True)]

    # The reference is differentiated twice by its Jacobian and the derivative of that.
    tangent = jacobian @ flat_direction
    axes = np.ndim(cotangent)
    gradients = np.tensordot(cotangent, jacobian, axes)
    seconds = np.tensordot(cotangent, derivative, axes)
    of_jvp, of_vjp, jvp_back, vjp_back = spec.second_derivatives(
        case.index, operands, tangents, direction, cotangent
    )
    assert_close(of_jvp, derivative @ flat_tangents + tangent, tolerance, "JVP of the JVP")
    assert_close(vjp_back[1], tangent, tolerance, "VJP of the VJP to the cotangent")
    for what, got, want in (
        ("JVP of the VJP", of_vjp, seconds + gradients),
        ("VJP of the JVP to", jvp_back[0], seconds),
        ("VJP of the JVP to the tangent of", jvp_back[1], gradients),
        ("VJP of the VJP to", vjp_back[0], seconds),
    ):
        for name, gradient, expected in zip(spec.operands, got, split(want), strict=True):
            assert_close(gradient, expected, tolerance, f"{what} {name}")
