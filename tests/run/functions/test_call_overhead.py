"""A call that repeats the last one takes few function calls, as cProfile's total counts them.

They are what a call takes on any machine, where its seconds differ. Those of waking up a rank that sleeps are
left out, and so are calls in which rank 0 had to sleep: here it spins for as long as it takes.
"""

import cProfile
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.run.session import current

pytestmark = pytest.mark.one_machine(reason="counts the calls by which one machine's ranks are reached")

WAKING = ("ring", "<built-in method posix.eventfd_write>")
ASLEEP = {"_sleep_until_all_here", "_sleep_until_complete"}
ENDING = 1  # the call that ends the profile


def spins():
    """Return the objects that tell rank 0 how long to spin: for replies, and at barriers."""
    session = current._session
    return session._commands._channel._mailbox.spin, session._rank.peers._spin


def least(*calls):
    """Return the least number of function calls that any of the calls took."""
    counts = []
    for call in calls:
        for spin in spins():
            spin.looks, spin.doubted = 10**6, False
        profile = cProfile.Profile()
        profile.enable()
        call()
        profile.disable()
        by_name = {}
        for entry in profile.getstats():
            name = getattr(entry.code, "co_name", entry.code)
            by_name[name] = by_name.get(name, 0) + entry.callcount
        if ASLEEP.isdisjoint(by_name):
            counts.append(sum(by_name.values()) - sum(by_name.get(name, 0) for name in WAKING) - ENDING)
    return min(counts)


@pytest.fixture(scope="module")
def total(module_ranks):
    x = pt.matrix("x")
    return synk.function([x], (x.sum(), "sum"), name="total")


@pytest.fixture(scope="module")
def data(module_ranks):
    return synk.data(np.random.default_rng(0).normal(size=(1000, 10)))


ORDERS = [np.random.default_rng(seed).permutation(1000)[:500] for seed in range(200)]
BATCHES = {
    "all rows": [None] * 200,
    "one slice": [slice(0, 500)] * 200,
    "moving slices": [slice(start, start + 300) for start in range(200)],
    "a count": [300] * 200,
    "lists": ORDERS,
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_call_with_the_same_data(total, data, kind):
    calls = [partial(total, data, batch=batch) for batch in BATCHES[kind]]
    assert least(*calls) <= 60


def test_a_call_with_other_values_of_broadcast_arrays(module_ranks, data):
    x, w, b = pt.matrix("x"), pt.vector("w"), pt.scalar("b")
    f = synk.function([x], ((x @ w + b).sum(), "sum"), bcast_inputs=[w, b])
    calls = [partial(f, data, np.full(10, float(number)), float(number)) for number in range(200)]
    assert least(*calls) <= 80
    assert np.isclose(f(data, np.ones(10), 2.0), data.data.sum() + 2000)


def test_a_collective_of_its_own(module_ranks):
    flat = pytensor.shared(np.ones(1000, "float32"))
    assert least(*[partial(synk.all_reduce, flat)] * 200) <= 70


def test_an_all_reduce_inside_a_step(module_ranks):
    flat = pytensor.shared(np.ones(1000, "float32"))
    add = synk.function([], updates=[(flat, flat + 1)])
    one = synk.sequence(add, (synk.all_reduce, flat))
    two = synk.sequence(add, (synk.all_reduce, flat), (synk.all_reduce, flat))
    assert least(*[two] * 200) - least(*[one] * 200) <= 25
