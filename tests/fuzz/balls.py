"""Numbers with bounds on their errors, and with derivatives: what the fuzzer's references are.

A :class:`Dual` is an array in float64 beside the largest error that a computation in a given dtype
may have made, whatever the order of its sums: each operation passes the errors of its operands on
and adds its own rounding, a sum that of each term. An operation whose exact result fits the dtype
adds none. Derivatives are carried along in the same way, one for each of K directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

TRANSCENDENTAL = 8  # units in the last place that exp, log, tanh and powers may be wrong by


class Ball(NamedTuple):
    """Values, and the distance from them within which a right result is."""

    value: Any
    radius: Any


class _Format(NamedTuple):
    each: Any  # dtype of the results of operations
    sums: Any  # dtype in which sums are added up
    product_unit: float  # relative error of the factors of a matrix product


_format = _Format(np.float64, np.float64, 0.0)


@contextmanager
def rounding(each: Any, sums: Any, product_unit: float = 0.0) -> Iterator[None]:
    """The dtypes whose rounding the operations inside allow for."""
    global _format
    before, _format = _format, _Format(np.dtype(each), np.dtype(sums), product_unit)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _format = before


def unit(dtype: Any) -> float:
    """The relative error of rounding to the nearest."""
    return float(jnp.finfo(dtype).eps) / 2


def tiny(dtype: Any) -> float:
    """What smaller results may be off by: a half type's are exact to the last subnormal number."""
    info = jnp.finfo(dtype)
    return float(info.smallest_subnormal if np.dtype(dtype) == np.float16 else info.tiny)


def cast(value: Any, dtype: Any) -> Any:
    """In another dtype, of complex numbers the complex one."""
    if np.iscomplexobj(value):
        dtype = np.complex64 if unit(dtype) > unit(np.float64) else np.complex128
    return np.asarray(value).astype(dtype)


def rounded(value: Any, radius: Any, dtype: Any, units: float = 1, any_order: bool = False) -> Ball:
    """A result is rounded to a dtype, unless it is exact and fits.

    What is computed in any order, as slopes and products of complex numbers are, has other
    intermediate results than here, which may not fit: only zeros are exact then.
    """
    exact = (cast(value, dtype) == value) & (radius == 0)
    if unit(dtype) <= unit(np.float64):  # everything fits: what is on a grid has not been rounded
        exact &= (np.real(value) * 2.0**30 % 1 == 0) & (np.imag(value) * 2.0**30 % 1 == 0)
    if any_order:
        exact = (value == 0) & (radius == 0)
    error = units * unit(dtype) * np.abs(value) + tiny(dtype)
    radius = np.where(exact, radius, radius + error)
    return Ball(value, np.where(_overflows(value, radius, dtype), np.inf, radius))


def _overflows(value: Any, radius: Any, dtype: Any) -> Any:
    """Where a number may be too large for a dtype, and infinite then, or NaN in what follows."""
    return np.isfinite(value) & (np.abs(value) + radius > float(jnp.finfo(dtype).max))


def _mul(a: Ball, b: Ball, any_order: bool = False) -> Ball:
    radius = np.abs(a.value) * b.radius + np.abs(b.value) * a.radius + a.radius * b.radius
    value = a.value * b.value
    return rounded(value, radius, _format.each, any_order=any_order or np.iscomplexobj(value))


def _add(a: Ball, b: Ball, any_order: bool = False) -> Ball:
    return rounded(a.value + b.value, a.radius + b.radius, _format.each, any_order=any_order)


def _sum_at(ball: Ball, ids: np.ndarray, size: int, any_order: bool = False) -> Ball:
    """Sums rows by id."""

    def at(values: np.ndarray) -> np.ndarray:
        out = np.zeros((size, *values.shape[1:]), values.dtype)
        np.add.at(out, ids, values)
        return out

    value, magnitude, radius = at(ball.value), at(np.abs(ball.value)), at(ball.radius)
    counts = np.bincount(ids, minlength=size).reshape(size, *[1] * (ball.value.ndim - 1))
    # Terms on a grid, no larger than fits the dtype, are added up exactly.
    grid = 2.0**-10
    on_grid = ball.value / grid
    inexact = at((np.real(on_grid) % 1 != 0) | (np.imag(on_grid) % 1 != 0) | (ball.radius != 0))
    exact = (inexact == 0) & (magnitude < grid / unit(_format.sums))
    if any_order:
        exact = magnitude + radius == 0
    error = np.maximum(counts, 1) * unit(_format.sums) * (magnitude + radius)
    error = np.where(_overflows(magnitude, radius, _format.sums), np.inf, error)
    return rounded(
        value, np.where(exact, radius, radius + error), _format.each, any_order=any_order
    )


def _wide(ball: Ball) -> Ball:
    """With an axis for directions."""
    return Ball(ball.value[..., None], ball.radius[..., None])


class Dual:
    """An array with its error, and perhaps its derivatives: ``(*shape, K)`` with theirs."""

    def __init__(self, value: Any, radius: Any = None, tangent: Ball | None = None) -> None:
        value = np.asarray(value)
        value = value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)
        self.ball = Ball(value, np.zeros(value.shape) if radius is None else radius)
        self.tangent = tangent

    @classmethod
    def of(cls, ball: Ball, tangent: Ball | None) -> Dual:
        return cls(ball.value, ball.radius, tangent)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ball.value.shape

    @property
    def value(self) -> np.ndarray:
        return self.ball.value

    def linear(self, function: Callable[[np.ndarray], np.ndarray]) -> Dual:
        """A selection, or another order, of elements along leading axes."""
        tangent = None if self.tangent is None else Ball(*map(function, self.tangent))
        return Dual.of(Ball(*map(function, self.ball)), tangent)

    def __getitem__(self, where: Any) -> Dual:
        return self.linear(lambda x: x[where])

    def reshape(self, *shape: int) -> Dual:
        ndim = len(self.shape)
        return self.linear(lambda x: x.reshape((*shape, *x.shape[ndim:])))

    def sum_at(self, ids: np.ndarray, size: int) -> Dual:
        """Sums rows by id."""
        tangent = None if self.tangent is None else _sum_at(self.tangent, ids, size, True)
        return Dual.of(_sum_at(self.ball, ids, size), tangent)

    def sum_last(self) -> Dual:
        """Sums over the last axis."""
        shape, last = self.shape[:-1], self.shape[-1]
        moved = self.linear(lambda x: np.moveaxis(x, len(shape), 0))
        total = moved.sum_at(np.zeros(last, np.int64), 1)
        return total[0]

    def __add__(self, other: Dual) -> Dual:
        tangents = [x.tangent for x in (self, other) if x.tangent is not None]
        both = _add(*tangents, True) if len(tangents) == 2 else next(iter(tangents), None)
        if both is not None:
            shape = (*np.broadcast_shapes(self.shape, other.shape), both.value.shape[-1])
            both = Ball(*(np.broadcast_to(x, shape) for x in both))
        return Dual.of(_add(self.ball, other.ball), both)

    def __neg__(self) -> Dual:
        tangent = None if self.tangent is None else Ball(-self.tangent.value, self.tangent.radius)
        return Dual.of(Ball(-self.ball.value, self.ball.radius), tangent)

    def __sub__(self, other: Dual) -> Dual:
        return self + (-other)

    def __mul__(self, other: Dual) -> Dual:
        """Of arrays with as many axes each."""
        parts = [
            _mul(x.tangent, _wide(y.ball), True)
            for x, y in ((self, other), (other, self))
            if x.tangent is not None
        ]
        tangent = _add(*parts, True) if len(parts) == 2 else next(iter(parts), None)
        return Dual.of(_mul(self.ball, other.ball), tangent)

    def _apply(self, ball: Ball, slope: Callable[[], Ball]) -> Dual:
        tangent = None if self.tangent is None else _mul(self.tangent, _wide(slope()), True)
        return Dual.of(ball, tangent)

    def product_factor(self) -> Dual:
        """As a matrix unit reads it."""
        if not _format.product_unit:
            return self

        def coarse(ball: Ball) -> Ball:
            return Ball(ball.value, ball.radius + _format.product_unit * np.abs(ball.value))

        return Dual.of(coarse(self.ball), self.tangent and coarse(self.tangent))

    def inverse(self) -> Dual:
        """1 / x."""
        v, r = self.ball
        size = np.abs(v)
        radius = np.where(size > r, r / size / (size - r), np.inf)  # size² may overflow
        y = rounded(1 / v, radius, _format.each)
        return self._apply(y, lambda: (lambda b: Ball(-b.value, b.radius))(_mul(y, y)))

    def exp(self) -> Dual:
        v, r = self.ball
        y = rounded(np.exp(v), np.exp(v) * np.expm1(r), _format.each, TRANSCENDENTAL)
        return self._apply(y, lambda: y)

    def log(self) -> Dual:
        v, r = self.ball
        radius = np.where(v > r, -np.log1p(-r / v), np.inf)
        y = rounded(np.log(v), radius, _format.each, TRANSCENDENTAL)
        return self._apply(y, lambda: Dual(v, r).inverse().ball)

    def sqrt(self) -> Dual:
        v, r = self.ball
        radius = np.where(r == 0, 0, r / (np.sqrt(v) + np.sqrt(np.maximum(v - r, 0))))
        y = rounded(np.sqrt(v), radius, _format.each, 2)
        half = Dual(np.full(v.shape, 0.5))
        return self._apply(y, lambda: (half * Dual(*y).inverse()).ball)

    def power(self, exponent: float) -> Dual:
        """Of positive numbers: exp(exponent · log x), but for its errors."""
        v, r = self.ball
        relative = np.where(v > r, np.expm1(-abs(exponent) * np.log1p(-r / v)), np.inf)
        y = rounded(v**exponent, v**exponent * relative, _format.each, TRANSCENDENTAL)
        factor = Dual(np.full(v.shape, exponent))
        return self._apply(y, lambda: (factor * Dual(*y) * Dual(v, r).inverse()).ball)

    def tanh(self) -> Dual:
        v, r = self.ball
        y = rounded(np.tanh(v), np.minimum(r, 2), _format.each, TRANSCENDENTAL)
        one = Dual(np.ones(v.shape))
        return self._apply(y, lambda: (one - Dual(*y) * Dual(*y)).ball)

    def positive(self) -> np.ndarray:
        """Where values are above 0; errors must not leave it open."""
        return self.ball.value > 0

    def where(self, mask: np.ndarray, other: float = 0.0) -> Dual:
        """A constant elsewhere."""

        def pick(x: np.ndarray, fill: float) -> np.ndarray:
            return np.where(mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)), x, fill)

        ball = Ball(pick(self.ball.value, other), pick(self.ball.radius, 0))
        tangent = self.tangent and Ball(*(pick(x, 0) for x in self.tangent))
        return Dual.of(ball, tangent)

    def unsure(self, mask: np.ndarray) -> Dual:
        """Derivatives that nothing is known of, where a mask says so."""
        if self.tangent is None:
            return self
        radius = np.where(mask[..., None], np.inf, self.tangent.radius)
        return Dual.of(self.ball, Ball(self.tangent.value, radius))

    def max_at(self, ids: np.ndarray, size: int) -> Dual:
        """Maxima of rows by id, -inf of none; ties share the gradient."""
        v, r = self.ball

        def at(values: np.ndarray) -> np.ndarray:
            out = np.full((size, *values.shape[1:]), -np.inf)
            np.maximum.at(out, ids, values)
            return out

        top, low = at(v), at(v - r)
        near = v + r >= low[ids]  # who may be the maximum
        radius = np.maximum(at(np.where(near, r, 0)), 0)
        if self.tangent is None:
            return Dual(top, radius)
        chosen = Dual((v == top[ids]).astype(float))
        count = chosen.sum_at(ids, size)
        share = chosen * Dual(np.maximum(count.value, 1)).inverse()[ids]
        parts = _mul(_wide(share.ball), self.tangent, True)
        tangent = Dual(np.zeros(v.shape), None, parts).sum_at(ids, size).tangent
        candidates = Dual(near.astype(float)).sum_at(ids, size).value
        blurred = Dual((near & (r > 0)).astype(float)).sum_at(ids, size).value
        result = Dual.of(Ball(top, radius), tangent)
        return result.unsure((candidates > 1) & (blurred > 0))

    def prod_at(self, ids: np.ndarray, size: int) -> Dual:
        """Products of rows by id."""
        rows = [Dual(np.ones(self.shape[1:])) for _ in range(size)]
        for e, row in enumerate(ids):
            rows[row] = rows[row] * self[e]
        return stack(rows, self)

    def pull(self, ct: np.ndarray) -> Ball:
        """The derivatives of ⟨ct, x⟩ in all directions: ``(K,)``."""
        assert self.tangent is not None
        directions = self.tangent.value.shape[-1]
        weights = np.abs(ct).ravel()
        values, radii = (x.reshape(ct.size, directions) for x in self.tangent)
        used = (values != 0) | (radii != 0)
        terms = np.where(used, ct.ravel()[:, None] * np.where(used, values, 0), 0)
        radius = np.where(used, weights[:, None] * np.where(used, radii, 0), 0)
        paths = used.sum(axis=0)
        total = Dual(terms, radius).sum_at(np.zeros(len(terms), np.int64), 1)[0]
        units = paths * unit(_format.each) + 2 * _format.product_unit  # ct is a factor too
        exact = (total.ball.radius == 0) & (paths < 2) & (not _format.product_unit)
        error = np.where(exact, 0, units * np.abs(terms).sum(axis=0))
        return Ball(total.value, total.ball.radius + error)


def stack(rows: list[Dual], like: Dual) -> Dual:
    """Rows as one array."""
    shape = (len(rows), *like.shape[1:])
    complex_ = np.iscomplexobj(like.value)
    value = np.array([row.value for row in rows], complex if complex_ else float).reshape(shape)
    radius = np.array([row.ball.radius for row in rows]).reshape(shape)
    if like.tangent is None:
        return Dual(value, radius)
    directions = like.tangent.value.shape[-1]
    tangent = [
        np.array(
            [
                np.zeros((*shape[1:], directions)) if row.tangent is None else row.tangent[i]
                for row in rows
            ]
        ).reshape(*shape, directions)
        for i in range(2)
    ]
    return Dual.of(Ball(value, radius), Ball(*tangent))


def disagreement(actual: Any, ball: Ball, dtype: Any) -> str | None:
    """What is wrong with a result in a dtype; None if nothing is."""
    actual = np.asarray(actual)
    actual = actual.astype(np.complex128 if np.iscomplexobj(actual) else np.float64)
    with np.errstate(all="ignore"):
        # Errors are of the first order, and the reference has the rounding of float64 itself.
        allowed = 4 * rounded(ball.value, ball.radius, dtype).radius
        allowed = np.where(np.isnan(allowed), np.inf, allowed)
        same = (actual == ball.value) | (np.isnan(actual) & np.isnan(ball.value))
        close = np.isfinite(ball.value) & (np.abs(actual - ball.value) <= allowed)
        close |= np.isinf(allowed) & np.isfinite(ball.value)
        overflow = np.abs(ball.value) + allowed > float(jnp.finfo(dtype).max)
        bad = ~(same | close | overflow)
    if not bad.any():
        return None
    where = tuple(int(i[0]) for i in np.nonzero(bad))
    return (
        f"at {where}: {actual[where]!r}, want {ball.value[where]!r} ± {allowed[where]:.3g} "
        f"({int(bad.sum())} of {bad.size})"
    )
