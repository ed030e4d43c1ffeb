"""Forking, closing and using in any order: what belongs to a run serves in that one, and in no other."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import synk


class Script:
    """Number the runs of a script, and keep what each run makes."""

    def __init__(self):
        self.run = 0
        self.n_ranks = 0
        self.made = {}  # run -> (function, Data, sequence)
        self.shared = pytensor.shared(np.zeros(2), name="shared")

    def fork(self, n_ranks):
        assert synk.fork(n_ranks) == n_ranks
        self.run += 1
        self.n_ranks = n_ranks

    def make(self):
        x = pt.vector("x")
        function = synk.function([x], (x.sum(), "sum"))
        sequence = synk.sequence(function, (synk.all_reduce, self.shared, "max"))
        self.made[self.run] = (function, synk.data([1.0, 2.0, 3.0]), sequence)

    def use(self, run, what):
        function, data, sequence = self.made[run]
        if what == "function":
            assert function(np.arange(4.0), batch=3) == 3
        elif what == "sequence":
            assert sequence([1.0]) == 1
        else:
            data.set_value([1.0, 2.0, 3.0], oversize=1.5)
            data.set_length(2)
            assert np.asarray(data).tolist() == [1, 2]

    def collect(self):
        value = self.shared.get_value() + 1
        synk.broadcast(self.shared, value)
        assert synk.gather(self.shared).tolist() == [value.tolist()] * self.n_ranks
        assert len(synk.pids()) == self.n_ranks


NEEDS_A_RUN = {
    "make": Script.make,
    "collect": Script.collect,
    "pids": lambda script: synk.pids(),
    "distribute": lambda script: synk.distribute(),
    "data": lambda script: synk.data(np.zeros(2)),
}
USES = ("function", "data", "sequence")
steps = st.sampled_from(["fork 1", "fork 2", "fork 2", "close", "close", *NEEDS_A_RUN, *USES, *USES])


def refused(do):
    """Return whether ``do`` raises SynkStateError; anything else is an error."""
    try:
        do()
    except synk.SynkStateError:
        return True
    return False


def follow(script, step):
    """Take one step, and hold it to the one rule: it works in its own run, while that is open."""
    is_open = script.n_ranks > 0
    kind, *number = step.split()
    if kind == "fork":
        assert refused(lambda: script.fork(int(*number))) == is_open
    elif kind == "close":
        synk.close()
        script.n_ranks = 0
    elif kind in NEEDS_A_RUN:
        assert refused(lambda: NEEDS_A_RUN[kind](script)) != is_open
    else:
        for run in script.made:
            assert refused(lambda run=run: script.use(run, kind)) != (is_open and run == script.run)


@given(st.lists(steps, max_size=10))
@example(["fork 2", "make", "collect", "close", "function", "fork 1", "data", "make", "collect", "sequence"])
@example(["fork 1", "fork 2", "make", "close", "close", "collect", "make", "fork 2", "collect"])
@settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_forks_and_closes_in_any_order(taken):
    script = Script()
    try:
        for step in taken:
            follow(script, step)
    finally:
        synk.close()
