"""Ranks on GPUs that are not there: slices, training, modes, and when results are fetched."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases import small_training
from support.cases.small_training import train
from support.cupy import stand_in
from support.cupy.crossings import Crossings
from synk.run.rank.sums import SMALL

N_ROWS, N_COLUMNS = 24, 40


def sample(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def problem():
    """Return a function with outputs and updates of every kind, and the variables that it updates."""
    x, y = pt.fmatrix("x"), pt.fvector("y")
    w = pytensor.shared(sample(N_COLUMNS), name="w")
    flat = pytensor.shared(np.zeros(N_COLUMNS, "float32"), name="flat")
    most = pytensor.shared(np.zeros(N_COLUMNS, "float32"), name="most")
    half = pytensor.shared(np.zeros(N_COLUMNS, "float16"), name="half")
    steps = pytensor.shared(0, name="steps")
    loss = pt.sqr(x @ w - y).mean()
    gradient = pt.grad(loss, w)
    outputs = [loss, (x.max(), "max"), (x @ w, "gather"), (synk.n_rows * 1, "sum"), (y[0], None)]
    updates = [
        (flat, gradient, "avg"),
        (most, pt.maximum(most, x.max(0)), "max"),
        (half, gradient.astype("float16"), "sum"),
        (steps, steps + 1),
    ]
    return synk.function([x, y], outputs, updates=updates), [flat, most, half, steps]


def values(n_ranks, variables):
    return [synk.get_value(rank, variable) for rank in range(n_ranks) for variable in variables]


def run(n_ranks, num_slices, n_rows=N_ROWS):
    """Return the results of two calls, and the values that they leave."""
    f, variables = problem()
    data = synk.data(sample(N_ROWS, N_COLUMNS)), synk.data(sample(N_ROWS))
    results = [f(*data, batch=slice(k, n_rows + k - 1), num_slices=num_slices) for k in range(2)]
    return [np.asarray(value) for value in [*results[0], *results[1], *values(n_ranks, variables)]]


@pytest.mark.parametrize(
    ("n_ranks", "num_slices", "n_rows"), [(1, 3, 2), (1, 5, N_ROWS), (2, 3, N_ROWS), (2, 5, 2)]
)
def test_the_numbers_of_cores_and_the_same_bits_twice(gpus, n_ranks, num_slices, n_rows):
    gpus(n_ranks)
    found, again = (run(n_ranks, num_slices, n_rows) for _ in range(2))
    synk.close()
    synk.fork(n_ranks, device="cpu")
    expected, whole = run(n_ranks, num_slices, n_rows), run(n_ranks, 1, n_rows)
    for value, second, other, together in zip(found, again, expected, whole, strict=True):
        assert (value.dtype, value.shape) == (together.dtype, together.shape)
        assert value.tobytes() == second.tobytes()
        tolerance = 1e-2 if value.dtype == "float16" else 1e-4  # kernels of cores round differently
        np.testing.assert_allclose(value, other, rtol=tolerance, atol=tolerance)
    for value, together in zip(found[:4], whole[:4], strict=True):  # the fifth is of the last slice alone
        np.testing.assert_allclose(value, together, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_what_is_downloaded_does_not_depend_on_the_slices(gpus, monkeypatch, n_ranks):
    crossings = Crossings(monkeypatch)
    gpus(n_ranks)
    f, _ = problem()
    data = synk.data(sample(N_ROWS, N_COLUMNS)), synk.data(sample(N_ROWS))
    downloaded = []
    for num_slices in (1, 2, 3, 6):
        f(*data, num_slices=num_slices)  # compiles
        crossings.take_sums()
        f(*data, num_slices=num_slices)
        downloaded.append([of_rank[1] for of_rank in crossings.take_sums()])
    # A loss, a maximum, an element, and a number for each row of the rank.
    assert downloaded == [[4 * (3 + N_ROWS // n_ranks)] * n_ranks + [0] * (2 - n_ranks)] * 4


def test_new_values_are_written_where_the_old_ones_are(gpus):
    gpus(1)
    f, variables = problem()
    data = synk.data(sample(N_ROWS, N_COLUMNS)), synk.data(sample(N_ROWS))
    for num_slices in (1, 3):
        f(*data, num_slices=num_slices)
        places = [variable.container.storage[0] for variable in variables[:3]]
        f(*data, num_slices=num_slices)
        assert all(isinstance(place, stand_in.ndarray) for place in places)
        assert all(v.container.storage[0] is place for v, place in zip(variables, places, strict=False))


@pytest.mark.parametrize("num_slices", [1, 2])
def test_a_rank_without_rows_moves_nothing(gpus, monkeypatch, num_slices):
    crossings = Crossings(monkeypatch)
    gpus(2)
    f, variables = problem()
    data = synk.data(sample(N_ROWS, N_COLUMNS)), synk.data(sample(N_ROWS))
    for batch in (slice(0, 1), slice(0, 8), slice(0, 1)):
        crossings.take_sums()
        f(*data, batch=batch, num_slices=num_slices)
    assert crossings.take_sums()[1] == [0, 0]
    flat, most, half, steps = (synk.get_value(1, variable) for variable in variables)
    assert (half == 0).all()
    assert (most == -np.inf).all()
    assert (flat != 0).all()  # as it was: there is no average of nothing
    assert steps == 3


@pytest.mark.parametrize("mode", [None, "debug"])
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_new_values_that_are_others_are_copies_of_them(gpus, mode, cuda_graphs):
    """A constant, another variable, rows of an input: each array is written to by somebody later."""
    gpus(1, cuda_graphs=cuda_graphs)
    x, constant = pt.fmatrix("x"), pt.constant(np.full(100, 7, "float32"))
    one, other, rows = (pytensor.shared(np.zeros(shape, "float32")) for shape in [2, 2, (1, 2)])
    source = pytensor.shared(np.arange(3, dtype="float32"))
    f = synk.function([x], updates=[(one, constant, None), (other, source, None), (rows, x, None)], mode=mode)
    triple = synk.function([], updates=[(v, 3 * v) for v in (one, other, rows)])
    for k in range(6):
        f(np.full((6, 2), k, "float32"), num_slices=2)
        assert one.get_value().tolist() == [7] * 100
        assert other.get_value().tolist() == source.get_value().tolist() == [0, 1, 2]
        assert rows.get_value().tolist() == [[k, k]] * 3
        triple()
        assert other.get_value().tolist() == [0, 3, 6]


@pytest.mark.parametrize(("n_ranks", "n_rows"), [(1, N_ROWS), (2, N_ROWS), (2, 3), (2, 1)])
def test_parts_for_which_ranks_meet_accumulate_where_they_are(gpus, monkeypatch, n_ranks, n_rows):
    x, y = sample(N_ROWS, N_COLUMNS)[:n_rows], sample(N_ROWS)[:n_rows]
    expected = sample(N_COLUMNS)
    crossings = Crossings(monkeypatch)
    gpus(n_ranks)
    features, targets = pt.fmatrix("features"), pt.fvector("targets")
    w = pytensor.shared(expected.copy(), name="w")
    loss = pt.sqr(features @ w - targets).mean()
    f = synk.function([features, targets], updates=[(w, w - np.float32(0.01) * pt.grad(loss, w))])
    data = synk.data(x), synk.data(y)
    for _ in range(3):
        expected = expected - 0.02 * x.T @ (x @ expected - y) / n_rows
        crossings.take_sums()
        f(*data, num_slices=3)
    assert [of_rank[1] for of_rank in crossings.take_sums()] == [0, 0]  # bytes to the host
    for rank in range(n_ranks):
        np.testing.assert_allclose(synk.get_value(rank, w), expected, rtol=1e-4, atol=1e-5)


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_ranks", "version"), [(3, 23004), (2, None)])
def test_an_mlp_is_trained_to_the_numbers_of_cores(gpus, n_ranks, version):
    gpus(n_ranks, version=version)
    losses, values, _ = train()
    synk.close()
    synk.fork(n_ranks, device="cpu")
    expected_losses, expected, _ = train()
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-9)
    for value, there in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, there, rtol=1e-7, atol=1e-12)
        np.testing.assert_array_equal(value, np.broadcast_to(value[0], value.shape))


@pytest.mark.parametrize("version", [23004, None], ids=["nccl", "staged"])
def test_no_gradient_passes_through_the_host(gpus, monkeypatch, version):
    crossings = Crossings(monkeypatch)
    gpus(2, version=version)
    *_, seen = train(look=crossings.take)
    flat = 8 * (6 * 40 + 40 + 40 * 3 + 3 + 1)
    rows = 8 * 4 * 6
    for uploaded, downloaded in seen:
        if version is None:
            assert (uploaded, downloaded) == (flat, flat)
        else:
            assert 0 < uploaded <= rows
            assert downloaded <= 8  # the loss


# --- functions in a mode of their own -------------------------------------------------------------


def results(n_ranks):
    """Run steps of two functions and collectives; return their results, and the values they leave."""
    v = pytensor.shared(np.arange(4.0), name="v")
    x = pt.dvector("x")
    outputs, updates = [(x.sum(), "sum"), (v, "avg")], [(v, v + x.sum(), "avg")]  # each rank has its own
    there = synk.function([x], outputs, updates=updates)
    here = synk.function([x], outputs, updates=updates, mode="FAST_COMPILE")
    step = synk.sequence(there, (synk.all_reduce, v), here, (synk.all_reduce, v), there)
    rows = np.arange(9.0)
    returned = [step(rows, num_slices=num_slices) for num_slices in (1, 1, 1, 1, 3)]
    synk.gather(v)  # which leaves it on the device
    returned.append(here(rows))
    return returned, [synk.get_value(rank, v) for rank in range(n_ranks)]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_functions_with_a_mode_read_values_left_on_the_device(gpus, n_ranks):
    synk.fork(n_ranks, device="cpu")
    expected, left = results(n_ranks)
    synk.close()
    gpus(n_ranks, cuda_graphs=True)
    found, left_there = results(n_ranks)
    np.testing.assert_array_equal(left_there, left)
    for values, wanted in zip(found, expected, strict=True):
        for value, other in zip(values, wanted, strict=True):
            np.testing.assert_array_equal(value, other)


def test_a_value_that_was_returned_is_not_written_over():
    synk.fork(2, device="cpu")
    v = pytensor.shared(np.arange(4.0), name="v")
    f = synk.function([], [(v, None)], updates=[(v, v + 1)], mode="FAST_COMPILE")
    synk.all_reduce(v)  # it moves to where all ranks see it
    (first,) = f()
    kept = first.copy()
    step = synk.sequence(f, (synk.all_reduce, v))
    returned = [step()[0] for _ in range(3)]
    synk.close()
    np.testing.assert_array_equal(first, kept)
    for number, value in enumerate(returned, start=1):
        np.testing.assert_array_equal(value, np.arange(4.0) + number)


# --- when results are fetched ---------------------------------------------------------------------


@pytest.fixture
def fetched(monkeypatch):
    """Return how many launches there had been, at each time that an array was fetched."""
    counted, fetch = [], stand_in.asnumpy

    def asnumpy(array):
        if isinstance(array, stand_in.ndarray):
            counted.append(stand_in.counts.launches)
        return fetch(array)

    monkeypatch.setattr(stand_in, "asnumpy", asnumpy)
    return counted


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_the_update_is_launched_before_the_loss_is_fetched(gpus, fetched, cuda_graphs):
    gpus(1, cuda_graphs=cuda_graphs)

    def look():
        seen = [*fetched], stand_in.counts.launches
        fetched.clear()
        stand_in.counts.reset()
        return seen

    losses, _, (counted, launches) = small_training.train(4, look)
    assert counted == [launches]
    synk.close()
    synk.fork(1, device="cpu")
    np.testing.assert_allclose(losses, small_training.train(4)[0], rtol=1e-6)


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_what_a_later_step_writes_over_is_returned_as_it_was(gpus, cuda_graphs):
    gpus(1, cuda_graphs=cuda_graphs)
    small, large = pytensor.shared(np.float64(1)), pytensor.shared(np.ones(SMALL))
    read = synk.function([], [small, small * 2, large])
    write = synk.function([], updates=[(small, small + 1), (large, large + 1)])
    both = synk.sequence(read, write)
    for number in range(1, 7):
        value, twice, several = both()
        assert (value, twice) == (number, 2 * number)
        np.testing.assert_array_equal(several, np.full(SMALL, number))


def test_slices_are_added_up_as_before(gpus):
    gpus(1)
    x = pt.dvector("x")
    mean = synk.function([x], x.mean())
    assert mean(np.arange(6.0), num_slices=3) == 2.5
