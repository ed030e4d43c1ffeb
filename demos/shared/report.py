"""Show how training goes: a bar and a few lines while it runs, a table when it is done.

step, step, ..., epoch, step, ..., epoch -> finish
"""

import math
import os
import time
from pathlib import Path

import numpy as np
from extras import need

box = need("rich.box")
console = need("rich.console")
progress = need("rich.progress")
table = need("rich.table")

N_LINES = 10  # a long run prints that many; the bar shows what happens between
QUIET_SECONDS = 5.0  # without a terminal there is no bar, but a line after that long


class Report:
    """The course of one training run, as a context around it.

    Parameters
    ----------
    title : str
    n_epochs : int
    n_rows : int
        Images in an epoch.
    """

    def __init__(self, title: str, n_epochs: int, n_rows: int):
        self.title, self.n_epochs = title, n_epochs
        self.step_losses: list[list[float]] = []  # of each epoch
        self.train_losses: list[float] = []  # of each epoch, mean over its rows
        self.test_losses: list[float] = []
        self.accuracies: list[float] = []  # percent
        self._step_rows: list[int] = []  # of the epoch that runs
        self._first_step_at: float | None = None
        self._last_step_at = 0.0
        self._n_timed = 0  # images since the first step
        self._said_at = 0.0
        self._console = console.Console(highlight=False)
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("[bold]{task.description}[/]"),
            progress.BarColumn(bar_width=None),
            progress.TextColumn("loss {task.fields[loss]}"),
            progress.TextColumn("test [green]{task.fields[accuracy]}[/]"),
            progress.TextColumn("[cyan]{task.fields[speed]:>7} images/s[/]"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("left"),
            console=self._console,
            transient=True,  # the lines of the epochs stay, the bar goes
        )
        unknown = {"loss": "–", "accuracy": "–", "speed": "–"}
        self._task = self._bar.add_task("compiling", total=n_epochs * n_rows, **unknown)

    def __enter__(self) -> "Report":
        self._console.print(f"[bold]{self.title}[/]")
        self._bar.start()
        self._say("compiling")
        return self

    def _say(self, line: str) -> None:
        """Print the text of the bar where there is no bar."""
        if not self._console.is_terminal:
            self._console.print(line)
            self._said_at = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    @property
    def speed(self) -> float:
        """Images per second since the first step, which compiled as well; testing included."""
        if not self._n_timed:
            return 0.0
        return self._n_timed / (self._last_step_at - self._first_step_at)

    def speed_in_digits(self) -> str:
        """Return the speed for reading: large networks make a few images per second."""
        return f"{self.speed:,.0f}" if self.speed >= 100 else f"{self.speed:.1f}"

    def step(self, loss: float, n_rows: int) -> None:
        """Note the end of a training step."""
        self._last_step_at = time.perf_counter()
        if self._first_step_at is None:
            self._first_step_at = self._last_step_at
            self._console.print(f"first step done {seconds_since_start():.1f} s after the start")
            self._said_at = self._last_step_at
        else:
            self._n_timed += n_rows
        if not self._step_rows:
            self.step_losses.append([])
        self.step_losses[-1].append(float(loss))
        self._step_rows.append(n_rows)
        self._bar.update(
            self._task,
            advance=n_rows,
            description=f"epoch {len(self.step_losses):>3}",
            loss=f"{float(loss):.4f}",
            speed=self.speed_in_digits(),
        )
        if self._last_step_at - self._said_at > QUIET_SECONDS:
            n_rows = sum(self._step_rows)
            self._say(f"epoch {len(self.step_losses):>3}: {n_rows:,} images, loss {float(loss):.4f}")

    def epoch(self, test_loss: float, accuracy: float) -> None:
        """Note the end of an epoch and how the test went; `accuracy` is a share."""
        self.train_losses.append(float(np.average(self.step_losses[-1], weights=self._step_rows)))
        self.test_losses.append(float(test_loss))
        self.accuracies.append(100 * float(accuracy))
        self._step_rows = []
        self._bar.update(self._task, accuracy=f"{self.accuracies[-1]:.2f} %")
        n_done = len(self.accuracies)
        if n_done % math.ceil(self.n_epochs / N_LINES) == 0 or n_done == self.n_epochs:
            self._console.print(
                f"epoch {n_done:>3} of {self.n_epochs}   loss {self.train_losses[-1]:.4f}   "
                f"test loss {self.test_losses[-1]:.4f}   test accuracy {self.accuracies[-1]:.2f} %"
            )

    def losses(self) -> dict[str, list[float]]:
        """Return the mean loss of every epoch, in training and in testing."""
        return {"train": self.train_losses, "test": self.test_losses}

    def finish(self) -> None:
        """Print the results."""
        results = table.Table(box=box.ROUNDED, show_header=False)
        results.add_column(style="cyan")
        results.add_column(justify="right")
        results.add_row("test accuracy", f"[bold green]{self.accuracies[-1]:.2f} %[/]")
        results.add_row("test loss", f"{self.test_losses[-1]:.4f}")
        results.add_row("training loss", f"{self.train_losses[-1]:.4f}")
        results.add_row("epochs", f"{self.n_epochs}")
        results.add_row("speed", f"{self.speed_in_digits()} images/s")
        results.add_row("time from start to end", f"{seconds_since_start():.1f} s")
        self._console.print(results)
        print(f"test accuracy {self.accuracies[-1]:.2f} %")  # plain, whatever the terminal


def seconds_since_start() -> float:
    """Return the age of this process, its imports included, in seconds."""
    # The name, in parentheses, may hold blanks: the numbers begin after the last one. See proc(5).
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # since boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
