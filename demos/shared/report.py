"""Say what is trained, when the first step is done, and what came of it; the rest is shown by `fit`.

Report: title, first step -> fit's bar, or a line an epoch -> finish: a table
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

from extras import need

from synk.extensions.fit import Callback, History, Training

box = need("rich.box")
console = need("rich.console")
table = need("rich.table")


class Score(NamedTuple):
    """The number that a training is judged by."""

    metric: str
    label: str
    text: str  # a format of the number
    mode: str  # whether "min" or "max" is better


ACCURACY = Score("accuracy", "test accuracy", "{:.2%}", "max")


class Report(Callback):
    """Prints the lines before the first epoch, and the results."""

    def __init__(self, title: str):
        self._title = title
        self._stepped = False

    def on_train_begin(self, training: Training) -> None:
        print(self._title)
        if training.history.steps:
            print(f"going on after {training.history.steps} steps")
        print("compiling", flush=True)

    def on_step_end(self, training: Training) -> None:
        if not self._stepped:
            self._stepped = True
            print(f"first step done {seconds_since_start():.1f} s after the start", flush=True)


def finish(history: History, score: Score = ACCURACY) -> None:
    """Print the results of a training that came to its end."""
    last = history.epochs[-1]
    reached = score.text.format(last[f"val_{score.metric}"]).replace("%", " %")
    results = table.Table(box=box.ROUNDED, show_header=False)
    results.add_column(style="cyan")
    results.add_column(justify="right")
    results.add_row(score.label, f"[bold green]{reached}[/]")
    results.add_row("test loss", f"{last['val_loss']:.4f}")
    results.add_row("training loss", f"{last['loss']:.4f}")
    results.add_row("epochs", f"{len(history)}")
    results.add_row("speed", f"{last['rows_per_second']:,.1f} images/s")
    results.add_row("time from start to end", f"{seconds_since_start():.1f} s")
    console.Console(highlight=False).print(results)
    print(f"{score.label} {reached}")  # plain, whatever the terminal


def seconds_since_start() -> float:
    """Return the age of this process, its imports included, in seconds."""
    # The name, in parentheses, may hold blanks: the numbers begin after the last one. See proc(5).
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # since boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
