"""Random generators go on where they were; states that no generator has are refused."""

import numpy as np
import pytensor
import pytest

import synk
from support.checkpoints import forge
from synk.extensions import checkpoint
from synk.extensions.checkpoint.generators import generator_of

BIT_GENERATORS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]


@pytest.mark.parametrize("bit_generator", BIT_GENERATORS)
def test_every_generator_goes_on_where_it_was(tmp_path, bit_generator):
    path, generator = tmp_path / "checkpoint", np.random.Generator(bit_generator(3))
    generator.random(5)
    generator.integers(9, dtype=np.uint32)  # leaves half a draw in the state
    checkpoint.save(path, {"rng": pytensor.shared(generator)})
    other = pytensor.shared(np.random.Generator(bit_generator(4)))
    checkpoint.load(path, {"rng": other})
    again = other.get_value(borrow=True)
    assert again.integers(2**40, size=20).tolist() == generator.integers(2**40, size=20).tolist()


def test_a_position_outside_of_the_generator_s_buffer_changes_nothing(tmp_path):
    state = np.random.MT19937(1).state
    state["state"]["pos"] = 10**6
    path, rng = (
        forge(tmp_path / "forged", {"rng": {"state": state}}),
        np.random.Generator(np.random.MT19937(2)),
    )
    before = rng.bit_generator.state["state"]["pos"]
    with pytest.raises(checkpoint.CheckpointCorrupt, match="pos is 1000000, not a number from 0 to 624"):
        checkpoint.load(path, {"rng": pytensor.shared(rng, borrow=True)})
    assert rng.bit_generator.state["state"]["pos"] == before


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


def test_random_states_alone_are_loaded_by_the_first_command(ranks, tmp_path):
    state = pytensor.shared(np.random.default_rng(3), name="state")
    checkpoint.save(tmp_path / "file", [state])
    ranks(2)
    checkpoint.load(tmp_path / "file", [state])
    assert synk.get_value(0, state).random() == np.random.default_rng(3).random()
