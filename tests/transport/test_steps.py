import pytest

from synk.transport.steps import REMEMBERED, KnownSteps, PickledSteps
from synk.values.messages import Compile, Detach, Forget


def test_steps_arrive_as_they_were():
    steps = (Compile(((1, 2),)), Forget(3))
    assert KnownSteps().of(PickledSteps().of(steps)) == steps


def test_equal_steps_are_pickled_once():
    pickled = PickledSteps()
    payload = pickled.of((Compile(((1, 2),)),))
    assert pickled.of((Compile(((1, 2),)),)) is payload
    assert pickled.of((Compile(((1, 3),)),)) != payload


def test_steps_of_other_classes_are_others_even_if_they_are_equal():
    one, other = (Forget(1),), (Detach(1),)
    assert one == other
    pickled, known = PickledSteps(), KnownSteps()
    for steps in (one, other, one):
        [arrived] = known.of(pickled.of(steps))
        assert type(arrived) is type(steps[0])


def test_a_known_payload_gives_the_same_objects():
    known, payload = KnownSteps(), PickledSteps().of((Forget(1),))
    assert known.of(payload) is known.of(bytes(payload))


class Notes:
    """Notes the moment it is unpickled."""

    made = 0

    def __reduce__(self):
        return note, ()


def note():
    Notes.made += 1
    return Notes.made


@pytest.mark.parametrize("others", [REMEMBERED - 1, REMEMBERED])
def test_so_many_payloads_are_remembered_and_then_forgotten(others):
    Notes.made = 0
    known, payload = KnownSteps(), PickledSteps().of((Notes(),))
    known.of(payload)
    for number in range(others):
        known.of(PickledSteps().of((Forget(number),)))
    known.of(payload)
    assert Notes.made == (2 if others == REMEMBERED else 1)
