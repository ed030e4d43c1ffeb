"""Rows of sliceable shared variables: ``batch_s`` selects them from each rank's own shard."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of
from support.slow import slow

module_ranks = runs_of(3, later=[1])


VALUES = np.random.default_rng(4).normal(size=(53, 2))


class Sliceable:
    """A scattered variable and a function of its rows."""

    def __init__(self, n_ranks):
        values = VALUES[: max(17, 6 * n_ranks - 1)]  # the last rank has one less than the others
        self.variable = pytensor.shared(np.zeros((0, 2)), name="rows")
        synk.scatter(self.variable, values)
        self.shards = np.array_split(values, n_ranks)
        outputs = [(self.variable, "gather"), self.variable.mean(0), (self.variable.sum(0), "sum")]
        self.call = synk.function([], outputs, sliceable_shareds=[self.variable], name="rows")

    def check(self, selections, batch_s, **keywords):
        """``batch_s`` reads of each rank's shard what its entry of ``selections`` does in NumPy."""
        pairs = zip(self.shards, selections, strict=True)
        expected = np.concatenate([shard[selection] for shard, selection in pairs])
        rows, mean, total = self.call(batch_s=batch_s, **keywords)
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_allclose(mean, expected.mean(0), rtol=1e-12)
        np.testing.assert_allclose(total, expected.sum(0), rtol=1e-12)


@pytest.fixture
def rows(module_ranks):
    return Sliceable(module_ranks)


@pytest.mark.parametrize("num_slices", [1, 2, slow(30)])
@pytest.mark.parametrize(
    "batch_s",
    [slice(1, 4), slice(-2, None), slice(2, 1000), [3, 0, 0, -1], (1, 2), range(3), np.array([4, -1]), 3],
    ids=repr,
)
def test_one_selection_is_for_all_ranks(rows, module_ranks, batch_s, num_slices):
    selection = (
        slice(batch_s)
        if isinstance(batch_s, int)
        else list(batch_s)
        if not isinstance(batch_s, slice)
        else batch_s
    )
    rows.check([selection] * module_ranks, batch_s, num_slices=num_slices)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_a_list_of_selections_has_one_for_each_rank_and_may_be_ragged(rows, module_ranks, num_slices):
    for batch_s in (
        [slice(0, 1), slice(2, 5), slice(1, 3)],
        [[0], [1, 1, 1, 4], [-1, 0]],
        [np.array([2, 3]), slice(4, None), range(2)],
        [slice(0, 2), [], slice(3, 3)],  # some ranks may select nothing
    ):
        mine = (3 * batch_s)[:module_ranks]
        selections = [
            entry if isinstance(entry, slice) else np.array(list(entry), dtype=int) for entry in mine
        ]
        rows.check(selections, mine, num_slices=num_slices)
        rows.check(selections, tuple(mine), num_slices=num_slices)


def test_an_empty_selection_gives_the_result_of_one_process_on_nothing(rows):
    for batch_s in (slice(0, 0), [], 0):
        selected, mean, total = rows.call(batch_s=batch_s, num_slices=2)
        assert selected.shape == (0, 2)
        assert np.isnan(mean).all()
        np.testing.assert_array_equal(total, [0, 0])


WRONG_SELECTIONS = [
    (5 * [slice(0, 1)], ValueError, "batch_s has 5 selections"),
    (40, IndexError, "batch_s=40 selects more than the .*of rank 0"),
    (-1, IndexError, "batch_s=-1 selects a negative number"),
    ([0, 17], IndexError, "batch_s holds index 17.*rank 0"),
    (True, TypeError, "batch_s=True is a boolean"),
    ([True, False], TypeError, "batch_s is a boolean mask"),
    (1.5, TypeError, "batch_s must be an int"),
    (slice(0, 4, 2), ValueError, "step 2"),
    (np.zeros((2, 2), dtype=int), ValueError, "batch_s must be one-dimensional"),
]


@pytest.mark.parametrize(("batch_s", "error", "match"), WRONG_SELECTIONS, ids=lambda value: str(value)[:30])
def test_wrong_selections_are_refused_before_anything_is_sent(rows, module_ranks, batch_s, error, match):
    with pytest.raises(error, match=match) as caught:
        rows.call(batch_s=batch_s)
    assert not isinstance(caught.value, synk.RemoteError)
    rows.check([slice(None)] * module_ranks, None)


def test_what_one_rank_does_not_have_names_the_rank(rows, module_ranks):
    last = module_ranks - 1
    batch_s = [slice(0, 1)] * last + [[len(rows.shards[last])]]
    with pytest.raises(
        IndexError, match=f"out of range for the .* rows of the sliceable variables of rank {last}"
    ):
        rows.call(batch_s=batch_s)


def test_batch_selects_no_sliceable_rows(rows):
    with pytest.raises(TypeError, match="batch selects rows of scattered inputs; 'rows' has none"):
        rows.call(batch=2)


# --- beside scattered inputs and other variables -----------------------------------------------------------


def test_with_scattered_inputs_the_rows_of_each_rank_must_match(module_ranks):
    x = pt.vector("x")
    s = pytensor.shared(np.zeros(0), name="s")
    n_rows = 3 * max(3, module_ranks)
    values, factors = np.arange(float(n_rows)), np.arange(2.0 * n_rows + 2)
    synk.scatter(s, values)
    f = synk.function([x], ((x * s).sum(), "sum"), sliceable_shareds=[s])
    assert f(factors[:n_rows]) == (factors[:n_rows] * values).sum()
    for num_slices in (1, 2):
        firsts = np.concatenate([shard[:2] for shard in np.array_split(values, module_ranks)])
        batch = list(range(3, 3 + 2 * module_ranks))
        expected = (factors[batch] * firsts).sum()
        assert f(factors, batch=batch, batch_s=slice(0, 2), num_slices=num_slices) == expected
    with pytest.raises(ValueError, match="select equally many with batch and batch_s"):
        f(factors, batch=2 * module_ranks, batch_s=slice(0, 1))
    with pytest.raises(ValueError, match="scattered inputs give the ranks"):
        f(factors)


def test_variables_of_different_length_need_a_selection_that_means_the_same_rows(module_ranks):
    one, two = (pytensor.shared(np.zeros(0), name=name) for name in ("one", "two"))
    n = max(3, module_ranks)
    synk.scatter([one, two], [np.arange(2.0 * n), np.arange(4.0 * n)])
    f = synk.function([], ((one * two).sum(), "sum"), sliceable_shareds=[one, two])
    with pytest.raises(ValueError, match=r"sliceable variables differ in rows .*'one'.*'two'.*pass batch_s"):
        f()
    pairs = zip(
        np.array_split(np.arange(2.0 * n), module_ranks),
        np.array_split(np.arange(4.0 * n), module_ranks),
        strict=True,
    )
    assert f(batch_s=slice(0, 2)) == sum((a[:2] * b[:2]).sum() for a, b in pairs)
    assert f(batch_s=[0]) == f(batch_s=1)


# --- lengths that change ---------------------------------------------------------------------------------


def test_new_lengths_are_noticed_however_they_came_about(module_ranks):
    s = pytensor.shared(np.ones(2), name="s")
    f = synk.function([], [(s.sum(), "sum"), (s.shape[0], "sum")], sliceable_shareds=[s])
    double = synk.function([], updates=[(s, pt.concatenate([s, s]))])
    x = pt.vector("x")
    replace = synk.function([x], updates=[(s, x, "gather")])

    def check(n_rows):
        for num_slices in (1, 2):
            assert f(num_slices=num_slices) == [n_rows, n_rows]

    check(2 * module_ranks)
    synk.scatter(s, np.ones(10))
    check(10)
    double()
    check(20)
    synk.all_gather(s)
    check(20 * module_ranks)
    replace(np.ones(5))
    check(5)
    synk.broadcast(s, np.ones(3))
    check(3 * module_ranks)
    for rank in range(module_ranks):
        synk.set_value(rank, s, np.ones(rank + 1))
    check(sum(range(module_ranks + 1)))
    synk.broadcast(s)
    check(module_ranks)


def test_set_value_on_the_master_is_noticed(module_ranks):
    s = pytensor.shared(np.ones(2), name="s")
    f = synk.function([], (s.sum(), "sum"), sliceable_shareds=[s])
    assert f() == 2 * module_ranks
    if module_ranks > 1:
        with pytest.warns(synk.SynkWarning, match=r"synk\.broadcast"):
            s.set_value(np.ones(7))
    else:
        s.set_value(np.ones(7))
    assert f() == 7 + 2 * (module_ranks - 1)


# --- building ---------------------------------------------------------------------------------------------


def test_wrong_sliceables_are_refused_when_the_function_is_built():
    s, scalar, x = pytensor.shared(np.ones(2), name="s"), pytensor.shared(1.0, name="scalar"), pt.vector("x")
    with pytest.raises(TypeError, match="sliceable_shareds must be a list"):
        synk.function([], s.sum(), sliceable_shareds=s)
    with pytest.raises(TypeError, match="sliceable_shareds must hold shared variables"):
        synk.function([x], s.sum() + x.sum(), sliceable_shareds=[x])
    with pytest.raises(TypeError, match="'scalar' has no rows"):
        synk.function([], s.sum() * scalar, sliceable_shareds=[scalar])
    with pytest.raises(ValueError, match="'s' is not used"):
        synk.function([x], x.sum(), sliceable_shareds=[s])


def test_a_static_length_does_not_bind_the_shards(module_ranks):
    s = pytensor.shared(np.arange(6.0), shape=(6,), name="s")
    f = synk.function([], s.mean(), sliceable_shareds=[s])
    np.testing.assert_allclose(f(batch_s=slice(0, 2)), 0.5, rtol=1e-15)
    np.testing.assert_allclose(f(num_slices=4), 2.5, rtol=1e-15)
