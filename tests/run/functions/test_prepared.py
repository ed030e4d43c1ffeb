"""A call like the last one is not checked again, one that differs in one thing is prepared anew."""

import gc

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.run.session import current

ROWS = np.random.default_rng(0).normal(size=(40, 3))
ORDER = np.random.default_rng(1).permutation(40)[:10]


@pytest.fixture(scope="module")
def weighted(module_ranks):
    x, w, b = pt.matrix("x"), pt.vector("w"), pt.scalar("b")
    return synk.function([x], [((x @ w) + b).mean(), (x, "gather")], bcast_inputs=[w, b], name="weighted")


def check(function, data, w, b, selected=slice(None), **keywords):
    mean, rows = function(data, w, b, **keywords)
    values = np.asarray(data)[selected]
    np.testing.assert_array_equal(rows, values)
    np.testing.assert_allclose(mean, (values @ w + b).mean())


SELECTIONS = {
    "all": ({}, slice(None)),
    "a count": ({"batch": 7}, slice(0, 7)),
    "a slice": ({"batch": slice(3, 12)}, slice(3, 12)),
    "a slice beyond the end": ({"batch": slice(35, 99)}, slice(35, 99)),
    "a slice from the end": ({"batch": slice(-5, 40)}, slice(-5, 40)),
    "a list": ({"batch": ORDER}, ORDER),
    "another list": ({"batch": ORDER[::-1].copy()}, ORDER[::-1]),
    "a shorter list": ({"batch": ORDER[:4]}, ORDER[:4]),
    "32 bits": ({"batch": ORDER.astype("int32")}, ORDER),
    "neighbours": ({"batch": np.arange(5, 15)}, slice(5, 15)),
    "negative rows": ({"batch": -ORDER - 1}, -ORDER - 1),
    "slices": ({"batch": ORDER, "num_slices": 3}, ORDER),
    "a Python list": ({"batch": ORDER.tolist()}, ORDER),
}


@pytest.mark.parametrize("after", SELECTIONS)
@pytest.mark.parametrize("before", ["all", "a slice", "a list", "neighbours", "slices"])
def test_selections_follow_each_other(weighted, before, after):
    data, w = synk.data(ROWS), np.arange(3.0)
    for kind in (before, before, after, after, before):
        keywords, rows = SELECTIONS[kind]
        if "num_slices" in keywords:  # joined by rank and slice
            continue_with = dict(keywords)
            mean, _ = weighted(data, w, 1.0, **continue_with)
            np.testing.assert_allclose(mean, (ROWS[rows] @ w + 1).mean())
        else:
            check(weighted, data, w, 1.0, rows, **keywords)


REFUSED = {
    "rows beyond the end": (np.append(ORDER[:9], 40), IndexError),
    "rows before the start": (np.append(ORDER[:9], -41), IndexError),
    "neighbours beyond the end": (np.arange(35, 45), IndexError),
    "a count beyond the end": (41, IndexError),
    "a negative count": (-1, IndexError),
    "a mask": (np.ones(10, bool), TypeError),
    "floats": (np.ones(10), TypeError),
    "a boolean": (True, TypeError),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("before", ["all", "a list", "neighbours"])
def test_what_is_wrong_is_refused_after_a_call_of_its_kind(weighted, before, kind):
    data, w = synk.data(ROWS), np.arange(3.0)
    keywords, rows = SELECTIONS[before]
    check(weighted, data, w, 1.0, rows, **keywords)
    batch, error = REFUSED[kind]
    with pytest.raises(error) as refusal:
        weighted(data, w, 1.0, batch=batch)
    assert not isinstance(refusal.value, synk.RemoteError)
    check(weighted, data, w, 1.0, rows, **keywords)


def test_arrays_may_change_in_all_ways(module_ranks):
    x, w = pt.fmatrix("x"), pt.fvector("w")
    f = synk.function([x], ((x * w.sum()).sum(), "sum"), bcast_inputs=[w])
    data = synk.data(np.ones((8, 2), "f4"))
    for values in map(np.float32, ([1, 1, 1], [2, 2, 2], np.ones(9), [1, 1, 1], np.zeros(0))):
        assert f(data, values) == 16 * values.sum()
    with pytest.raises(TypeError, match="'w'"):
        f(data, np.zeros(0))  # float64
    with pytest.raises(TypeError, match="'w'"):
        f(data, np.zeros((0, 1), "f4"))


def test_a_function_and_a_sequence_of_it_share_buffers(module_ranks):
    x, w = pt.matrix("x"), pt.vector("w")
    f = synk.function([x], ((x * w.sum()).sum(), "sum"), bcast_inputs=[w])
    both, data = synk.sequence(f), synk.data(np.ones((8, 2)))
    for one, other in ((f, both), (both, f)):
        for length in (3, 90, 9, 900):
            assert one(data, np.ones(3)) == one(data, np.ones(3)) == 48
            assert other(data, np.ones(length)) == 16 * length  # the buffer is made larger, and is another
        assert one(data, np.ones(3), batch=np.array([5, 1, 3])) == 18
        assert other(data, np.ones(3), batch=np.arange(8)[::-1]) == 48
        assert one(data, np.ones(3), batch=np.array([5, 1, 3])) == 18


def test_slices_are_counted_anew(module_ranks):
    x = pt.matrix("x")
    f, data = synk.function([x], (synk.n_rows, "max")), synk.data(ROWS)
    assert [f(data, num_slices=count) for count in (1, 1, 2, 2, 4, 1)] == [20, 20, 10, 10, 5, 20]


def test_slices_of_no_rows(module_ranks):
    x = pt.matrix("x")
    f, data = synk.function([x], (x.sum(), "sum")), synk.data(np.ones((8, 2)))
    for batch in (slice(2, 4), slice(4, 2), slice(7, 7), slice(2, 4), slice(50, 60), 0):
        assert f(data, batch=batch) == data.data[batch if isinstance(batch, slice) else slice(0)].sum()


def test_data_of_another_length_beside_each_other(module_ranks):
    x, y = pt.matrix("x"), pt.matrix("y")
    f, g = synk.function([x], (x.sum(), "sum")), synk.function([y], (y.sum(), "sum"))
    both = synk.sequence(f, g)
    one, other = synk.data(np.ones((8, 2))), synk.data(np.ones((20, 2)))
    for _ in range(2):
        assert both(one, other) == [16, 40]
        assert both(one, other, batch=slice(0, 99)) == [16, 40]
        assert both(one, other, batch=slice(2, 6)) == [8, 8]


@pytest.mark.parametrize("verb", [synk.all_reduce, synk.reduce])
def test_collectives_follow_a_variable(module_ranks, verb):
    v = pytensor.shared(np.ones(4))
    for _ in range(3):
        verb(v, "sum")
    total = v.get_value()
    assert (total == 2.0**3).all() or verb is synk.reduce
    synk.broadcast(v, np.full(6, 3.0))  # another shape: it moves
    verb(v, "max")
    assert v.get_value().tolist() == [3] * 6
    synk.set_value(1, v, np.full(6, 5.0))
    verb(v, "max")
    assert v.get_value().tolist() == [5] * 6
    verb(v, "min")
    assert v.get_value().tolist() == [5] * 6


def test_a_variable_that_has_grown_on_all_ranks_moves(module_ranks):
    v = pytensor.shared(np.ones(4))
    grow = synk.function([], updates=[(v, pt.concatenate([v, v]))])
    for length in (4, 8, 16):
        for _ in range(2):
            synk.all_reduce(v, "sum")
        session = current._session
        assert session.memory.shared_storage.shapes(session.memory.shared.identify(v)) == [(length,)] * 2
        grow()


def test_a_variable_that_is_gone_is_not_kept_nor_taken_for_none(module_ranks):
    v = pytensor.shared(np.ones(1 << 19))
    for _ in range(2):
        synk.all_reduce(v)
        synk.check_finite(v)
    segments = len(current._session.memory.segments.mapped())
    del v
    gc.collect()
    assert len(current._session.memory.segments.mapped()) < segments
    kept = [last.command for last in current._session.collectives._last.values()]
    assert not any(command.is_reusable for command in kept if command.variables)
    for verb in (synk.all_reduce, synk.check_finite):
        with pytest.raises(TypeError, match="expected shared variables"):
            verb(None)


def test_an_interrupt_at_the_end_of_a_call_leaves_the_next_what_it_returns(module_ranks, monkeypatch):
    x = pt.vector("x")
    f, data = synk.function([x], (x.sum(), "sum")), synk.data(np.arange(4.0))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(f), "as_written", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(data)
    for _ in range(2):
        total = f(data)
        assert not isinstance(total, list)
        assert total == 6


# --- repeated calls -------------------------------------------------------------------------------


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
    table = data._owner.memory.segments
    del data
    with pytest.raises(KeyError):
        table[segment]
