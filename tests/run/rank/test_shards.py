"""Rows of the next batch, gathered during this call: the same numbers as without.

Rows are few here, so rooms are told to take them all the same.
"""

import gc
import mmap

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.raise_op import Assert

import synk
from support.slow import slow
from synk.run.session import current
from synk.transport.memory import gathering

N_ROWS = 24
MARK = mmap.mmap(-1, 1)  # seen by all ranks


@pytest.fixture(scope="module", params=[slow(1), 3], ids=["1 rank", "3 ranks"], autouse=True)
def module_ranks(request):
    """One run for the whole module, in which rank 0 has its thread already."""
    before = gathering.SMALL_BYTES, gathering.AHEAD_BYTES, gathering._gather
    gathering.SMALL_BYTES, gathering.AHEAD_BYTES, gathering._gather = 1, 1, gathered
    synk.fork(request.param)
    x = pt.vector("x")
    synk.function([x], x.sum())(synk.data(np.ones(3)), next_batch=[2, 0])
    yield request.param
    synk.close()
    gathering.SMALL_BYTES, gathering.AHEAD_BYTES, gathering._gather = before


@pytest.fixture
def marked():
    """Let rows that are gathered ahead be told by their sign."""
    MARK[0] = 1
    yield
    MARK[0] = 0


def gathered(array, rows, target, gather=gathering._gather):
    result = gather(array, rows, target)
    return -result if MARK[0] else result


def sample(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape)


class Rows:
    """A function that returns the rows it was given, of Data that tests change."""

    def __init__(self):
        x, y = pt.matrix("x"), pt.vector("y")
        self.call = synk.function([x, y], [(x, "gather"), (y, "gather"), ((x.sum(1) * y).sum(), "sum")])
        self.x, self.y = synk.data(sample(N_ROWS, 3)), synk.data(sample(N_ROWS))

    def check(self, batch, next_batch=None, num_slices=1):
        got = self.call(self.x, self.y, batch=batch, next_batch=next_batch, num_slices=num_slices)
        chosen = slice(batch) if isinstance(batch, int) else slice(None) if batch is None else batch
        # Copies, so that looking at the values does not count as changing them.
        x, y = np.array(self.x)[chosen], np.array(self.y)[chosen]
        np.testing.assert_array_equal(got[0], x)
        np.testing.assert_array_equal(got[1], y)
        np.testing.assert_allclose(got[2], (x.sum(1) * y).sum(), rtol=1e-12)


@pytest.fixture
def rows():
    return Rows()


@pytest.mark.parametrize("n_lists", [15, slow(40)])
def test_any_order_of_calls_and_changes_gives_the_numbers_of_numpy(module_ranks, n_lists):
    rows = Rows()

    def set_item():
        rows.x[:] = rows.x.data + 1

    def set_value():
        rows.y.set_value(sample(N_ROWS) * 2)

    def free():
        rows.x.free_memory()
        rows.x.set_value(sample(N_ROWS, 3) - 1)

    def grow():
        rows.y.set_length(3 * N_ROWS)
        rows.y.set_length(N_ROWS)

    def fail():
        with pytest.raises(IndexError):
            rows.call(rows.x, rows.y, batch=[N_ROWS], next_batch=[1, 0])

    def nothing():
        pass

    lists = st.lists(st.integers(-N_ROWS, N_ROWS - 1), min_size=1, max_size=40)
    batches = lists | st.none() | st.integers(1, N_ROWS) | st.builds(slice, st.integers(0, N_ROWS - 1))
    between = st.sampled_from([nothing, nothing, nothing, set_item, set_value, free, grow, fail])
    steps = st.lists(
        st.tuples(batches, st.booleans() | batches, between, st.integers(1, 3)), min_size=1, max_size=6
    )

    @settings(max_examples=n_lists, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(steps)
    def run(steps):
        for at, (batch, following, change, num_slices) in enumerate(steps):
            if isinstance(following, bool):  # what comes next, or nothing
                following = steps[at + 1][0] if following and at + 1 < len(steps) else None
            rows.check(batch, following, num_slices)
            change()

    run()


@pytest.mark.one_machine(reason="marks rows through memory that one machine's ranks share")
def test_rows_gathered_ahead_are_used_on_every_rank(rows, marked):
    following = [5, 2, 9, 0]
    rows.check([1, 0], next_batch=following)
    x, y, _ = rows.call(rows.x, rows.y, batch=following)
    np.testing.assert_array_equal(x, -np.array(rows.x)[following])
    np.testing.assert_array_equal(y, -np.array(rows.y)[following])
    rows.check(following)


@pytest.mark.parametrize(
    "other",
    [
        lambda rows: rows.check([0, 1]),
        lambda rows: rows.check(None),
        lambda rows: rows.check([5, 2, 9]),
        lambda rows: rows.check(slice(0, 4)),
    ],
    ids=["list", "all", "shorter", "slice"],
)
def test_any_other_call_of_the_function_frees_them(rows, marked, other):
    rows.check([1, 0], next_batch=[5, 2, 9, 0])
    other(rows)
    rows.check([5, 2, 9, 0])


@pytest.mark.one_machine(reason="marks rows through memory that one machine's ranks share")
def test_calls_of_other_functions_leave_them(rows, marked):
    rows.check([1, 0], next_batch=[5, 2, 9, 0])
    Rows().check([5, 2, 9, 0])
    assert (rows.call(rows.x, rows.y, batch=[5, 2, 9, 0])[0] == -np.array(rows.x)[[5, 2, 9, 0]]).all()


def test_other_data_of_the_same_shape_is_read_in_the_call_itself(rows, marked):
    rows.check([1, 0], next_batch=[5, 2, 9, 0])
    rows.x = synk.data(sample(N_ROWS, 3) + 1)
    rows.check([5, 2, 9, 0])


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.__setitem__(slice(None), 7),
        lambda data: data.set_value(np.full((N_ROWS, 3), 7.0)),
        lambda data: data.data.fill(7),
    ],
    ids=["item", "set_value", "data"],
)
def test_changes_through_the_data_are_seen(rows, marked, change):
    rows.check([1, 0], next_batch=[5, 2, 9, 0])
    change(rows.x)
    rows.check([5, 2, 9, 0])


def test_the_list_of_the_next_batch_may_be_changed_in_place(rows):
    batch = np.array([3, 1, 8, 0])
    rows.check([1, 0], next_batch=batch)
    batch[:] = [9, 9, 2, 1]
    rows.check(batch)


def test_a_failed_call_leaves_nothing_wrong_behind(rows, module_ranks):
    x = pt.matrix("x")
    checked = synk.function([x], (Assert("too large")(x, x.max() < 50), "gather"))
    rows.x[7] = 99
    following = [5, 2, 9, 0]
    with pytest.raises(AssertionError, match="too large"):
        checked(rows.x, batch=[7, 0, 7, 1, 7], next_batch=following)
    np.testing.assert_array_equal(checked(rows.x, batch=following), np.array(rows.x)[following])


def test_minibatch_data_is_read_in_the_call_itself():
    x, y = pt.vector("x"), pt.vector("y")
    f = synk.function([x, y], [(x, "gather"), (y, "gather")])
    data, paired = synk.data(sample(N_ROWS)), synk.data(np.zeros(4), minibatch=True)
    batches = np.random.default_rng(0).integers(0, N_ROWS, (5, 4))
    for at, batch in enumerate(batches):
        paired.set_value(np.arange(4.0) + at)
        following = batches[at + 1] if at < 4 else None
        one, two = f(data, paired, batch=batch, next_batch=following)
        np.testing.assert_array_equal(one, np.array(data)[batch])
        np.testing.assert_array_equal(two, np.arange(4.0) + at)


def test_arrays_are_other_ones_in_the_next_call():
    x, y = pt.vector("x"), pt.vector("y")
    f = synk.function([x, y], [(x, "gather"), (y, "gather")])
    data = synk.data(sample(N_ROWS))
    for at in range(3):
        values = sample(N_ROWS) + at
        one, two = f(data, values, batch=[4, 2, 8], next_batch=[4, 2, 8])
        np.testing.assert_array_equal(one, np.array(data)[[4, 2, 8]])
        np.testing.assert_array_equal(two, values[[4, 2, 8]])
        np.testing.assert_array_equal(f(values, values, batch=[0], next_batch=[7, 3])[0], values[:1])


def test_functions_of_a_sequence_have_rows_of_their_own():
    x = pt.vector("x")
    total = pytensor.shared(0.0, name="total")
    f = synk.function([x], (x, "gather"), updates=[(total, x.sum(), "sum")])
    g = synk.function([x], (x * 2, "gather"))
    both = synk.sequence(f, (synk.all_reduce, total, "sum"), g, f)
    data = synk.data(sample(N_ROWS))
    batches = np.random.default_rng(1).integers(0, N_ROWS, (6, 7))
    for at, batch in enumerate(batches):
        one, two, three = both(data, batch=batch, next_batch=batches[(at + 1) % 6])
        wanted = np.array(data)[batch]
        np.testing.assert_array_equal(one, wanted)
        np.testing.assert_array_equal(two, 2 * wanted)
        np.testing.assert_array_equal(three, wanted)


@pytest.mark.parametrize("ahead", [False, True], ids=["gathered at once", "gathered ahead"])
@pytest.mark.parametrize("num_slices", [1, 2])
def test_results_that_outlive_a_call_keep_their_values(ahead, num_slices):
    """Results and shared variables that are views of an input, when its memory is used again."""
    x = pt.matrix("x")
    last = pytensor.shared(np.zeros((0, 0)), name="last")
    f = synk.function(
        [x],
        [(x, None), (x.T[1:], None), (x[::-1], "gather"), (x.reshape((-1,)), "gather"), (x[0], "avg")],
        updates=[(last, x.T, None)],
    )
    data = synk.data(sample(N_ROWS, 3))
    batches = np.random.default_rng(1).integers(0, N_ROWS, (6, 12))
    results, kept, lasts, copies = [], [], [], []
    for at, batch in enumerate(batches):
        result = f(
            data, batch=batch, num_slices=num_slices, next_batch=batches[(at + 1) % 6] if ahead else None
        )
        results.append(result)
        kept.append([np.array(array) for array in result])
        lasts.append(last.get_value(borrow=True))
        copies.append(np.array(lasts[-1]))
        mine = np.array_split(np.array(data)[batch], len(synk.pids()))[0]
        np.testing.assert_array_equal(result[0], np.array_split(mine, num_slices)[-1])
        np.testing.assert_array_equal(last.get_value(), np.array_split(mine, num_slices)[-1].T)
    for result, copy in zip(results, kept, strict=True):
        for one, other in zip(result, copy, strict=True):
            np.testing.assert_array_equal(one, other)


class Address(Op):
    """Where the rows of an input lie."""

    def make_node(self, x):
        return Apply(self, [x], [pt.lscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0].__array_interface__["data"][0])


@pytest.mark.parametrize("num_slices", [1, 3])
def test_memory_of_rows_is_used_again(module_ranks, num_slices):
    x = pt.matrix("x")
    where = synk.function([x], (Address()(x), "gather"))
    data, batch = synk.data(sample(N_ROWS, 3)), np.arange(18)[::-1]
    calls = np.array([where(data, batch=batch, num_slices=num_slices) for _ in range(4)])
    of_ranks = calls.reshape(4, module_ranks, num_slices)
    assert (of_ranks == of_ranks[:1, :, :1]).all()


def test_memory_of_rows_goes_with_the_function(rows):
    kept = current._session._rank._shards._gatherer._of_inputs
    gc.collect()  # functions of other tests
    before = set(kept)
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"))
    f(synk.data(np.arange(1e5)), batch=np.arange(100_000)[::-1])  # smaller batches are worth no room
    assert set(kept) > before
    del f
    gc.collect()
    assert set(kept) == before


WRONG = [
    (
        [N_ROWS],
        IndexError,
        f"next_batch holds index {N_ROWS}, out of range for the {N_ROWS} rows of input 'x'",
    ),
    (-1, IndexError, "next_batch=-1 selects"),
    ([0.5], TypeError, "next_batch must be an int"),
    ([[1]], ValueError, "next_batch must be one-dimensional"),
    (True, TypeError, "next_batch=True is a boolean"),
    (slice(0, 4, 2), ValueError, "next_batch=slice"),
]


@pytest.mark.parametrize(("next_batch", "error", "message"), WRONG, ids=[repr(case[0]) for case in WRONG])
def test_a_wrong_next_batch_is_refused_before_anything_runs(rows, next_batch, error, message):
    with pytest.raises(error, match=message):
        rows.call(rows.x, rows.y, batch=[1], next_batch=next_batch)
    rows.check([3, 1])


def test_without_scattered_inputs_there_is_no_next_batch():
    f = synk.function([], pt.as_tensor(1.0), name="constant")
    for refused in (f, synk.sequence(f, name="constant")):
        with pytest.raises(TypeError, match="next_batch selects rows of scattered inputs; 'constant' has"):
            refused(next_batch=[1])
