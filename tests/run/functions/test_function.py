"""Calls of functions, against the same function of NumPy on the whole batch.

All of it holds for one rank, too, where nothing is forked, and for three on fewer cores.
"""

import html

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


def sample(*shape, dtype="float64", seed=0):
    """Return numbers around 1 of either sign, so that no operation overflows or vanishes."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def shards(array, n_ranks, num_slices=1):
    """Return the slices of each rank that has rows: a list of lists of arrays."""
    of_ranks = [np.array_split(shard, num_slices) for shard in np.array_split(array, n_ranks) if len(shard)]
    return [[part for part in parts if len(part)] for parts in of_ranks]


def joined(parts):
    return [part for of_rank in parts for part in of_rank]


class Reductions:
    """One function with every reduce operation, and what it should return."""

    def __init__(self):
        x, scale = pt.matrix("x"), pt.scalar("scale")
        y = x * scale
        self.call = synk.function(
            [x],
            [
                y.mean(0),
                (y.sum(0), "sum"),
                (y.prod(0), "prod"),
                (y.min(0), "min"),
                (y.max(0), "max"),
                (y, "gather"),
                (y.sum(), "gather"),
                (y.sum(0), None),
            ],
            bcast_inputs=[scale],
        )

    def expected(self, rows, scale, n_ranks, num_slices):
        y = rows * scale
        parts = shards(y, n_ranks, num_slices)
        return [
            y.mean(0),
            y.sum(0),
            y.prod(0),
            y.min(0),
            y.max(0),
            y,
            np.array([part.sum() for part in joined(parts)]),
            parts[0][-1].sum(0),
        ]

    def check(self, array, n_ranks, scale=1.5, selected=None, num_slices=1, **keywords):
        rows = array if selected is None else array[selected]
        results = self.call(array, scale, num_slices=num_slices, **keywords)
        expected = self.expected(rows, scale, n_ranks, num_slices)
        for result, wanted, mode in zip(results, expected, self.call.output_modes, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-12, err_msg=f"{mode}")


@pytest.fixture(scope="module")
def reductions(module_ranks):
    return Reductions()


@pytest.mark.parametrize("num_slices", [1, 2, 50])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 7, 12])
def test_results_are_those_of_one_process_for_any_length_and_number_of_slices(
    reductions, module_ranks, n_rows, num_slices
):
    reductions.check(sample(n_rows, 3), module_ranks, num_slices=num_slices)


def test_no_rows_at_all_give_the_result_of_one_process(module_ranks):
    x = pt.matrix("x")
    f = synk.function(
        [x], [x.mean(0), (x.sum(0), "sum"), (x.prod(0), "prod"), (x, "gather"), (x.sum(0), None)]
    )
    for num_slices in (1, 4):
        mean, total, product, rows, last = f(np.empty((0, 2)), num_slices=num_slices)
        assert np.isnan(mean).all()
        assert mean.shape == (2,)
        np.testing.assert_array_equal(total, [0, 0])
        np.testing.assert_array_equal(product, [1, 1])
        assert rows.shape == (0, 2)
        np.testing.assert_array_equal(last, [0, 0])
    np.testing.assert_array_equal(f(sample(5, 2), batch=0, output_subset=[1])[0], [0, 0])


def test_no_rows_at_all_raise_what_one_process_raises(module_ranks):
    x = pt.vector("x")
    smallest = synk.function([x], (x.min(), "min"))
    with pytest.raises(ValueError, match="zero-size") as caught:
        smallest(np.empty(0))
    assert isinstance(caught.value, synk.RemoteError) == (
        module_ranks > 1
    )  # a lone rank's is as it was raised
    assert smallest([2.0, 1.0]) == 1


def test_gather_joins_ragged_results(module_ranks):
    x = pt.vector("x")
    positive = synk.function([x], (x[x > 0], "gather"))
    values = sample(23)
    for num_slices in (1, 3):
        np.testing.assert_array_equal(positive(values, num_slices=num_slices), values[values > 0])


def test_none_carries_what_is_not_an_array():
    state = pytensor.shared(np.random.default_rng(5), name="state")
    following, drawn = pt.random.uniform(rng=state, size=(3,), return_next_rng=True)
    result, numbers = synk.function([], [(following, None), (drawn, None)])()
    expected = np.random.default_rng(5)
    np.testing.assert_array_equal(numbers, expected.random(3))
    assert result.random() == expected.random()


def test_c_prefix_asks_for_the_host_path_and_changes_no_number():
    x = pt.vector("x")
    f = synk.function([x], [(x.mean(), "c_avg"), (x.sum(), "c_sum"), (x, "c_gather")])
    assert f.output_modes == ["c_avg", "c_sum", "c_gather"]
    mean, total, rows = f(np.arange(7.0))
    assert (mean, total) == (3, 21)
    np.testing.assert_array_equal(rows, np.arange(7.0))


@pytest.mark.slow
def test_float16_accumulates_in_float32(module_ranks):
    x = pt.vector("x", dtype="float16")
    f = synk.function([x], [(x[0], "sum"), (x[0], "avg")])
    # Each slice gives 1; float16 stays at 2048 when 1 is added to it.
    total, mean = f(np.ones(1000 * max(3, module_ranks), dtype="float16"), num_slices=1000)
    assert total.dtype == mean.dtype == np.float16
    assert total == np.float16(1000 * module_ranks)
    total, mean = f(np.ones(3000 * 3, dtype="float16"), num_slices=9000)
    assert total == np.float16(9000)
    assert mean == 1


def test_nan_and_inf_are_values():
    x = pt.vector("x")
    f = synk.function([x], [(x.sum(), "sum"), (x.max(), "max"), x.mean(), ((1 / x).sum(), "sum")])
    values = np.array([np.inf, 1.0, -np.inf, 2.0, 0.0, np.nan])
    for rows in (values[:5], values):
        for num_slices in (1, 5):
            with np.errstate(all="ignore"):
                expected = [rows.sum(), rows.max(), rows.mean(), (1 / rows).sum()]
            np.testing.assert_array_equal(f(rows, num_slices=num_slices), expected)


@pytest.mark.parametrize(
    "batch",
    [
        5,
        np.int64(9),
        slice(2, 8),
        slice(-3, None),
        slice(5, 1000),
        [3, 3, -1, 0],
        (8, 1),
        range(2, 7),
        np.array([-9, 8, 0], dtype="int32"),
        np.array([7], dtype="uint8"),
    ],
    ids=repr,
)
def test_batch_selects_rows_before_scattering(reductions, module_ranks, batch):
    selected = slice(batch) if isinstance(batch, int | np.integer) else batch
    selected = list(selected) if isinstance(selected, tuple | range) else selected
    values = sample(9, 3)
    for num_slices in (1, 2):
        reductions.check(values, module_ranks, selected=selected, batch=batch, num_slices=num_slices)


@pytest.mark.parametrize("batch", [0, [], slice(4, 2), slice(100, 200), np.array([], dtype=int)], ids=repr)
def test_a_batch_may_be_empty(batch):
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"))
    assert f(np.ones(5), batch=batch) == 0
    assert f(synk.data(np.ones(5)), batch=batch, num_slices=3) == 0


WRONG_CALLS = [
    ({"batch": 6}, IndexError, "batch=6 selects more than the 5 rows"),
    ({"batch": -1}, IndexError, "batch=-1 selects a negative number"),
    ({"batch": [0, 5]}, IndexError, "index 5, out of range.*5 rows"),
    ({"batch": [-6]}, IndexError, "index -6"),
    ({"batch": True}, TypeError, "batch=True is a boolean"),
    ({"batch": [True, False, True, False, True]}, TypeError, "boolean mask"),
    ({"batch": 2.0}, TypeError, "batch must be an int.*2.0"),
    ({"batch": [0.5]}, TypeError, "batch must be an int.*float64"),
    ({"batch": slice(0, 4, 2)}, ValueError, "step 2"),
    ({"batch": [[0, 1]]}, ValueError, "one-dimensional"),
    ({"batch_s": [0]}, TypeError, "sliceable_shareds; 'counted' has none"),
    ({"num_slices": 0}, ValueError, "num_slices=0"),
    ({"num_slices": 1.5}, TypeError, "num_slices=1.5"),
    ({"num_slices": True}, TypeError, "num_slices=True"),
    ({"output_subset": [1]}, ValueError, "output_subset names output 1, there are 1"),
    ({"output_subset": 0}, TypeError, "output_subset must be a list"),
]


@pytest.fixture(scope="module")
def counted(module_ranks):
    """A function that counts its calls, and the count."""
    x, w = pt.matrix("x"), pt.vector("w")
    count = pytensor.shared(0, name="count")
    return synk.function([x], (x * w).sum(0).mean(), [w], updates=[(count, count + 1)], name="counted"), count


def check_refused(counted, error, match, *args, **keywords):
    """The call raises and no rank runs it; the next call is right."""
    f, count = counted
    f(np.ones((1, 2)), np.ones(2))
    before = synk.gather(count)
    with pytest.raises(error, match=match) as caught:
        f(*args, **keywords)
    assert not isinstance(caught.value, synk.RemoteError)
    np.testing.assert_array_equal(synk.gather(count), before)
    assert f(np.ones((1, 2)), np.ones(2)) == 1
    np.testing.assert_array_equal(synk.gather(count), before + 1)


@pytest.mark.parametrize(("keywords", "error", "match"), WRONG_CALLS, ids=lambda value: str(value)[:40])
def test_wrong_selections_are_refused_before_anything_is_sent(counted, keywords, error, match):
    check_refused(counted, error, match, sample(5, 2), np.ones(2), **keywords)


WRONG_INPUTS = [
    (lambda: (np.ones(3), np.ones(2)), TypeError, "input 'x'"),
    (lambda: (np.ones((3, 2, 1)), np.ones(2)), TypeError, "input 'x'"),
    (lambda: (np.ones((3, 2), dtype=complex), np.ones(2)), TypeError, "input 'x'"),
    (lambda: (np.array([["a", "b"]]), np.ones(2)), TypeError, "input 'x'.*"),
    (lambda: (np.ones((3, 2)), 1.0), TypeError, "input 'w'"),
    (
        lambda: (synk.data(np.ones((3, 2), dtype="float32")), np.ones(2)),
        TypeError,
        "'x' has dtype float64, .* float32",
    ),
    (lambda: (synk.data(np.ones(3)), np.ones(2)), TypeError, "'x' has 2 dimensions, the Data 1"),
    (lambda: (np.ones((3, 2)),), TypeError, "misses input 'w'"),
    (lambda: (np.ones((3, 2)), np.ones(2), 1), TypeError, "takes 2 inputs, got 3"),
]


@pytest.mark.parametrize(("make", "error", "match"), WRONG_INPUTS)
def test_wrong_inputs_are_refused_before_anything_is_sent(counted, make, error, match):
    check_refused(counted, error, match, *make())


def test_wrong_names_of_inputs_are_refused(counted):
    values = np.ones((3, 2))
    check_refused(counted, TypeError, "no input 'z'", values, z=np.ones(2))
    check_refused(counted, TypeError, "'x' .* given twice", values, np.ones(2), x=values)


def test_batch_and_num_slices_need_something_to_select_from():
    f = synk.function([], pt.as_tensor(1.0))
    with pytest.raises(TypeError, match="batch selects rows of scattered inputs"):
        f(batch=1)
    with pytest.raises(ValueError, match=r"num_slices=2.*nothing to slice"):
        f(num_slices=2)
    assert f() == 1


def test_rows_of_minibatch_data_pair_with_the_selected_rows():
    x, y = pt.vector("x"), pt.vector("y")
    f = synk.function([x, y], ((x * y).sum(), "sum"))
    xs = synk.data(np.arange(10.0))
    weights = synk.data([1.0, 10.0, 100.0], minibatch=True)
    assert f(xs, weights, batch=[5, 0, 2]) == 205
    assert f(xs, weights, batch=slice(7, 10)) == 987
    assert f(xs, weights, batch=[5, 2]) == 25  # longer ones are cut
    assert f(np.arange(10.0), weights, batch=[5, 0, 2], num_slices=3) == 205
    with pytest.raises(ValueError, match="minibatch input 'y' has 3 rows for 4 selected rows"):
        f(xs, weights, batch=4)
    with pytest.raises(ValueError, match="minibatch input 'y' has 3 rows for 2 selected rows"):
        f(np.ones(2), weights)


def test_scattered_inputs_differ_in_length_only_where_batch_picks_the_same_rows():
    x, y = pt.vector("x"), pt.vector("y")
    f = synk.function([x, y], ((x * y).sum(), "sum"))
    long, short = np.arange(6.0), np.ones(4)
    with pytest.raises(ValueError, match=r"differ in length .*'x': 6, 'y': 4"):
        f(long, short)
    assert f(long, short, batch=3) == 3
    assert f(long, short, batch=[3, 0]) == 3
    with pytest.raises(IndexError, match="the 4 rows of input 'y'"):
        f(long, short, batch=5)
    with pytest.raises(ValueError, match="selects different rows"):
        f(long, short, batch=[-1])


def test_inputs_may_be_strided_lists_and_of_smaller_types():
    x = pt.matrix("x")
    f = synk.function([x], (x, "gather"))
    values = sample(8, 6)
    for array in (values[::2, ::-1], values.T, np.asfortranarray(values), values[:, :0], values[::-1]):
        np.testing.assert_array_equal(f(array), array)
        np.testing.assert_array_equal(f(array, batch=[1, 0, 1]), array[[1, 0, 1]])
    np.testing.assert_array_equal(f([[1, 2], [3, 4]]), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(f(np.ones((3, 1), dtype="float32")), np.ones((3, 1)))


def test_buffers_of_arrays_grow_and_are_used_again():
    x = pt.vector("x")
    f = synk.function([x], [(x, "gather"), (x.sum(), "sum")])
    for n_rows in (5, 200_000, 3, 300_000, 200_000):
        values = sample(n_rows, seed=n_rows)
        rows, total = f(values)
        np.testing.assert_array_equal(rows, values)
        np.testing.assert_allclose(total, values.sum())


def test_static_lengths_do_not_bind_the_shards():
    x = pt.tensor("x", shape=(6, 2), dtype="float64")
    values = np.arange(12.0).reshape(6, 2)
    f = synk.function([x], [x.mean(0), (x.shape[0], "sum")])
    mean, n_rows = f(values)
    np.testing.assert_allclose(mean, [5, 6], rtol=1e-15)
    assert n_rows == 6


def test_calls_leave_their_inputs_alone():
    x, w = pt.vector("x"), pt.vector("w")
    f = synk.function([x], [(pt.exp(x * 2 + w.sum()), "gather"), (x, "gather"), (w, None)], [w])
    values, weights = sample(5), sample(2)
    in_data, weights_in_data = f.build_inputs(values, weights)
    copies = values.copy(), weights.copy()
    for _ in range(2):
        f(values, weights)
        f(in_data, weights_in_data)
    for array, copy in zip((values, weights, in_data, weights_in_data), copies * 2, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_results_are_arrays_of_their_own():
    x = pt.vector("x")
    v = pytensor.shared(np.ones(2), name="v")
    f = synk.function([x], [(x, "gather"), (x, None), (v, None), (x.sum() * v, "sum"), (v, "max")])
    values = synk.data(np.ones(1))  # with one row rank 0 alone has a result
    kept = [result.copy() for result in f(values)]
    for result in f(values):
        result[...] = -7
    for result, wanted in zip(f(values), kept, strict=True):
        np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(values, [1])
    np.testing.assert_array_equal(v.get_value(), [1, 1])


def test_a_list_returns_a_list_a_single_output_an_array_and_none_none():
    x = pt.vector("x")
    v = pytensor.shared(0.0)
    assert synk.function([x], x.sum())([1.0]) == 1
    assert isinstance(synk.function([x], x * 1)([1.0]), np.ndarray)
    assert isinstance(synk.function([x], (x.sum(), "sum"))([1.0]), np.ndarray)
    assert synk.function([x], [x.sum()])([1.0]) == [1]
    assert synk.function([x], [(x.sum(), "sum"), x.sum()])([1.0]) == [1, 1]
    assert synk.function([], [])() == []
    assert synk.function([], updates=[(v, v + 1)])() is None
    assert v.get_value() == 1


def test_as_pytensor_runs_one_process_on_all_rows(module_ranks):
    x, w = pt.vector("x"), pt.scalar("w")
    count = pytensor.shared(0)
    f = synk.function([x], [(x * w, "gather"), (x.shape[0], "gather")], [w], updates=[(count, count + 1)])
    assert f.as_theano == f.as_pytensor
    for values in (np.arange(5.0), synk.data(np.arange(5.0))):
        rows, n_rows = f.as_pytensor(values, w=2)
        np.testing.assert_array_equal(rows, 2 * np.arange(5.0))
        assert n_rows == 5
    np.testing.assert_array_equal(synk.gather(count), [2] + [0] * (module_ranks - 1))


def test_build_inputs_makes_data_for_each_input():
    x, y, w = pt.matrix("x", dtype="float32"), pt.lvector("y"), pt.scalar("w")
    f = synk.function([x, y], ((x.sum(1) * y * w).sum(), "sum"), [w])
    xs, ys, ws = f.build_inputs(
        np.ones((4, 2), dtype="float32"), w=3.0, y=[1, 2, 3, 4], oversize=1.5, minibatch=[False, True, False]
    )
    assert (xs.dtype, ys.dtype, ws.dtype) == (np.float32, np.int64, np.float64)
    assert (xs.name, ys.name, ws.name) == ("x", "y", "w")
    assert (xs.shape, ys.shape, ws.shape) == ((4, 2), (4,), ())
    assert xs.alloc_size == 12
    assert (xs.minibatch, ys.minibatch, ws.minibatch) == (False, True, False)
    assert f(xs, ys, ws) == 60
    with pytest.raises(TypeError, match="float64 does not fit"):
        f.build_inputs(np.ones((4, 2)), ys, 3.0)
    assert f.build_inputs(np.ones((4, 2)), [1], 3.0, force_cast=True)[0].dtype == np.float32
    with pytest.raises(ValueError, match="minibatch has 1 entries for 3 inputs"):
        f.build_inputs(xs, ys, ws, minibatch=[True])
    assert isinstance(synk.function([y], (y, "gather")).build_inputs([1]), synk.Data)


def test_n_rows_is_1_where_nothing_is_scattered_and_outside():
    w = pt.vector("w")
    assert synk.function([], (synk.n_rows * 1, None))() == 1
    assert synk.function([], (w.sum() * synk.n_rows, None), [w])(np.ones(5)) == 5
    assert pytensor.function([], synk.n_rows * 1, mode="FAST_COMPILE")() == 1
    assert synk.n_rows.type.ndim == 0
    assert synk.n_rows.dtype == "int64"


def test_gradient_of_loss_times_n_rows_sums_to_the_gradient_of_the_whole(module_ranks):
    x = pt.matrix("x")
    w = pytensor.shared(sample(3), name="w")
    loss = pt.tanh(x @ w).mean()
    weighted = pt.grad(loss * synk.n_rows, w)
    f = synk.function([x], [(weighted, "sum"), (synk.n_rows * 1, "sum")])
    values = sample(11, 3, seed=3)
    expected = pytensor.function([x], pt.grad(loss, w), mode="FAST_COMPILE")(values)
    for num_slices in (1, 3):
        total, n_rows = f(values, num_slices=num_slices)
        np.testing.assert_allclose(total / n_rows, expected, rtol=1e-10)


def test_mode_is_what_a_rank_compiles_in():
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
    assert f(np.arange(5.0)) == 10


def test_a_notebook_shows_what_explain_prints(capsys):
    x = pt.vector("x")
    f = synk.function([x], (x < 1).sum(), name="f")
    f.explain()
    assert f"{html.escape(capsys.readouterr().out.strip())}</pre>" in f._repr_html_()


def test_completion_offers_what_is_for_users():
    x = pt.vector("x")
    f = synk.function([x], x.sum())
    shown = {name for name in dir(f) if not name.startswith("_")}
    assert shown == {name for name in dir(synk.sequence(f)) if not name.startswith("_")}
    methods = {"as_pytensor", "as_theano", "build_inputs", "explain", "profile"}
    assert shown == methods | {"inputs", "name", "parts", "returns", "state"}
    assert "__call__" in dir(f)
    assert f.fingerprint  # which is there for other parts of synk
