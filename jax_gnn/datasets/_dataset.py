"""Datasets: the containers that the loaders return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from jax_gnn.batches import Batch
from jax_gnn.datasets._check import (
    MAX_SIZE,
    check_array,
    check_features,
    check_ids,
    check_labels,
    check_names,
    check_size,
    check_times,
)
from jax_gnn.datasets._split import Split
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NodeDataset:
    """Base of datasets: nodes with labels and, mostly, features, as host arrays.

    On construction fields are checked and converted to the dtypes below.

    Attributes:
        name: name of the dataset.
        num_nodes: number of nodes, isolated ones included.
        x: ``(num_nodes, num_features)`` float32, finite, or None for data without features (see
            :func:`with_noisy_label_features` and :func:`with_random_features`).
        y: ``(num_nodes,)`` int32 classes from 0; -1 is unlabelled. Or numbers to regress on,
            ``(num_nodes,)`` or ``(num_nodes, targets)`` float32; NaN is unlabelled.
        node_time: ``(num_nodes,)`` int64 times, in the unit of those of edges; None if nodes have
            no times.
        train_idx: ``(n,)`` int32, the training nodes of the only or first published split.
        val_idx: ``(k,)`` int32, the validation nodes of this split.
        test_idx: ``(m,)`` int32, the test nodes of this split.
        label_names: a name for each class.
        node_names: a name for each node, possibly repeated.
        feature_names: a name for each column of x, by which predictions match columns;
            ``KEY=VALUE`` for a column of zeros and ones for one value.
        format: format of the files, if models have special settings for it: ``"planetoid"``, or
            ``"tables"`` by type.
        repeated: number of edges, incidences or facts that were left out as repetitions.
        unused: names of files and columns that the dataset does not contain.
        columns: name and use of each column, for data from tables.
        notices: sentences about missing, filled and mistyped cells of tables.
        table_recipe: JSON by which :func:`load_csv` makes the same features of another table.
        predicted: numbers of the nodes of the one type that has labels; None for all.

    Raises:
        ValueError: a field has a wrong dtype, length or shape, an id is out of range, a feature is
            not finite, a split names an unlabelled node, its parts overlap, or two classes (or
            relations, or types of nodes) have one name. Repetitions in a part count once.
    """

    name: str
    num_nodes: int
    x: np.ndarray | None = None
    y: np.ndarray
    node_time: np.ndarray | None = None
    train_idx: np.ndarray | None = None
    val_idx: np.ndarray | None = None
    test_idx: np.ndarray | None = None
    label_names: tuple[str, ...] | None = None
    node_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    format: str = ""
    example: ClassVar[str] = "node"  # the kind of element that has labels
    # Set on instances by loaders: not fields, so that copies with changed fields drop them.
    repeated: ClassVar[int] = 0
    unused: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[tuple[str, str], ...]] = ()
    notices: ClassVar[tuple[str, ...]] = ()
    table_recipe: ClassVar[str | None] = None
    predicted: ClassVar[np.ndarray | None] = None
    _counts: ClassVar[tuple[str, ...]] = ("num_nodes",)  # sizes that repr shows

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={getattr(self, name)}" for name in self._counts)
        return f"{type(self).__name__}({self.name!r}, {counts})"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name: expected a string, got {type(self.name).__name__}")
        num_nodes = self._set("num_nodes", check_size("num_nodes", self.num_nodes))
        self._check_structure()
        if self.x is not None:
            self._set("x", check_features("x", self.x, num_nodes))
        self._check_names("feature_names", self.num_features, "column of x")
        y = self._set("y", check_labels(self.y))
        # Splits and labels are of nodes, or of graphs in a GraphsDataset.
        count, what = self.num_examples, self.example
        if len(y) != count:
            raise ValueError(f"y: expected {count} entries, one for each {what}, got {len(y)}")
        if self.node_time is not None:
            self._set("node_time", check_times("node_time", self.node_time, count))
        parts = ("train_idx", "val_idx", "test_idx")
        for part in parts:
            self._check_split(part)
        self._set_disjoint(parts, lambda number: f"{what} {number}")
        if self.label_names is not None and y.dtype.kind == "f":
            raise ValueError("label_names: y are numbers to regress on, which have no names")
        if self.label_names is not None:
            names = self._set("label_names", check_names("label_names", self.label_names))
            if y.max(initial=-1) >= len(names):
                raise ValueError(f"label_names: {len(names)} names, but y holds class {y.max()}")
        self._check_names("node_names", num_nodes, "node", repeated=True)

    def _check_structure(self) -> None:
        raise NotImplementedError

    def _set(self, field: str, value: Any) -> Any:
        object.__setattr__(self, field, value)
        return value

    def _check_names(self, field: str, count: int, what: str, *, repeated: bool = False) -> None:
        """Check a field of names, of which there is one for each ``what``, unless it is None."""
        if getattr(self, field) is None:
            return
        names = self._set(field, check_names(field, getattr(self, field), repeated=repeated))
        if len(names) != count:
            raise ValueError(
                f"{field}: expected {count} names, one for each {what}, got {len(names)}"
            )

    def _check_numbers(self, field: str, count: int) -> np.ndarray:
        """Check a field of ``count`` integers from -1."""
        numbers = check_ids(field, getattr(self, field), MAX_SIZE, start=-1)
        self._set(field, numbers)
        if numbers.size != count:
            raise ValueError(f"{field}: expected {count} entries, got {numbers.size}")
        return numbers

    def _count_repeated(self, count: int) -> None:
        if count:
            self._set("repeated", count)

    def _set_disjoint(self, parts: tuple[str, ...], describe: Callable[[int], str]) -> None:
        """Remove repeated ids of each part, and check that no id is in two parts."""
        present = [part for part in parts if getattr(self, part) is not None]
        for part in present:
            ids = getattr(self, part)
            self._set(part, ids[np.sort(np.unique(ids, return_index=True)[1])])
        for first, second in combinations(present, 2):
            shared = np.intersect1d(getattr(self, first), getattr(self, second))
            if shared.size:
                raise ValueError(f"{second}: {describe(shared[0])} is in {first} too")

    def _set_pairs(self, major: str, minor: str, num_major: int, num_minor: int) -> np.ndarray:
        """Check two fields of ids, sort their pairs without repetitions; return new positions."""
        minor_ids = check_ids(minor, getattr(self, minor), num_minor)
        major_ids = check_ids(major, getattr(self, major), num_major)
        if minor_ids.shape != major_ids.shape:
            raise ValueError(
                f"{major}: expected as many entries as {minor} has, {minor_ids.size}, "
                f"got {major_ids.size}"
            )
        # Pairs become one integer, whose order is by major id, then minor id.
        keys = major_ids.astype(np.int64) * num_minor + minor_ids
        pairs = np.unique(keys)
        major_ids, minor_ids = np.divmod(pairs, max(num_minor, 1))
        self._set(major, major_ids.astype(np.int32))
        self._set(minor, minor_ids.astype(np.int32))
        self._count_repeated(keys.size - pairs.size)
        return np.asarray(np.searchsorted(pairs, keys))

    def _set_edge_features(self, places: np.ndarray) -> None:
        """Check features of edges, and keep those of the first of repetitions."""
        if getattr(self, "edge_features", None) is not None:
            features = check_features("edge_features", self.edge_features, places.size, "edges")  # type: ignore[attr-defined]
            self._set("edge_features", features[np.unique(places, return_index=True)[1]])

    def _set_edge_time(self, places: np.ndarray, num_edges: int) -> None:
        """Check times of edges, and keep the earliest of repetitions."""
        if getattr(self, "edge_time", None) is not None:
            times = check_times("edge_time", self.edge_time, places.size)  # type: ignore[attr-defined]
            earliest = np.full(num_edges, np.iinfo(np.int64).max)
            np.minimum.at(earliest, places, times)
            self._set("edge_time", earliest)

    def _check_split(self, field: str, ndim: int = 1) -> None:
        if getattr(self, field) is None:
            return
        count = self.num_examples
        ids = self._set(field, check_ids(field, getattr(self, field), count, ndim=ndim))
        unlabelled = ids[~self.has_label()[ids]]
        if unlabelled.size:
            value = "NaN" if self.regresses else "-1"
            raise ValueError(f"{field}: {self.example} {unlabelled[0]} has no label (y is {value})")

    def has_label(self) -> np.ndarray:
        """Return which nodes have a label, ``(num_nodes,)`` booleans: splits name only these."""
        if self.regresses:
            return np.asarray(np.isfinite(self.y).reshape(len(self.y), -1).all(1))
        return np.asarray(self.y >= 0)

    @property
    def num_examples(self) -> int:
        """Number of elements that have labels: nodes, or graphs."""
        return self.num_nodes

    @property
    def regresses(self) -> bool:
        """Whether labels are numbers to regress on, not classes."""
        return self.y.dtype.kind == "f"

    @property
    def num_features(self) -> int:
        """Number of features of a node; 0 where ``x`` is None."""
        return 0 if self.x is None else self.x.shape[1]

    @property
    def num_classes(self) -> int:
        """Number of class names, or else the largest label plus one; 0 for regression."""
        if self.regresses:
            return 0
        if self.label_names is not None:
            return len(self.label_names)
        return int(self.y.max(initial=-1)) + 1

    @property
    def published_split(self) -> Split | None:
        """Split of the files, if it has training, validation and test nodes."""
        if self.train_idx is None or self.val_idx is None or self.test_idx is None:
            return None
        return Split(self.train_idx, self.val_idx, self.test_idx)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HypergraphDataset(NodeDataset):
    """Hypergraph with labelled nodes; further fields are those of :class:`NodeDataset`.

    Incidences are sorted by hyperedge, then node, with repetitions removed.

    Attributes:
        node_idx: ``(num_incidences,)`` int32, the node of each incidence.
        hyperedge_idx: ``(num_incidences,)`` int32, the hyperedge of each incidence.
        num_hyperedges: number of hyperedges, empty ones included.
        train_splits: ``(num_splits, n)`` int32, the training nodes of each published split; all
            other nodes are test nodes.
    """

    node_idx: np.ndarray
    hyperedge_idx: np.ndarray
    num_hyperedges: int
    train_splits: np.ndarray | None = None

    _counts = ("num_nodes", "num_hyperedges", "num_incidences", "num_features", "num_classes")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_split("train_splits", ndim=2)

    def _check_structure(self) -> None:
        size = self._set("num_hyperedges", check_size("num_hyperedges", self.num_hyperedges))
        self._set_pairs("hyperedge_idx", "node_idx", size, self.num_nodes)

    @property
    def num_incidences(self) -> int:
        """Number of (node, hyperedge) pairs."""
        return self.node_idx.size

    def hypergraph(
        self, *, self_loops: Literal["none", "isolated", "all"] = "isolated"
    ) -> Hypergraph:
        """Return the structure, for :func:`jax_gnn.hypergraph_aggregate`.

        Args:
            self_loops: nodes that get a hyperedge of themselves alone, appended at the end:
                "none"; "isolated", those in no hyperedge (else their result is 0 for any
                features); "all", as in AllSet (arXiv 2106.13264).

        Raises:
            ValueError: ``self_loops`` has another value.
        """
        if self_loops not in ("none", "isolated", "all"):
            raise ValueError(f"self_loops must be 'none', 'isolated' or 'all', got {self_loops!r}")
        hypergraph = Hypergraph.from_incidence(
            self.node_idx,
            self.hyperedge_idx,
            num_nodes=self.num_nodes,
            num_hyperedges=self.num_hyperedges,
        )
        return hypergraph if self_loops == "none" else hypergraph.with_self_loops(self_loops)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GraphDataset(NodeDataset):
    """Graph with labelled nodes; further fields are those of :class:`NodeDataset`.

    Edges are directed and sorted by destination, then source, with repetitions removed; an
    undirected graph has both directions.

    Attributes:
        src: ``(num_edges,)`` int32, the source of each edge.
        dst: ``(num_edges,)`` int32, the destination of each edge.
        edge_weight: ``(num_edges,)`` float32, finite, summed over repetitions; None if edges have
            no weights.
        edge_features: ``(num_edges, features)`` float32, of repetitions the first; None if edges
            have none.
        edge_time: ``(num_edges,)`` int64, of repetitions the earliest; None if edges have no times.
    """

    src: np.ndarray
    dst: np.ndarray
    edge_weight: np.ndarray | None = None
    edge_features: np.ndarray | None = None
    edge_time: np.ndarray | None = None

    _counts = ("num_nodes", "num_edges", "num_features", "num_classes")

    def _check_structure(self) -> None:
        places = self._set_pairs("dst", "src", self.num_nodes, self.num_nodes)
        self._set_edge_features(places)
        if self.edge_weight is not None:
            # Weights of repeated edges are summed.
            weight = check_array("edge_weight", self.edge_weight, "fiub", "real numbers", 1)
            weight = check_features("edge_weight", weight[:, None], places.size, "edges")[:, 0]
            self._set("edge_weight", np.zeros(self.src.size, np.float32))
            np.add.at(self.edge_weight, places, weight)
        self._set_edge_time(places, self.src.size)

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return self.src.size

    def graph(self) -> Graph:
        """Return the structure, for :func:`jax_gnn.spmm`."""
        return Graph.from_edges(self.src, self.dst, num_nodes=self.num_nodes)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GraphsDataset(NodeDataset):
    """Graphs with a label each; further fields are those of :class:`NodeDataset`.

    Nodes are numbered one graph after another; labels, splits and times are of graphs. Edges are
    directed and sorted by destination, then source, with repetitions removed.

    Attributes:
        sizes: ``(num_graphs,)`` int32, number of nodes of each graph.
        src: ``(num_edges,)`` int32, the source of each edge.
        dst: ``(num_edges,)`` int32, the destination of each edge, in the same graph.
        edge_features: ``(num_edges, features)`` float32, of repetitions the first; None if edges
            have none.
        folds: ``(num_graphs,)`` int32, the fold of a published cross-validation that holds out each
            graph; -1 for graphs that all folds train on.
        graph_names: a name for each graph.
        forces: ``(num_nodes, 3)`` float32, negative gradients of ``y`` to the positions of atoms;
            None if they are not known.
    """

    example: ClassVar[str] = "graph"

    sizes: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    edge_features: np.ndarray | None = None
    folds: np.ndarray | None = None
    graph_names: tuple[str, ...] | None = None
    forces: np.ndarray | None = None

    _counts = ("num_graphs", "num_nodes", "num_edges", "num_features", "num_classes")

    def _check_structure(self) -> None:
        sizes = self._set("sizes", check_ids("sizes", self.sizes, MAX_SIZE))
        if int(sizes.sum(dtype=np.int64)) != self.num_nodes:
            raise ValueError(f"sizes: expected {self.num_nodes} together, got {sizes.sum()}")
        self._set_edge_features(self._set_pairs("dst", "src", self.num_nodes, self.num_nodes))
        # Edges within graphs keep all operations on a batch separate by graph.
        graph_of = np.repeat(np.arange(sizes.size), sizes)
        across = np.flatnonzero(graph_of[self.src] != graph_of[self.dst])
        if across.size:
            pair = int(self.src[across[0]]), int(self.dst[across[0]])
            raise ValueError(f"src, dst: edge {pair} joins two graphs")
        if self.folds is not None:
            self._check_numbers("folds", sizes.size)
        self._check_names("graph_names", sizes.size, "graph")
        if self.forces is not None:
            forces = self._set("forces", check_features("forces", self.forces, self.num_nodes))
            if forces.shape[1] != 3:
                raise ValueError(f"forces: expected three columns, got shape {forces.shape}")

    @property
    def num_examples(self) -> int:
        return self.sizes.size

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return self.sizes.size

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return self.src.size

    def batch(self, numbers: ArrayLike, **capacities: int) -> Batch[Graph]:
        """Join some of the graphs, padded to capacities: see :meth:`Batch.from_edges`.

        Args:
            numbers: integers, the numbers of the graphs.
            **capacities: ``num_nodes``, ``num_edges`` and ``num_graphs`` of the batch.

        Raises:
            ValueError: a capacity is too small.
        """
        ids, starts = np.asarray(numbers), np.cumsum(self.sizes) - self.sizes
        edges = [
            np.stack([self.src[rows], self.dst[rows]]) - starts[i]
            for i, rows in zip(ids.tolist(), self._edges_of(ids), strict=True)
        ]
        return Batch.from_edges(edges, self.sizes[ids], validate=False, **capacities)

    def _edges_of(self, ids: np.ndarray) -> list[slice]:
        """Return the edges of some graphs, which are consecutive, sorted by destination."""
        bounds = np.searchsorted(self.dst, np.append(0, np.cumsum(self.sizes)))
        return [slice(bounds[i], bounds[i + 1]) for i in ids.tolist()]

    def edges_of(self, numbers: ArrayLike) -> np.ndarray:
        """Return the edges of some graphs, in the order of the edges that :meth:`batch` joins."""
        ranges = [np.arange(rows.start, rows.stop) for rows in self._edges_of(np.asarray(numbers))]
        return np.concatenate([np.zeros(0, int), *ranges])

    def nodes_of(self, numbers: ArrayLike) -> np.ndarray:
        """Return the nodes of some graphs, in the order of :meth:`batch`."""
        ids = np.asarray(numbers)
        starts, sizes = (np.cumsum(self.sizes) - self.sizes)[ids], self.sizes[ids]
        shifts = starts - (np.cumsum(sizes) - sizes)
        return np.asarray(np.repeat(shifts, sizes) + np.arange(sizes.sum()))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RelationalDataset(NodeDataset):
    """Graph whose edges have relations; further fields are those of :class:`NodeDataset`.

    Edges, or facts, are directed and sorted by relation, destination, source, with repetitions
    removed. Inverse edges are not added (see :meth:`graph`).

    Attributes:
        src: ``(num_edges,)`` int32, the source of each edge.
        rel: ``(num_edges,)`` int32, the relation of each edge.
        dst: ``(num_edges,)`` int32, the destination of each edge.
        num_relations: number of relations, those without edges included.
        relation_names: a name for each relation.
        edge_time: ``(num_edges,)`` int64, of repetitions the earliest; None if edges have no times.
        node_type: ``(num_nodes,)`` int32, the type of each node; -1 is none.
        node_type_names: a name for each type.
        x_by_type: features by the name of a type, ``(nodes of the type, features)`` float32, rows
            in the order of the nodes.
        y_multilabel: ``(num_nodes, num_classes)`` bool, if a node may have several classes; all
            False for unlabelled nodes.
        train_edges: ``(n,)`` int32, the training edges, if edges are to be predicted; the three
            parts are disjoint.
        val_edges: ``(k,)`` int32, the validation edges.
        test_edges: ``(m,)`` int32, the test edges.
    """

    src: np.ndarray
    rel: np.ndarray
    dst: np.ndarray
    num_relations: int
    relation_names: tuple[str, ...] | None = None
    edge_time: np.ndarray | None = None
    node_type: np.ndarray | None = None
    node_type_names: tuple[str, ...] | None = None
    x_by_type: Mapping[str, np.ndarray] | None = None
    y_multilabel: np.ndarray | None = None
    train_edges: np.ndarray | None = None
    val_edges: np.ndarray | None = None
    test_edges: np.ndarray | None = None

    _counts = ("num_nodes", "num_edges", "num_relations", "num_classes")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_names("relation_names", self.num_relations, "relation")

    def _check_structure(self) -> None:
        num_relations = check_size("num_relations", self.num_relations)
        self._set("num_relations", num_relations)
        columns = {"src": self.num_nodes, "rel": num_relations, "dst": self.num_nodes}
        src, rel, dst = (check_ids(f, getattr(self, f), size) for f, size in columns.items())
        if not src.shape == rel.shape == dst.shape:
            raise ValueError(
                f"src, rel, dst: expected as many of each, got {src.size}, {rel.size}, {dst.size}"
            )
        # Sorted by relation, destination, source; repetitions are adjacent then.
        order = np.lexsort((src, dst, rel))
        ids = np.stack([src[order], rel[order], dst[order]])
        is_first = np.append(np.ones(min(src.size, 1), bool), (np.diff(ids) != 0).any(axis=0))
        self._count_repeated(src.size - int(is_first.sum()))
        for field, column in zip(columns, ids[:, is_first], strict=True):
            self._set(field, np.ascontiguousarray(column))
        # Splits name edges by their position before the sort.
        places = np.empty(src.size, np.int32)
        places[order] = np.cumsum(is_first) - 1
        self._set_edge_time(places, self.src.size)
        parts = "train_edges", "val_edges", "test_edges"
        for part in parts:
            if getattr(self, part) is not None:
                self._set(part, places[check_ids(part, getattr(self, part), src.size)])

        def describe(edge: int) -> str:
            names = self.node_names, self.relation_names, self.node_names
            fact = zip((self.src[edge], self.rel[edge], self.dst[edge]), names, strict=True)
            return f"edge ({', '.join(str(i if n is None else n[i])[:40] for i, n in fact)})"

        self._set_disjoint(parts, describe)
        self._check_types()
        if self.y_multilabel is not None:
            labels = check_array("y_multilabel", self.y_multilabel, "iub", "zeros and ones", 2)
            if labels.shape[0] != self.num_nodes or not np.isin(labels, (0, 1)).all():
                raise ValueError(
                    f"y_multilabel: expected zeros and ones, a row for each of {self.num_nodes} "
                    f"nodes, got shape {labels.shape}"
                )
            self._set("y_multilabel", labels.astype(bool))

    def _check_types(self) -> None:
        if self.node_type is None:
            if self.node_type_names is not None or self.x_by_type is not None:
                raise ValueError("node_type: missing, but there are names or features of types")
            return
        types = self._check_numbers("node_type", self.num_nodes)
        type_names = () if self.node_type_names is None else self.node_type_names
        names = self._set("node_type_names", check_names("node_type_names", type_names))
        if types.max(initial=-1) >= len(names):
            raise ValueError(f"node_type: {types.max()} has none of {len(names)} node_type_names")
        # Features of a type have a row for each node of the type.
        checked = {}
        for name, features in (self.x_by_type or {}).items():
            if name not in names:
                raise ValueError(f"x_by_type: {name!r} is none of node_type_names")
            count = int((types == names.index(name)).sum())
            checked[name] = check_features(f"x_by_type[{name!r}]", features, count)
        self._set("x_by_type", checked or None)

    @property
    def node_type_sizes(self) -> dict[str, int] | None:
        """Number of nodes of each type, if nodes are numbered type by type; else None."""
        types = self.node_type
        # Nodes without a type, or types in any order, have no ranges.
        if types is None or types.min(initial=0) < 0 or (np.diff(types) < 0).any():
            return None
        names = self.node_type_names or ()
        counts = np.bincount(types, minlength=len(names)).tolist()
        return dict(zip(names, counts, strict=True))

    def has_label(self) -> np.ndarray:
        labelled = super().has_label()
        return labelled if self.y_multilabel is None else labelled | self.y_multilabel.any(axis=1)

    @property
    def num_classes(self) -> int:
        """Number of columns of ``y_multilabel``, or of classes as of every dataset."""
        return super().num_classes if self.y_multilabel is None else self.y_multilabel.shape[1]

    @property
    def num_edges(self) -> int:
        """Number of edges, inverse ones not included."""
        return self.src.size

    def graph(self, *, inverse: bool = True, self_relation: bool = True) -> RelationalGraph:
        """Return the structure, as R-GCN uses it (arXiv 1703.06103).

        Args:
            inverse: whether to add each edge reversed, with an inverse relation.
            self_relation: whether to add a last relation, of each node to itself.
        """
        graph = RelationalGraph.from_triples(
            self.src,
            self.rel,
            self.dst,
            self.num_nodes,
            self.num_relations,
            inverse=inverse,
            self_relation=self_relation,
        )
        sizes = self.node_type_sizes
        if sizes is not None:
            names, counts = tuple(sizes), tuple(sizes.values())
            graph = replace(graph, node_type_names=names, node_type_sizes=counts)
        return graph
