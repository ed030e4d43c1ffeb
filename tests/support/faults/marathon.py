"""The master of a long training that is disturbed now and then, and left alone towards its end.

Training.step, step, commit, step ... (fault) restart, step ... -> the same bits as without any fault
"""

import gc
import os
import signal
import time
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import verdicts
from actor import Actor
from acts import Spot, the_stage
from injuries import INJURIES

import synk
from synk.extensions import train, updates

N_RANKS = 3
N_ROWS, N_FEATURES, N_HIDDEN, N_BATCH = 600, 8, 16, 60
STEP_SECONDS = 0.05  # from step to step: so many that the same can be done again undisturbed
STEPS_TO_COMMIT = 20
DEADLINE = 2.0  # seconds for a command
PATIENCE = 4.0  # seconds for an injury to show


class Training:
    """A perceptron, its data, and a step counter that the ranks keep."""

    def __init__(self, seed):
        self._seed = seed
        rng = np.random.default_rng(seed)
        inputs = rng.normal(size=(N_ROWS, N_FEATURES))
        self._data = synk.data(inputs), synk.data(np.sin(inputs).sum(axis=1))
        x, y = pt.matrix("x"), pt.vector("y")
        hidden = pytensor.shared(rng.normal(size=(N_FEATURES, N_HIDDEN)) / 3, name="hidden")
        output = pytensor.shared(rng.normal(size=N_HIDDEN) / 4, name="output")
        self._clock = pytensor.shared(np.int64(0), name="clock")
        loss = ((pt.tanh(Spot()(x) @ hidden) @ output - y) ** 2).mean()
        made = updates.adam(loss, [hidden, output])
        self._step = train.make_train_function(
            loss, [hidden, output], [x, y], lambda *_: made, updates=[(self._clock, self._clock + 1)]
        )
        self._state = [self._clock, *(variable for variable, *_ in made.param_updates)]
        synk.broadcast(self._state)
        synk.distribute()

    def step(self, number):
        """Do step ``number``: which rows it reads depends on nothing else."""
        rows = np.random.default_rng([self._seed, number]).integers(N_ROWS, size=N_BATCH)
        return float(self._step(*self._data, batch=rows))

    def clock(self):
        """Return the number of steps that the present values have seen."""
        return int(synk.get_value(0, self._clock))

    def state(self):
        """Return the values that every rank holds, in bytes."""
        return [
            np.ascontiguousarray(synk.get_value(rank, variable)).tobytes()
            for variable in self._state
            for rank in range(N_RANKS)
        ]


class Chaos(Actor):
    """The master: it trains, and asks for a fault now and then.

    Parameters
    ----------
    seconds, every : float
        How long, and from fault to fault.
    """

    def __init__(self, seed, tell, private, seconds, every):
        super().__init__(seed, tell, private)
        self._seed, self._seconds, self._every = seed, seconds, every
        self._names, self._record, self._injury = [], {}, None
        self._done = 0  # steps, those included that were lost and done again
        self.n_ranks = N_RANKS

    def run(self):
        signal.signal(signal.SIGINT, self.interrupt)
        warnings.simplefilter("ignore", synk.SynkWarning)
        synk.fork(N_RANKS, device="cpu", timeout=DEADLINE)
        self._enter()
        training = self._begin()
        synk.commit()
        start, clock = time.monotonic(), 0
        due = start + self._every
        while time.monotonic() < start + self._seconds:
            began = time.monotonic()
            try:
                self.exposed = True
                training.step(clock)
                clock += 1
                if clock % STEPS_TO_COMMIT == 0:
                    synk.commit()
                self.exposed = False
            except BaseException as error:
                self.exposed = False
                self._judge(error, began)
                del error
                clock = self._resume(training, clock)
            self._done += 1
            if self._injury is not None:
                self._look_whether_it_passed()
            elif time.monotonic() > due:
                due += self._every
                self._inflict()
            time.sleep(max(0.0, began + STEP_SECONDS - time.monotonic()))
        clock, disturbed = training.clock(), training.state()
        synk.close()
        del training
        self._compare(clock, disturbed)

    def _begin(self):
        with synk.timeout(None):
            return Training(self._seed)

    def _enter(self):
        self.pids = synk.pids()
        the_stage.enter(self.pids)

    # --- faults --------------------------------------------------------------------------------------

    def _inflict(self):
        if not self._names:
            self._names = [name for name, injury in INJURIES.items() if suits(injury)]
            self.random.shuffle(self._names)
        name = self._names.pop()
        self._injury = INJURIES[name]
        self._record = dict(kind=name, n_ranks=N_RANKS, wrong=[], **self._held())
        if self._injury.outcome == "late":
            self._record["timeout"] = DEADLINE
        the_stage.clear()
        self._inflicted = time.monotonic()
        self._record["ranks"] = self._injury.inflict(self)

    def _held(self):
        """Return the MiB of memory and the descriptors that the master holds now."""
        gc.collect()  # what waits for it is no growth: an error and the frames it passed hold each other
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        return {
            "rss": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "descriptors": len(os.listdir("/proc/self/fd")),
        }

    def _judge(self, error, began):
        caught = time.monotonic()
        if self._injury is None:
            raise error
        verdicts.judge(self._record, self._injury, error, began, caught)

    def _look_whether_it_passed(self):
        struck, now = the_stage.struck, time.monotonic()
        if self._injury.outcome in ("unharmed", "interrupted"):
            if struck and now - struck > 1.0:
                self._passed()
        elif now - self._inflicted > PATIENCE + DEADLINE:
            raise verdicts.Wrong(f"{self._injury.name}: nothing was raised")

    def _passed(self):
        self._injury = None
        the_stage.disarm()
        self.tell(record=self._record, cease=True)

    def _resume(self, training, clock):
        began = time.monotonic()
        synk.restart()
        self._record["restart_s"] = time.monotonic() - began
        self._enter()
        with synk.timeout(None):
            synk.distribute()
        back = training.clock()
        self._record["lost"] = clock - back
        if not 0 <= clock - back <= STEPS_TO_COMMIT + 1:
            raise verdicts.Wrong(f"step {clock} went back to {back}")
        self._passed()
        return back

    # --- the end -----------------------------------------------------------------------------------------

    def _compare(self, n_steps, disturbed):
        """Do as many steps undisturbed, and compare every bit on every rank."""
        gc.collect()
        began = time.monotonic()
        synk.fork(N_RANKS, device="cpu")
        training = self._begin()
        for number in range(n_steps):
            training.step(number)
            if number % 1000 == 0:
                self.tell(alive=number)
        same = training.state() == disturbed
        synk.close()
        self.tell(
            record={
                "kind": "comparison",
                "wrong": [] if same else [f"after {n_steps} steps the bits differ from an undisturbed run"],
                "steps": n_steps,
                "steps_done": self._done,
                "undisturbed_s": time.monotonic() - began,
            }
        )


def suits(injury):
    """Say whether an injury can happen in a training session."""
    return (
        injury.during == "deeds"
        and injury.outcome in ("died", "late", "raised", "interrupted", "unharmed")
        and (not injury.deeds or "train" in injury.deeds)
    )
