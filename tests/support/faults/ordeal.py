"""The episodes of the master under test: work, an injury, a verdict on the reported error, recovery.

Ordeal(seed, names, tell, private).run() -> tells the referee whom to shoot, and a record of every fault
"""

import contextlib
import gc
import itertools
import os
import signal
import time
import warnings
from functools import partial

import numpy as np
import verdicts
from actor import Actor
from acts import the_stage
from injuries import INJURIES
from verdicts import Wrong
from victims import World

import synk

PATIENCE = 3.0  # seconds of work after an injury, in which it has to show
QUIET = 0.5  # seconds of work after which an injury that may do nothing has done nothing
NEVER = 10.0  # seconds of work in which the injury has to come
LIMITS = {"close": 5.0, "restart": 2.0, "fork": 5.0}  # seconds


class Ordeal(Actor):
    """One master and the faults it meets.

    Parameters
    ----------
    seed : int
    names : list of str
        Of injuries, in order.
    tell, private
        As of `Actor`.
    """

    def __init__(self, seed, names, tell, private):
        super().__init__(seed, tell, private)
        self.names = names
        self.world = World(np.random.default_rng(seed))
        self.record = {}

    # --- the course of it ----------------------------------------------------------------------------

    def run(self):
        """Go through all of it; return with the run closed."""
        signal.signal(signal.SIGINT, self.interrupt)
        warnings.simplefilter("ignore", synk.SynkWarning)
        self._open()
        for name in self.names:
            injury = INJURIES[name]
            self.record = {"kind": name, "n_ranks": self.n_ranks, "wrong": []}
            self.tell(begin=name, outcome=injury.outcome, codes=injury.codes)
            with self._recorded():
                self._endure(injury)
            self.tell(record=self.record)
        self.record = {"kind": "the end", "wrong": []}
        with self._recorded():
            self._close()

    @contextlib.contextmanager
    def _recorded(self):
        try:
            yield
        except Exception as error:
            self.record["wrong"].append(verdicts.told(error))
            self.tell(record=self.record)
            raise

    def _endure(self, injury):
        for _ in range(self.draw(0, 3)):
            self.world.deed()
        the_stage.clear()
        first = getattr(self, f"_prepare_{injury.during}")(injury)
        error, began = self._attack(injury, first)
        caught = time.monotonic()
        the_stage.disarm()
        self.tell(cease=True)
        if injury.outcome == "ended" and isinstance(error, SystemExit):
            raise error
        verdicts.judge(self.record, injury, error, began, caught)
        said = type(error), str(error)
        del error  # its traceback holds frames, and those hold shared memory
        self._recover(injury, said)
        for _ in range(self.draw(1, 3)):
            self.world.deed()
        self.world.check_all()
        if not self.draw(0, 2):
            self.world.commit()

    # --- what goes on meanwhile ------------------------------------------------------------------------

    def _prepare_deeds(self, injury):
        if injury.timeout:  # it is no time to compile in
            for name in injury.deeds:
                self.world.deed(name)
        return partial(self.world.deed, *injury.deeds)

    def _prepare_commit(self, injury):
        return self.world.commit

    def _prepare_fork(self, injury):
        self._close()
        return partial(self._open, commits=False)

    def _prepare_close(self, injury):
        return self._close

    def _prepare_restart(self, injury):
        if self.draw(0, 1):  # on a broken run as on a healthy one
            os.kill(self.pids[-1], signal.SIGKILL)
            with contextlib.suppress(synk.WorkerDied):
                while True:
                    self.world.deed()
        return self._restart

    def _attack(self, injury, first):
        """Work until the injury shows; return the error, or None, and when the call that raised it began."""
        again = first if injury.during == "commit" else partial(self.world.deed, *injury.deeds)
        patience = PATIENCE if injury.outcome in ("died", "late", "raised") else QUIET
        with contextlib.ExitStack() as stack:
            if injury.timeout:
                self.record["timeout"] = seconds = self.random.choice(injury.timeout)
                stack.enter_context(synk.timeout(seconds))
            if injury.shortage:
                stack.enter_context(injury.shortage(self))
            self.record["ranks"] = injury.inflict(self)
            start = time.monotonic()
            for step in itertools.chain([first], itertools.repeat(again)):
                began = time.monotonic()
                try:
                    self.exposed = True
                    step()
                except BaseException as error:
                    return error, began
                finally:
                    self.exposed = False
                while injury.during == "close" and not the_stage.struck:
                    time.sleep(0.001)  # there is no run to work with
                struck, now = the_stage.struck, time.monotonic()
                if injury.during == "close" or (struck and now - struck > patience):
                    return None, began
                if now - start > NEVER + patience:
                    raise Wrong("the injury never came")
        raise AssertionError("steps have no end")

    # --- recovery ----------------------------------------------------------------------------------------

    def _recover(self, injury, said):
        """Bring the run back, as its promise for this injury says, and hold it to its numbers."""
        if injury.during == "fork" or not self.is_open():
            self._close()
            self._open()
        elif injury.outcome in ("died", "late"):
            verdicts.check_refusals(self.record, self.world, said)
            self._revive()
        elif injury.outcome == "interrupted":
            self._calm_down()
        elif injury.during == "restart":
            self._restart()
        elif injury.outcome != "unharmed":
            if injury.loses_data:
                self.world.renew_data()
            self.world.heal()
        self.world.check_all()

    def _calm_down(self):
        """Assert that after an interrupt the run is usable, or raises the error of a broken run."""
        self._enter()  # it may have been restarted
        try:
            self.world.heal(data=True)
            self.record["state"] = "usable"
        except (synk.SynkStateError, synk.WorkerDied):  # the latter where it was broken before
            self.record["state"] = "broken"
            self._revive(data=True)

    def _revive(self, data=False):
        if self.draw(0, 2):
            self._restart()
            self.world.heal(data)
        else:
            self._close()
            self._open()

    def _restart(self):
        before = synk.pids()
        with self._timed("restart"):
            synk.restart()
        self._enter()
        if self.pids[0] != before[0] or set(self.pids[1:]) & set(before[1:]):
            raise Wrong(f"after a restart the ranks are {self.pids}, and were {before}")
        self.world.check_restored()

    def _open(self, commits=True):
        self.n_ranks = self.draw(2, 4)
        with self._timed("fork"):
            self.world.fork(self.n_ranks)
        self._enter()
        self.world.build()
        if commits and self.draw(0, 3):
            self.world.commit()

    def _enter(self):
        self.pids = synk.pids()
        the_stage.enter(self.pids)

    def _close(self):
        with self._timed("close"):
            synk.close()
        gc.collect()
        with open("/proc/self/maps") as maps:
            left = maps.read().count("/dev/shm/")
        if left:
            self.record["leak"] = True
            raise Wrong(f"{left} mappings of shared memory outlive the run")

    @contextlib.contextmanager
    def _timed(self, what):
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        self.record[f"{what}_s"] = max(took, self.record.get(f"{what}_s", 0.0))
        if took > LIMITS[what]:
            self.record["wrong"].append(f"{what} took {took:.2f} s")
