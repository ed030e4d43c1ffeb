"""Run Markov chains on one rank, by nutpie's sampler in a thread, and report their progress when called.

    synk.on_ranks(RankChains, evaluation, starts of each rank, settings)
        -> call(known, stop), every now and then -> Report of each chain: progress, new draws

The sampler is nutpie's; a rank runs its chains one after the other.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import nutpie
import pyarrow

from synk.extensions.pymc.compiled import in_c, in_python
from synk.extensions.pymc.starts import first_finite

PROGRESS_MILLISECONDS = 50
COPYING_SHARE = 20  # after copying the draws, do not copy again for so many times as long as it took


class Start(NamedTuple):
    """The initial points of a chain, which begins at the first of them with a finite log-density."""

    chain: int
    seed: int
    points: np.ndarray  # one a row


class Progress(NamedTuple):
    """The progress of a chain, with the fields of nutpie that PyMC's progress bar reads."""

    finished_draws: int = 0
    total_draws: int = 0
    divergent_draws: tuple[int, ...] = ()
    latest_num_steps: int = 0
    step_size: float = 0.0
    runtime_ms: float = 0
    started: bool = False


class Report(NamedTuple):
    """The progress of a chain, and the draws since its last report."""

    chain: int
    progress: Progress
    done: bool
    points: np.ndarray  # unconstrained, one a row
    stats: Mapping[str, np.ndarray]  # an element a row


class RankChains:
    """The chains of one rank, which it runs one after the other.

    Making this compiles the log-density; the first call begins the first chain.
    """

    def __init__(
        self, rank: int, evaluate: Any, starts: Sequence[Sequence[Start]], settings: Mapping[str, Any]
    ):
        self._running: Chain | None = None
        self._evaluate, self._settings = evaluate, settings
        self._waiting = deque(starts[rank])
        if self._waiting:
            evaluate(self._waiting[0].points[0])

    def _begin_next(self) -> None:
        if self._running is None and self._waiting:
            self._running = Chain(self._waiting.popleft(), self._evaluate, self._settings)

    def close(self) -> None:
        """Cancel the running chain."""
        if self._running is not None:
            self._running.cancel()

    __del__ = close  # nothing else ends nutpie's thread, which refers to the chain

    def __call__(self, known: Mapping[int, int], stop: bool) -> list[Report]:
        """Return the report of the running chain, as a list; begin the next chain if none runs.

        ``known`` maps chains to how many of their draws the caller has; ``stop`` ends the chains.

        Raises the exception that the log-density has raised, or `starts.StartError`.
        """
        if stop:
            self._waiting.clear()
        self._begin_next()
        if self._running is None:
            return []
        report = self._running.report(known, stop)
        if report.done:
            self._running = None
        return [report]


class Chain:
    """One Markov chain, which nutpie runs in a thread."""

    def __init__(self, start: Start, evaluate: Any, settings: Mapping[str, Any]):
        self._number, self._evaluate = start.chain, evaluate
        self._point = first_finite(evaluate, start.points)
        self._size = self._point.size
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self._progress = Progress()
        self._next_copy = 0.0
        self._sampler: Any = nutpie.sample(
            self._model(),
            chains=1,
            cores=1,
            seed=start.seed,
            progress_bar=False,
            progress_callback=self._note,
            progress_rate=PROGRESS_MILLISECONDS,
            blocking=False,
            return_raw_trace=True,
            **settings,
        )

    def _model(self) -> Any:
        make_callback = getattr(self._evaluate, "callback", None)
        callback = make_callback and make_callback(self._log_density)
        return in_c(callback, self._point) if callback else in_python(self._log_density, self._point)

    def _log_density(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        if self._error is None:
            try:
                return self._evaluate(point)
            except BaseException as error:  # nutpie would turn it into a panic of Rust
                self._error = error
        return np.nan, point

    def _note(self, chains: Sequence[Any]) -> None:
        fields = {name: getattr(chains[0], name) for name in Progress._fields}
        self._progress = Progress(**{**fields, "divergent_draws": tuple(chains[0].divergent_draws)})

    def report(self, known: Mapping[int, int], stop: bool) -> Report:
        """Return the progress, with the draws beyond those known; end the chain if ``stop`` is true."""
        if self._error is not None:
            self.cancel()
            raise self._error
        done = stop or self._is_finished()
        if not done and monotonic() < self._next_copy:
            return Report(self._number, self._progress, False, np.empty((0, self._size)), {})
        began = monotonic()
        trace = self._sampler.abort() if done else self._sampler.inspect()
        points, stats = self._beyond(trace, known.get(self._number, 0))
        self._next_copy = monotonic() + COPYING_SHARE * (monotonic() - began)
        if done:
            self._sampler = None
            self._progress = self._progress._replace(finished_draws=known.get(self._number, 0) + len(points))
        return Report(self._number, self._progress, done, points, stats)

    def cancel(self) -> None:
        """End the chain, and drop its draws."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None and os.getpid() == self._pid:  # a forked child has no sampler thread
            sampler.cancel()

    def _is_finished(self) -> bool:
        try:
            return bool(self._sampler.is_finished)
        except TimeoutError:  # nutpie raises this while the chain runs
            return False

    def _beyond(self, trace: Any, known: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the points and the statistics of the draws in a trace after the first ``known``."""
        draws, stats = (pyarrow.record_batch(batches[0]).slice(known) for batches in trace.get_arrow_trace())
        points = draws.column("point").flatten().to_numpy().reshape(len(draws), self._size)
        numbers = [one for one in stats.schema if is_number(one.type)]
        return points, {one.name: as_array(stats.column(one.name)) for one in numbers}


def as_array(column: Any) -> np.ndarray:
    """Return a column as an array; as in nutpie, missing integers are 0 and missing floats are NaN."""
    filled = column.fill_null(0) if pyarrow.types.is_integer(column.type) else column
    array: np.ndarray = filled.to_numpy(zero_copy_only=False)
    return array


def is_number(kind: Any) -> bool:
    """Tell whether a column of a trace holds numbers or booleans."""
    types = pyarrow.types
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))
