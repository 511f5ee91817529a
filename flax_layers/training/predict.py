"""``jax-gnn predict``: predictions of a checkpoint, and answers to queries."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_layers.training.checkpoint import load_checkpoint
from flax_layers.training.devices import check_devices
from flax_layers.training.links import TrainedLinks
from flax_layers.training.models import command_name
from flax_layers.training.neighborhoods import evaluation_text
from flax_layers.training.options import add_devices, method_of, require
from flax_layers.training.predictor import Predictor
from flax_layers.training.report import ERRORS, blame_data, blame_output, metric_table
from flax_layers.training.sources import load_to_predict
from flax_layers.training.trained import TrainedModel, regression_errors
from jax_gnn.cli import Commands, UserError, add_command, table
from jax_gnn.datasets import NodeDataset

PREDICT_EXTRA = ("orbax",)

PARTS = {"train": "training", "valid": "validation", "test": "test"}


def _table_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".csv", ".npz", ".parquet"):
        raise argparse.ArgumentTypeError(f"expected a .csv, .npz or .parquet file, got {text!r}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise argparse.ArgumentTypeError(f"{text!r} needs pyarrow; run: pip install pyarrow")
    return path


def _data_of(trained: TrainedModel | TrainedLinks, path: str | None) -> str:
    """Return the path of the data; by default that of the training, if it was the digits."""
    if path is not None:
        return path
    if trained.data is None:
        raise UserError("--data is needed: the checkpoint does not say what it was trained on")
    if trained.data.name != "digits":
        raise UserError(f"--data is needed: the model was trained on {trained.data.name!r}")
    return "digits"


def _origin(trained: TrainedModel | TrainedLinks, dataset: NodeDataset) -> str:
    """Return how the data relate to those of the training, as text."""
    if trained.data is None:
        return "not known to be those of the training"
    different = trained.differences(dataset)
    origin = f"other {', '.join(different)} than in training" if different else "as in training"
    by_name = trained.renumbered(dataset).dataset is not dataset
    return f"{origin}, numbers matched by name" if by_name else origin


def _accuracy_rows(
    trained: TrainedModel, dataset: NodeDataset, logits: jax.Array
) -> Iterator[list[str]]:
    """Yield rows of a table: accuracies, or errors of a regression, for each part of the data."""
    parts = trained.parts(dataset)
    if not parts:
        other = dataset.has_label().any()
        reason = "labels are of another kind" if other else f"no {dataset.example} has a label"
        yield ["accuracy", "unknown", f"({reason})"]
        return
    if dataset.regresses:
        for part, ids in parts.items():
            errors = regression_errors(dataset, logits, ids)
            text = ", ".join(f"{ERRORS[name]} {value:.4g}" for name, value in errors.items())
            yield [PARTS.get(part, part), text, f"({len(ids)} {dataset.example}s)"]
        return
    accuracies = trained.accuracies(dataset, logits)
    # The fold that was held out chose the model and tested it, so it is shown once.
    folds = bool(getattr(trained.config, "folds", 0))
    titles = PARTS | {"valid": "fold"} if folds else PARTS
    for part, ids in parts.items():
        if folds and part == "test":
            continue
        name = f"{titles[part]} accuracy" if part in PARTS else "accuracy"
        count = f"{len(ids)}" if part in PARTS else f"all {len(ids)} labelled"
        yield [name, f"{100 * accuracies[part]:.2f} %", f"({count} {dataset.example}s)"]


def write_predictions(
    path: Path, trained: TrainedModel, dataset: NodeDataset, logits: jax.Array
) -> None:
    """Write predictions, with names of nodes and labels where there are any, numbers elsewhere."""
    names, nodes = trained.label_names, dataset.node_names
    logits = logits.astype(jnp.float32)
    # Columns by kind of model: targets, a probability for each class, or one class with its own.
    columns: dict[str, Any] = {}
    if trained.config.target_scaling is not None:
        targets = np.asarray(logits).T
        columns |= zip(map("prediction {}".format, range(len(targets))), targets, strict=True)
        if len(targets) == 1:
            columns = {"prediction": targets[0]}
    elif trained.config.multilabel:  # a probability for each class
        classes = np.asarray(jax.nn.sigmoid(logits)).T
        columns |= zip(names or map(str, range(len(classes))), classes, strict=True)
    else:
        label = np.asarray(logits.argmax(axis=1))
        columns["label"] = label if names is None else np.array(names)[label]
        columns["probability"] = np.asarray(jax.nn.softmax(logits, axis=1).max(axis=1))
    key = dataset.example
    while key in columns:  # a class has this name
        key += " id"
    nodes = nodes if dataset.example == "node" else getattr(dataset, "graph_names", None)
    ids = np.arange(dataset.num_examples) if nodes is None else np.array(nodes)
    rows = slice(None) if dataset.predicted is None else dataset.predicted
    _write_table(path, {name: column[rows] for name, column in ({key: ids} | columns).items()})


def _write_table(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    with blame_output(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npz":
            # Not by np.savez, whose own arguments may be names of columns.
            with zipfile.ZipFile(path, "w") as archive:
                for name, column in columns.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(column), allow_pickle=False)
        elif path.suffix == ".parquet":
            arrow = importlib.import_module("pyarrow")
            # Arrow takes lists of text, but no text of numpy.
            converted = {
                name: arrow.array(column.tolist() if column.dtype.kind == "U" else column)
                for name, column in columns.items()
            }
            importlib.import_module("pyarrow.parquet").write_table(arrow.table(converted), path)
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))


def _run_predict(args: argparse.Namespace) -> int:
    require("predicting", PREDICT_EXTRA)
    try:
        trained = load_checkpoint(args.checkpoint)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    if args.query is not None:
        return _answer(trained, args)
    if not isinstance(trained, TrainedModel | TrainedLinks):
        raise UserError(
            f"{args.checkpoint} holds a {type(trained.model).__name__} that jax_gnn.save wrote and "
            "no recipe trained: predict with it in Python, by jax_gnn.load"
        )
    # Models of edges rank them again; others predict a class or numbers for each node or graph.
    path = _data_of(trained, args.data)
    if isinstance(trained, TrainedLinks):
        if args.devices > 1:
            raise UserError(f"--devices: {args.checkpoint} predicts edges, on one device")
        return _rank_links(trained, path, args.output)
    check_devices(trained.config, args.devices)
    with blame_data():
        dataset = load_to_predict(trained, path)
        logits = trained.predict(dataset, devices=args.devices, method=method_of(args, dataset))
        source = f"(trained on {trained.data.name}, seed {trained.seed})" if trained.data else ""
        rows = [
            ["model", command_name(trained.config.model), source],
            ["data", dataset.name, f"({_origin(trained, dataset)})"],
            *_accuracy_rows(trained, dataset, logits),
        ]
        if getattr(trained.config, "edge_time", False):
            graph: Any = trained.recipe.structure(dataset, trained.config)  # type: ignore[misc]
            text = evaluation_text(trained.config, graph)  # type: ignore[arg-type]
            rows.append(["evaluated on", text, ""])
    if args.output:
        write_predictions(args.output, trained, dataset, logits)
        rows.append(["predictions", str(args.output), ""])
    print(table(rows))
    return 0


def _answer(trained: Predictor, args: argparse.Namespace) -> int:
    if not isinstance(trained, TrainedLinks):
        raise UserError(f"--query: {args.checkpoint} holds no model that predicts edges")
    # Queries are answered from the checkpoint alone, so data may only confirm its graph.
    if args.data is not None:
        with blame_data():
            dataset = load_to_predict(trained, args.data)
        if different := trained.differences(dataset):
            raise UserError(
                "--query: asks the graph of the training; leave --data out, which has other "
                f"{', '.join(different)}"
            )
    try:
        answers = trained.ask(args.query, args.top)
    except (TypeError, ValueError) as error:
        raise UserError(f"--query: {error}") from error
    nodes = answers.nodes if answers.names is None else np.array(answers.names)
    rows = [[str(node), f"{score:.4f}"] for node, score in zip(nodes, answers.scores, strict=True)]
    print(table([["node", "score"], *rows]))
    if args.output:
        _write_table(args.output, {"node": nodes, "score": answers.scores})
    return 0


def _rank_links(trained: TrainedLinks, path: str, output: Path | None) -> int:
    with blame_data():
        dataset = load_to_predict(trained, path)
        metrics = {part: trained.evaluate(dataset, part) for part in ("val", "test")}
        columns = trained.table(dataset) if output else {}
        origin = _origin(trained, dataset)
    model = ["model", command_name(trained.config.model), f"(trained on {trained.data.name})"]
    print(table([model, ["data", dataset.name, f"({origin})"]]))
    print(metric_table({"validation": metrics["val"], "test": metrics["test"]}, {}))
    if output is not None:
        # Names take the place of numbers where there are any.
        nodes, relations = dataset.node_names, getattr(dataset, "relation_names", None)
        for key, names in (("src", nodes), ("dst", nodes), ("rel", relations)):
            if names is not None and key in columns:
                columns[key] = np.array(names)[columns[key]]
        _write_table(output, columns)
        print(table([["test edges", str(output), ""]]))
    return 0


def add_predict(commands: Commands) -> None:
    """Add ``predict``."""
    parser = add_command(
        commands,
        "predict",
        help="predict with a model that was trained",
        description="Predicts the labels of nodes with a model that jax-gnn train wrote, after the "
        "same\npreprocessing. On the data of the training, accuracies are those of its split, as\n"
        "training recorded them; on other data, there is one, of all nodes that have a label.\n"
        "After training for link prediction it ranks validation and test edges again. Relations,\n"
        "types and nodes are known by their names, where the data have them.\n\n"
        "examples:\n"
        "  jax-gnn predict runs/hgnn-digits\n"
        "  jax-gnn predict runs/gcn-cora --data planetoid/ind.cora.x\n"
        "  jax-gnn predict runs/gcn-cora --data new.npz --output predictions.csv",
        run=_run_predict,
    )
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="folder that jax-gnn train wrote, such as runs/gcn-cora",
    )
    parser.add_argument(
        "--data",
        metavar="digits|FILE|FOLDER",
        help="data to predict on, as of jax-gnn train: those of the training, or others of the "
        "same features (may be left out after training on the built-in digits)",
    )
    parser.add_argument(
        "--query",
        metavar="SRC,REL,?",
        help="for a model that predicts edges: the nodes that most likely are in the place of the "
        "question mark; NODE,? where edges have no relations",
    )
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="how many nodes a query asks for"
    )
    parser.add_argument(
        "--output",
        type=_table_file,
        metavar="FILE",
        help="a .csv, .npz or .parquet file to write, with node, label and probability for each "
        "node, or ranks for each edge",
    )
    add_devices(parser)
