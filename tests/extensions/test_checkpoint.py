import contextlib
import os

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.extensions import checkpoint, train, updates

BIT_GENERATORS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]


def variables(fill=0.0):
    return {
        "W": pytensor.shared(np.full((2, 3), fill), name="W"),
        "b": pytensor.shared(np.full(3, fill, "float32"), name="b"),
        "t": pytensor.shared(np.asarray(int(fill)), name="t"),
        "rng": pytensor.shared(np.random.default_rng(int(fill)), name="rng"),
    }


def snapshot(named):
    """What can be compared of the values."""
    state = named["rng"].get_value(borrow=True).bit_generator.state
    return [named[name].get_value().tolist() for name in ("W", "b", "t")], state


@contextlib.contextmanager
def unchanged(named):
    before = snapshot(named)
    yield
    assert snapshot(named) == before


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "checkpoint"
    checkpoint.save(path, variables(7.0))
    return path


def test_what_is_saved_is_loaded(saved):
    named = variables()
    checkpoint.load(saved, named)
    assert snapshot(named) == snapshot(variables(7.0))


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


def test_an_interrupted_save_leaves_the_old_checkpoint(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*args):
        raise OSError("no space left")

    for call in ("fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(OSError, match="no space left"):
                checkpoint.save(saved, variables(8.0))
        assert saved.read_bytes() == before
        assert os.listdir(saved.parent) == [saved.name]


def test_a_damaged_file_changes_nothing(saved):
    content = bytearray(saved.read_bytes())
    content[-40] ^= 1
    saved.write_bytes(content)
    named = variables()
    with unchanged(named), pytest.raises(checkpoint.CheckpointCorrupt, match="SHA-256"):
        checkpoint.load(saved, named)


def test_missing_and_extra_names_are_told(saved):
    named = variables()
    asked = {"W": named["W"], "rng": named["rng"], "bias": named["b"], "t": named["t"]}
    message = r"^the checkpoint lacks \['bias'\] and has \['b'\] unasked for"
    with unchanged(named), pytest.raises(KeyError, match=message):
        checkpoint.load(saved, asked)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("t", np.asarray(1, "int32"), "'t' is an array of dtype int32 and shape .*int64"),
        ("b", np.zeros(3), "'b' is an array of dtype float64.*float32"),
        ("b", np.zeros(4, "float32"), r"'b' is an array of dtype float32 and shape \(4,\).*\(3,\)"),
        ("b", np.zeros((3, 1), "float32"), r"'b' .* \(3, 1\)"),
        ("b", np.random.default_rng(1), "'b' is a PCG64 generator.*array"),
        ("rng", np.random.Generator(np.random.MT19937(1)), "'rng' is a MT19937 generator.*PCG64"),
        ("rng", np.zeros(3), "'rng' is an array.*generator"),
    ],
)
def test_another_shape_dtype_or_kind_is_named(saved, name, value, message):
    named = variables()
    with unchanged(named), pytest.raises(ValueError, match=message):
        checkpoint.load(saved, {**named, name: pytensor.shared(value)})


def test_a_state_that_is_none_changes_nothing(tmp_path, monkeypatch):
    path, named = tmp_path / "checkpoint", variables()
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoint.checkpoint_format, "_described", lambda value: {"state": {"bit_generator": "PCG64"}}
        )
        checkpoint.save(path, {"rng": named["rng"]})
    message = "not the state of a PCG64 generator"
    with unchanged(named), pytest.raises(checkpoint.CheckpointCorrupt, match=message):
        checkpoint.load(path, {"rng": named["rng"]})


@pytest.mark.parametrize("variable", [pt.vector("x"), np.zeros(3), pytensor.shared([1, 2], name="list")])
def test_what_is_no_shared_tensor_or_generator_is_named(tmp_path, variable):
    with pytest.raises(TypeError, match="'mine' is neither"):
        checkpoint.save(tmp_path / "checkpoint", {"mine": variable})
    assert os.listdir(tmp_path) == []


def test_names_are_strings(tmp_path):
    with pytest.raises(TypeError, match="name 3"):
        checkpoint.save(tmp_path / "checkpoint", {3: pytensor.shared(1.0)})


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none", variables())


def test_errors_are_of_synk_and_of_python():
    assert issubclass(checkpoint.CheckpointCorrupt, synk.SynkError)
    assert issubclass(checkpoint.CheckpointVersion, ValueError)
    assert issubclass(checkpoint.CheckpointNames, KeyError)


def test_every_rank_gets_the_values(saved, ranks):
    ranks(2, device="cpu")
    named = variables()
    checkpoint.load(saved, named)
    for rank in range(2):
        for name in ("W", "b", "t"):
            np.testing.assert_array_equal(synk.get_value(rank, named[name]), 7)


def test_streams_of_ranks_go_on_where_they_were(tmp_path, ranks):
    ranks(2, device="cpu")
    path, rng = tmp_path / "checkpoint", pytensor.shared(np.random.default_rng(5), name="rng")
    next_rng, numbers = pt.random.uniform(size=(3,), rng=rng, return_next_rng=True)
    draw = synk.function([], (numbers, "gather"), updates=[(rng, next_rng)])
    draw()
    checkpoint.save(path, {"rng": rng})
    expected = draw()
    draw()
    checkpoint.load(path, {"rng": rng})
    np.testing.assert_array_equal(draw(), expected)
    assert not np.array_equal(expected[:3], expected[3:])


def test_training_goes_on_where_it_was(tmp_path, ranks):
    ranks(2, device="cpu")
    path, x = tmp_path / "checkpoint", pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.ones(3), name="w")
    made = updates.adam(pt.sqr(x @ w - 1).mean(), [w], learning_rate=0.1)
    step = train.make_train_function(pt.sqr(x @ w - 1).mean(), [w], [x], lambda loss, params: made)
    named = {variable.name: variable for variable, _ in made.param_updates}
    data = np.random.default_rng(1).normal(size=(9, 3))
    step(data)
    checkpoint.save(path, named)
    expected = [step(data), step(data)]
    checkpoint.load(path, named)
    assert [step(data), step(data)] == expected
    assert named.keys() == {"t", "w", "w_mean", "w_squares"}
