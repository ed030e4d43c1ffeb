"""Rows divided among the ranks by `reduce_scatter` and `all_to_all`, against NumPy."""

from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of
from synk.run.collectives.exchange import AllToAll, ReduceScatter

REDUCE = {"avg": np.mean, "sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}


module_ranks = runs_of(3, later=[1])


def variable(values, name="v"):
    """Return a shared variable that has ``values[rank]`` on each rank."""
    made = pytensor.shared(np.array(values[0]), shape=(None,) * values[0].ndim, name=name)
    for rank, value in enumerate(values):
        synk.set_value(rank, made, value)
    return made


def sample(rows, *trailing, dtype="float64", seed=0):
    """Return an array of small numbers for each rank, with so many rows."""
    generator = np.random.default_rng(seed)
    return [(5 * generator.normal(size=(n, *trailing))).astype(dtype) for n in rows]


def of_ranks(v, n_ranks):
    return [synk.get_value(rank, v) for rank in range(n_ranks)]


def assert_same(results, expected, rtol=0):
    for result, right in zip(results, expected, strict=True):
        assert result.dtype == right.dtype
        np.testing.assert_allclose(result, right, rtol=rtol)


# --- reduce_scatter ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("n_rows", [0, 1, 3, 7, 50_000])
def test_each_rank_keeps_its_part_of_the_reduction(module_ranks, op, n_rows):
    values = sample([n_rows] * module_ranks, 2)
    v = variable(values)
    assert synk.reduce_scatter(v, op) is None
    assert_same(of_ranks(v, module_ranks), np.array_split(REDUCE[op](values, axis=0), module_ranks), 1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "int8", "uint16", "int64", "bool"])
def test_dtypes_are_kept_and_bits_are_those_of_all_reduce(module_ranks, dtype):
    values = sample([10] * module_ranks, dtype=dtype)
    op = "max" if dtype == "bool" else "sum"
    v, whole = variable(values), variable(values)
    synk.reduce_scatter(v, op)
    synk.all_reduce(whole, op)
    reduced = synk.get_value(0, whole)
    assert reduced.dtype == dtype
    np.testing.assert_array_equal(synk.gather(v, nd_up=0), reduced)


def test_avg_is_the_default_and_does_not_overflow(module_ranks):
    largest = np.finfo("float32").max
    v = variable([np.full(4, largest, "float32")] * module_ranks)
    synk.reduce_scatter(v)
    np.testing.assert_allclose(synk.gather(v, nd_up=0), np.full(4, largest), rtol=1e-6)


def test_several_variables_are_divided_at_once_and_again(module_ranks):
    one, two = sample([7] * module_ranks), sample([4] * module_ranks, 3, dtype="float32", seed=1)
    both = [variable(one, "one"), variable(two, "two")]
    assert synk.reduce_scatter(both, "sum") is None
    for v, values in zip(both, (one, two), strict=True):
        np.testing.assert_allclose(synk.gather(v, nd_up=0), np.sum(values, axis=0), rtol=1e-5)
    synk.all_gather(both)  # all rows on every rank
    synk.reduce_scatter(both, "max")
    assert_same(of_ranks(both[0], module_ranks), np.array_split(np.sum(one, axis=0), module_ranks), 1e-12)


def test_views_are_read_right(module_ranks):
    v = pytensor.shared(np.zeros((3, 2)), shape=(None, 2), borrow=True)
    synk.function([], updates=[(v, v + np.arange(6.0).reshape(2, 3).T)])()
    synk.reduce_scatter(v, "sum")
    np.testing.assert_array_equal(synk.gather(v, nd_up=0), module_ranks * np.arange(6.0).reshape(2, 3).T)


def test_ranks_whose_shapes_differ_are_told(module_ranks):
    if module_ranks == 1:
        pytest.skip("a lone rank agrees with itself")
    v = variable(sample(range(2, 2 + module_ranks)))
    with pytest.raises(synk.CollectiveMismatch, match=r"reduce_scatter 'sum' of float64\[2\]; rank 1"):
        synk.reduce_scatter(v, "sum")
    assert synk.get_lengths(v) == [*range(2, 2 + module_ranks)]
    w = variable(sample([2] * module_ranks))
    with pytest.raises(synk.CollectiveMismatch, match=r"reduce_scatter 'min' of float64\[2\]; rank 1"):
        synk.reduce_scatter([w, v], "min")
    assert synk.get_lengths([w, v]) == ([2] * module_ranks, [*range(2, 2 + module_ranks)])


# --- all_to_all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [(4, 4, 4), (7, 2, 5), (0, 1, 0), (0, 0, 0), (1, 30_000, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float16", "int8"])
def test_each_rank_gets_its_part_of_every_rank(module_ranks, rows, dtype):
    values = sample((3 * rows)[:module_ranks], 2, dtype=dtype)
    v = variable(values)
    assert synk.all_to_all(v) is None
    parts = [np.array_split(value, module_ranks) for value in values]
    assert_same(of_ranks(v, module_ranks), [np.concatenate(mine) for mine in zip(*parts, strict=True)])


def test_twice_with_equal_parts_is_what_it_was(module_ranks):
    values = sample([2 * module_ranks] * module_ranks, 3)
    several = [variable(values, "one"), variable(values[::-1], "two")]
    for _ in range(2):
        synk.all_to_all(several)
    blocks = [value.reshape(module_ranks, 2, 3) for value in values]
    assert_same(of_ranks(several[0], module_ranks), [block.reshape(-1, 3) for block in blocks])


def test_ranks_that_differ_in_more_than_rows_are_told(module_ranks):
    if module_ranks == 1:
        pytest.skip("a lone rank agrees with itself")
    v = variable([np.zeros((4, 2 + rank)) for rank in range(module_ranks)])
    with pytest.raises(synk.CollectiveMismatch, match=r"rank 1: all_to_all 'sum' of float64\[4, 3\]"):
        synk.all_to_all(v)
    assert synk.get_shapes(v)[0] == (4, 2)


# --- both ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [synk.reduce_scatter, synk.all_to_all])
def test_wrong_input_is_refused(module_ranks, verb):
    with pytest.raises(ValueError, match="'scalar' is 0-d, so it has no rows to divide"):
        verb(pytensor.shared(0.0, name="scalar"))
    with pytest.raises(TypeError, match="'state' is not an array"):
        verb(pytensor.shared(np.random.default_rng(0), name="state"))
    with pytest.raises(TypeError, match="expected shared variables"):
        verb(pt.vector("x"))
    fixed = pytensor.shared(np.zeros(6), shape=(6,), name="fixed")
    if module_ranks > 1:
        with pytest.raises(TypeError, match="'fixed' has 6 rows by its type"):
            verb(fixed)
    else:
        assert verb(fixed) is None


def test_operations_are_checked():
    count = pytensor.shared(np.zeros(3, int), name="count")
    with pytest.raises(TypeError, match="'count' has dtype int64, which has no .avg."):
        synk.reduce_scatter(count)
    with pytest.raises(ValueError, match="'mean' is not a reduce operation"):
        synk.reduce_scatter(count, "mean")


def test_in_a_sequence_what_follows_sees_the_new_rows(module_ranks):
    v = variable([np.ones(5)] * module_ranks)
    total = synk.function([], (v.sum(), "sum"), sliceable_shareds=[v])
    both = synk.sequence((synk.reduce_scatter, v, "sum"), total, (synk.get_lengths, v), (synk.all_to_all, v))
    result, lengths = both()
    assert result == 5 * module_ranks
    assert lengths == [len(part) for part in np.array_split(np.ones(5), module_ranks)]
    assert sum(synk.get_lengths(v)) == 5


@pytest.mark.parametrize("collective", [ReduceScatter, AllToAll])
def test_on_gpus_they_name_what_is_there(collective):
    v = pytensor.shared(np.zeros(3), shape=(None,), name="v")
    with pytest.raises(NotImplementedError, match=r"on GPUs yet; call synk.all_reduce or synk.all_gather"):
        collective(v).prepare(SimpleNamespace(on_host=False))


def test_profiles_show_them_by_their_names(module_ranks):
    v = variable([np.ones(4)] * module_ranks)
    give = (synk.broadcast, v, np.ones(4))
    divide = synk.sequence((synk.reduce_scatter, v, "sum"), (synk.all_to_all, v), give)
    collectives = {group["op"] for group in divide.profile(n_calls=1).collectives}
    assert {"reduce_scatter", "all_to_all"} <= collectives
