"""Save a whole training while it goes on, and resume it from a checkpoint.

    Checkpoints.save: Training.state, callbacks' states -> plain values   \\
                      step.state of all ranks -> copies of one moment     -> store.write, in a thread
    resume_from: file -> checkpoint.load, Training.load_state, callbacks' load_state
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytensor

import synk
from synk.extensions import checkpoint
from synk.extensions.checkpoint import store
from synk.extensions.checkpoint.contents import copies, copies_of_ranks, plain
from synk.extensions.checkpoint.file_format import arrays_of
from synk.extensions.fit.callback import Callback
from synk.extensions.fit.folder import STATE, best_first, checkpoints_in, is_whole, latest, path_of, score_of
from synk.extensions.fit.monitor import Monitor
from synk.extensions.fit.training import Training
from synk.extensions.fit.writer import Writer
from synk.values.checks import checked_count

PART = 1 << 20  # numbers that are looked at together


class Checkpoints(Callback):
    """Saves the whole training to a folder: after every epoch, and where it is stopped, in a thread.

    Parameters, the state of the rule, statistics and counters, random states of every rank, the place in the
    order of the rows, the history and the states of all callbacks are copied between two steps; then training
    goes on while rank 0 writes them. A save waits for the one before. Each file is complete, whenever the
    script is killed: the newest, or the one before.

    Parameters
    ----------
    folder : path-like
        Made if need be. It must not have checkpoints of later steps: those of another training.
    keep : int
        How many of the newest to keep. With `best` it may be 0: then only the best one stays, from the first
        epoch's end on, and a training that is started again goes on from there.
    best : str, optional
        A metric: the checkpoint of the epoch where it was best is kept, too. See `best`.
    mode : {"min", "max"}
        Whether smaller or larger values are better.
    every : int, optional
        Save after so many steps, too.

    See Also
    --------
    synk.extensions.fit.latest : finds the newest.
    synk.extensions.fit.best : finds the best.

    Examples
    --------
    >>> from synk.extensions.fit import Checkpoints, fit, latest
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> callback = Checkpoints("run", best="loss")
    >>> history = fit(step, (np.ones(8),), epochs=2, callbacks=[callback], batch_size=4, progress=False)
    >>> latest("run").name
    'step-000000004.ckpt'
    >>> history = fit(step, (np.ones(8),), epochs=3, resume="run", batch_size=4, progress=False)
    >>> len(history)  # two of them from before
    3
    """

    last = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 3,
        best: str | None = None,
        mode: str = "min",
        every: int | None = None,
    ):
        self._folder = Path(folder)
        self._keep = checked_count("keep", keep, 1 if best is None else 0)
        self._every = None if every is None else checked_count("every", every, 1)
        self._monitor = None if best is None else Monitor(best, mode)
        self._writer = Writer()
        self._room: dict[str, Any] = {}  # arrays of the last copy, for the next one
        self._scores: dict[Path, Any] = {}  # of all checkpoints in the folder, oldest first

    def on_train_begin(self, training: Training) -> None:
        if self._monitor is not None:
            training.check_metric(self._monitor.name, f"best={self._monitor.name!r}")
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(f"checkpoints cannot be written to {self._folder}; pass a folder of yours")
        present = checkpoints_in(self._folder)
        later = [path for step, path in present.items() if step > training.history.steps and is_whole(path)]
        # Of another training, if this one begins, or goes back in this folder; else they come again.
        source = training.resumed_from
        is_elsewhere = source is not None and source.resolve().parent != self._folder.resolve()
        if later and not (is_elsewhere or training.history.recoveries):
            raise ValueError(
                f"{later[-1]} is of a later step than this training's {training.history.steps}: pass "
                f"resume={str(self._folder)!r} to go on from there, or a folder of its own"
            )
        self._scores = {path: score_of(path) for path in present.values()}
        with synk.turn("Checkpoints"):
            self._room = copies(training.step)  # so that no save has to ask for memory
        if not training.history.recoveries:
            self._finite = [name for name, value in self._room.items() if is_finite(value)]
        is_saved = training.history.steps in present
        self._saved = _position(training) if is_saved else None
        if later and training.history.recoveries:
            # From them logs could not go on: what was written since is taken back.
            self.save(training)
            self.wait()
            for path in later:
                self._scores.pop(path, None)
                _remove(path)

    def on_step_end(self, training: Training) -> None:
        # What is saved at the end of the epoch is not saved right before it.
        is_last = training.batch == training.feed.n_steps
        if self._every is not None and training.history.steps % self._every == 0 and not is_last:
            self.save(training)

    def on_epoch_end(self, training: Training) -> None:
        self.save(training)

    def on_train_end(self, training: Training) -> None:
        try:
            if training.error is None and _position(training) != self._saved:
                self.save(training)
        finally:
            self.wait()

    def save(self, training: Training) -> None:
        """Copy everything now, and write it in a thread; raise the error of the previous write, if any."""
        failed = self._writer.join()
        with synk.turn("Checkpoints.save"):
            self._room = copied = copies(training.step, self._room)
            of_ranks = copies_of_ranks(training.step, copied)
        self._saved, score = _position(training), self._score(training)
        state = plain({STATE: {**state_of(training), "score": score}})
        path = path_of(self._folder, training.history.steps)
        self._writer.start(partial(self._write, path, {**copied, **of_ranks}, state, score))
        if failed is not None:
            raise failed

    def wait(self) -> None:
        """Wait until the last save is written; raise its error, if any."""
        self._writer.wait()

    def _score(self, training: Training) -> dict[str, Any] | None:
        if self._monitor is None or training.batch or not training.metrics:
            return None
        value = training.metric(self._monitor.name)
        return {"metric": self._monitor.name, "mode": self._monitor.mode, "value": value}

    def _write(self, path: Path, copied: Mapping[str, Any], state: Mapping[str, Any], score: Any) -> None:
        if broken := [name for name in self._finite if not is_finite(copied[name])]:
            warnings.warn(
                f"{path} was not written: NaN or infinities have come into {broken}; those before stay",
                synk.SynkWarning,
                stacklevel=1,
            )
            return
        store.write(path, copied, state)
        self._scores.pop(path, None)
        self._scores[path] = score
        # Where none has been judged yet, the newest is all there is.
        n_newest = self._keep or int(not best_first(self._scores))
        kept = {*list(self._scores)[max(0, len(self._scores) - n_newest) :], *best_first(self._scores)[:1]}
        for old in [one for one in self._scores if one not in kept]:
            del self._scores[old]
            _remove(old)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"{path} is older than those kept, but stays: {error}", synk.SynkWarning, stacklevel=1)


def is_finite(value: Any) -> bool:
    """Return whether all floats in a value are finite, an array or ranks' arrays; others are."""
    # In parts, which need little memory.
    return all(
        np.isfinite(part).all()
        for array in arrays_of(value)
        if array.dtype.kind == "f"
        for part in np.array_split(array.reshape(-1), array.size // PART + 1)
    )


def _position(training: Training) -> tuple[int, int]:
    return training.history.steps, len(training.history)


def state_of(training: Training) -> dict[str, Any]:
    """Return the state of a training as plain values, with the graph, ranks and versions that computed it."""
    return {
        **training.state(),
        "fingerprint": training.fingerprint,
        "ranks": synk.n_ranks(),
        "versions": {module.__name__: module.__version__ for module in (np, pytensor)},
    }


def resume_from(source: str | os.PathLike[str], training: Training) -> Path | None:
    """Resume a training from a checkpoint, or from the newest undamaged one in a folder; return its path.

    None, and nothing is changed, if there is no such folder or it has no checkpoint. Raises ValueError if the
    file holds no training or another order of rows; else what `checkpoint.load` raises: of the newest one if
    none is whole. A `SynkWarning` says if the graph has changed.
    """
    path = Path(source)
    if not path.is_file():
        if path.suffix == ".ckpt":
            raise FileNotFoundError(f"there is no checkpoint {path}; latest(folder) returns the newest")
        present = list(checkpoints_in(path).values())
        if not present:
            return None
        path = latest(path) or present[-1]
    state = checkpoint.read_values(path).get(STATE)
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds no training; load it by checkpoint.load(path, step) before fit()")
    try:
        training.load_state(state)
        dict(state["callbacks"])
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise checkpoint.CheckpointCorrupt(
            f"{path} has no state of a training: {error!r}; go on from another checkpoint"
        ) from error
    try:
        checkpoint.load(path, training.step)
    except (checkpoint.CheckpointNames, ValueError) as error:
        error.add_note(
            f"resume: {path} is of another model or update rule; give this one a folder of its own"
        )
        raise
    training.load_callbacks(state)
    training.resumed_from = path
    if state["fingerprint"] != training.fingerprint:
        warnings.warn(
            f"the graph is not the one that {path} was written with, say by another constant or by another "
            f"version than {state['versions']}: the training goes on, but not as it would have",
            synk.SynkWarning,
            stacklevel=3,
        )
    return path
