"""Continue a training in the same process after it has lost a worker, from the last commit.

    Commits.on_step_end -> synk.commit(Training.state), now and then
    recovering: a lost worker -> Commits.go_on: synk.restart() -> Training.load_state -> the body again

So callbacks see a recovery as they see a resume from a file: the training ends by an error, the states are
loaded, and it begins again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from secrets import token_hex
from time import perf_counter
from typing import Any

import synk
from synk.extensions.fit.callback import Callback
from synk.extensions.fit.training import Training

SHARE = 0.01  # of the time, that commits take


class Commits(Callback):
    """Commits the state of a training now and then, and restores it after a loss, at most ``tries`` times.

    Commits take a hundredth of the time: after one that took a second, the next comes after a hundred.
    """

    last = True

    def __init__(self, tries: int):
        self.tries = tries
        self._token = token_hex(8)  # that tells these commits from others, of callbacks or another training
        self._has_committed = False
        self._due = 0.0

    def on_train_begin(self, training: Training) -> None:
        synk.get_value(0, list(training.step.state))  # ranks get what no call has given them yet
        self.commit(training)
        self._due = 0.0  # the first step brings variables that a commit holds, too

    def on_step_end(self, training: Training) -> None:
        if perf_counter() >= self._due:
            self.commit(training)

    def on_epoch_end(self, training: Training) -> None:
        self.on_step_end(training)

    def commit(self, training: Training) -> None:
        """Keep the state of a training with the values of all shared variables."""
        began = perf_counter()
        # A file does not keep that it was to stop: what is started again goes on.
        synk.commit({self._token: (training.state(), training.history.stopped)})
        self._has_committed = True
        now = perf_counter()
        self._due = now + (now - began) / SHARE

    def go_on(self, training: Training, lost: Exception) -> None:
        """Restart the run, and put a training back to the last commit; a `SynkWarning` tells what was lost.

        Raises `lost` if there is no commit of this training: the first one failed, or a callback has made
        another.
        """
        if not self._has_committed:
            raise lost
        steps, kept = training.history.steps, restarted()
        if not isinstance(kept, dict) or self._token not in kept:
            lost.add_note("the training cannot go on: a callback has called synk.commit() meanwhile")
            raise lost
        state, stopped = kept[self._token]
        training.load_state(state)
        if stopped is not None:
            training.stop(stopped)
        training.load_callbacks(state)
        cause = str(lost).split(";")[0]  # and not what to do about it
        now = {"step": steps, "from_step": training.history.steps, "ranks": synk.n_ranks(), "cause": cause}
        training.history.recoveries.append(now)
        warnings.warn(
            f"after step {steps}, {cause}: the training goes on after step {now['from_step']}, on "
            f"{now['ranks']} ranks (recovery {len(training.history.recoveries)} of at most {self.tries})",
            synk.SynkWarning,
            stacklevel=4,
        )


def recovering(body: Callable[[], None], training: Training, commits: Commits) -> None:
    """Call ``body``; when a run breaks, recover it and call ``body`` again, while there are tries left.

    A run is recovered where it is broken: a worker has died, machines have lost each other, or a command
    missed its deadline. Errors of the script, on any rank, are raised.
    """
    lost: Exception | None = None
    for left in reversed(range(commits.tries + 1)):
        try:
            if lost is not None:
                commits.go_on(training, lost)
            return body()
        except (synk.WorkerDied, synk.SynkTimeout, synk.SynkStateError) as error:
            if error is lost or not left or not is_broken():
                raise
            lost = error.with_traceback(None)  # whose frames hold arrays


def is_broken() -> bool:
    """Return whether a run is open that only a restart brings back."""
    if not synk.is_open():
        return False
    try:
        synk.broadcast([], [])
    except (synk.WorkerDied, synk.SynkTimeout, synk.SynkStateError):
        return True
    return False


def restarted() -> Any:
    """Restart the run on as many ranks as the system has room for; return what was committed."""
    refused: OSError | None = None
    with warnings.catch_warnings():
        # What came after the last commit, every step computes anew.
        warnings.filterwarnings("ignore", "restart: no commit holds", synk.SynkWarning)
        for n_ranks in (None, *range(synk.n_ranks() - 1, 0, -1)):  # on several machines, all that are left
            try:
                return synk.restart(n_ranks)
            except OSError as error:
                refused = error
            except synk.SynkStateError as error:
                raise error from refused
    assert refused is not None
    raise refused
