"""Trainings whose workers die, and what of them can be compared."""

import os
import signal

import synk
from support.cases.fitting import numbers, values
from synk.extensions.fit import Callback, fit

EPOCHS, STEPS = 3, 6  # an epoch


class Kills(Callback):
    """Kills rank 1 once, in a method of a callback, after so many steps; and counts steps, as states do."""

    def __init__(self, method="on_step_end", steps=None, number=signal.SIGKILL, times=1):
        self.method, self.steps, self.number, self.times = method, steps, number, times
        self.seen = 0

    def __getattribute__(self, name):
        if name.startswith("on_") and name == self.method and self.times:
            return self.strike
        return super().__getattribute__(name)

    def on_step_end(self, training):
        self.seen += 1

    def strike(self, training):
        self.seen += self.method == "on_step_end"
        if self.times and training.history.steps == self.steps:
            self.times -= 1
            os.kill(synk.pids()[1], self.number)

    def state(self):
        return {"seen": self.seen}

    def load_state(self, state):
        self.seen = state["seen"]


def fitted(case, *callbacks, recover=0, data=None, **options):
    """Train, and return what can be compared; and the history."""
    counts = Kills()
    options = {"epochs": EPOCHS, "batch_size": 8, "seed": 7, "validation": case.validation, **options}
    history = fit(
        case.step,
        case.data if data is None else data,
        callbacks=[*callbacks, counts],
        recover=recover,
        progress=False,
        **options,
    )
    return (numbers(history), values(case), counts.seen, history.steps, history.stopped), history
