"""Data: arrays in shared memory, as the script sees them and as the ranks do."""

import gc
import re
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.slow import slow

pytestmark = pytest.mark.usefixtures("module_ranks")

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def run(module_ranks):
    return module_ranks


@pytest.fixture(scope="module")
def total(run):
    """A function that sums what the ranks read."""
    x = pt.vector("x")
    return synk.function([x], (x.sum(), "sum"))


def shared_bytes(pid):
    """Return the bytes of shared memory of this library that a process has mapped."""
    spans = re.findall(r"^(\w+)-(\w+) .*/dev/shm/", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    return sum(int(stop, 16) - int(start, 16) for start, stop in spans)


def settle():
    """Return once the workers have followed all messages so far."""
    synk.distribute()


# --- making it ------------------------------------------------------------------------------------------


def test_values_give_dtype_and_shape():
    values = np.arange(6, dtype="int16").reshape(2, 3)
    data = synk.data(values, name="d")
    assert (data.dtype, data.ndim, data.shape, data.size, len(data)) == (np.int16, 2, (2, 3), 6, 2)
    assert (data.alloc_size, data.minibatch, data.name) == (6, False, "d")
    np.testing.assert_array_equal(data, values)
    values[...] = 0
    assert data[1, 2] == 5  # a copy
    assert synk.data([[1.0, 2.0]]).shape == (1, 2)
    assert synk.data([[1, 2]], dtype="float64").dtype == np.float64
    assert synk.data(3.5).shape == ()


def test_a_variable_gives_dtype_and_dimensions():
    data = synk.data(var=pt.matrix("x", dtype="float32"))
    assert (data.dtype, data.ndim, data.shape) == (np.float32, 2, (0, 0))
    assert synk.data(np.ones((2, 2), "float32"), var=pt.matrix("x", dtype="float64")).dtype == np.float64
    with pytest.raises(TypeError, match="float64 does not fit"):
        synk.data(np.ones(2), var=pt.vector("x", dtype="float32"))
    with pytest.raises(TypeError, match="1 dimensions.* has 2"):
        synk.data(np.ones(2), var=pt.matrix("x"))


def test_a_shape_without_values_gives_zeros():
    data = synk.data(shape=(3, 2), dtype="float32")
    assert data.shape == (3, 2)
    np.testing.assert_array_equal(data, np.zeros((3, 2)))
    assert synk.data(dtype="bool", ndim=3).shape == (0, 0, 0)


def test_what_cannot_be_made_is_refused():
    for arguments in ({}, {"dtype": "float32"}, {"shape": (2,)}, {"ndim": 1}):
        with pytest.raises(TypeError, match="needs a value, a variable, or dtype"):
            synk.data(**arguments)
    for values in (np.array(["a"]), np.array([None]), np.array(["2020-01-01"], dtype="datetime64[D]")):
        with pytest.raises(TypeError, match="cannot be in shared memory"):
            synk.data(values)
    with pytest.raises(TypeError, match="dimensions"):
        synk.data([1.0], ndim=2)
    with pytest.raises(ValueError, match="oversize=3"):
        synk.data([1.0], oversize=3)
    with pytest.raises(ValueError, match=r"oversize=0\.5"):
        synk.data([1.0], oversize=0.5)
    with pytest.raises(ValueError, match="length=-1 is less than 0"):
        synk.data(shape=(-1,), dtype="int8")


def test_memory_that_is_not_there_leaves_everything_as_it_was(total):
    data = synk.data(np.ones(4))
    with pytest.raises(synk.SharedMemoryFull, match=r"needed .* MiB, free .* --shm-size") as caught:
        data.set_length(1 << 50)
    assert isinstance(caught.value, MemoryError)
    with pytest.raises(synk.SharedMemoryFull):
        synk.data(shape=(1 << 50,), dtype="int8")
    assert data.shape == (4,)
    assert total(data) == 4


@pytest.mark.parametrize(
    "dtype", ["bool", slow("uint8"), slow("int64"), "float16", slow("float32"), "complex128"]
)
def test_every_number_type_reaches_the_ranks(dtype):
    x = pt.vector("x", dtype=dtype)
    f = synk.function([x], (x, "gather"))
    values = np.array([0, 1, 1, 0, 1], dtype=dtype)
    result = f(synk.data(values))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, values)


# --- like an array ---------------------------------------------------------------------------------------


def test_reads_and_writes_like_an_array(total):
    data = synk.data(np.arange(6.0))
    assert data[2] == 2
    np.testing.assert_array_equal(data[1:3], [1, 2])
    np.testing.assert_array_equal(data[data[:] > 3], [4, 5])
    data[0] = 10
    data[-2:] = [7, 8]
    data[[1, 2]] = 0
    assert total(data) == 10 + 3 + 7 + 8
    assert list(data) == [10, 0, 0, 3, 7, 8]
    np.testing.assert_array_equal(np.multiply(data, 2), 2 * data.data)
    with pytest.raises(IndexError):
        data[6]
    with pytest.raises(TypeError, match="0-d Data has no length"):
        len(synk.data(1.0))


def test_array_and_dlpack_do_not_copy():
    data = synk.data(np.arange(4.0))
    for view in (np.asarray(data), np.array(data, copy=False), np.from_dlpack(data), data.data, data[:]):
        assert np.shares_memory(view, data.data)
    np.asarray(data)[1] = 11
    assert data[1] == 11
    assert np.from_dlpack(data)[1] == 11
    copy = np.array(data)
    copy[0] = -1
    assert data[0] == 0
    assert np.asarray(data, dtype="float32").dtype == np.float32
    with pytest.raises(ValueError, match=r"[Uu]nable to avoid copy"):
        np.array(data, dtype="float32", copy=False)
    assert data.__dlpack_device__() == (1, 0)


def test_ranks_see_what_is_written_without_a_copy(total):
    data = synk.data(np.zeros(4))
    assert total(data) == 0
    view = np.asarray(data)
    for value in (1, 2):
        view[...] = value
        assert total(data) == 4 * value


def test_repr_tells_what_it_is():
    data = synk.data(np.zeros((2, 3), "float32"), minibatch=True, name="pixels")
    assert repr(data) == "<synk.Data 'pixels': float32, shape (2, 3), capacity 2 rows, minibatch>"
    roomy = synk.data(np.zeros(1500), oversize=2)
    assert repr(roomy) == "<synk.Data: float64, shape (1500,), capacity 3,000 rows>"
    assert repr(synk.data(1.0)) == "<synk.Data: float64, shape ()>"


def test_completion_shows_what_is_for_users():
    """Methods that functions ask of Data are left out, and nothing else is."""
    shown = {name for name in dir(synk.data([1.0])) if not name.startswith("_")}
    assert shown == {
        *("alloc_size", "data", "dtype", "filename", "minibatch", "name", "ndim", "shape", "size"),
        *("free_memory", "set_length", "set_shape", "set_value"),
    }


# --- changing values and shape -----------------------------------------------------------------------------


def test_set_value_may_read_what_it_overwrites():
    data = synk.data(np.arange(5.0))
    data.set_value(data[::-1])
    np.testing.assert_array_equal(data, [4, 3, 2, 1, 0])
    data.set_value(np.concatenate([data, data]))
    data.set_value(data[2:4])
    np.testing.assert_array_equal(data, [2, 1])


def test_only_values_that_fit_are_stored():
    data = synk.data(np.arange(3, dtype="int32"), name="counts")
    for wrong in (np.ones(2), np.ones(2, dtype="int64"), np.ones((2, 2), dtype="int32"), np.int32(1), ["a"]):
        with pytest.raises(TypeError, match="'counts'"):
            data.set_value(wrong)
    np.testing.assert_array_equal(data, [0, 1, 2])
    data.set_value([1.9, 2.1], force_cast=True)
    np.testing.assert_array_equal(data, [1, 2])
    data.set_value(np.ones(2, dtype="int8"))
    assert data.dtype == np.int32
    assert synk.data([1.5], dtype="int8", force_cast=True)[0] == 1


@pytest.mark.parametrize(
    ("numbers", "dtype", "fits"),
    [
        ([[1.0, 2.5]], "float32", True),
        ([0.1], "float32", False),
        ([1, 2, 3], "float32", True),
        ([2**24 + 1], "float32", False),
        (range(5), "int8", True),
        ([300], "int8", False),
        ([float("nan")], "float32", True),
        ([1.0, 2.0], "int64", True),
        ([1.5], "int64", False),
        (np.array([1.0]), "float32", False),  # which has a dtype
    ],
)
def test_numbers_of_python_fit_where_none_is_changed(numbers, dtype, fits):
    if fits:
        assert np.array_equal(synk.data(numbers, dtype=dtype).data, numbers, equal_nan=True)
    else:
        with pytest.raises(TypeError, match="does not fit"):
            synk.data(numbers, dtype=dtype)


def test_set_shape_keeps_items_in_their_place_in_memory():
    data = synk.data(np.arange(6.0).reshape(2, 3))
    data.set_shape((3, 2))
    np.testing.assert_array_equal(data, np.arange(6.0).reshape(3, 2))
    data.set_shape([4, 5])
    np.testing.assert_array_equal(data.data.reshape(-1)[:6], np.arange(6.0))
    data.set_shape((1, np.int64(2)))
    np.testing.assert_array_equal(data, [[0, 1]])
    for wrong, error in (
        ((2,), ValueError),
        ((2, -1), ValueError),
        ((2, 1.5), TypeError),
        ((2, True), TypeError),
    ):
        with pytest.raises(error):
            data.set_shape(wrong)
    with pytest.raises(TypeError, match="0-d Data has no length"):
        synk.data(1.0).set_length(2)
    assert data.shape == (1, 2)


def test_oversize_leaves_room_to_grow():
    data = synk.data(np.arange(100.0), oversize=1.5)
    assert (data.size, data.alloc_size) == (100, 150)
    before = np.asarray(data)
    data.set_length(150)
    assert np.shares_memory(before, data.data)
    data.set_length(151, oversize=2)
    assert data.alloc_size == 302
    assert not np.shares_memory(before, data.data)
    np.testing.assert_array_equal(data[:100], np.arange(100.0))
    data.set_value(np.ones(400), oversize=1.25)
    assert data.alloc_size == 500
    data.set_shape((600,), oversize=1.5)
    assert data.alloc_size == 900
    with pytest.raises(ValueError, match="oversize"):
        data.set_length(10, oversize=2.5)


def test_old_views_outlive_growth():
    data = synk.data(np.arange(3.0))
    view = data[:]
    data.set_length(100_000)
    data[0] = 50
    np.testing.assert_array_equal(view, [0, 1, 2])


# --- memory -----------------------------------------------------------------------------------------------


@pytest.mark.one_machine(reason="looks at a worker's own memory and descriptors")
@pytest.mark.parametrize("how", ["dropped", slow("freed"), slow("replaced")])
def test_memory_goes_from_every_rank(total, how):
    gc.collect()  # what earlier tests dropped may still be in cycles
    settle()
    before = [shared_bytes(pid) for pid in synk.pids()]
    data = synk.data(np.ones(8 * MEGABYTE // 8))
    total(data, batch=2)
    grown = [shared_bytes(pid) - was for pid, was in zip(synk.pids(), before, strict=True)]
    assert all(8 * MEGABYTE <= extra < 9 * MEGABYTE for extra in grown)
    if how == "dropped":
        del data
        gc.collect()
    elif how == "freed":
        data.free_memory()
        assert (data.shape, data.alloc_size, data.size) == ((0,), 0, 0)
    else:
        data.set_length(9 * MEGABYTE // 8)
        grown_to = [shared_bytes(pid) for pid in synk.pids()[:1]]
        assert grown_to[0] - before[0] < 10 * MEGABYTE
        del data
    settle()
    after = [shared_bytes(pid) for pid in synk.pids()]
    assert after == before


def test_dropped_memory_lives_on_in_views():
    data = synk.data(np.arange(3.0))
    view = np.asarray(data)
    del data
    gc.collect()
    settle()
    np.testing.assert_array_equal(view, [0, 1, 2])


@pytest.mark.slow
@pytest.mark.one_machine(reason="looks at a worker's own memory and descriptors")
def test_many_short_lived_data_leave_nothing(total):
    gc.collect()  # what earlier tests dropped may still be in cycles
    settle()
    before = [shared_bytes(pid) for pid in synk.pids()]
    for _ in range(50):
        assert total(synk.data(np.ones(1000))) == 1000
    settle()
    assert [shared_bytes(pid) for pid in synk.pids()] == before


# --- the state of the run ---------------------------------------------------------------------------------


def test_data_fits_the_static_shape_of_an_input():
    whole = pt.tensor("whole", shape=(3,), dtype="float64")
    f = synk.function([], whole.sum(), bcast_inputs=[whole])
    with pytest.raises(TypeError, match="'whole' is .*the Data has shape"):
        f(synk.data(np.ones(6)))
    assert f(synk.data(np.ones(3))) == 3


def test_a_scalar_is_there_before_it_is_set():
    scalar, s = synk.data(dtype="float64", ndim=0), pt.scalar("s")
    scalar[...] = 5
    assert synk.function([], s * 1, bcast_inputs=[s])(scalar) == 5


def test_bytes_in_another_order_become_native():
    x = pt.vector("x")
    assert synk.function([x], (x.sum(), "sum"))(synk.data(np.arange(3, dtype=">f8"))) == 3


@pytest.mark.parametrize("call", ["allocate", "release", "__getitem__"])
def test_an_exception_of_a_signal_handler_while_data_grow_leaves_them_as_they_were(run, monkeypatch, call):
    """It may come after any call: here after that of the memory's, and the values are one of the two."""
    segments = type(synk.run.session.current.session("test").memory.segments)
    original, armed = getattr(segments, call), []

    def interrupted(self, *arguments):
        result = original(self, *arguments)
        ours = call != "__getitem__" or sys._getframe(1).f_code.co_name == "_allocate"
        if armed and ours:
            armed.clear()
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(segments, call, interrupted)
    data = synk.data(np.arange(5.0))
    armed.append(True)
    with pytest.raises(KeyboardInterrupt):
        data.set_length(5000)
    assert armed == []
    np.testing.assert_array_equal(data[:5], np.arange(5.0))
    data.set_length(9000)
    np.testing.assert_array_equal(data[:5], np.arange(5.0))


class Exchanged:
    """An array that has DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_an_array_of_dlpack_alone_is_taken_wherever_arrays_are():
    values = np.arange(6.0).reshape(3, 2)
    x, v = pt.dmatrix("x"), pytensor.shared(np.zeros((3, 2)), name="v")
    f, given = synk.function([x], x.sum(axis=0)), Exchanged(values)
    for total in (f(given), f(f.build_inputs(given)), f.as_pytensor(given), f(synk.data(given))):
        assert total.tolist() == [6, 9]
    assert f(given, batch=Exchanged(np.array([0, 2]))).tolist() == [4, 6]
    data = synk.data(np.zeros((3, 2)))
    data[1:] = Exchanged(values[1:])
    assert data.data.tolist() == [[0, 0], [2, 3], [4, 5]]
    data.set_value(given)
    assert data.data.tolist() == values.tolist()
    synk.broadcast(v, given)
    assert synk.gather(v, nd_up=0).tolist() == values.tolist() * synk.n_ranks()
    synk.set_value(0, v, Exchanged(-values))
    assert synk.get_value(0, v).tolist() == (-values).tolist()
    synk.scatter(v, given)
    assert synk.gather(v, nd_up=0).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"value": [1.0], "var": np.ones(2)}, TypeError, "var=ndarray is no tensor variable of PyTensor"),
        ({"value": [1.0], "var": "float32"}, TypeError, "var=str is no tensor variable"),
        ({"value": [1.0], "var": pt.dvector("y"), "dtype": "float32"}, TypeError, "'y' has 'float64'"),
        ({"value": [1.0], "var": pt.dvector("y"), "ndim": 2}, TypeError, "ndim=2, but 'y' has 1"),
        ({"value": [1.0], "shape": (4,)}, ValueError, r"shape=\(4,\) is for Data without a value"),
        ({"dtype": "f8", "shape": (4,), "force_cast": True}, ValueError, "there is no value to cast"),
        ({"dtype": "f8", "ndim": 1, "oversize": 2}, ValueError, "oversize=2, but there is neither a value"),
        ({"value": [1.0], "minibatch": "no"}, TypeError, "minibatch='no' is neither True nor False"),
        ({"value": [1.0], "force_cast": 1}, TypeError, "force_cast=1 is neither True nor False"),
        ({"value": [1.0], "name": 3}, TypeError, "name=3 is no string"),
    ],
)
def test_an_option_that_nothing_would_read_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        synk.data(**arguments)
