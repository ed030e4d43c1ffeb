"""Runs must not grow, open descriptors, or keep what was dropped.

Each run is a script of its own, whose memory nobody else's tests have fragmented.
"""

import os
import subprocess
import sys

import pytest

from support.processes.scripts import script

SCRIPT = """
import gc, os, sys
import numpy as np, pytensor, pytensor.tensor as pt, synk

n_calls = int(sys.argv[1])
synk.fork(2)
x = pt.vector("x")
v = pytensor.shared(np.zeros(100), name="v")
w = pytensor.shared(np.zeros(3), name="w")
empty = synk.function([], [], name="empty")
summing = synk.function([x], (x.sum(), "sum"), updates=[(w, w + 1)], name="summing")
step = synk.sequence(summing, (synk.all_reduce, v, "avg"))
data, rows = synk.data(np.arange(12.0)), np.arange(5)


def use(calls):
    '''Call in every way there is, so many times in all.'''
    for number in range(calls // 10):
        for _ in range(4):
            empty()
        assert summing(data) == 66
        assert summing(data, batch=rows) == 10
        step(data)
        synk.all_reduce(v)
        synk.broadcast(w)
        synk.get_value(1, w)


def rss(pid):
    '''Resident memory in bytes, without the shared pages of programs and libraries.'''
    fields = dict(line.split(":") for line in open(f"/proc/{pid}/smaps_rollup").read().splitlines()[1:])
    return 1024 * sum(int(fields[kind].split()[0]) for kind in ("Private_Clean", "Private_Dirty"))


def held():
    gc.collect()
    return [(rss(pid), len(os.listdir(f"/proc/{pid}/fd"))) for pid in synk.pids()]


use(max(2000, n_calls // 20))  # first uses of all there is
before = held()
use(n_calls)
after = held()
grown = [(end[0] - start[0]) / 2**20 for start, end in zip(before, after)]
opened = [end[1] - start[1] for start, end in zip(before, after)]
print("grown, MiB:", [f"{mebibytes:.3f}" for mebibytes in grown], "opened:", opened)
assert opened == [0, 0], opened
assert max(grown) < 1, grown
synk.close()
"""


def soak(n_calls, deadline):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(n_calls)],
        capture_output=True,
        text=True,
        timeout=deadline,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_calls_leave_memory_and_descriptors_as_they_were():
    soak(10_000, deadline=280)


@pytest.mark.soak
def test_a_million_calls_leave_memory_and_descriptors_as_they_were():
    print(soak(1_000_000, deadline=580))


FORGETTING = """
from pathlib import Path

LARGE = 40 << 20  # bytes


class CollectGarbage(Op):
    '''Collect the garbage of the rank that computes this, and return a number.'''

    def make_node(self, number):
        return Apply(self, [pt.as_tensor(number)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        gc.collect()
        outputs[0][0] = np.asarray(inputs[0])


def own_bytes(pid):
    _, resident, in_files, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return 4096 * (int(resident) - int(in_files))


def soon(true):
    '''Hold something to being true in a moment: the kernel's count of pages may lag behind.'''
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def use_variable():
    v = pytensor.shared(np.ones(LARGE // 8))
    assert synk.function([], (v.sum(), "sum"))() == 3 * LARGE // 8
    soon(lambda: min(grown()) > LARGE / 2)


def use_function():
    f = synk.function([], (pt.constant(np.random.default_rng(1).random(LARGE // 8)).max(), "max"))
    assert 0.9 < f() < 1
    soon(lambda: min(grown()) > LARGE / 2)


def grown():
    return [own_bytes(pid) - was for pid, was in zip(workers, before, strict=True)]


synk.fork(3)
scale = pt.scalar("scale")
collect = synk.function([], CollectGarbage()(scale), [scale])
collect(1.0)
synk.distribute()
workers = synk.pids()[1:]
before = [own_bytes(pid) for pid in workers]
globals()[sys.argv[1]]()
gc.collect()
synk.distribute()  # the workers have followed all messages
if sys.argv[2] == "collected":
    collect(1.0)
soon(lambda: max(grown()) < LARGE / 4)
"""


@pytest.mark.parametrize("when", ["collected", "at once"])
@pytest.mark.parametrize("what", ["use_variable", "use_function"])
def test_what_is_dropped_is_forgotten_in_the_workers(what, when):
    script(FORGETTING, what, when)
