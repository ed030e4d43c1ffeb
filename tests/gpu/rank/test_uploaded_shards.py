"""Whole runs whose ranks feed a GPU: the numbers of NumPy, on streams that copy as late as they may."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert

import synk
from support.cupy import stand_in
from synk.extensions import batches, train, updates
from synk.gpu.device import uploads
from synk.run.session import current

N_ROWS = 24


pytestmark = pytest.mark.usefixtures("any_size")


def sample(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape)


def copies(machine, call, *args, **keywords):
    """Return how many copies rank 0 asks for in a call, those ahead included."""
    before = machine.n_copies
    call(*args, **keywords)
    all_buffers = current._session._rank._uploads._uploader._buffers.values()
    for buffers in all_buffers:
        if buffers._pending is not None:
            buffers._pending.done.result()
    return machine.n_copies - before


def row_sums(gpus):
    """Return a function that sums rows on one GPU, and data for it."""
    gpus(1)
    x = pt.matrix("x")
    return synk.function([x], (x.sum(0), "sum")), synk.data(sample(N_ROWS, 3))


# --- the numbers of NumPy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slices", [1, 2, 5])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_rows_of_any_batch(gpus, n_ranks, num_slices):
    gpus(n_ranks)
    x, y = pt.matrix("x"), pt.vector("y")
    f = synk.function([x, y], [(x * 1, "gather"), (y * 1, "gather"), (x.T @ y, "sum")])
    data = x_values, y_values = sample(N_ROWS, 3), sample(N_ROWS)
    shared = [synk.data(values) for values in data]
    chosen = [[3, 1, 8, 1, -1, 9, 0], slice(2, 17), [5], slice(3, 3), None, 4, list(range(24))[::-1], [1, 2]]
    for at, batch in enumerate(chosen):
        following = chosen[(at + 1) % len(chosen)] if at % 3 else None
        for inputs in (shared, data, [shared[0], y_values]):
            if batch is None and inputs is not shared:
                continue
            got = f(*inputs, batch=batch, num_slices=num_slices, next_batch=following)
            rows = slice(None) if batch is None else slice(batch) if isinstance(batch, int) else batch
            np.testing.assert_array_equal(got[0], x_values[rows])
            np.testing.assert_array_equal(got[1], y_values[rows])
            np.testing.assert_allclose(got[2], x_values[rows].T @ y_values[rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_training_gives_the_same_bits_with_and_without_prefetch(gpus, n_ranks, shuffle):
    gpus(n_ranks)
    x_values, y_values = sample(N_ROWS, 3), sample(N_ROWS)
    trained = []
    for prefetch in (False, True):
        x, y, w = pt.matrix("x"), pt.vector("y"), pytensor.shared(np.ones(3), name="w")
        loss = pt.sqr(pt.tanh(x @ w) - y).mean()
        step = train.make_train_function(loss, [w], [x, y], updates.sgd, learning_rate=0.1)
        data = step.build_inputs(x_values, y_values)
        losses = []
        for epoch in range(3):
            for rows in batches(N_ROWS, 7, seed=epoch, shuffle=shuffle, prefetch=prefetch):
                losses.append(float(step(*data, **(rows if prefetch else {"batch": rows}))))
        trained.append((losses, synk.get_value(n_ranks - 1, w).tolist()))
    assert trained[0] == trained[1]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_arrays_and_data_may_be_written_to_after_the_call(gpus, n_ranks):
    """No results are fetched, so nothing waits for the device."""
    gpus(n_ranks)
    x, total = pt.matrix("x"), pytensor.shared(np.zeros(3), name="total")
    with pytest.warns(synk.SynkWarning, match="once for each slice"):
        add = synk.function([x], updates=[(total, total + x.sum(0), "sum")])  # of one slice, on each rank
    values, expected = sample(N_ROWS, 3), np.zeros(3)
    data = synk.data(values)
    for at in range(4):
        add(values + at)  # the same staging buffer each time
        add(data)
        data[:] = data.data + 1
        expected += 2 * (values + at).sum(0)
    synk.all_reduce(total, "sum")
    np.testing.assert_allclose(synk.get_value(0, total), expected, rtol=1e-12)


def test_a_value_that_is_a_view_of_an_input_is_kept(gpus):
    gpus(1)
    x, last = pt.matrix("x"), pytensor.shared(np.zeros((0, 0)), name="last")
    keep = synk.function([x], x.sum(), updates=[(last, x.T, None)])
    data = synk.data(sample(N_ROWS, 3))
    keep(data, batch=[3, 4])
    for _ in range(3):
        synk.function([x], x.sum())(data, batch=[1, 1, 2])
    np.testing.assert_array_equal(synk.get_value(0, last), sample(N_ROWS, 3)[[3, 4]].T)
    keep(data, batch=[5, 6], next_batch=[1, 2])
    keep.build_inputs(sample(N_ROWS, 3))
    np.testing.assert_array_equal(synk.get_value(0, last), sample(N_ROWS, 3)[[5, 6]].T)


def test_functions_with_a_mode_of_their_own_get_arrays_of_the_host(gpus):
    gpus(2)
    variable, shards = table(2)
    x = pt.matrix("x")
    outputs = [(x.sum(0), "sum"), (variable.sum(0), "sum")]
    f = synk.function([x], outputs, sliceable_shareds=[variable], mode="FAST_COMPILE")
    got = f(synk.data(sample(N_ROWS, 3)), batch=[3, 1, 2], batch_s=[[0, 1], [2]])
    np.testing.assert_allclose(got[0], sample(N_ROWS, 3)[1:4].sum(0))
    np.testing.assert_allclose(got[1], shards[0][:2].sum(0) + shards[1][2])


def test_sequences_in_which_a_function_comes_twice(gpus):
    gpus(2)
    x, total = pt.matrix("x"), pytensor.shared(0.0, name="total")
    f = synk.function([x], (x * 1, "gather"), updates=[(total, x.sum(), "sum")])
    g = synk.function([x], (x * 2, "gather"))
    both = synk.sequence(f, (synk.all_reduce, total, "sum"), g, f)
    data, chosen = synk.data(sample(N_ROWS, 3)), np.random.default_rng(1).integers(0, N_ROWS, (6, 7))
    for at, batch in enumerate(chosen):
        one, two, three = both(data, batch=batch, next_batch=chosen[(at + 1) % 6])
        wanted = sample(N_ROWS, 3)[batch]
        np.testing.assert_array_equal(one, wanted)
        np.testing.assert_array_equal(two, 2 * wanted)
        np.testing.assert_array_equal(three, wanted)


def test_whole_numbers_that_may_be_lengths_go_by_the_host(gpus):
    gpus(2)
    x, n = pt.matrix("x"), pt.lvector("n")
    f = synk.function([x, n], (pt.ones((n.max(),)).sum() * x.sum(), "sum"))
    np.testing.assert_allclose(f(synk.data(np.ones((4, 3))), synk.data(np.array([2, 2, 2, 2]))), 2 * 12)


# --- what is copied when ---------------------------------------------------------------------------------


def test_rows_that_were_announced_are_copied_before_they_are_asked_for(gpus, machine):
    f, data = row_sums(gpus)
    assert copies(machine, f, data, batch=[3, 1], next_batch=[5, 2]) == 2
    assert copies(machine, f, data, batch=[5, 2]) == 0
    assert copies(machine, f, data, batch=[5, 2], next_batch=[7, 1], num_slices=2) == 3
    assert copies(machine, f, data, batch=[7, 1], num_slices=2) == 1
    assert copies(machine, f, data, batch=slice(3, 5), next_batch=slice(5, 7)) == 2
    assert copies(machine, f, data, batch=slice(5, 7), next_batch=[4, 1]) == 1
    data[4] = 0
    assert copies(machine, f, data, batch=[4, 1]) == 1


def test_slices_are_brought_while_those_before_compute(gpus, monkeypatch):
    gpus(1)
    started, start = [], uploads.InputBuffers.start

    def noted(buffers, order):
        started.append(order.key[1:])
        start(buffers, order)

    monkeypatch.setattr(uploads.InputBuffers, "start", noted)
    x = pt.matrix("x")
    f = synk.function([x], (x.sum(), "sum"))
    f(synk.data(sample(N_ROWS, 3)), batch=[3, 1, 2, 8, 9], num_slices=3, next_batch=[1, 2])
    assert started == [(2, 4), (4, 5), (0, 1)]


def test_large_rows_are_announced_and_small_ones_are_not(gpus, machine, monkeypatch):
    monkeypatch.setattr(uploads, "SMALL_BYTES", 1 << 16)
    gpus(1)
    x = pt.matrix("x")
    f = synk.function([x], (x.sum(), "sum"))
    assert f(synk.data(np.ones((8, 3))), batch=[0, 1]) == 6
    assert machine.n_copies == 0


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slices", [1, 3])
def test_a_failed_call_leaves_nothing_wrong_behind(gpus, num_slices):
    gpus(2)
    x = pt.matrix("x")
    checked = synk.function([x], (Assert("too large")(x * 1, x.max() < 50), "gather"))
    data = synk.data(sample(N_ROWS, 3))
    data[7] = 99
    for following in ([5, 2, 9, 0], slice(8, 12)):
        for bad in ([7, 0, 7, 1, 7], [1, 2, 3, 4, 7], slice(4, 9)):
            with pytest.raises(AssertionError, match="too large"):
                checked(data, batch=bad, next_batch=following, num_slices=num_slices)
            got = checked(data, batch=following, num_slices=num_slices)
            np.testing.assert_array_equal(got, np.array(data)[following])


def test_a_thousand_calls_hold_no_more_than_ten(gpus, machine):
    (f, data), held = row_sums(gpus), []
    for at in range(1000):
        f(data, batch=[at % N_ROWS, 1], next_batch=[(at + 1) % N_ROWS, 1])
        if at in (10, 999):
            held.append((sorted(machine.locked.values()), len(machine.streams), len(stand_in._memories)))
    assert held[0] == held[1]


def test_close_gives_everything_back_with_copies_in_flight(gpus, machine):
    gpus(2)
    x = pt.matrix("x")
    f = synk.function([x], (x.sum(), "sum"))
    data = synk.data(sample(N_ROWS, 3))
    f(data, batch=[3, 1, 4], next_batch=[5, 2, 9, 0])
    f(data, batch=slice(0, 5), next_batch=slice(5, 9))
    synk.close()
    assert machine.locked == {}


def test_a_gpu_that_failed_can_be_left(gpus, machine, monkeypatch):
    f, data = row_sums(gpus)
    f(data, batch=slice(0, 5), next_batch=[5, 9])

    def fail(*arguments):
        raise RuntimeError("cudaErrorIllegalAddress")

    with monkeypatch.context() as broken:
        broken.setattr(machine.Event, "synchronize", fail)
        with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
            f(data, batch=slice(0, 5))
        synk.close()
    machine.mistakes.clear()  # whatever was being copied never will be


def test_one_rank_restarts_and_feeds_again(gpus):
    f, data = row_sums(gpus)
    f(data, batch=[3, 1], next_batch=[2, 5])
    synk.restart()
    np.testing.assert_allclose(f(data, batch=[2, 5]), sample(N_ROWS, 3)[[2, 5]].sum(0))


# --- data sets that live on the device -------------------------------------------------------------------


def table(n_ranks):
    variable = pytensor.shared(np.zeros((0, 2)), name="table")
    synk.scatter(variable, sample(17, 2))
    return variable, np.array_split(sample(17, 2), n_ranks)


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_batch_s_reads_rows_on_the_device(gpus, n_ranks, num_slices):
    gpus(n_ranks)
    variable, shards = table(n_ranks)
    f = synk.function([], [(variable * 1, "gather"), (variable.sum(0), "sum")], sliceable_shareds=[variable])
    ragged = [[0, 1, 1], slice(2, 3)]
    for batch_s, each in [
        (slice(1, 4), [slice(1, 4)] * 2),
        ([3, 0, 0, -1], [[3, 0, 0, -1]] * 2),
        (None, [slice(None)] * 2),
        (ragged[:n_ranks], ragged),
        ([[4, 2], []][:n_ranks], [[4, 2], slice(0)]),
    ]:
        expected = np.concatenate([shard[rows] for shard, rows in zip(shards, each, strict=False)])
        rows, total = f(batch_s=batch_s, num_slices=num_slices)
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_allclose(total, expected.sum(0), rtol=1e-12)


def uploads_of(call, **keywords):
    stand_in.counts.reset()
    result = call(**keywords)
    return result, stand_in.counts.uploads


def test_the_data_set_is_uploaded_once_and_again_after_set_value(gpus):
    gpus(1)
    variable = pytensor.shared(sample(17, 2), name="table")
    f = synk.function([], (variable.sum(0), "sum"), sliceable_shareds=[variable])
    assert uploads_of(f, batch_s=slice(0, 5))[1] == 1
    for _ in range(3):
        assert uploads_of(f, batch_s=slice(2, 9))[1] == 0
        assert uploads_of(f, batch_s=[4, 1, 2])[1] == 1  # the indices
    assert stand_in.counts.downloads == 1  # the result
    variable.set_value(np.ones((6, 2)))
    result, count = uploads_of(f, batch_s=slice(0, 5))
    assert (result.tolist(), count) == ([5, 5], 1)
    synk.set_value(0, variable, np.full((6, 2), 2.0))
    result, count = uploads_of(f, batch_s=slice(0, 5))
    assert (result.tolist(), count) == ([10, 10], 1)
    assert uploads_of(f, batch_s=slice(0, 5))[1] == 0
    synk.close()
    assert type(variable.get_value()) is np.ndarray


@pytest.mark.parametrize(
    "collective",
    [synk.broadcast, synk.gather, lambda v: synk.reduce(v, in_place=False), synk.all_reduce],
    ids=["broadcast", "gather", "reduce", "all_reduce"],
)
def test_what_a_collective_has_uploaded_stays(gpus, collective):
    gpus(2)
    variable = pytensor.shared(sample(17, 2), name="table")
    lengths = pytensor.shared(np.array([3, 2]), name="lengths")
    f = synk.function([], (variable.sum(0), "sum"), sliceable_shareds=[variable])
    g = synk.function([], pt.ones((lengths[0], lengths[1])).sum())
    stand_in.counts.reset()
    collective(variable)
    assert stand_in.counts.uploads == 1
    assert uploads_of(f, batch_s=slice(0, 5))[1] == 0
    collective(variable)
    assert stand_in.counts.uploads == 0
    synk.gather(lengths)
    assert type(lengths.container.storage[0]) is np.ndarray  # programs read it there
    assert g() == 6


def test_rows_of_a_variable_pair_with_rows_of_inputs(gpus):
    gpus(2)
    variable, _ = table(2)
    x = pt.vector("x")
    f = synk.function([x], (x @ variable, "sum"), sliceable_shareds=[variable])
    values = sample(17)
    np.testing.assert_allclose(f(values), values @ sample(17, 2), rtol=1e-12)
    f(values, batch=[0, 1], batch_s=[[3], [4]])


def test_another_function_updates_what_is_sliced(gpus):
    gpus(2)
    variable, shards = table(2)
    f = synk.function([], (variable.sum(0), "sum"), sliceable_shareds=[variable])
    double = synk.function([], updates=[(variable, 2 * variable)])
    f(batch_s=[0, 1])
    double()
    np.testing.assert_allclose(f(batch_s=[0, 1]), 2 * (shards[0][:2] + shards[1][:2]).sum(0))
    np.testing.assert_array_equal(synk.gather(variable, nd_up=0), 2 * sample(17, 2))
    np.testing.assert_allclose(f(batch_s=[0, 1]), 2 * (shards[0][:2] + shards[1][:2]).sum(0))
