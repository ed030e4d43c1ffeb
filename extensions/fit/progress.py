"""Show how a training goes: a bar in a terminal or a notebook, a line an epoch elsewhere."""

from __future__ import annotations

import sys
import time
from html import escape
from importlib.util import find_spec
from typing import Any

from synk.extensions.fit.callback import Callback
from synk.extensions.fit.history import COLUMNS
from synk.extensions.fit.training import Training
from synk.values.notebooks import Area, in_notebook, preformatted

REFRESH_SECONDS = 0.1


def progress_for(wanted: bool) -> list[Callback]:
    """Return the callback that suits standard output, in a list; none if none is wanted."""
    if not wanted:
        return []
    if in_notebook():
        return [NotebookBar()]
    return [ProgressBar() if sys.stdout.isatty() and find_spec("rich") else EpochLines()]


class EpochLines(Callback):
    """Prints a line after every epoch: its number, metrics, seconds and rows a second."""

    def on_train_begin(self, training: Training) -> None:
        if training.epoch >= training.epochs:
            self.say(f"{training.epoch} epochs are done already")

    def on_epoch_end(self, training: Training) -> None:
        record = training.history.epochs[-1]
        self.say(
            f"epoch {training.epoch + 1}/{training.epochs}  {in_words(training.metrics)}  "
            f"{record['seconds']:.1f} s  {record['rows_per_second']:,.0f} rows/s"
        )

    def on_train_end(self, training: Training) -> None:
        if training.stopping:
            self.say(f"stopped after {training.history.steps} steps: {training.stopping}")

    def say(self, line: str) -> None:
        """Print a line that stays."""
        print(line, flush=True)


class ProgressBar(EpochLines):
    """Shows steps, rows a second, averages and the time that is left, while an epoch runs; needs rich."""

    def on_train_begin(self, training: Training) -> None:
        from rich import progress

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[numbers]}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            transient=True,  # the lines of the epochs stay
            auto_refresh=False,  # by a thread, beside which workers would be forked
        )
        self._bar.start()
        super().on_train_begin(training)
        self._task: Any = None
        self._next = 0.0

    def on_epoch_begin(self, training: Training) -> None:
        self._task = self._bar.add_task(
            f"epoch {training.epoch + 1}/{training.epochs}",
            total=training.feed.n_steps,
            completed=training.batch,
            numbers="",
        )
        self._began, self._rows = time.perf_counter(), training.averages.rows

    def on_step_end(self, training: Training) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + REFRESH_SECONDS
        rate = (training.averages.rows - self._rows) / (now - self._began)
        numbers = f"{in_words(training.averages.means())}  {rate:,.0f} rows/s"
        self._bar.update(self._task, completed=training.batch, numbers=numbers, refresh=True)

    def on_epoch_end(self, training: Training) -> None:
        self._bar.remove_task(self._task)
        super().on_epoch_end(training)

    def on_train_end(self, training: Training) -> None:
        self._bar.stop()
        super().on_train_end(training)

    def say(self, line: str) -> None:
        # Above the bar; a long one is not cut into lines of the width of the terminal.
        self._bar.console.print(line, soft_wrap=True, highlight=False, markup=False)


class NotebookBar(EpochLines):
    """Shows a bar, steps, rows a second and averages in the output of a cell, under the lines of epochs."""

    def on_train_begin(self, training: Training) -> None:
        self._lines: list[str] = []
        self._area = Area("")
        self._next = 0.0
        super().on_train_begin(training)

    def on_epoch_begin(self, training: Training) -> None:
        self._began, self._rows = time.perf_counter(), training.averages.rows

    def on_step_end(self, training: Training) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + REFRESH_SECONDS
        done, steps = training.batch, training.feed.n_steps
        rate = (training.averages.rows - self._rows) / (now - self._began)
        of_all = f"/{steps}" if steps else ""
        text = (
            f"epoch {training.epoch + 1}/{training.epochs}  step {done}{of_all}  "
            f"{in_words(training.averages.means())}  {rate:,.0f} rows/s"
        )
        bar = f'<progress value="{done}" max="{steps}"></progress>' if steps else "<progress></progress>"
        told = "\n".join(self._lines)
        self._area.update(f"{told}\n{text}", f"{preformatted(told)}{bar} {escape(text)}")

    def say(self, line: str) -> None:
        self._lines.append(line)
        self._area.update("\n".join(self._lines))


def in_words(numbers: dict[str, float]) -> str:
    """Return metrics as a line says them."""
    return "  ".join(f"{name} {value:.4g}" for name, value in numbers.items() if name not in COLUMNS)
