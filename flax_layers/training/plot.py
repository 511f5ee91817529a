"""Learning-curve plots."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flax_layers.training.links import LinkResult
from flax_layers.training.records import TrainResult, mean_and_std

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {"auc": "AUC", "ap": "AP", "mrr": "MRR"} | {f"hits@{k}": f"Hits@{k}" for k in (1, 3, 10)}

# From Okabe and Ito's palette, which readers with colour-blindness can tell apart.
_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"
_GREYS = ("0.7", "0.5", "0.3")  # of baselines


def plot_learning_curves(
    result: TrainResult,
    path: str | os.PathLike[str],
    *,
    title: str,
    baselines: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Draw training loss and accuracies over epochs: mean over splits and a band of one std.

    Args:
        result: Result of `train`.
        path: Image file to write; its suffix chooses the format.
        title: Heading of the figure.
        baselines: Test scores of each split by name of a baseline, drawn as lines.
    """
    run = result.run
    regresses = result.errors is not None
    unit = 1 if regresses else 100
    rows, count = run.train_loss.shape
    epochs = np.arange(1, count + 1)
    title += f" (mean ± std of {rows} {run.over})" * (rows > 1)
    figure, loss_axes, accuracy_axes = _figure(title)
    curves = [
        (loss_axes, run.train_loss, "training (with dropout)", _BLUE),
        (accuracy_axes, unit * run.train_accuracy, "training", _BLUE),
        (accuracy_axes, unit * run.valid_accuracy, "validation", _ORANGE),
    ]
    # The steep start would take most of the accuracy axis, so limits leave it out.
    settled = len(epochs) // 25
    lowest = float(unit)
    for axes, values, label, colour in curves:
        mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)  # NaN: stopped early
        _plot(axes, epochs, mean, label, colour)
        low, high = mean - std, mean + std
        if axes is accuracy_axes:
            low, high = np.maximum(low, -unit if regresses else 0), np.minimum(high, unit)
            lowest = min(lowest, float(low[settled:].min()))
        axes.fill_between(epochs, low, high, color=colour, alpha=0.18, linewidth=0)
    mean, std = unit * run.accuracy_mean, unit * run.accuracy_std
    form = ".3f" if regresses else ".1f"
    label = "at the best epoch" if run.over == "folds" else "test (best epoch)"
    label = f"{label}: {mean_and_std(mean, std, rows, form)}"
    _horizontal_line(accuracy_axes, mean, label)
    loss = "squared error (of scaled labels)" if regresses else "cross-entropy (nats)"
    loss_axes.set(ylabel=loss, ylim=(0, None))
    scores = {name: unit * float(values.mean()) for name, values in (baselines or {}).items()}
    _draw_baselines(accuracy_axes, scores, form)
    lowest = min(lowest, *(max(value, -unit) for value in (mean, *scores.values())))
    bottom = lowest - 0.02 if regresses else max(lowest - 2, 0)
    top = min(accuracy_axes.get_ylim()[1], unit)
    accuracy_axes.set(ylabel="R2" if regresses else "accuracy (%)", ylim=(bottom, top))
    _style((loss_axes, accuracy_axes), epochs)
    _save(figure, path)


def plot_link_curves(
    result: LinkResult,
    path: str | os.PathLike[str],
    *,
    title: str,
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draw the training loss and the validations of a training for link prediction over epochs.

    Args:
        result: Result of `train_links`.
        path: Image file to write; its suffix chooses the format.
        title: Heading of the figure.
        baselines: Test metrics by name of a baseline, drawn as lines.
    """
    epochs = np.arange(1, len(result.losses) + 1)
    figure, loss_axes, metric_axes = _figure(title)
    _plot(loss_axes, epochs, result.losses, "training", _BLUE)
    metrics = ("auc", "ap") if result.best_by == "auc" else ("mrr", "hits@10")
    for metric, colour in zip(metrics, (_ORANGE, _BLUE), strict=True):
        values = np.array([100 * valid[metric] for valid in result.valid])
        label = f"validation {METRICS[metric]}"
        style = {"marker": "o", "markersize": 3, "clip_on": False}
        _plot(metric_axes, np.array(result.epochs), values, label, colour, **style)
    test = 100 * result.test[result.best_by]
    label = f"test {METRICS[result.best_by]} (best epoch): {test:.1f}"
    _horizontal_line(metric_axes, test, label)
    scores = {name: 100 * metrics[result.best_by] for name, metrics in (baselines or {}).items()}
    _draw_baselines(metric_axes, scores, ".1f")
    loss_axes.set(ylabel="loss", ylim=(min(0, result.losses.min()), None))
    metric_axes.set(ylabel="%", ylim=(None, min(metric_axes.get_ylim()[1], 100)))
    _style((loss_axes, metric_axes), epochs)
    _save(figure, path)


def _figure(title: str) -> tuple[Figure, Axes, Axes]:
    # A bare Figure draws through Agg and leaves pyplot's global state alone.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.4), dpi=150, layout="constrained")
    figure.suptitle(title, parse_math=False)  # "$" is a character of names
    left, right = figure.subplots(1, 2)
    return figure, left, right


def _plot(
    axes: Axes, epochs: np.ndarray, values: np.ndarray, label: str, colour: str, **style: Any
) -> None:
    style = {"marker": "o" if len(epochs) == 1 else None} | style
    axes.plot(epochs, values, color=colour, linewidth=1.6, label=label, **style)


def _horizontal_line(
    axes: Axes, value: float, label: str, colour: str = _GREEN, style: str = "--"
) -> None:
    axes.axhline(value, color=colour, linestyle=style, linewidth=1.4, label=label)


def _draw_baselines(axes: Axes, scores: Mapping[str, float], form: str) -> None:
    """Draw the scores of baselines as lines, with a legend of few words."""
    for colour, (name, score) in zip(_GREYS, scores.items(), strict=False):
        short = name.partition(" ")[0]
        if " on " in name:
            short = "linear + neighbours" if "neighbours" in name else "linear"
        _horizontal_line(axes, score, f"{short}: {score:{form}}", colour, ":")


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _style(all_axes: tuple[Axes, ...], epochs: np.ndarray) -> None:
    for axes in all_axes:
        axes.set(xlabel="epoch", xlim=(epochs[0], epochs[-1]) if len(epochs) > 1 else None)
        axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
        axes.ticklabel_format(axis="y", useOffset=False)  # an offset is printed over the legend
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        # The legend is over the axes, where it cannot cover a curve. An empty title keeps its room,
        # as the layout would make the axes narrower than a legend that it knows of.
        legend = axes.legend(
            frameon=False,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            borderaxespad=0.2,
            ncols=2,
            fontsize=7.5,
            handlelength=1,
            columnspacing=1,
        )
        legend.set_in_layout(False)
        rows = -(-len(legend.get_texts()) // 2)
        axes.set_title("\n" * (rows - 1) + " ", fontsize=9.5)
