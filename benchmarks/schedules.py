"""The rule for hypergraph aggregations: fitted to measurements on a GPU.

``fit`` grows a decision tree that predicts for a shape how much slower than the best each schedule
is (in logarithms), takes the least in every leaf, and ``emit`` writes it as a file of
``jax_gnn``. How far it is from exhaustive search is told by cross-validation: on graphs that the
tree has not seen. ``schedule_trees`` has the trees of sums over edges and of attention.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.schedule_times import Database, Row

SLOWEST = float(np.log(4))
"""Slowdowns beyond this are alike: nobody would choose them."""

BY_HAND = "by hand"
"""The leaf of a tree that leaves the choice to the rule by hand."""

NEAR = 1e-3
"""A smaller tree is taken if it loses no more than this in addition."""

Losses = dict[str, float]


# --- Fitting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A tree, and what it loses against exhaustive search on graphs that it has not seen.

    Attributes:
        tree: Grown on all rows.
        columns: Indices of the choices among which it chooses.
        options: Its size, as scikit-learn calls it.
        log_losses: (rows,), the logarithm of chosen over best time, by a tree that was grown
            without the row's graph.
    """

    tree: Any
    columns: np.ndarray
    options: dict[str, int]
    log_losses: np.ndarray


def kernel_of(row: Row) -> str:
    """Returns what a row measures, if a subject has several."""
    return "to nodes" if row.shape.get("to_nodes") else "to hyperedges"


def row_features(row: Row) -> dict[str, float]:
    """Returns what a tree may ask: what the library computes of the sizes of a call."""
    from jax_gnn._ops.hypergraph_aggregate.schedule import stage_features

    sizes = (row.shape[name] for name in ("incidences", "num_rows", "width", "itemsize"))
    return {"to_nodes": row.shape["to_nodes"], **stage_features(*sizes)}


def leaves_of(database: Database) -> list[Any]:
    """Returns the leaves of trees: the choices, and the rule by hand if it was timed."""
    timed = any(row.by_hand is not None for row in database.rows)
    return [*database.choices, *([BY_HAND] if timed else [])]


@functools.lru_cache(maxsize=4)
def slowdowns(database: Database) -> np.ndarray:
    """Logarithms of time over the row's best: (rows, leaves), `SLOWEST` at most.

    A schedule that no kernel can do counts as that by hand, which the library takes instead, and
    one percent more, so that trees name the rule by hand.
    """
    times = np.array([row.times for row in database.rows], dtype=float)
    if BY_HAND in leaves_of(database):
        by_hand = np.array([[row.by_hand] for row in database.rows], dtype=float)
        times = np.hstack([np.where(np.isfinite(times), times, 1.01 * by_hand), by_hand])
    return np.minimum(np.log(times / times.min(axis=1, keepdims=True)), SLOWEST)


def graph_family(row: Row) -> str:
    """Rows of one family are left out together: those of a graph, its twin and the twin's twin."""
    return row.graph.removesuffix("-cols").removesuffix("-twin")


def fit(database: Database) -> Fit:
    """Chooses the tree's size by cross-validation and grows it on all rows."""
    everything = np.full(len(database.rows), True)
    fits = []
    for leaves in (4, 8, 16, 24, 32, 48):
        for least in (1, 3, 6):
            options = {"max_leaf_nodes": leaves, "min_samples_leaf": least}
            for columns in choosable(database):
                losses = cross_validate(database, columns, options)
                tree = _grow(options, database, columns, everything)
                fits.append(Fit(tree, columns, options, losses))
    least_loss = min(each.log_losses.mean() for each in fits)
    near = [each for each in fits if each.log_losses.mean() <= least_loss + NEAR]
    leaves = min(each.options["max_leaf_nodes"] for each in near)
    near = [each for each in near if each.options["max_leaf_nodes"] == leaves]
    return min(near, key=lambda each: each.log_losses.mean())


def choosable(database: Database) -> list[np.ndarray]:
    """Sets of choices, by index, of which a rule may hold one.

    Both sums of an aggregation have blocks of one size, hence all have.
    """
    threads = np.array([threads for threads, _ in database.choices])
    return [np.flatnonzero(threads == each) for each in np.unique(threads)]


def cross_validate(database: Database, columns: np.ndarray, options: dict[str, int]) -> np.ndarray:
    """Log losses of all rows, each by a tree that was grown without its family of graphs."""
    losses = np.zeros(len(database.rows))
    for out in folds(database, most=32):
        tree = _grow(options, database, columns, ~out)
        losses[out] = _lost(tree, database, columns)[out]
    return losses


def folds(database: Database, most: int) -> list[np.ndarray]:
    """Returns masks of rows that are left out together: of one family of graphs, or of several."""
    families, index = np.unique([graph_family(row) for row in database.rows], return_inverse=True)
    part = np.random.default_rng(0).permutation(len(families)) % most
    return [part[index] == i for i in np.unique(part)]


def losses_by(database: Database, log_losses: np.ndarray, group: Callable[[Row], str]) -> Losses:
    """Geometric means of chosen over best time, less one, for groups of rows."""
    groups = np.array([group(row) for row in database.rows])
    return {str(g): float(np.expm1(log_losses[groups == g].mean())) for g in np.unique(groups)}


@functools.lru_cache(maxsize=2)
def _features(database: Database) -> np.ndarray:
    return np.array([list(row_features(row).values()) for row in database.rows], float)


def _grow(
    options: dict[str, int], database: Database, columns: np.ndarray, chosen: np.ndarray
) -> Any:
    """A tree on the chosen rows."""
    from sklearn.tree import DecisionTreeRegressor

    targets = slowdowns(database)[np.ix_(chosen, columns)]
    tree = DecisionTreeRegressor(**options, random_state=0)
    return tree.fit(_features(database)[chosen], targets)


def _lost(tree: Any, database: Database, columns: np.ndarray) -> np.ndarray:
    """Logarithms of chosen over best time for all rows."""
    best = columns[tree.predict(_features(database)).argmin(axis=1)]
    return slowdowns(database)[np.arange(len(best)), best]


def _all_at_once(database: Database, threads: int) -> np.ndarray:
    """The same for as many rounds as it takes for all slots to be dealt out at once, or eight."""
    rounds = np.array([rounds if of == threads else np.inf for of, rounds in database.choices])
    waves = np.array([row_features(row)["waves"] for row in database.rows])
    nearest = np.abs(np.log(rounds / np.clip(waves, 1, 8)[:, None])).argmin(axis=1)
    return slowdowns(database)[np.arange(len(nearest)), nearest]


def markdown(database: Database, fitted: Fit) -> str:
    """What the rule loses against exhaustive search, and what one schedule for all would."""
    targets = slowdowns(database)
    kernels = sorted({kernel_of(row) for row in database.rows})
    fixed = np.zeros(len(database.rows))
    for name in kernels:
        rows = np.array([kernel_of(row) == name for row in database.rows])
        fixed[rows] = targets[rows][:, targets[rows].mean(axis=0).argmin()]
    losses = fitted.log_losses
    shown = {"graph left out": losses, "worst call": losses}
    shown["graph seen"] = _lost(fitted.tree, database, fitted.columns)
    shown["one schedule for all"] = fixed
    shown["all at once"] = _all_at_once(database, database.choices[fitted.columns[0]][0])
    versions = ", ".join(f"{name} {version}" for name, version in database.versions.items())
    lines = [
        "# The rule for schedules against exhaustive search",
        "",
        f"{len(database.rows)} calls under {len(database.choices)} schedules on "
        f"{database.device}; {versions}; commit {database.commit or 'unknown'}; {database.date}.",
        f"The tree has {fitted.tree.get_n_leaves()} leaves. Slowdowns are geometric means of "
        "chosen over best time, less one.",
        "",
    ]
    by_kernel = []
    for name in [*kernels, "all"]:
        rows = np.array([name in ("all", kernel_of(row)) for row in database.rows])
        cells = [
            f"{np.expm1(values[rows].max() if title == 'worst call' else values[rows].mean()):.1%}"
            for title, values in shown.items()
        ]
        by_kernel.append([name, str(rows.sum()), *cells])
    losses_of = losses_by(database, fitted.log_losses, graph_family)
    by_graph = [[name, f"{loss:.1%}"] for name, loss in losses_of.items()]
    lines += report.table(["kernel", "calls", *shown], by_kernel)
    lines += ["", *report.table(["graph left out", "slowdown"], by_graph), ""]
    return "\n".join(lines)


# --- The rule as a file --------------------------------------------------------------------------


def emit(database: Database, fitted: Fit) -> str:
    """The rule as JSON, which ``jax_gnn/_ops/hypergraph_aggregate/schedule.py`` reads."""
    by_kernel = losses_by(database, fitted.log_losses, kernel_of)
    losses = ", ".join(f"{name} {loss:.1%}" for name, loss in by_kernel.items())
    provenance = (
        "Generated by `python -m benchmarks fit-schedules`: "
        f"{len(database.rows)} calls on {database.device} ({database.date[:10]}). "
        f"Slower than exhaustive search on graphs left out (geometric mean): {losses}."
    )
    threads, _ = database.choices[fitted.columns[0]]
    rule = {"provenance": provenance, "threads": threads, "rounds": _branches(database, fitted, 0)}
    return json.dumps(rule, indent=1) + "\n"


def _branches(database: Database, fitted: Fit, node: int) -> Any:
    """Rounds of a leaf; or a feature, a threshold, and the branches up to it and above."""
    nodes, means = fitted.tree.tree_, fitted.tree.tree_.value[:, :, 0]
    if nodes.children_left[node] < 0:
        _, rounds = database.choices[fitted.columns[means[node].argmin()]]
        return rounds  # threads are the same for all
    children = nodes.children_left[node], nodes.children_right[node]
    below, above = (_branches(database, fitted, child) for child in children)
    if below == above:  # branches that agree are one
        return below
    names = list(row_features(database.rows[0]))
    name, threshold = names[nodes.feature[node]], nodes.threshold[node]
    rounded = int(threshold) if name == "row_bytes" else float(f"{threshold:.4g}")
    return [name, rounded, below, above]
