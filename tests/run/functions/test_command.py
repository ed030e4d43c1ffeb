"""A call that looks like the last one but for one thing is prepared anew: its result is NumPy's."""

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
        assert session.shared_storage.shapes(session.shared.identify(v)) == [(length,)] * 2
        grow()


def test_a_variable_that_is_gone_is_not_kept_nor_taken_for_none(module_ranks):
    v = pytensor.shared(np.ones(1 << 19))
    for _ in range(2):
        synk.all_reduce(v)
        synk.check_finite(v)
    segments = len(current._session.segments.mapped())
    del v
    gc.collect()
    assert len(current._session.segments.mapped()) < segments
    kept = [last.command for last in current._session.collectives._last.values()]
    assert not any(command.lasts for command in kept if command.variables)
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
