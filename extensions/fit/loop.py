"""The loop of a training, in parts that can be used alone.

fit -> feed, validation_of, Hooks, Training, resume_from
    -> recovering -> train -> train_epochs -> train_epoch, Training.end_epoch -> History
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import synk
from synk.extensions.fit.callback import Callback, Hooks
from synk.extensions.fit.checkpoints import resume_from
from synk.extensions.fit.feeds import feed
from synk.extensions.fit.history import History
from synk.extensions.fit.metrics import validation_of
from synk.extensions.fit.progress import progress_for
from synk.extensions.fit.recovery import Commits, recovering
from synk.extensions.fit.signals import StoppedBySignals
from synk.extensions.fit.training import Training
from synk.values.checks import checked_count


def fit(
    step: synk.Function,
    data: Any,
    *,
    epochs: int,
    batch_size: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    n_rows: int | None = None,
    num_slices: int = 1,
    validation: tuple[synk.Function, Any] | tuple[synk.Function, Any, Sequence[str]] | None = None,
    validation_slices: int = 1,
    metrics: Sequence[str] | None = None,
    callbacks: Iterable[Callback] = (),
    resume: str | os.PathLike[str] | None = None,
    recover: int = 0,
    stop_on: Iterable[int] = (),
    grace: float = 30.0,
    progress: bool = True,
) -> History:
    """Train for some epochs.

    Each epoch goes through all rows once, in an order that seed and epoch alone decide, and in batches of
    which the last has what remains. So a run is the same on any number of ranks, but for what ranks draw at
    random.

    ^C ends the training after the step that runs: the history of what was done is returned, with
    ``history.interrupted``. A second ^C raises KeyboardInterrupt at once.

    Parameters
    ----------
    step : synk.Function
        One training step, as `synk.extensions.train.make_train_function` returns it.
    data : tuple or dict of array_like or Data, callable, or iterable
        The inputs of the step, in order or by name: put into shared memory once, from which each rank reads
        its rows.

        Or a function of row numbers, ``data(rows)`` or ``data(rows, rng)``, which returns the inputs of one
        batch, as a tuple, or the keywords of its call, as a dict; the random numbers of ``rng`` depend on
        seed, epoch and batch alone. Or batches, as such tuples or dicts: an iterable that yields those of an
        epoch each time, or a function of the epoch that returns one. Functions and iterables run in a thread,
        two batches ahead, so each batch needs arrays of its own.
    epochs : int
        Altogether, those before a resume included.
    batch_size : int, optional
        Rows of a step, on all ranks together; not of iterables.
    seed : int
        Of the order of the rows.
    shuffle : bool
        Whether rows come in another order in each epoch.
    n_rows : int, optional
        Of the data set; only, and always, where `data` is a function of row numbers.
    num_slices : int
        As of calls of `step`.
    validation : (synk.Function, data), optional
        Called after each epoch with all rows; its outputs are metrics whose names begin with ``"val_"``. A
        third entry are names of its own, in place of `metrics`.
    validation_slices : int
        In which the validation is computed, to save memory.
    metrics : list of str, optional
        Names of the numbers that `step` and the validation return, in order; the history has those of steps
        averaged over rows, so those of a step should be means. By default the first is ``"loss"``, and others
        have the names of their variables.
    callbacks : iterable of Callback
        Called in this order, but those that save last.
    resume : path-like, optional
        A checkpoint to go on from, or a folder: from the newest one that is whole, or from the beginning if
        there is none. On as many ranks as before, the training ends with the bits of one that was not
        interrupted. On others the rows are the same, so losses are equal up to rounding; where something is
        drawn at random, ranks go on with streams of their own, made from that of rank 0.
    recover : int
        How often to go on with new workers where one has died, or a command has missed its deadline
        (``synk.fork(timeout=...)``): from the last of the commits, which take a hundredth of the time, to the
        bits of a training to which nothing happened; on fewer ranks, as `resume` does, if the system refuses
        processes. Each time a `SynkWarning` names rank and cause, and ``history.recoveries`` keeps them.
        Callbacks must not call `synk.commit`.
    stop_on : iterable of signal
        By which a scheduler says that it will end the job: ``(signal.SIGTERM, signal.SIGUSR1)``, perhaps. The
        training ends after the step that runs, it is saved as at its end, and ``SystemExit(0)`` is raised;
        the script's own handlers are called before that.
    grace : float
        Seconds from such a signal to the end of the process. A step that is not done by then is given up: the
        last checkpoint stays.
    progress : bool
        Whether to show how it goes: a bar in a terminal, if rich is installed, else a line an epoch.

    Returns
    -------
    History

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; before the first step.
    CheckpointNames, CheckpointCorrupt, CheckpointVersion
        As `synk.extensions.checkpoint.load`, of `resume`.

    See Also
    --------
    synk.extensions.train.make_train_function : makes the step.
    synk.extensions.fit.Checkpoints : saves the whole training.

    Examples
    --------
    >>> from synk.extensions.fit import fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> history = fit(step, (np.ones(8),), epochs=10, batch_size=4, progress=False)
    >>> print(w.get_value().round(2), history.steps)
    0.99 20
    """
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks={callbacks!r} is no list; pass [{type(callbacks).__name__}(...)]")
    tries = checked_count("recover", recover, 0, "pass how often to go on with new workers")
    check_epochs(epochs, data, tries)
    batches = feed(step, data, batch_size, seed, shuffle, n_rows, num_slices)
    check = validation_of(validation, validation_slices, metrics)
    commits = Commits(tries)
    hooks = Hooks([*callbacks, *progress_for(progress), *[commits] * (tries > 0)])
    training = Training(step, batches, epochs, check, metrics, hooks.named())
    with StoppedBySignals(training, stop_on, grace):
        hooks.reset()
        if resume is not None:
            resume_from(resume, training)
        recovering(partial(train, training, hooks), training, commits)
    return training.history


def train(training: Training, hooks: Hooks) -> None:
    """Train all epochs that are left, from where callbacks begin until they end."""
    with hooks.of(training):
        train_epochs(training, hooks)


def train_epochs(training: Training, hooks: Hooks) -> None:
    """Train all epochs that are left, unless something stops the training before."""
    while training.epoch < training.epochs and training.stopping is None:
        training.begin_epoch()
        hooks.epoch_begin(training)
        if training.stopping is None and train_epoch(training, hooks.on_step_end):
            training.end_epoch()
            hooks.epoch_end(training)
            training.epoch += 1
    if training.epoch == training.epochs:
        training.complete()


def train_epoch(training: Training, on_step_end: Sequence[Callable[[Training], None]] = ()) -> bool:
    """Do the steps of an epoch, or those that are left of it; return whether it has come to its end.

    After each, the functions `on_step_end` are called with the training.
    """
    step, averages, history = training.step, training.averages, training.history
    with closing(training.feed.batches(training.epoch, training.batch)) as batches:
        for inputs, keywords, n_rows in batches:
            training.outputs = outputs = step(*inputs, **keywords)
            averages.add(outputs, n_rows)
            training.batch += 1
            history.steps += 1
            for call in on_step_end:
                call(training)
            if history.stopped is not None:
                return False
    if training.batch == 0:
        raise ValueError(
            f"the data has no batches in epoch {training.epoch}; a generator yields each batch once: "
            "pass a function of the epoch that returns one"
        )
    return True


def check_epochs(epochs: Any, data: Any, recover: int = 0) -> None:
    """Raise TypeError or ValueError if no such data can be gone through so often, or again."""
    checked_count("epochs", epochs, advice="pass how often to go through the data")
    if (epochs > 1 or recover) and isinstance(data, Iterator):
        raise ValueError(
            f"epochs={epochs}, recover={recover}, but {data!r} yields each batch once; pass a function of "
            "the epoch that returns an iterator"
        )
