"""Draw the learning curve: loss and test accuracy over epochs.

Report -> draw -> a PNG file
"""

import numpy as np
from extras import need
from report import Report

TRAIN, TEST = "#4878a8", "#d1603d"


def draw(path: str, report: Report) -> None:
    """Write the curves of a finished training run to a PNG file."""
    # A figure of its own, without pyplot: needs no display and touches no global state.
    figure = need("matplotlib.figure").Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(report.title)
    of_loss, of_accuracy = figure.subplots(1, 2)
    draw_loss(of_loss, report)
    draw_accuracy(of_accuracy, report)
    for axes in (of_loss, of_accuracy):
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=3, frameon=False)  # beside the lines, wherever they go
    figure.savefig(path, dpi=150, format="png")


def draw_loss(axes, report: Report) -> None:
    """Draw the loss of every step, its mean over an epoch amid it, and the test loss at its end."""
    epochs, losses = np.arange(1, report.n_epochs + 1), report.step_losses
    ends = [start + np.arange(1, len(of_epoch) + 1) / len(of_epoch) for start, of_epoch in enumerate(losses)]
    steps = np.concatenate(ends), np.concatenate(losses)
    axes.plot(*steps, color=TRAIN, alpha=0.3, lw=1, label="training, every step")
    axes.plot(epochs - 0.5, report.train_losses, color=TRAIN, marker=".", label="training, mean of an epoch")
    axes.plot(epochs, report.test_losses, color=TEST, marker=".", label="test")
    axes.set_yscale("log", subs=[2, 5])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_ylabel("mean cross-entropy (nats)")
    axes.set_title("Loss")


def draw_accuracy(axes, report: Report) -> None:
    """Draw the test accuracy of every epoch, and write the last one beside its point."""
    epochs = np.arange(1, report.n_epochs + 1)
    axes.plot(epochs, report.accuracies, color=TEST, marker=".")
    last = epochs[-1], report.accuracies[-1]
    # To the right of the last point, where no line goes.
    label = {"textcoords": "offset points", "va": "center", "color": TEST, "weight": "bold"}
    axes.annotate(f"{last[1]:.2f} %", last, (8, 0), **label)
    axes.set_ylabel("images classified correctly (%)")
    axes.set_title("Test accuracy")
