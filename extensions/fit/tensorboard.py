"""Write the numbers of a training for TensorBoard."""

from __future__ import annotations

import os
import time
from typing import Any

from synk.extensions.fit.callback import Callback
from synk.extensions.fit.training import Training


class TensorBoard(Callback):
    """Writes event files: what steps return, by name, and metrics of epochs as ``"epoch/val_loss"``.

    The horizontal axis is the number of steps. A training that goes on writes a file of its own, which has
    TensorBoard drop what came after the checkpoint.

    Parameters
    ----------
    folder : path-like
        Show it by ``tensorboard --logdir folder``.
    every : int
        Steps from one number to the next.

    Raises
    ------
    ImportError
        tensorboard is not installed.

    See Also
    --------
    synk.extensions.fit.fit : calls it.

    Examples
    --------
    >>> from synk.extensions.fit import TensorBoard, fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> callback = TensorBoard("events")
    >>> history = fit(step, (np.ones(8),), epochs=2, callbacks=[callback], batch_size=4, progress=False)
    >>> len(os.listdir("events"))
    1
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 1):
        if every < 1:
            raise ValueError(f"every={every} is no number of steps; pass 1 or more")
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as missing:
            raise ImportError(
                "tensorboard is not installed. Use pip install 'synk-pytensor[tensorboard]'."
            ) from missing
        self._folder, self._every = os.fspath(folder), every
        self._open, self._events, self._summaries = EventFileWriter, event_pb2, summary_pb2
        self._writer: Any = None

    def on_train_begin(self, training: Training) -> None:
        self._writer = self._open(self._folder)
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._add(training.history.steps + 1, session_log=start)

    def on_step_end(self, training: Training) -> None:
        if training.history.steps % self._every == 0:
            self._add_numbers(training.history.steps, training.numbers())

    def on_epoch_end(self, training: Training) -> None:
        numbers = {f"epoch/{name}": training.metrics[name] for name in training.metric_names}
        self._add_numbers(training.history.steps, numbers)
        self._writer.flush()

    def on_train_end(self, training: Training) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add_numbers(self, step: int, numbers: dict[str, float]) -> None:
        value = self._summaries.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in numbers.items()]
        self._add(step, summary=self._summaries.Summary(value=values))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **content))
