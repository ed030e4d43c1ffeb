"""Entries are checked against the variables that they are loaded into, and rows dealt out to the ranks."""

import os
import signal

import numpy as np
import pytensor
import pytest

import synk
from support.checkpoints import counting, unchanged, variables
from support.slow import slow
from synk.extensions import checkpoint
from synk.extensions.checkpoint import file_format, store


def test_missing_and_extra_names_are_told(saved):
    named = variables()
    asked = {"W": named["W"], "rng": named["rng"], "bias": named["b"], "t": named["t"]}
    message = r"^the checkpoint lacks \['bias'\] and also has \['b'\]"
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


def test_every_rank_goes_on_with_its_own(tmp_path, ranks):
    ranks(3, device="cpu")
    path, rows = tmp_path / "checkpoint", np.ones((5, 2))
    count, step = counting()
    step(rows)
    checkpoint.save(path, step)
    expected = [step(rows), step(rows), synk.gather(count).tolist()]
    assert len(set(expected[2])) == 2
    synk.close()
    ranks(3, device="cpu")
    count, step = counting()
    checkpoint.load(path, step)
    assert [step(rows), step(rows), synk.gather(count).tolist()] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("saved_on", "loaded_on"), [slow(2, 1), (2, 3)])
def test_what_ranks_have_of_their_own_is_refused_by_other_ranks(tmp_path, ranks, saved_on, loaded_on):
    ranks(saved_on, device="cpu")
    path = tmp_path / "checkpoint"
    count, step = counting()
    step(np.ones((5, 2)))
    checkpoint.save(path, step)
    synk.close()
    ranks(loaded_on, device="cpu")
    count, step = counting()
    message = (
        f"variable 'count' is per rank: {saved_on} had .* for which {loaded_on} have no place; load it on"
    )
    with pytest.raises(ValueError, match=message):
        checkpoint.load(path, step)
    assert synk.gather(count).tolist() == [0] * loaded_on  # nothing has changed


def test_the_value_of_a_single_rank_is_that_of_all(tmp_path, ranks):
    path, of_before = tmp_path / "checkpoint", tmp_path / "of before"
    ranks(1, device="cpu")
    w = pytensor.shared(np.arange(3.0), name="w")
    synk.on_ranks(lambda rank, v: lambda: v.set_value(v.get_value() + 1), w, changes=[w])()
    assert synk.per_rank(w)
    checkpoint.save(path, w)
    store.write(of_before, {"w": file_format.OfRanks((w.get_value(),))}, {})
    synk.close()
    ranks(2, device="cpu")
    for file in (path, of_before):
        v = pytensor.shared(np.zeros(3), name="w")
        checkpoint.load(file, v)
        np.testing.assert_array_equal(synk.gather(v, nd_up=1), [[1, 2, 3]] * 2)
        assert synk.function([], v.sum())() == 6


ROWS = np.arange(14.0).reshape(7, 2)


def table():
    return pytensor.shared(np.zeros((0, 2)), name="table")


@pytest.mark.parametrize("n_ranks", [slow(1), 2, slow(3), slow(5), None])
@pytest.mark.parametrize("saved_on", [slow(1), 3])
def test_scattered_rows_are_dealt_out_on_any_number_of_ranks(tmp_path, ranks, saved_on, n_ranks):
    ranks(saved_on, device="cpu")
    a, path = table(), tmp_path / "checkpoint"
    synk.scatter(a, ROWS)
    checkpoint.save(path, [a])
    synk.close()
    b = table()
    if n_ranks is None:  # without a run
        checkpoint.load(path, [b])
        assert b.get_value().tolist() == ROWS.tolist()
        return
    ranks(n_ranks, device="cpu")
    checkpoint.load(path, [b])
    assert synk.get_lengths(b) == [len(part) for part in np.array_split(ROWS, n_ranks)]
    assert synk.gather(b, nd_up=0).tolist() == ROWS.tolist()
    checkpoint.save(path, [b])  # it is known that they are rows
    checkpoint.load(path, [b])
    assert synk.gather(b, nd_up=0).tolist() == ROWS.tolist()


def test_equal_rows_are_rows(tmp_path, ranks):
    ranks(2, device="cpu")
    a, path = table(), tmp_path / "checkpoint"
    synk.scatter(a, np.ones((4, 2)))
    checkpoint.save(path, a)
    synk.close()
    b = table()
    checkpoint.load(path, b)
    assert b.get_value().shape == (4, 2)


def test_rows_of_any_lengths_come_back_to_their_ranks(tmp_path, ranks):
    ranks(3, device="cpu")
    a, path = table(), tmp_path / "checkpoint"
    synk.scatter(a, ROWS[:4])
    synk.all_to_all(a)
    lengths, whole = synk.get_lengths(a), synk.gather(a, nd_up=0)
    assert lengths == [3, 1, 0]
    checkpoint.save(path, a)
    synk.broadcast(a, ROWS)
    checkpoint.load(path, a)
    assert synk.get_lengths(a) == lengths
    assert synk.gather(a, nd_up=0).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pytensor.shared(np.zeros((0, 3)), name="table"), r"\(7, 2\) was saved"),
        (lambda: pytensor.shared(np.zeros((0, 2), "float32"), name="table"), "float64 .* was saved"),
        (lambda: pytensor.shared(np.zeros(2), name="table"), r"\(7, 2\) was saved"),
        (lambda: pytensor.shared(np.random.default_rng(1), name="table"), "PCG64 generator"),
        (lambda: pytensor.shared(np.zeros((7, 2)), name="table", shape=(7, 2)), "7 rows by its type"),
    ],
)
def test_rows_are_loaded_into_a_variable_that_can_have_them(tmp_path, ranks, make, message):
    ranks(2, device="cpu")
    a, path = table(), tmp_path / "checkpoint"
    synk.scatter(a, ROWS)
    checkpoint.save(path, a)
    with pytest.raises(ValueError, match=message):
        checkpoint.load(path, make())


@pytest.mark.parametrize(
    "value", [np.arange(3.0), np.asarray(7), slow(np.zeros((0, 2), "float32")), slow(np.ones(1, bool))]
)
def test_what_was_set_on_one_rank_comes_back_to_it(tmp_path, ranks, value):
    ranks(3, device="cpu")
    v, path = pytensor.shared(np.zeros_like(value), name="v"), tmp_path / "checkpoint"
    synk.set_value(1, v, value)
    if value.ndim:
        synk.set_value(2, v, value[:1])  # as many rows as no other has, mostly
    expected = [synk.get_value(rank, v).tolist() for rank in range(3)]
    checkpoint.save(path, v)
    synk.broadcast(v)
    checkpoint.load(path, v)
    assert [synk.get_value(rank, v).tolist() for rank in range(3)] == expected


def test_what_the_script_set_on_rank_0_is_not_taken_for_all(tmp_path, ranks):
    ranks(2, device="cpu")
    v, path = pytensor.shared(1.0, name="v"), tmp_path / "checkpoint"
    synk.broadcast(v)
    with pytest.warns(synk.SynkWarning, match="changed rank 0 only"):
        v.set_value(2.0)
    checkpoint.save(path, v)
    checkpoint.load(path, v)
    assert synk.gather(v).tolist() == [2, 1]
    synk.close()
    with pytest.raises(ValueError, match="'v' is per rank: 2 had"):
        checkpoint.load(path, v)


def test_values_that_ended_with_the_run_are_not_saved_as_if_they_were_all(tmp_path, ranks):
    ranks(2, device="cpu")
    a, w = table(), pytensor.shared(1.0, name="w")
    synk.scatter(a, ROWS)
    synk.broadcast(w)
    synk.close()
    path = tmp_path / "checkpoint"
    with pytest.raises(ValueError, match="'table' is per rank since synk.scatter, and .* before synk.close"):
        checkpoint.save(path, [a, w])
    assert os.listdir(tmp_path) == []
    a.set_value(ROWS)
    checkpoint.save(path, [a, w])
    assert synk.per_rank(a) is None


@pytest.mark.one_machine(reason="kills a worker by its pid")
def test_rows_of_a_worker_that_died_are_not_passed_over(tmp_path, ranks):
    ranks(2, device="cpu")
    a, w, path = table(), pytensor.shared(1.0, name="w"), tmp_path / "checkpoint"
    synk.scatter(a, ROWS)
    synk.broadcast(w)
    os.kill(synk.pids()[1], signal.SIGKILL)
    with pytest.raises(synk.WorkerDied) as died:
        checkpoint.save(path, [a, w])
    assert "'table' is per rank since synk.scatter; the other variables can be saved" in died.value.__notes__
    checkpoint.save(path, w)


def test_a_variable_may_be_called_like_the_value_of_a_rank(tmp_path, ranks):
    ranks(2, device="cpu")
    g = pytensor.shared(np.random.default_rng(5), name="g")
    named = [g, pytensor.shared(np.ones(2), name="rank 1/g"), pytensor.shared(np.asarray(3), name="rank 2/g")]
    synk.scatter(named[1], np.arange(3.0))
    synk.get_value(0, named)
    path = tmp_path / "checkpoint"
    checkpoint.save(path, named)
    synk.broadcast(named[1:], [np.zeros(2), 0])
    checkpoint.load(path, named)
    assert synk.gather(named[1], nd_up=0).tolist() == [0, 1, 2]
    assert synk.gather(named[2]).tolist() == [3, 3]
    drawn = [synk.get_value(rank, g).random() for rank in range(2)]
    assert drawn == [np.random.Generator(np.random.PCG64(5).jumped(rank)).random() for rank in range(2)]


def test_plain_values_come_back(tmp_path):
    path, v = tmp_path / "checkpoint", pytensor.shared(1.0, name="v")
    shuffling = np.random.default_rng(3)
    values = {"epoch": 3, "best": 0.1, "losses": [1.5, None], "order": shuffling.bit_generator.state}
    checkpoint.save(path, v, values)
    assert checkpoint.load(path, v) == values
    checkpoint.save(path, v)
    assert checkpoint.load(path, v) == {}


def test_names_of_values_and_variables_are_not_mixed(tmp_path):
    path, v = tmp_path / "checkpoint", pytensor.shared(1.0, name="v")
    with pytest.raises(ValueError, match=r"\['v'\] name variables as well as values"):
        checkpoint.save(path, v, {"v": 1})
    assert os.listdir(tmp_path) == []
    checkpoint.save(path, {}, {"v": 1})
    with pytest.raises(ValueError, match="'v' is an array .*, but a plain value was saved"):
        checkpoint.load(path, v)
