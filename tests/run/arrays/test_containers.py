"""Shared variables as the script sees them while a run has them, on GPUs (a stand-in) and on cores."""

import contextlib
import copy
import pickle
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.link.basic import Container

import synk
from support.cupy import stand_in
from support.slow import slow
from synk.extensions import checkpoint


@pytest.fixture
def gpus(gpus):
    """Fork on GPUs, have a program leave a variable's value on the device, and return that variable."""

    def fork(n_ranks):
        gpus(n_ranks, version=None)
        v = pytensor.shared(np.arange(3.0), name="v")
        synk.function([], updates=[(v, 2 * v)])()
        assert lies_on_device(v)
        return v

    return fork


def lies_on_device(variable):
    return isinstance(variable.container.storage[0], stand_in.ndarray)


def is_plain(variable, expected):
    """Hold a variable to being one that no run has, with this value on the host."""
    container = variable.container
    assert type(container) is Container
    assert not {"to_host", "note_set", "warned"} & vars(container).keys()
    assert type(container.storage[0]) is np.ndarray
    np.testing.assert_array_equal(variable.get_value(), expected)
    variable.set_value(np.zeros(3))  # without a warning
    return True


@pytest.mark.parametrize(("n_ranks", "borrow"), [(1, True), (2, False), slow(1, False), slow(2, True)])
def test_the_script_reads_arrays_of_the_host(gpus, n_ranks, borrow):
    v = gpus(n_ranks)
    value = v.get_value(borrow=borrow)
    assert type(value) is np.ndarray
    np.testing.assert_array_equal(value, [0, 2, 4])
    assert lies_on_device(v)
    value += 1  # a copy, even of a value that was borrowed
    np.testing.assert_array_equal(v.get_value(), [0, 2, 4])
    np.testing.assert_array_equal(v.container.data, [0, 2, 4])
    synk.close()
    assert is_plain(v, [0, 2, 4])


@pytest.mark.parametrize("borrow", [False, True])
def test_what_the_script_sets_goes_to_the_device(gpus, borrow):
    v = gpus(1)
    v.set_value(np.ones(3), borrow=borrow)
    np.testing.assert_array_equal(v.get_value(), [1, 1, 1])
    synk.function([], updates=[(v, v + 1)])()
    assert lies_on_device(v)
    np.testing.assert_array_equal(v.get_value(), [2, 2, 2])


def test_with_other_ranks_it_says_whose_value_it_sets(gpus):
    v = gpus(2)
    with pytest.warns(synk.SynkWarning, match="set_value of 'v' changed rank 0 only"):
        v.set_value(np.ones(3))
    np.testing.assert_array_equal(v.get_value(), [1, 1, 1])
    np.testing.assert_array_equal(synk.gather(v), [[1, 1, 1], [0, 2, 4]])


@pytest.mark.parametrize(
    "make", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("n_ranks", [slow(1), 2])
def test_copies_are_plain_variables_of_the_host(gpus, n_ranks, make):
    v = gpus(n_ranks)
    assert is_plain(make(v), [0, 2, 4])
    assert lies_on_device(v)
    np.testing.assert_array_equal(v.get_value(), [0, 2, 4])


@pytest.mark.parametrize(
    "make", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))], ids=["copy", "pickle"]
)
def test_copies_on_cores_are_plain_too(ranks, make):
    ranks(2, device="cpu")
    v = pytensor.shared(np.arange(3.0), name="v")
    synk.broadcast(v)
    assert is_plain(make(v), [0, 1, 2])
    np.testing.assert_array_equal(v.get_value(), [0, 1, 2])


def test_a_copy_of_several_keeps_what_they_share(gpus):
    v = gpus(2)
    one, other = copy.deepcopy([v, v])
    assert one is other
    kept = copy.deepcopy({v.container: v})
    (container, variable), *_ = kept.items()
    assert variable.container is container


def test_any_thread_reads_on_the_stream_of_the_rank(cupy, gpus):
    v = gpus(1)
    cupy.calls.clear()
    values = []
    thread = threading.Thread(target=lambda: values.append(v.get_value()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(values[0], [0, 2, 4])
    assert cupy.calls == [("device", 0), ("stream", "non-blocking")]


@pytest.mark.parametrize("mode", ["FAST_COMPILE", slow("C"), "NUMBA"])
def test_a_plain_function_cannot_read_the_device_and_says_so(gpus, mode):
    """It reads the storage itself; that it might return anything but an error is what must not be."""
    if mode == "NUMBA":
        pytest.importorskip("numba")
    v = gpus(1)
    f = pytensor.function([], pt.exp(v).sum(), mode=mode)
    with pytest.raises(Exception, match="expected an ndarray|Cannot determine Numba type|device array"):
        f()
    v.set_value(v.get_value())
    np.testing.assert_allclose(f(), np.exp([0, 2, 4]).sum())


def test_a_plain_function_from_before_goes_on_with_the_variable(gpus):
    gpus(1)
    w = pytensor.shared(np.arange(3.0), name="w")
    add = pytensor.function([], w.sum(), updates=[(w, w + 1)], mode="FAST_COMPILE")
    double = synk.function([], updates=[(w, 2 * w)])
    double()
    w.set_value(w.get_value())
    assert add() == 6
    np.testing.assert_array_equal(w.get_value(), [1, 3, 5])
    double()
    np.testing.assert_array_equal(w.get_value(), [2, 6, 10])
    synk.close()
    assert add() == 18


def table():
    return pytensor.shared(np.zeros((0, 2)), name="table")


READERS = {
    "as equal": lambda v: synk.function([], v.sum())(),
    "rows": lambda v: synk.function([], v.sum(), sliceable_shareds=[v])(),
    "object": lambda v: synk.on_ranks(lambda rank, v: v.get_value, v)(),
}


@pytest.mark.parametrize("reader", ["as equal", slow("rows"), slow("object")])
def test_what_was_per_rank_in_a_closed_run_is_named_where_the_next_one_reads_it(ranks, reader):
    v = table()
    ranks(2, device="cpu")
    synk.scatter(v, np.arange(8.0).reshape(4, 2))
    synk.close()
    ranks(2, device="cpu")
    with pytest.warns(
        synk.SynkWarning, match="'table' was per rank since synk.scatter in the run before"
    ) as told:
        READERS[reader](v)
    assert len(told) == 1
    READERS[reader](v)  # it is said once


@pytest.mark.parametrize("renew", [synk.scatter, slow(synk.broadcast), slow(None)])
def test_what_gets_new_values_in_the_next_run_is_not_named(ranks, renew):
    v, rows = table(), np.arange(8.0).reshape(4, 2)
    ranks(2, device="cpu")
    synk.scatter(v, rows)
    synk.close()
    if renew is None:
        v.set_value(rows)
    ranks(2, device="cpu")
    if renew is not None:
        renew(v, rows)
    expected = 28 if renew is synk.scatter else 2 * 28
    assert synk.function([], (v.sum(), "sum"), sliceable_shareds=[v])() == expected


def test_a_checkpoint_is_of_the_host(gpus, tmp_path):
    v = gpus(2)
    checkpoint.save(tmp_path / "saved.npz", {"v": v})
    synk.close()
    v.set_value(np.zeros(3))
    checkpoint.load(tmp_path / "saved.npz", {"v": v})
    np.testing.assert_array_equal(v.get_value(), [0, 2, 4])


def scattered_in_a_run_before(ranks, n_ranks):
    """Return a table of which rank 0's rows are left, in a run of so many ranks."""
    v = table()
    ranks(2, device="cpu")
    synk.scatter(v, np.arange(8.0).reshape(4, 2))
    synk.close()
    ranks(n_ranks, device="cpu")
    return v


@pytest.mark.parametrize("n_ranks", [slow(1), 2])
def test_rows_of_which_rank_0_s_are_left_are_not_saved_as_all(ranks, tmp_path, n_ranks):
    v = scattered_in_a_run_before(ranks, n_ranks)
    w = pytensor.shared(np.zeros(2), name="w")
    with pytest.warns(synk.SynkWarning, match="run before") if n_ranks > 1 else contextlib.nullcontext():
        assert synk.function([], v.sum())() == 6  # every rank has the same
    synk.function([], updates=[(v, 2 * v, None), (w, v.sum(axis=0), None)])()
    for _ in range(2):
        for lost in (v, w):
            with pytest.raises(
                ValueError, match="is per rank since synk.scatter, and the values of all ranks"
            ):
                checkpoint.save(tmp_path / "saved.npz", lost)
        synk.close()
        ranks(3 - n_ranks, device="cpu")
    assert not (tmp_path / "saved.npz").exists()


@pytest.mark.parametrize("renew", [synk.scatter, slow(synk.broadcast)])
def test_rows_that_are_given_anew_are_saved(ranks, tmp_path, renew):
    v, rows = scattered_in_a_run_before(ranks, 2), np.arange(6.0).reshape(3, 2)
    renew(v, rows)
    checkpoint.save(tmp_path / "saved.npz", v)
    synk.close()
    checkpoint.load(
        tmp_path / "saved.npz",
        v := table() if renew is synk.scatter else pytensor.shared(rows * 0, name="table"),
    )
    np.testing.assert_array_equal(v.get_value(), rows)
