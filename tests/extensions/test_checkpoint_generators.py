"""Positions are looked at before a bit generator gets them: it would read memory there."""

import numpy as np
import pytest

from synk.extensions.checkpoint_generators import generator_of


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_generator_goes_on_from_a_state(kind):
    generator = np.random.Generator(kind(1))
    generator.random(3)
    again = generator_of(generator.bit_generator.state, like=kind(2))
    assert again.random(5).tolist() == generator.random(5).tolist()


def mt19937(position):
    state = np.random.MT19937(1).state
    state["state"]["pos"] = position
    return state


def philox(position):
    return {**np.random.Philox(1).state, "buffer_pos": position}


@pytest.mark.parametrize(("state_at", "first", "last"), [(mt19937, 0, 624), (philox, 1, 4)])
def test_positions_in_the_buffer_are_taken(state_at, first, last):  # some NumPys refuse Philox's 0 themselves
    for position in (first, last):
        state = state_at(position)
        like = getattr(np.random, state["bit_generator"])()
        assert 0 <= generator_of(state, like).random() < 1


@pytest.mark.parametrize(("state_at", "last"), [(mt19937, 624), (philox, 4)])
@pytest.mark.parametrize("position", [-1, "beyond", 2**31 - 1, -(2**31), 2**70, 1.5, True, None, "0"])
def test_positions_outside_are_refused(state_at, last, position):
    state = state_at(last + 1 if position == "beyond" else position)
    like = getattr(np.random, state["bit_generator"])()
    with pytest.raises(ValueError, match=f"not a number from 0 to {last}"):
        generator_of(state, like)


def test_a_state_without_a_position_is_refused():
    state = np.random.MT19937(1).state
    del state["state"]["pos"]
    with pytest.raises(KeyError):
        generator_of(state, np.random.MT19937())


def changed(kind, **entries):
    state = kind(1).state
    inner = state["state"]
    inner.update({key: value for key, value in entries.items() if key in inner})
    state.update({key: value for key, value in entries.items() if key in state})
    return state


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        (np.random.MT19937, {"key": [0] * 624}),
        (np.random.MT19937, {"key": [1] * 700}),
        (np.random.MT19937, {"key": [1.5] * 624}),
        (np.random.Philox, {"buffer": [1] * 9}),
        (np.random.PCG64, {"has_uint32": 77}),
        (np.random.PCG64, {"has_uint32": -5}),
        (np.random.PCG64, {"inc": 2}),
    ],
)
def test_what_no_generator_gives_is_refused(kind, entries):
    with pytest.raises((ValueError, TypeError)):
        generator_of(changed(kind, **entries), like=kind(1))
