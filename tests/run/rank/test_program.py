"""Updates of shared variables: how slices accumulate, what empty ranks do, what every rank does alike.

Values of the ranks are looked at with ``synk.gather``, and compared to NumPy on each rank's own rows.
"""

import contextlib
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.utils import RandomStream

import synk
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


@contextlib.contextmanager
def default_updates_allowed():
    """PyTensor deprecates default updates; synk carries them nevertheless."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


def slices_of(array, n_ranks, num_slices):
    """Return each rank's slices that have rows; an empty list for a rank without rows."""
    return [
        [part for part in np.array_split(shard, num_slices) if len(part)]
        for shard in np.array_split(array, n_ranks)
    ]


VALUES = np.random.default_rng(2).normal(size=(11, 2))

ACCUMULATED = {
    "avg": lambda parts: np.average([p.mean(0) for p in parts], axis=0, weights=[len(p) for p in parts]),
    "sum": lambda parts: sum(part.mean(0) for part in parts),
    "prod": lambda parts: np.prod([part.mean(0) for part in parts], axis=0),
    "min": lambda parts: np.min([part.mean(0) for part in parts], axis=0),
    "max": lambda parts: np.max([part.mean(0) for part in parts], axis=0),
    None: lambda parts: parts[-1].mean(0),
}

IDENTITIES = {"sum": 0, "prod": 1, "min": np.inf, "max": -np.inf, "avg": 5, None: 5}  # 5 is the old value


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize("n_rows", [11, 2])
def test_updates_accumulate_over_slices_by_their_operation(module_ranks, n_rows, num_slices):
    x = pt.matrix("x")
    variables = {op: pytensor.shared(np.full(2, 5.0), name=str(op)) for op in ACCUMULATED}
    f = synk.function([x], updates=[(variable, x.mean(0), op) for op, variable in variables.items()])
    assert f.update_modes == list(ACCUMULATED)
    f(VALUES[:n_rows], num_slices=num_slices)
    parts = slices_of(VALUES[:n_rows], module_ranks, num_slices)
    for op, variable in variables.items():
        for value, of_rank in zip(synk.gather(variable), parts, strict=True):
            expected = ACCUMULATED[op](of_rank) if of_rank else np.full(2, IDENTITIES[op])
            np.testing.assert_allclose(value, expected, rtol=1e-12, err_msg=str(op))


def test_gathered_updates_join_the_slices_and_are_empty_on_empty_ranks(module_ranks):
    x = pt.matrix("x")
    kept = pytensor.shared(np.ones((4, 2)), name="kept")
    f = synk.function([x], updates=[(kept, x[:, ::-1], "gather")])
    for n_rows, num_slices in ((11, 3), (2, 1)):
        f(VALUES[:n_rows], num_slices=num_slices)
        np.testing.assert_array_equal(synk.gather(kept, nd_up=0), VALUES[:n_rows, ::-1])
        assert synk.get_lengths(kept) == [len(part) for part in np.array_split(VALUES[:n_rows], module_ranks)]


@pytest.mark.parametrize(
    ("dtype", "op", "nothing"),
    [
        ("int8", "min", 127),
        ("int64", "max", np.iinfo("int64").min),
        ("uint8", "sum", 0),
        ("bool", "min", True),
        ("bool", "max", False),
        ("bool", "prod", True),
        ("float32", "max", -np.inf),
        ("complex64", "prod", 1),
    ],
)
def test_empty_ranks_get_the_identity_in_every_dtype(module_ranks, dtype, op, nothing):
    x = pt.vector("x", dtype=dtype)
    v = pytensor.shared(np.ones((), dtype=dtype), name="v")
    f = synk.function([x], updates=[(v, x[0], op)])
    f(np.ones(1, dtype=dtype))
    assert synk.gather(v).tolist() == [1] + [nothing] * (module_ranks - 1)
    assert synk.gather(v).dtype == dtype


@pytest.mark.parametrize("num_slices", [1, 4])
@pytest.mark.parametrize("n_rows", [1, 9])
def test_updates_that_need_no_rows_run_once_on_every_rank(module_ranks, n_rows, num_slices):
    x, step = pt.vector("x"), pt.scalar("step")
    count, total, row_sum = pytensor.shared(0), pytensor.shared(1.0), pytensor.shared(0.0)
    f = synk.function(
        [x],
        bcast_inputs=[step],
        updates=[(count, count + 1), (total, total * 2 + step), (row_sum, x.sum(), "sum")],
    )
    for _ in range(2):
        f(np.ones(n_rows), 0.5, num_slices=num_slices)
    assert synk.gather(count).tolist() == [2] * module_ranks
    assert synk.gather(total).tolist() == [5.5] * module_ranks
    assert synk.gather(row_sum).sum() == n_rows


def test_updates_apply_once_from_the_original_values(module_ranks):
    x = pt.vector("x")
    v = pytensor.shared(10.0, name="v")
    f = synk.function([x], [(v * 1, "max"), (v * 1, "min")], updates=[(v, v + x.mean())])
    values = np.arange(12.0)
    for num_slices in (1, 3):
        synk.broadcast(v, 10.0)
        assert f(values, num_slices=num_slices) == [10, 10]
        np.testing.assert_allclose(synk.gather(v), [15.5] * module_ranks, rtol=1e-12)


def test_updates_change_all_variables_at_once(module_ranks):
    x = pt.vector("x")
    one, two = pytensor.shared(1.0, name="one"), pytensor.shared(2.0, name="two")
    nothing = 0 * x.sum()
    swap = synk.function([x], updates={one: two + nothing, two: one + nothing})
    for num_slices in (1, 2):
        swap(np.ones(3 * module_ranks), num_slices=num_slices)
        swap(np.ones(3 * module_ranks), num_slices=num_slices)
        swap(np.ones(3 * module_ranks), num_slices=num_slices)
    assert synk.gather([one, two])[0].tolist() == [1] * module_ranks
    swap(np.ones(3 * module_ranks))
    assert synk.gather([one, two])[0].tolist() == [2] * module_ranks


def test_variables_updated_to_one_expression_stay_apart(module_ranks):
    x = pt.vector("x")
    one, two, three = (pytensor.shared(np.zeros(2), name=name) for name in ("one", "two", "three"))
    value = x.sum() * pt.ones(2)
    same = synk.function([x], [(value, "sum")], updates=[(one, value), (two, value), (three, two)])
    add = synk.function([], updates=[(one, one + 1)])
    for num_slices in (1, 2):
        same(np.ones(2 * module_ranks), num_slices=num_slices)
        same(np.ones(2 * module_ranks), num_slices=num_slices)
        add()
        first = synk.gather([one, two, three])
        np.testing.assert_array_equal(first[0], first[1] + 1)
        np.testing.assert_array_equal(first[1], first[2])


def test_an_update_to_an_input_copies_it():
    x = pt.vector("x")
    kept = pytensor.shared(np.zeros(2), name="kept")
    keep = synk.function([x], updates=[(kept, x, None)])
    add = synk.function([], updates=[(kept, kept + 1)])
    values = synk.data(np.arange(12.0))
    for num_slices in (1, 2):
        keep(values, num_slices=num_slices)
        add()
        values[...] = np.arange(12.0)
        assert synk.get_value(0, kept).min() >= 1
    np.testing.assert_array_equal(values, np.arange(12.0))


def test_float16_updates_accumulate_in_float32(module_ranks):
    x = pt.vector("x", dtype="float16")
    v = pytensor.shared(np.float16(0), name="v")
    rows = np.ones(3000 * max(3, module_ranks), dtype="float16")
    synk.function([x], updates=[(v, x[0], "sum")])(rows, num_slices=3000)
    assert (synk.gather(v) == 3000).all()


def streams(seed, n_ranks):
    """Return each rank's generator."""
    bits = np.random.default_rng(seed).bit_generator
    return [np.random.Generator(bits.jumped(rank) if rank else bits) for rank in range(n_ranks)]


def test_random_states_advance_slice_by_slice(module_ranks):
    x = pt.vector("x")
    state = pytensor.shared(np.random.default_rng(3), name="state")
    following, noise = pt.random.normal(size=(x.shape[0],), rng=state, return_next_rng=True)
    f = synk.function([x], (x + noise, "gather"), updates=[(state, following)])
    assert f.update_modes == [None]
    generators = streams(3, module_ranks)
    for num_slices in (1, 4, 2):
        expected = [
            generator.normal(size=len(shard))
            for generator, shard in zip(generators, np.array_split(np.zeros(10), module_ranks), strict=True)
        ]
        noisy = f(np.zeros(10), num_slices=num_slices)
        np.testing.assert_allclose(noisy, np.concatenate(expected), rtol=1e-12)


def test_random_states_of_empty_ranks_advance_where_they_need_no_rows(module_ranks):
    x = pt.vector("x")
    state = pytensor.shared(np.random.default_rng(3), name="state")
    following, noise = pt.random.normal(size=(2,), rng=state, return_next_rng=True)
    f = synk.function([x], ((x[:, None] * 0 + noise).sum(0), "sum"), updates=[(state, following)])
    f(np.zeros(1))
    generators = streams(3, module_ranks)
    for generator in generators:
        generator.normal(size=2)
    expected = sum(generator.normal(size=2) for generator in generators)
    np.testing.assert_allclose(f(np.zeros(module_ranks)), expected, rtol=1e-12)


def test_default_updates_travel(module_ranks):
    with default_updates_allowed():
        noise = RandomStream(seed=11).normal(size=(3,))
        plain = RandomStream(seed=11).normal(size=(3,))
    f = synk.function([], (noise, "gather"))
    g = pytensor.function([], plain, mode="FAST_COMPILE")
    draws = [f() for _ in range(3)]
    assert f.update_modes == [None]
    assert len(np.unique(draws)) == 9 * module_ranks
    # Rank 0 draws what one process does.
    np.testing.assert_allclose([draw[:3] for draw in draws], [g() for _ in range(3)], rtol=1e-12)


def test_default_updates_give_way_to_updates_and_follow_one_another(module_ranks):
    one, two = pytensor.shared(0.0, name="one"), pytensor.shared(0.0, name="two")
    with default_updates_allowed():
        one.default_update = one + 1 + 0 * two
        two.default_update = two + 10  # found through the default update of one
    synk.function([], one * 1)()
    assert [value.tolist() for value in synk.gather([one, two])] == [[1] * module_ranks, [10] * module_ranks]
    synk.function([], one * 1, updates=[(one, one - 1)])()
    assert synk.gather(one).tolist() == [0] * module_ranks


def test_givens_apply_to_default_updates():
    x = pt.vector("x")
    source = pytensor.shared(np.ones(3), name="source")
    kept = pytensor.shared(0.0, name="kept")
    with default_updates_allowed():
        kept.default_update = kept + x.sum()
    f = synk.function([], kept * 1, givens={x: source})
    f()
    f()
    assert (synk.gather(kept) == 6).all()


def test_every_path_from_a_sliceable_variable_is_sliced(module_ranks):
    x, y = pt.vector("x"), pt.vector("y")
    rows = pytensor.shared(np.zeros(0), name="rows")
    total = pytensor.shared(0.0, name="total")
    values = np.arange(4.0 * module_ranks)
    synk.scatter(rows, values)
    f = synk.function(
        [],
        [((x + y + rows).sum(), "sum"), (rows.shape[0] + x.shape[0], "gather"), (2 * rows, "gather")],
        updates=[(total, (x * rows).sum(), "sum")],
        givens={x: rows, y: 2 * rows},  # through givens and directly
        sliceable_shareds=[rows],
    )
    for num_slices in (1, 3):
        result, lengths, doubled = f(batch_s=slice(1, 4), num_slices=num_slices)
        taken = np.concatenate([shard[1:4] for shard in np.array_split(values, module_ranks)])
        assert result == 4 * taken.sum()
        assert lengths.tolist() == [6 // num_slices] * module_ranks * num_slices
        np.testing.assert_array_equal(doubled, 2 * taken)
        assert synk.gather(total).sum() == (taken**2).sum()
