"""Draw the metrics of a training over its epochs.

History.epochs -> draw -> a PNG, SVG or PDF file, with a panel for each metric
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, BinaryIO

STEPS, VALIDATION = "#4878a8", "#d1603d"
PANEL_INCHES = 5.0, 4.2


def draw(
    epochs: Sequence[Mapping[str, Any]],
    metrics: Sequence[str],
    path: str | os.PathLike[str] | BinaryIO,
    title: str | None = None,
) -> None:
    """Draw a panel for each metric, with the averages of steps and those of validation, to a file."""
    # Each name once, in order.
    names = list(dict.fromkeys(name.removeprefix("val_") for name in metrics))
    if not names:
        raise ValueError("no epoch has ended with a metric, so there is no curve to draw")
    try:
        figures = import_module("matplotlib.figure")
    except ImportError as missing:
        raise ImportError("matplotlib is not installed. Use pip install 'synk-pytensor[plot]'.") from missing
    # A figure of its own, without pyplot: needs no display and touches no global state.
    width, height = PANEL_INCHES
    figure = figures.Figure(figsize=(width * len(names), height), layout="constrained")
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _draw_metric(axes, name, epochs)
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    figure.legend(lines.values(), lines, loc="outside lower left", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)


def _draw_metric(axes: Any, name: str, epochs: Sequence[Mapping[str, Any]]) -> None:
    # An average over the steps of an epoch stands amid it, validation at its end.
    curves = (
        ("training, mean of an epoch", name, 0.5, STEPS),
        ("validation", f"val_{name}", 1.0, VALIDATION),
    )
    for label, key, shift, colour in curves:
        points = [(epoch["epoch"] + shift, epoch[key]) for epoch in epochs if key in epoch]
        if not points:
            continue
        axes.plot(*zip(*points, strict=True), color=colour, marker=".", label=label)
        # To the right of the last point, where no line goes.
        beside = {"textcoords": "offset points", "va": "center", "color": colour}
        axes.annotate(f"{points[-1][1]:.3g}", points[-1], (8, 0), **beside)
    if "loss" in name and all(number > 0 for line in axes.lines for number in line.get_ydata()):
        axes.set_yscale("log", subs=[2, 5])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.margins(x=0.12)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(name)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
