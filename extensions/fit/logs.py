"""Callbacks that write the numbers of a training to a file, line by line."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from synk.extensions.fit.callback import Callback
from synk.extensions.fit.training import Training


class LineLog(Callback):
    """Writes lines to a file; a training that goes on takes back those after its checkpoint.

    Parameters
    ----------
    path : path-like
        Replaced by a training that begins.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = Path(path)
        self._file: BinaryIO | None = None
        self._size = 0  # bytes

    def on_train_begin(self, training: Training) -> None:
        self._file = open(self._path, "r+b" if self._size and self._path.exists() else "wb")  # noqa: SIM115
        # A file may be shorter, after a power failure: it is not filled up.
        self._size = min(self._size, self._file.seek(0, os.SEEK_END))
        self._file.truncate(self._size)
        self._file.seek(self._size)

    def write(self, line: str) -> None:
        """Write a line, for others to read at once."""
        assert self._file is not None
        self._size += self._file.write(line.encode() + b"\n")
        self._file.flush()

    def on_train_end(self, training: Training) -> None:
        if self._file is not None:
            self._file.close()

    def state(self) -> dict[str, Any]:
        return {"size": self._size}

    def load_state(self, state: dict[str, Any]) -> None:
        self._size = state["size"]


class CSVLog(LineLog):
    """Writes a table with a row for each epoch: its number, metrics, seconds and rows a second."""

    def on_epoch_end(self, training: Training) -> None:
        record = training.history.epochs[-1]
        if not self._size:
            self.write(_row(record))
        self.write(_row(record.values()))


class JSONLog(LineLog):
    """Writes an object for each epoch, a line each (JSONL), and one for every so many steps.

    Parameters
    ----------
    path : path-like
    every : int, optional
        Steps between lines with ``"step"`` and what that step has returned.
    """

    def __init__(self, path: str | os.PathLike[str], every: int | None = None):
        super().__init__(path)
        if every is not None and every < 1:
            raise ValueError(f"every={every} is no number of steps; pass 1 or more")
        self._every = every

    def on_step_end(self, training: Training) -> None:
        if self._every is not None and training.history.steps % self._every == 0:
            self.write(json.dumps({"step": training.history.steps, **training.numbers()}))

    def on_epoch_end(self, training: Training) -> None:
        self.write(json.dumps(training.history.epochs[-1]))


def _row(fields: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
