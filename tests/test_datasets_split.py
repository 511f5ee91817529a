"""Splits of labelled nodes, at random and by time."""

import numpy as np
import pytest

from jax_gnn import datasets


def test_random_split():
    y = np.arange(103) % 7
    y[[5, 50]] = -1
    split = datasets.random_split(y, seed=0)
    assert [len(split.train), len(split.valid), len(split.test)] == [50, 25, 26]
    together = np.concatenate([split.train, split.valid, split.test])
    np.testing.assert_array_equal(np.sort(together), np.flatnonzero(y >= 0))
    assert together.dtype == np.int32
    again, reseeded = datasets.random_split(y, seed=0), datasets.random_split(y, seed=1)
    np.testing.assert_array_equal(again.test, split.test)
    assert not np.array_equal(reseeded.test, split.test)
    two_parts = datasets.random_split(y, train=0.8, valid=0, seed=0)
    assert [len(two_parts.train), len(two_parts.valid), len(two_parts.test)] == [80, 0, 21]
    # Every node is as likely to train as any reseeded.
    counts = np.bincount(
        np.concatenate([datasets.random_split(y, seed=s).train for s in range(400)]), minlength=103
    )
    assert counts[[5, 50]].tolist() == [0, 0]
    assert 150 < counts[y >= 0].min() <= counts.max() < 250


def test_time_split(rng):
    y, times = np.arange(103) % 7 - (np.arange(103) < 9), rng.integers(-20, 20, 103) * 10**12
    split = datasets.time_split(y, times, train=0.6, valid=0.2, seed=0)
    parts = split.train, split.valid, split.test
    sizes = datasets.random_split(y, train=0.6, valid=0.2, seed=0)
    assert [*map(len, parts)] == [*map(len, (sizes.train, sizes.valid, sizes.test))]
    together = np.concatenate(parts)
    np.testing.assert_array_equal(np.sort(together), np.flatnonzero(y >= 0))
    assert (np.diff(times[together]) >= 0).all()
    # The seed orders nodes of one time alone.
    other = datasets.time_split(y, times, train=0.6, valid=0.2, seed=1)
    again = np.concatenate([other.train, other.valid, other.test])
    np.testing.assert_array_equal(times[again], times[together])
    assert not np.array_equal(again, together)
    for wrong, message in ((times[1:], "expected 103 entries, got 102"), (times / 2, "integers")):
        with pytest.raises(ValueError, match=f"node_time: .*{message}"):
            datasets.time_split(y, wrong, seed=0)


@pytest.mark.parametrize(
    ("y", "shares", "message"),
    [
        ([0, 1], {"train": 0.8, "valid": 0.3}, "their sum at most 1, got train=0.8, valid=0.3"),
        ([0, 1], {"train": 0.0}, "train must be above 0"),
        ([0, 1], {"valid": -0.1}, "valid at least 0"),
        ([0, 1], {"train": float("nan")}, "train must be above 0"),
        ([0, -1], {}, "y has 1 labelled nodes, of which train=0.5 leaves none"),
        ([], {}, "y has 0 labelled nodes"),
        ([0.0, 1.0], {}, "y: expected integers"),
        ([[0, 1]], {}, "y: expected 1 axes"),
    ],
)
def test_random_split_refuses(y, shares, message):
    with pytest.raises(ValueError, match=message):
        datasets.random_split(y, seed=0, **shares)
