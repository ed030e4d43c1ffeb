"""Callbacks that write the numbers of a training to a file, line by line."""

from __future__ import annotations

import csv
import errno
import json
import os
from math import isfinite
from pathlib import Path
from typing import IO, Any

from synk.extensions.checkpoint.contents import plain
from synk.extensions.fit.callback import Callback
from synk.extensions.fit.training import Training


class CSVLog(Callback):
    """Writes a table with a row for each epoch: its number, metrics, seconds and rows a second.

    Parameters
    ----------
    path : path-like
        Written anew after every epoch, so that it has the columns of all of them.

    See Also
    --------
    synk.extensions.fit.fit : calls it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from synk.extensions.fit import CSVLog, fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> callback = CSVLog("run.csv")
    >>> history = fit(step, (np.ones(8),), epochs=2, callbacks=[callback], batch_size=4, progress=False)
    >>> print(Path("run.csv").read_text().splitlines()[0])
    epoch,loss,seconds,rows_per_second
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = Path(path)

    def on_train_begin(self, training: Training) -> None:
        check_place(self._path)

    def on_epoch_end(self, training: Training) -> None:
        epochs = training.history.epochs
        columns = dict.fromkeys(key for epoch in epochs for key in epoch)
        with open(self._path, "w", newline="") as file:
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            table.writerows(epochs)


class JSONLog(Callback):
    """Writes an object for each epoch, a line each (JSONL), and one for every so many steps.

    A training that goes on takes back the lines after its checkpoint. NaN and infinities are null.

    Parameters
    ----------
    path : path-like
        Replaced by a training that begins, at its first line.
    every : int, optional
        Steps between lines with ``"step"`` and what that step has returned.

    See Also
    --------
    synk.extensions.fit.fit : calls it.

    Examples
    --------
    >>> from synk.extensions.fit import JSONLog, fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> callback = JSONLog("run.jsonl")
    >>> history = fit(step, (np.ones(8),), epochs=2, callbacks=[callback], batch_size=4, progress=False)
    >>> import json
    >>> from pathlib import Path
    >>> [json.loads(line)["epoch"] for line in Path("run.jsonl").read_text().splitlines()]
    [0, 1]
    """

    def __init__(self, path: str | os.PathLike[str], every: int | None = None):
        if every is not None and every < 1:
            raise ValueError(f"every={every} is no number of steps; pass 1 or more")
        self._path, self._every = Path(path), every
        self._file: IO[bytes] | None = None
        self._size = 0  # bytes

    def key(self) -> str:
        return f"JSONLog {self._path.name}"

    def reset(self) -> None:
        self._size = 0

    def on_train_begin(self, training: Training) -> None:
        check_place(self._path)

    def on_step_end(self, training: Training) -> None:
        if self._every is not None and training.history.steps % self._every == 0:
            self._write({"step": training.history.steps, **training.numbers()})

    def on_epoch_end(self, training: Training) -> None:
        self._write(training.history.epochs[-1])

    def on_train_end(self, training: Training) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, record: dict[str, Any]) -> None:
        """Write a record as one line, and flush it, so that others can read it at once."""
        if self._file is None:
            self._file = self._opened()
        known = {name: None if _is_lost(value) else value for name, value in plain(record).items()}
        self._size += self._file.write(json.dumps(known).encode() + b"\n")
        self._file.flush()

    def _opened(self) -> IO[bytes]:
        mode = "r+b" if self._size and self._path.exists() else "wb"
        file = open(self._path, mode)  # noqa: SIM115
        # It may be shorter, after a power failure: it is not filled up.
        self._size = min(self._size, file.seek(0, os.SEEK_END))
        file.truncate(self._size)
        file.seek(self._size)
        return file

    def state(self) -> dict[str, Any]:
        return {"size": self._size}

    def load_state(self, state: dict[str, Any]) -> None:
        self._size = state["size"]


def check_place(path: Path) -> None:
    """Raise OSError if no file can be written there: better now than after an epoch."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file in it", str(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "this is no regular file; pass another path", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder; make it first", str(path.parent))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "this cannot be written; pass another path", str(path))


def _is_lost(value: Any) -> bool:
    """Tell whether a value is a number that JSON does not have."""
    return isinstance(value, float) and not isfinite(value)
