"""A call that repeats the last one sends a command and nothing else: no message, no pickle, no new memory.

These are counted, since they are the same on any machine; its time is measured by ``benchmarks/calls.py``.
"""

from collections import Counter
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.run.session import current
from synk.transport.commands import steps
from synk.transport.commands.channel import MasterChannel
from synk.transport.commands.mailbox import EDITION
from synk.transport.commands.sync import Doorbells
from synk.transport.memory.segments import SegmentTable

pytestmark = pytest.mark.one_machine(reason="counts what one machine's ranks are sent")

N_CALLS = 50


@pytest.fixture
def counted(monkeypatch):
    """Count what rank 0 does for its calls."""
    counts = Counter()

    def count(owner, name):
        counted = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (counts.update([name]), counted(*given))[1])

    for owner, name in (
        (MasterChannel, "command"),
        (MasterChannel, "post"),
        (steps, "dumped"),
        (SegmentTable, "allocate"),
        (Doorbells, "ring"),
    ):
        count(owner, name)
    return counts


def check_repeated(counted, calls, barriers=0):
    """Check that calls, after the first of them, send nothing but their commands."""
    first, *others = calls
    first()
    box = current._session._commands._channel._mailbox._command.words
    edition = box[EDITION]
    counted.clear()
    for call in others:
        call()
    rings = counted.pop("ring", 0)
    assert counted == {"command": len(others)}
    assert box[EDITION] == edition  # the payload is in the mailbox already
    # A worker is woken up once at most for the command, and once for each barrier.
    assert rings <= len(others) * (1 + barriers) * (synk.n_ranks() - 1)


@pytest.fixture(scope="module")
def total(module_ranks):
    x = pt.matrix("x")
    return synk.function([x], (x.sum(), "sum"), name="total")


@pytest.fixture(scope="module")
def data(module_ranks):
    return synk.data(np.random.default_rng(0).normal(size=(1000, 10)))


ORDERS = [np.random.default_rng(seed).permutation(1000)[:500] for seed in range(N_CALLS)]
BATCHES = {
    "all rows": [None] * N_CALLS,
    "one slice": [slice(0, 500)] * N_CALLS,
    "moving slices": [slice(start, start + 300) for start in range(N_CALLS)],
    "a count": [300] * N_CALLS,
    "lists": ORDERS,
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_call_with_the_same_data(total, data, counted, kind):
    check_repeated(counted, [partial(total, data, batch=batch) for batch in BATCHES[kind]])


def test_a_call_with_other_values_of_broadcast_arrays(module_ranks, data, counted):
    x, w, b = pt.matrix("x"), pt.vector("w"), pt.scalar("b")
    f = synk.function([x], ((x @ w + b).sum(), "sum"), bcast_inputs=[w, b])
    values = [(np.full(10, float(number)), float(number)) for number in range(N_CALLS)]
    check_repeated(counted, [partial(f, data, *one) for one in values])
    assert np.isclose(f(data, np.ones(10), 2.0), data.data.sum() + 2000)


def test_a_collective_of_its_own(module_ranks, counted):
    flat = pytensor.shared(np.ones(1000, "float32"))
    synk.all_reduce(flat)  # stored in shared memory from now on
    check_repeated(counted, [partial(synk.all_reduce, flat)] * N_CALLS, barriers=2)


def test_an_all_reduce_inside_a_step(module_ranks, counted):
    flat = pytensor.shared(np.ones(1000, "float32"))
    add = synk.function([], updates=[(flat, flat + 1)])
    check_repeated(counted, [synk.sequence(add, (synk.all_reduce, flat))] * N_CALLS, barriers=2)


def test_another_kind_of_batch_is_told_anew(total, data, counted):
    with pytest.raises(AssertionError):
        check_repeated(counted, [partial(total, data, batch=batch) for batch in (300, ORDERS[0])])
