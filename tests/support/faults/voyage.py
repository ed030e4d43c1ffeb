"""The master on several machines: it works in a given phase until a fault, restarts and continues.

    on_hosts.py: {"phase": ..., "hosts": ...} -> work until something fails -> restart -> compare
        -> {"done": ...}

All numbers are whole, so that sums are exact: the same bits come out however rows are split, and a model in
NumPy tells them.
"""

import faulthandler
import json
import sys
import time
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk
from synk.exact.rules import relate

LIMIT = 1 << 20  # of numbers, far below where sums round
WORK_SECONDS = 6.0  # in which a fault is noticed, or was none
COLUMNS = 6
TRIES = 4  # of a restart that is disturbed itself


class Slow(Op):
    """The input, a little later."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        time.sleep(0.01)
        outputs[0][0] = inputs[0].copy()


@relate.register(Slow)
def as_it_is(op, node, given):
    return given, given


def tell(**said):
    print(json.dumps(said), flush=True)


class Voyage:
    """One run, and a model of the values that it should hold."""

    def __init__(self, options):
        self.options = options
        synk.fork(options["ranks"], hosts=options["hosts"], interface=options["interface"])
        self.rng = np.random.default_rng(options["seed"])
        x = pt.matrix("x")
        self.state = pytensor.shared(np.zeros(COLUMNS), name="state")
        self.large = pytensor.shared(np.zeros(3), name="large")
        grown = (3 * self.state + Slow()(x).sum(axis=0)) % LIMIT
        self.step = synk.function([x], [x.max()], updates=[(self.state, grown)], name="step")
        self.data = synk.data(self.rows())
        self.model = np.zeros(COLUMNS)
        synk.broadcast(self.large, np.arange(300_000.0))
        self.advance()
        self.commit()

    def rows(self):
        return self.rng.integers(0, LIMIT, size=(50, COLUMNS)).astype(float)

    def advance(self):
        """Do a step, and the model's."""
        rows = self.rows()
        self.data[:] = rows
        (largest,) = self.step(self.data)
        self.model = (3 * self.model + rows.sum(axis=0)) % LIMIT
        assert largest == rows.max(), "the largest is another"

    def commit(self):
        synk.commit(self.model)
        self.committed = self.model.copy()

    # --- phases: each does something for a while -------------------------------------------------------

    def idle(self):
        time.sleep(0.3)
        self.advance()

    def computing(self):
        self.advance()

    def collective(self):
        synk.all_reduce(self.large, "max")

    def compiling(self):
        x = pt.matrix("x")
        f = synk.function([x], (Slow()(x * float(self.rng.integers(1, 99))).sum(), "sum"), name="new")
        synk.distribute()
        f(np.ones((9, 2)))

    def committing(self):
        synk.commit(self.model)

    def restarting(self):
        self.restart_once(None)

    # --- one leg -------------------------------------------------------------------------------------

    def leg(self, phase, hosts):
        """Work in a phase until a call fails; then restart, and compare all values with the model."""
        if hosts is not None:
            self.restart_once(hosts)
        self.advance()
        self.commit()
        tell(ready=synk.pids())
        raised, at = self.work(getattr(self, phase))
        tell(raised=type(raised).__name__, at=at, text=str(raised)[:300], host=getattr(raised, "host", None))
        sys.stdin.readline()  # the referee has done what it will do
        for number in range(TRIES):
            began = time.monotonic()
            try:
                self.restart_once(None)
                break
            except synk.SynkError as error:
                tell(again=number, text=f"{type(error).__name__}: {error}"[:600])
        took = time.monotonic() - began
        self.compare()
        for _ in range(3):
            self.advance()
        self.compare()
        tell(done=took, tries=number + 1, ranks=synk.n_ranks())

    def work(self, act):
        deadline = time.monotonic() + WORK_SECONDS
        try:
            while time.monotonic() < deadline:
                act()
        except synk.SynkError as error:
            return error, time.monotonic()
        return None, time.monotonic()

    def restart_once(self, hosts):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", synk.SynkWarning)
            self.model = synk.restart(hosts=hosts) if hosts else synk.restart()
        assert np.array_equal(self.model, self.committed), "another commit came back"

    def compare(self):
        """Hold all ranks to the model, in every bit."""
        for rank, found in enumerate(synk.gather(self.state)):
            assert np.array_equal(found, self.model), f"rank {rank} has {found}, not {self.model}"
        largest = synk.get_value(synk.n_ranks() - 1, self.large)
        assert np.array_equal(largest, np.arange(300_000.0)), "the large array is another"


def main():
    faulthandler.enable()
    voyage = Voyage(json.loads(sys.stdin.readline()))
    tell(forked=synk.n_ranks())
    for line in sys.stdin:
        order = json.loads(line)
        if order == "close":
            break
        voyage.leg(order["phase"], order["hosts"])
    began = time.monotonic()
    synk.close()
    tell(closed=time.monotonic() - began)


if __name__ == "__main__":
    main()
