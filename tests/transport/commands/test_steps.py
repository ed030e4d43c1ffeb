"""Steps are pickled once, and unpickled once, as long as they are the same."""

import pickle
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from synk.transport.commands.steps import REMEMBERED, SMALL_BYTES, KnownSteps, PickledSteps
from synk.values.messages import Step


class One(NamedTuple):
    """A step."""

    value: int


class Other(NamedTuple):
    """A step that equals one of the other class."""

    value: int


def test_equal_steps_have_one_pickle():
    pickled = PickledSteps()
    payload = pickled.of((One(1),))
    assert pickled.of((One(1),)) is payload
    assert pickled.of((One(2),)) != payload
    assert pickled.of((One(1),)) == payload


def test_steps_of_different_classes_differ():
    pickled, known = PickledSteps(), KnownSteps()
    for step in (One(1), Other(1), One(1)):
        (found,) = known.of(pickled.of((step,)))
        assert type(found) is type(step)


def test_large_payloads_are_not_kept():
    pickled, known = PickledSteps(), KnownSteps()
    payload = pickled.of((One(bytes(SMALL_BYTES)),))
    assert known.of(payload) == known.of(payload)
    assert known.of(payload) is not known.of(payload)


def test_a_payload_is_unpickled_once():
    pickled, known = PickledSteps(), KnownSteps()
    payload = pickled.of((One(1),))
    assert known.of(payload) is known.of(bytes(bytearray(payload)))


def test_the_steps_of_a_few_payloads_are_remembered():
    pickled, known = PickledSteps(), KnownSteps()
    for value in range(3 * REMEMBERED):
        assert known.of(pickled.of((One(value),))) == (One(value),)
    assert len(known._known) <= REMEMBERED


def test_steps_that_cannot_be_unpickled_fail_where_they_run():
    (step,) = KnownSteps().of(pickle.dumps((One, 1)).replace(b"One", b"Two"))
    with pytest.raises(AttributeError, match="Two") as caught:
        step.run(None)
    assert "synk.restart()" in caught.value.__notes__[0]


def test_steps_of_code_of_the_script_are_pickled_anew():
    """The code may have been changed in place, though the steps are equal."""

    @dataclass(slots=True)
    class Local(Step):
        value: int

    pickled, steps = PickledSteps(), (Local(1),)
    payload = pickled.of(steps)
    Local.run = lambda self, rank: 2
    assert pickled.of(steps) != payload
