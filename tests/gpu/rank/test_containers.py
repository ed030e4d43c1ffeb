"""Shared variables as the script sees them while a run on GPUs has them."""

import copy
import pickle
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases.containers import is_plain
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


def test_a_checkpoint_is_of_the_host(gpus, tmp_path):
    v = gpus(2)
    checkpoint.save(tmp_path / "saved.npz", {"v": v})
    synk.close()
    v.set_value(np.zeros(3))
    checkpoint.load(tmp_path / "saved.npz", {"v": v})
    np.testing.assert_array_equal(v.get_value(), [0, 2, 4])
