"""The cost of thousands of small variables: messages, segments and Python calls, not seconds."""

import cProfile
import gc
import os
import pstats
from pathlib import Path

import numpy as np
import pytensor
import pytest

import synk
from support.slow import slow
from synk.extensions.train import make_train_function
from synk.extensions.updates import sgd
from synk.transport.commands.channel import MasterChannel

N = 400
VALUES = [np.full(3, float(n)) for n in range(N)]


@pytest.fixture(autouse=True)
def run():
    synk.fork(2)
    yield
    synk.close()


@pytest.fixture
def variables():
    return [pytensor.shared(value.copy(), name=f"v{n}", shape=(None,)) for n, value in enumerate(VALUES)]


@pytest.fixture
def sent(monkeypatch):
    """The messages that were sent, the commands among them."""
    found = []
    for name in ("post", "command"):
        real = getattr(MasterChannel, name)
        monkeypatch.setattr(
            MasterChannel, name, lambda self, *a, real=real: (found.append(a[0]), real(self, *a))[1]
        )
    return found


def held():
    """Count what this process has mapped and open."""
    return len(Path("/proc/self/maps").read_text().splitlines()), len(os.listdir("/proc/self/fd"))


def calls_of(function, *arguments):
    """Return how many calls a variable took."""
    profile = cProfile.Profile()
    profile.runcall(function, *arguments)
    return pstats.Stats(profile).total_calls / N


# Calls per variable, at most: the first time, when what is sent is searched for code of the script (up to 60
# of them), and again.
VERBS = {
    "broadcast": (220, 40, synk.broadcast),
    "broadcast values": (260, 90, lambda v: synk.broadcast(v, VALUES)),
    "all_reduce": (250, 50, synk.all_reduce),
    "reduce": (280, 100, synk.reduce),
    "reduce not in place": (260, 90, lambda v: synk.reduce(v, in_place=False)),
    "gather": (240, 80, synk.gather),
    "all_gather": (240, 150, synk.all_gather),
    "scatter": (280, 110, lambda v: synk.scatter(v, VALUES)),
    "set_value": (250, 80, lambda v: synk.set_value(1, v, VALUES)),
    "get_value": (140, 50, lambda v: synk.get_value(1, v)),
    "get_lengths": (110, 35, synk.get_lengths),
    "check_finite": (120, 40, synk.check_finite),
}

USUAL = ("broadcast values", "gather")


@pytest.mark.one_machine(reason="counts the calls by which one machine's ranks are reached")
@pytest.mark.parametrize("name", [name if name in USUAL else slow(name) for name in VERBS])
def test_a_verb_takes_few_messages_and_segments_whatever_the_number_of_variables(name, variables, sent):
    first, again, verb = VERBS[name]
    maps, descriptors = held()
    assert calls_of(verb, variables) <= first
    assert len(sent) <= 5  # values, a block, who lives where, the command; what is released
    mapped, opened = held()
    assert mapped - maps <= 6
    assert opened == descriptors
    verb(variables)  # all_gather's are longer now
    sent.clear()
    assert calls_of(verb, variables) <= again
    assert len(sent) <= (5 if name == "all_gather" else 2)
    assert held()[0] - mapped <= 6


def test_commit_restart_and_close_take_few_calls_and_messages(variables, sent):
    synk.broadcast(variables)
    sent.clear()
    assert calls_of(synk.commit) <= 80
    assert calls_of(synk.restart) <= 60
    assert len(sent) <= 2
    np.testing.assert_array_equal(synk.get_value(1, variables), VALUES)
    assert calls_of(synk.close) <= 20


def test_variables_of_a_function_travel_in_one_message(variables, sent):
    function = synk.function([], updates=[(v, v + 1) for v in variables[:50]])
    function.ready()
    assert len(sent) == 2  # the variables, and the function
    np.testing.assert_array_equal(synk.get_value(1, variables[49]), VALUES[49])


@pytest.mark.slow
def test_training_of_many_parameters_takes_few_messages(sent):
    parameters = [pytensor.shared(np.float64(n), name=f"p{n}") for n in range(50)]
    loss = sum((p - 1) ** 2 for p in parameters)
    step = make_train_function(loss, parameters, [], sgd, learning_rate=0.5)
    step()
    # Variables, the flat vector and the parts; two functions, compiled by a command; three segments, and who
    # lives in them; the step.
    assert len(sent) <= 13
    np.testing.assert_allclose([p.get_value() for p in parameters], 1)


@pytest.mark.slow
def test_dropped_variables_take_few_messages_and_leave_nothing(variables, sent):
    before = held()
    synk.broadcast(variables)
    sent.clear()
    variables.clear()
    gc.collect()
    synk.broadcast(pytensor.shared(0.0))
    assert len(sent) <= 8
    assert held()[0] <= before[0] + 2


def test_values_in_a_sequence_are_staged_in_one_segment(variables, sent):
    step = synk.sequence((synk.broadcast, variables, VALUES), (synk.get_value, 1, variables))
    sent.clear()
    np.testing.assert_array_equal(step()[0], VALUES)
    assert len(sent) <= 4  # the segment, the command (posted, since it is long), and the end of the segment
