"""Decision trees of schedules, fitted to times that were measured on a GPU.

A tree is grown on what a schedule loses against the best one of a call (in logarithms): splits are
chosen by losses, not by how often the best leaf is found. How far a tree is from exhaustive search
is told on graphs that it has not seen.

For sums over edges and attention, a tree of a few hundred calls alone has poor thresholds. So a
forest learns the slowdown of each leaf first, and the tree is grown on what the forest says of some
thousand similar calls (Breiman and Shang 1996, "Born again trees").
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.schedule_times import HYPERGRAPH, SPREAD, THREADS, Database, Row

SLOWEST = float(np.log(4))
"""Slowdowns beyond this are alike: nobody would choose them."""

BY_HAND = "by hand"
"""The leaf of a tree that leaves the choice to the rule by hand."""

SIMILAR_CALLS = 3000
MAX_LEAVES = 32
MIN_CALLS = 10
"""Least number of similar calls in a leaf."""

MIN_MEASURED_CALLS = 6
"""Least number of calls in a leaf of a tree that is grown on measured ones."""

VARIANCE = 0.1
"""Share of the slowdowns' variance in the gain of a split.

By losses alone, a split after which both sides keep their leaf gains nothing, even if it is the
first step towards one that does.
"""

WITHIN = 0.05
"""Losses up to this count as near the best in tables."""

MIN_GAIN = 1e-3
"""Least gain over the rule by hand, in mean loss, for which a tree is shipped."""

# --- Measured calls ------------------------------------------------------------------------------


def kind_of(database: Database, row: Row) -> str:
    """Return the kind of call of a row: the subject, or the sum of a hypergraph aggregation."""
    if database.subject != HYPERGRAPH:
        return database.subject
    return "to nodes" if row.shape["to_nodes"] else "to hyperedges"


def call_features(database: Database, row: Row) -> dict[str, float]:
    """Return what a tree may ask of a call, as the library computes it."""
    from jax_gnn._ops.attention import schedule as attention
    from jax_gnn._ops.hypergraph_aggregate.schedule import stage_features
    from jax_gnn._ops.segment_reduce import schedule as segments

    if database.subject == HYPERGRAPH:
        sizes = (row.shape[name] for name in ("incidences", "num_rows", "width", "itemsize"))
        return {"to_nodes": row.shape["to_nodes"], **stage_features(*sizes)}
    call = {name: size for name, size in row.shape.items() if name not in SPREAD}
    features = (attention if "keys" in call else segments).tree_features(**call)
    if database.knows_spread:
        features |= {name: row.shape[name] for name in SPREAD}
    return features


@functools.lru_cache(maxsize=4)
def _features(database: Database) -> np.ndarray:
    return np.array([list(call_features(database, row).values()) for row in database.rows], float)


def leaves_of(database: Database) -> dict[Any, int]:
    """Return the leaves that trees may have, and the column of `slowdowns` of each.

    These are the choices, and the rule by hand if it was timed. Both sums of a hypergraph
    aggregation have blocks of one size: leaves are the rounds of these `Database.threads`.
    """
    if database.subject == HYPERGRAPH:
        choices = enumerate(database.choices)
        return {rounds: i for i, (threads, rounds) in choices if threads == database.threads}
    timed = any(row.by_hand is not None for row in database.rows)
    return {leaf: i for i, leaf in enumerate([*database.choices, *([BY_HAND] if timed else [])])}


@functools.lru_cache(maxsize=4)
def slowdowns(database: Database) -> np.ndarray:
    """Return logarithms of time over the row's best: (rows, choices), `SLOWEST` at most.

    The last column is that of the rule by hand, if it was timed. A schedule that no kernel can do
    counts as that by hand, which the library takes instead, and one percent more, so that trees
    name the rule by hand.
    """
    times = np.array([row.times for row in database.rows], dtype=float)
    if BY_HAND in leaves_of(database):
        by_hand = np.array([[row.by_hand] for row in database.rows], dtype=float)
        times = np.hstack([np.where(np.isfinite(times), times, 1.01 * by_hand), by_hand])
    return np.minimum(np.log(times / times.min(axis=1, keepdims=True)), SLOWEST)


def folds(database: Database, most: int) -> list[np.ndarray]:
    """Return masks of rows that are left out together: those of a graph and of its twins."""
    graphs = [row.graph.removesuffix("-cols").removesuffix("-twin") for row in database.rows]
    families, index = np.unique(graphs, return_inverse=True)
    part = np.random.default_rng(0).permutation(len(families)) % most
    return [part[index] == i for i in np.unique(part)]


# --- Fitting -------------------------------------------------------------------------------------


def similar_calls(database: Database, rows: Sequence[Row], count: int) -> Database:
    """Draw calls: sizes near those of one row, with width, dtype and options of another."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(count):
        graph, call = (rows[i].shape for i in rng.integers(len(rows), size=2))
        factors = 10 ** rng.normal(0, 0.1, 2)
        sizes = {
            "entries": max(int(graph["entries"] * factors[0]), 1),
            "rows": max(int(graph["rows"] * factors.prod()), 1),
            "cols": max(int(graph["cols"] * factors.prod()), 1),
        }
        if graph["cols"] == graph["entries"]:  # each entry reads its own row
            sizes["cols"] = sizes["entries"]
        spread = {name: graph[name] for name in SPREAD}
        drawn.append(Row(graph="", times=(), shape={**call, **sizes, **spread}))
    return replace(database, rows=drawn)


def fit(database: Database, used: np.ndarray) -> Any:
    """Return a tree as `jax_gnn._core.schedule.leaf` reads it, fitted to the ``used`` rows.

    For sums over edges and attention, calls with more entries or wider rows than any of these are
    left to the rule by hand.
    """
    leaves, features = leaves_of(database), _features(database)[used]
    losses = slowdowns(database)[used][:, list(leaves.values())]
    names = list(call_features(database, database.rows[0]))
    if database.subject == HYPERGRAPH:
        return grow(names, features, losses, [*leaves], MIN_MEASURED_CALLS)
    from sklearn.ensemble import ExtraTreesRegressor

    forest = ExtraTreesRegressor(300, min_samples_leaf=2, random_state=0, n_jobs=-1)
    forest.fit(features, losses)
    rows = [row for row, is_used in zip(database.rows, used, strict=True) if is_used]
    similar = _features(similar_calls(database, rows, SIMILAR_CALLS))
    tree = grow(names, similar, forest.predict(similar), [*leaves], MIN_CALLS)
    for name in ("row_bytes", "entries"):
        most = features[:, names.index(name)].max()
        tree = [name, float(f"{1.01 * most:.3g}"), tree, BY_HAND]
    return tree


def with_best_threads(database: Database) -> Database:
    """Return the database of hypergraphs with the blocks with which trees lose least, held out."""
    candidates = [replace(database, threads=threads) for threads in THREADS]
    return min(candidates, key=lambda candidate: held_out(candidate).mean())


def grow(
    names: list[str], features: np.ndarray, losses: np.ndarray, leaves: list[Any], min_calls: int
) -> Any:
    """Return a tree that loses little, grown at the node that gains most from a split.

    Args:
        names: names of the features.
        features: (calls, features).
        losses: (calls, leaves), logarithms of times over the best.
        leaves: what the tree returns for each column of ``losses``.
        min_calls: least number of calls in a leaf.
    """
    calls = [np.arange(len(features))]  # of each node
    gains = {0: _best_split(features, losses, min_calls)}  # of nodes that are not split yet
    children: dict[int, tuple[int, int, int, float]] = {}
    while len(gains) < MAX_LEAVES:
        node = max(gains, key=lambda node: gains[node][0])
        gain, feature, threshold = gains.pop(node)
        if gain <= 0:
            break
        children[node] = len(calls), len(calls) + 1, feature, threshold
        is_low = features[calls[node], feature] <= threshold
        for part in (calls[node][is_low], calls[node][~is_low]):
            gains[len(calls)] = _best_split(features[part], losses[part], min_calls)
            calls.append(part)

    def tree(node: int) -> Any:
        if node not in children:
            return leaves[losses[calls[node]].sum(0).argmin()]
        *nodes, feature, threshold = children[node]
        low, high = map(tree, nodes)
        return low if low == high else [names[feature], threshold, low, high]

    return tree(0)


def _best_split(
    features: np.ndarray, losses: np.ndarray, min_calls: int
) -> tuple[float, int, float]:
    """Return the gain, the feature and the threshold of the best split; gain 0 if there is none."""
    best = 0.0, 0, 0.0
    count, total = len(losses), losses.sum(0)
    for feature in range(features.shape[1]):
        order = np.argsort(features[:, feature], kind="stable")
        values, sums = features[order, feature], np.cumsum(losses[order], axis=0)
        sizes = np.arange(min_calls, count - min_calls + 1)
        sizes = sizes[values[sizes - 1] < values[sizes]] if len(sizes) else sizes
        if not len(sizes):
            continue
        low = sums[sizes - 1]
        high, others = total - low, (count - sizes)[:, None]
        gains = total.min() - low.min(1) - high.min(1)
        squares = low**2 / sizes[:, None] + high**2 / others - total**2 / count
        gains += VARIANCE * squares.sum(1)
        i = int(gains.argmax())
        if gains[i] > best[0]:
            middle = (values[sizes[i] - 1] + values[sizes[i]]) / 2
            best = float(gains[i]), feature, float(f"{middle:.4g}")
    return best


def chosen_losses(database: Database, tree: Any, rows: np.ndarray) -> np.ndarray:
    """Return logarithms of chosen over best time for some rows, by mask."""
    from jax_gnn._core.schedule import leaf

    columns = leaves_of(database)
    chosen = [
        columns[leaf(tree, call_features(database, database.rows[i]))]
        for i in np.flatnonzero(rows).tolist()
    ]
    return slowdowns(database)[rows, chosen]


@functools.lru_cache(maxsize=16)
def held_out(database: Database) -> np.ndarray:
    """Return log losses of all rows, each by a tree that was fitted without the row's graph."""
    losses = np.zeros(len(database.rows))
    for out in folds(database, most=32 if database.subject == HYPERGRAPH else 10):
        losses[out] = chosen_losses(database, fit(database, ~out), out)
    return losses


# --- The table, and the file of the library ------------------------------------------------------


def is_better(losses: np.ndarray, by_hand: np.ndarray) -> bool:
    """Whether a tree loses less than the rule by hand, and is near the best as often."""
    near = np.log1p(WITHIN)
    gains = losses.mean() + MIN_GAIN < by_hand.mean()
    return bool(gains and (losses <= near).mean() >= (by_hand <= near).mean())


def _all_at_once(database: Database) -> np.ndarray:
    """Return log losses of as many rounds as deal out all slots of a sum at once, at most eight."""
    leaves = leaves_of(database)
    waves = np.array([call_features(database, row)["waves"] for row in database.rows])
    distances = np.abs(np.log(np.array([*leaves]) / np.clip(waves, 1, 8)[:, None]))
    nearest = np.array([*leaves.values()])[distances.argmin(axis=1)]
    return slowdowns(database)[np.arange(len(nearest)), nearest]


def _losses(database: Database) -> dict[str, np.ndarray]:
    """Return log losses of all rows by the title of their column in the table."""
    tree = {"tree": held_out(database)}
    if database.subject == HYPERGRAPH:
        return {"all at once": _all_at_once(database), **tree}
    with_spread = held_out(replace(database, knows_spread=True))
    return {"by hand": slowdowns(database)[:, -1], **tree, "tree with spread": with_spread}


def markdown(databases: Sequence[Database]) -> str:
    """Return a table of what simple rules and trees lose against exhaustive search."""
    first = databases[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    graphs = {row.graph for database in databases for row in database.rows}
    lines = [
        "# Trees of schedules against simple rules and exhaustive search",
        "",
        f"{len(graphs)} graphs on {first.device}; {versions}; commit {first.commit or 'unknown'}; "
        f"{first.date}.",
        "Cells are the share of calls within 5 % of the best schedule, the mean loss, the loss "
        "that 9 of 10 calls do not exceed, and the worst loss. Trees are fitted without the graph "
        "of the call. *With spread*: the tree may ask for deviation and maximum of the rows' "
        "lengths, too, which shapes do not tell. *All at once*: as many rounds as deal out all "
        "work at once, at most eight.",
        "",
    ]
    cells = []
    titles: list[str] = []
    for database in databases:
        kinds = np.array([kind_of(database, row) for row in database.rows])
        losses = _losses(database)
        titles = [*losses, "one schedule for all"]
        for kind in np.unique(kinds).tolist():
            is_kind = kinds == kind
            table = slowdowns(database)[is_kind, : len(database.choices)]
            shown = [loss[is_kind] for loss in losses.values()]
            fixed = table[:, table.mean(axis=0).argmin()]
            is_shipped = database.subject == HYPERGRAPH or is_better(shown[1], shown[0])
            count = str(len(table)), str(len(database.choices))
            cells.append(
                [kind, *count, *map(_quantiles, [*shown, fixed]), "yes" if is_shipped else "no"]
            )
    lines += report.table(["kind", "calls", "schedules", *titles, "shipped"], cells)
    return "\n".join([*lines, ""])


def _quantiles(losses: np.ndarray) -> str:
    share = (losses <= np.log1p(WITHIN)).mean()
    quantiles = losses.mean(), np.quantile(losses, 0.9), losses.max()
    return f"{share:.0%}; " + ", ".join(f"{np.expm1(value):.1%}" for value in quantiles)


def emit(databases: Sequence[Database]) -> str:
    """Return the trees that are better than the rule by hand, as JSON that the library reads."""
    first, texts = databases[0], []
    for database in databases:
        if is_better(held_out(database), slowdowns(database)[:, -1]):
            text = _nested(fit(database, np.full(len(database.rows), True)), "   ")
            texts.append(f'   "{database.subject}": {text}')
    provenance = (
        f"{_origin(first)}. A branch is a feature, a threshold, and the branches "
        "up to it and above; leaves are as in `LEAVES` of benchmarks/segment_times.py."
    )
    trees = ",\n".join(texts)
    return (
        f'{{\n "provenance": {json.dumps(provenance)},\n "trees": {{\n'
        f'  "{first.capability}": {{\n{trees}\n  }}\n }}\n}}\n'
    )


def emit_rule(database: Database) -> str:
    """Return the rule for hypergraphs as JSON that the library reads."""
    kinds, losses = np.array([kind_of(database, row) for row in database.rows]), held_out(database)
    means = {kind: np.expm1(losses[kinds == kind].mean()) for kind in np.unique(kinds).tolist()}
    listed = ", ".join(f"{kind} {loss:.1%}" for kind, loss in means.items())
    provenance = (
        f"{_origin(database)}, {len(database.rows)} calls. Slower than exhaustive search on "
        f"graphs left out (geometric mean): {listed}."
    )
    tree = _nested(fit(database, np.full(len(database.rows), True)), " ")
    return (
        f'{{\n "provenance": {json.dumps(provenance)},\n "threads": {database.threads},\n'
        f' "rounds": {tree}\n}}\n'
    )


def _origin(database: Database) -> str:
    return (
        "Generated by `python -m benchmarks fit-schedules` from times on "
        f"{database.device} ({database.date[:10]})"
    )


def _nested(tree: Any, indent: str) -> str:
    """Return a tree as JSON that reads like nested ifs."""
    if not isinstance(tree, list):
        return json.dumps(tree)
    name, threshold, *branches = tree
    lines = (f"{indent} {_nested(branch, indent + ' ')}" for branch in branches)
    return f'["{name}", {threshold:g},\n' + ",\n".join(lines) + "]"
