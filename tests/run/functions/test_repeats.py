"""Calls that repeat the last one are not checked twice, and none that only looks like one is taken for it."""

import numpy as np
import pytensor.tensor as pt
import pytest

import synk


@pytest.fixture(scope="module")
def total(module_ranks):
    x, scale = pt.matrix("x"), pt.scalar("scale")
    return synk.function([x], ((x * scale).sum(), "sum"), [scale], name="total")


@pytest.fixture
def counted(total):
    """Two Data after a call, and what the call returned: rows 0 to 3 are summed, twice."""
    data, scale = synk.data(np.arange(12.0).reshape(6, 2)), synk.data(2.0)
    assert total(data, scale, batch=4) == total(data, scale, batch=slice(0, 4)) == 56
    assert total(data, scale, batch=1) == 2
    return data, scale


WRONG = [
    ({"batch": True}, TypeError, "batch=True is a boolean"),
    ({"batch": np.True_}, TypeError, "is a boolean"),
    ({"batch": 1.0}, TypeError, "got float 1.0"),
    ({"batch": 1, "num_slices": True}, TypeError, "num_slices=True"),
    ({"batch": 1, "num_slices": 1.0}, TypeError, "num_slices=1.0"),
    ({"batch": 1, "batch_s": 1}, TypeError, "batch_s selects rows of sliceable_shareds"),
    ({"batch": slice(0.0, 4.0)}, TypeError, "an end that is not an integer"),
    ({"batch": slice(0, 4, 2)}, ValueError, "has step 2"),
]


@pytest.mark.parametrize(("keywords", "error", "message"), WRONG, ids=[repr(case[0]) for case in WRONG])
def test_keywords_of_another_type_are_refused_though_they_are_equal(total, counted, keywords, error, message):
    total(*counted, batch=slice(0, 4) if isinstance(keywords["batch"], slice) else 1)
    with pytest.raises(error, match=message):
        total(*counted, **keywords)


def test_changed_data_are_looked_at_again(total, counted):
    data, scale = counted
    assert total(data, scale) == 132
    data[:] += 1
    assert total(data, scale) == 156
    scale.set_value(1.0)
    assert total(data, scale) == 78
    data.set_length(3)
    assert total(data, scale) == 21
    with pytest.raises(IndexError, match="batch=6 selects more than"):
        total(data, scale, batch=6)
    data.set_length(600)
    data[:] = 1
    assert total(data, scale) == 1200
    data.free_memory()
    assert total(data, scale) == 0
    data.set_value(np.ones((5, 2)))
    assert total(data, scale) == 10
    data.set_shape((2, 5))
    assert total(data, scale) == 10
    assert total(data, scale, batch=1) == 5


def test_other_data_are_checked(total, counted):
    data, scale = counted
    for _ in range(2):
        assert total(data, scale) == 132
        with pytest.raises(TypeError, match="'x' has dtype float64, the Data float32"):
            total(synk.data(np.ones((6, 2), "f4")), scale)
        with pytest.raises(TypeError, match="'x' has 2 dimensions, the Data 0"):
            total(scale, data)
        assert total(synk.data(np.ones((6, 2))), scale) == 24
        assert total(np.ones((6, 2)), scale) == 24
        assert total(data, 1.0) == 66
        assert total(data, 3.0) == 198
        with pytest.raises(TypeError, match="input 'scale'"):
            total(data, "2")


def test_a_list_may_change_between_calls(total, counted):
    data, scale = counted
    batch = np.array([1, 0])
    assert total(data, scale, batch=batch) == 2 * data[:2].sum()
    batch[:] = [5, 0]
    assert total(data, scale, batch=batch) == 2 * data[[5, 0]].sum()
    batch[:] = [6, 0]
    with pytest.raises(IndexError, match="index 6"):
        total(data, scale, batch=batch)


def test_functions_do_not_keep_data_alive(total):
    data = synk.data(np.ones((6, 2)))
    total(data, 1.0)
    segment = data.ref().segment
    table = data._owner.segments
    del data
    with pytest.raises(KeyError):
        table[segment]
