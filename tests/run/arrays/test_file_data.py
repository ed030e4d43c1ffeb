"""Data in files: the same numbers as from memory, nothing copied, and what happens to the file meanwhile."""

import gc
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes import leaks
from support.processes.scripts import in_world
from support.slow import slow

N_ROWS = 3001
VALUES = np.random.default_rng(0).normal(size=(N_ROWS, 600)).astype("f4")  # 7 MB
TARGETS = np.arange(float(N_ROWS), dtype="f4")
ORDER = np.random.default_rng(1).permutation(N_ROWS)

written_to = pytest.mark.one_machine(reason="files that are open for writing are refused on several")
MODES = ("r", pytest.param("r+", marks=[written_to, pytest.mark.slow]))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "values.npy"
    np.save(path, VALUES)
    return path


def mapped(path, mode="r"):
    """Map the file; not in a fixture, which would keep it open for longer than the test."""
    return np.load(path, mmap_mode=mode)


def summing():
    """A function of the rows, and of their places among those selected."""
    x, y = pt.fmatrix("x"), pt.fvector("y")
    return synk.function([x, y], [(x.sum(axis=1) + y, "gather"), (x.T @ y, "sum"), pt.exp(x).mean(axis=0)])


def assert_same(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


# --- the same numbers as from memory ------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_ranks", [slow(1), 2, slow(3)])
def test_results_are_those_of_data_in_memory_to_the_bit(ranks, path, n_ranks, mode):
    opened = [mapped(path, mode), *((str(path), path) if mode == "r" else ())]
    ranks(n_ranks)
    f, y, memory = summing(), synk.data(TARGETS), synk.data(VALUES)
    selections = [
        {},
        {"batch": 700},
        {"batch": 0},
        {"batch": slice(100, 2500), "num_slices": 3},
        {"batch": [5, -1, 5, 2]},
        {"batch": ORDER[:1000]},
        {"batch": ORDER, "num_slices": 4},
        {"batch": slice(100, 2500), "num_slices": 3},
    ]
    for file in map(synk.data, opened):
        for selection in selections:
            for _ in range(2):  # the second one repeats the first
                assert_same(f(file, y, **selection), f(memory, y, **selection))


def test_rows_are_gathered_ahead_and_beside_sliceable_variables(ranks, path):
    read_only = mapped(path)
    ranks(2)
    x, v = pt.fmatrix("x"), pytensor.shared(np.zeros((0, 3)), name="v")
    synk.scatter(v, np.arange(30.0).reshape(10, 3))
    f = synk.function([x], (x.sum(axis=1) * v.sum(axis=1), "gather"), sliceable_shareds=[v])
    g = summing()
    file, memory, y = synk.data(read_only), synk.data(VALUES), synk.data(TARGETS)
    for batch, following in ((ORDER[:2000], ORDER[1000:]), (ORDER[1000:], ORDER[:10]), (ORDER[:10], None)):
        assert_same(g(file, y, batch=batch, next_batch=following), g(memory, y, batch=batch))
    both = {"batch": ORDER[:6], "batch_s": [[0, 2, 4], slice(1, 4)]}
    np.testing.assert_array_equal(f(file, **both), f(memory, **both))


def test_parts_of_a_file_broadcast_inputs_and_collectives(ranks, path, tmp_path):
    read_only = mapped(path)
    ranks(2)
    f, g, rows = summing(), summing(), slice(1234, 2222)
    part, y = synk.data(read_only[rows]), synk.data(TARGETS[rows])
    assert_same(
        f(part, y, batch=ORDER[ORDER < 988]), g(VALUES[rows], TARGETS[rows], batch=ORDER[ORDER < 988])
    )
    vector, matrix = pt.fvector("vector"), pt.fmatrix("matrix")
    dot = synk.function([matrix], (matrix @ vector, "gather"), bcast_inputs=[vector])
    np.testing.assert_array_equal(dot(part, synk.data(read_only[7])), dot(VALUES[rows], VALUES[7]))
    w = pytensor.shared(np.zeros((0, 600), "f4"), name="w")
    synk.scatter(w, part, batch=ORDER[:500] % 988)
    np.testing.assert_array_equal(synk.gather(w, nd_up=0), VALUES[rows][ORDER[:500] % 988])
    np.testing.assert_array_equal(f.as_pytensor(part, y)[0], f(part, y)[0])
    plain = tmp_path / "plain"
    plain.write_bytes(np.float32(3).tobytes())
    one, s = synk.data(np.memmap(plain, "f4", "r", shape=())), pt.fscalar("s")
    assert synk.function([], s * 2, bcast_inputs=[s])(one) == 6


def test_minibatch_data_and_inputs_of_functions(ranks, path):
    read_only = mapped(path)
    ranks(2)
    f = summing()
    paired = synk.data(read_only[:50], minibatch=True, name="paired")
    assert_same(f(paired, synk.data(TARGETS), batch=ORDER[:50]), f(VALUES[:50], TARGETS[ORDER[:50]]))
    xs, ys = f.build_inputs(path, TARGETS)
    assert (xs.filename, xs.name, ys.filename) == (path, "x", None)
    assert_same(f(xs, ys), f(VALUES, TARGETS))


def test_what_the_ranks_get_cannot_be_written_to_by_their_programs(ranks, path):
    read_only = mapped(path)
    ranks(2)
    x = pt.fmatrix("x")
    f = synk.function([x], ((pt.set_subtensor(x[:, 0], 9) ** 2).sum(), "sum"))
    changed = VALUES.copy()
    changed[:, 0] = 9
    assert np.isclose(f(synk.data(read_only)), (changed**2).sum(), rtol=1e-5)
    np.testing.assert_array_equal(np.load(path), VALUES)


# --- what it is ---------------------------------------------------------------------------------------


def test_it_tells_its_file(ranks, path):
    read_only, writable = mapped(path), mapped(path, "r+")
    ranks(1)
    data = synk.data(read_only, name="pixels")
    assert (data.dtype, data.ndim, data.shape, data.size) == (np.float32, 2, VALUES.shape, VALUES.size)
    assert data.filename == read_only.filename
    assert synk.data(str(path)).filename == str(path)
    assert synk.data(VALUES).filename is None
    assert isinstance(data, synk.Data)
    where = f"float32, shape (3001, 600), in file {str(path)!r}"
    assert repr(data) == f"<synk.Data 'pixels': {where}, read-only>"
    assert repr(synk.data(writable, minibatch=True)) == f"<synk.Data: {where}, minibatch>"
    with tempfile.TemporaryFile() as file:
        nameless = synk.data(np.memmap(file, "i2", "w+", shape=(3,)))
    assert (nameless.filename, nameless[:].tolist()) == (None, [0, 0, 0])
    assert "in a file without a name" in repr(nameless)


def bytes_mapped(pid, name):
    """Return the bytes that a process has mapped of what has a name."""
    spans = re.findall(
        rf"^(\w+)-(\w+) .*{re.escape(name)}", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE
    )
    return sum(int(stop, 16) - int(start, 16) for start, stop in spans)


@pytest.mark.one_machine(reason="looks at a worker's own memory and descriptors")
def test_nothing_is_copied_to_shared_memory_and_all_goes_when_it_is_dropped(ranks, path):
    ranks(3)
    read_only = mapped(path)
    f, y = summing(), synk.data(TARGETS)
    f(synk.data(VALUES[:5]), synk.data(TARGETS[:5]))
    gc.collect()
    synk.distribute()
    before = [bytes_mapped(pid, "/dev/shm/") for pid in synk.pids()]
    data = synk.data(read_only)
    f(data, y)
    assert [bytes_mapped(pid, "/dev/shm/") for pid in synk.pids()] == before
    assert all(bytes_mapped(pid, path.name) >= VALUES.nbytes for pid in synk.pids())
    open_in_worker = [os.readlink(entry) for entry in Path(f"/proc/{synk.pids()[1]}/fd").iterdir()]
    assert str(path) not in open_in_worker
    del read_only
    data.free_memory()
    assert (data.shape, data.alloc_size, data.filename) == ((0, 0), 0, path)
    for _ in range(2):
        assert f(data, synk.data(TARGETS[:0]))[0].tolist() == []
    synk.distribute()
    assert [bytes_mapped(pid, path.name) for pid in synk.pids()[1:]] == [0, 0]
    other = synk.data(path)
    f(other, y)
    assert bytes_mapped(synk.pids()[2], path.name) >= VALUES.nbytes
    del other
    gc.collect()
    synk.distribute()
    assert [bytes_mapped(pid, path.name) for pid in synk.pids()[1:]] == [0, 0]
    assert str(path) not in [target for _, target in leaks.descriptors()]


def test_views_outlive_the_data_and_the_run(ranks, path):
    ranks(2)
    view = synk.data(path)[10:]
    gc.collect()
    np.testing.assert_array_equal(view, VALUES[10:])
    data = synk.data(path)
    data.ref()
    synk.close()
    for use in (
        data.ref,
        lambda: data.known_ref,
        lambda: data[0],
        lambda: data.__setitem__(0, 1),
        data.free_memory,
    ):
        with pytest.raises(synk.SynkStateError, match="closed"):
            use()
    assert repr(data)
    np.testing.assert_array_equal(view, VALUES[10:])


# --- writing ------------------------------------------------------------------------------------------


def test_what_was_opened_read_only_stays_as_it_is(ranks, path):
    read_only, writable = mapped(path), mapped(path, "r+")
    ranks(2)
    frozen = writable[:10]
    frozen.flags.writeable = False
    np.save(path.with_name("no-values.npy"), VALUES[:0])
    for value in (read_only, path, frozen, path.with_name("no-values.npy")):
        data = synk.data(value, name="d")
        for write in (
            lambda data=data: data.__setitem__(slice(5), 1.0),
            lambda data=data: data.set_value(VALUES[:0]),
        ):
            with pytest.raises(
                ValueError, match=r"'d' cannot be .*values\.npy' .* read-only; use mmap_mode='r\+'"
            ):
                write()
        with pytest.raises(ValueError, match="read-only"):
            data.data[...] = 1.0
    np.testing.assert_array_equal(np.load(path), VALUES)


@written_to
def test_reading_does_not_undo_what_was_gathered_ahead(ranks, path):
    read_only, writable = mapped(path), mapped(path, "r+")
    ranks(2)
    frozen, open_to_all = synk.data(read_only), synk.data(writable)
    for data in (frozen, open_to_all):
        data[3]
    assert (frozen.changes, open_to_all.changes) == (0, 1)


@written_to
def test_what_is_written_is_in_the_file_and_what_the_ranks_read(ranks, path):
    writable = mapped(path, "r+")
    ranks(3)
    f, y = summing(), synk.data(TARGETS)
    data, expected = synk.data(writable), VALUES.copy()
    f(data, y)
    data[5:7] = 2
    data.data[-1] *= 3
    writable[9] = 4  # by whom it was passed
    expected[5:7], expected[9], expected[-1] = 2, 4, expected[-1] * 3
    assert_same(f(data, y), f(expected, y))
    np.testing.assert_array_equal(np.load(path), expected)
    data.set_value(expected[::-1])
    np.testing.assert_array_equal(np.load(path), expected[::-1])


@pytest.mark.parametrize("mode", MODES)
def test_the_shape_may_shrink_but_not_grow_beyond_the_file(ranks, path, mode):
    values = mapped(path, mode)
    ranks(2)
    f, data = summing(), synk.data(values, name="d")
    data.set_length(10)
    assert_same(f(data, TARGETS[:10]), f(VALUES[:10], TARGETS[:10]))
    data.set_length(N_ROWS)
    data.set_shape((600, N_ROWS))
    np.testing.assert_array_equal(data, VALUES.reshape(600, N_ROWS))
    data.set_shape(VALUES.shape)
    for grow in (lambda: data.set_length(N_ROWS + 1), lambda: data.set_shape((N_ROWS, 601), oversize=2)):
        with pytest.raises(
            ValueError, match=r"more than the 1800600 items that Data 'd' has in .*values\.npy'"
        ):
            grow()
    assert_same(f(data, TARGETS), f(VALUES, TARGETS))
    data.free_memory()
    with pytest.raises(ValueError, match="does not grow"):
        data.set_shape((1, 1))


@written_to
def test_fewer_values_are_written_but_not_more(ranks, path):
    writable = mapped(path, "r+")
    ranks(2)
    data = synk.data(writable)
    with pytest.raises(ValueError, match="does not grow"):
        data.set_value(np.zeros((N_ROWS + 1, 600), "f4"))
    data.set_value(np.zeros((2, 600), "f4"))
    np.testing.assert_array_equal(np.load(path), [*np.zeros((2, 600)), *VALUES[2:]])


def test_arguments_that_contradict_the_file_are_refused(ranks, path):
    read_only = mapped(path)
    ranks(1)
    before = set(leaks.descriptors())
    for value in (path, read_only):
        for wrong in ({"dtype": "f8"}, {"var": pt.dmatrix("x")}, {"dtype": "f8", "force_cast": True}):
            with pytest.raises(TypeError, match=r"values\.npy' holds float32, not float64"):
                synk.data(value, **wrong)
        for wrong in ({"ndim": 1}, {"var": pt.fvector("x")}):
            with pytest.raises(TypeError, match=r"values\.npy' has 2 dimensions, not 1"):
                synk.data(value, **wrong)
        with pytest.raises(ValueError, match=r"oversize=1\.5, but .*values\.npy' does not grow"):
            synk.data(value, oversize=1.5)
        assert synk.data(value, var=pt.fmatrix("x"), dtype="f4", ndim=2, force_cast=True).filename == path
    assert set(leaks.descriptors()) == before


@pytest.mark.slow
def test_no_rows_are_no_trouble(ranks, path):
    read_only = mapped(path)
    ranks(2)
    f = summing()
    np.save(path.with_name("none.npy"), VALUES[:0])
    for value in (path.with_name("none.npy"), read_only[:0], read_only[N_ROWS:]):
        data = synk.data(value)
        assert data.shape == (0, 600)
        assert f(data, TARGETS[:0])[0].shape == (0,)


# --- what happens to the file -------------------------------------------------------------------------


def test_a_file_that_is_cut_later_is_an_error_and_not_a_death(ranks, path):
    ranks(2)
    f, y, data = summing(), synk.data(TARGETS), synk.data(path)
    sequence = synk.sequence(f)
    synk.distribute()
    expected = f(data, y, batch=100)
    os.truncate(path, 500_000)
    w = pytensor.shared(VALUES, name="w")
    uses = [
        lambda: f(data, y, batch=100),  # as the last call
        lambda: f(data, y),
        lambda: sequence(data, y),
        lambda: synk.scatter(w, data),
        lambda: data[0],
        lambda: np.asarray(data),
        lambda: f.as_pytensor(data, y),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"values\.npy' was cut: it has 500000 bytes, .*7202528"):
            use()
    data.set_length(200)  # these are still there
    assert_same(f(data, TARGETS[:200], batch=100), expected)
    data.set_length(N_ROWS)
    np.save(path, VALUES)  # in the same file
    assert_same(f(data, y, batch=100), expected)


@pytest.mark.parametrize("fate", [slow("deleted"), "replaced"])
def test_a_name_is_not_needed_any_more(ranks, path, fate):
    ranks(2)
    f, y, data = summing(), synk.data(TARGETS), synk.data(path)
    path.unlink()
    if fate == "replaced":
        np.save(path, VALUES[:7])
    assert_same(f(data, y), f(VALUES, y))


@pytest.mark.slow
@pytest.mark.one_machine(reason="looks at a worker's own memory and descriptors")
@pytest.mark.parametrize(("deaths", "times"), [(["kill"], 1), slow(["kill", "segfault"], 2)])
def test_a_file_lives_through_the_death_of_workers_and_restarts(tmp_path, warm_interpreter, deaths, times):
    np.save(tmp_path / "rows.npy", np.arange(100_000.0))
    in_world(
        """
path, deaths, times = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3])
mapped = np.load(path, mmap_mode="r+")
before = held()[:2]
world(3)
x = pt.vector("x")
summed = synk.function([x], (x.sum(), "sum"))
d, e = synk.data(mapped), synk.data(path)[:0]
frozen = synk.data(path)
os.unlink(path)
total = mapped.sum()
assert summed(d) == summed(frozen) == total
gc.collect()
running = held()[:2]

def open_files(pid):
    return [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]

for what in deaths:
    for _ in range(times):
        synk.commit()
        died = raised(synk.WorkerDied, act, f, 1, what)
        del died
        synk.restart()
        assert summed(d) == summed(frozen, batch=slice(0, 100_000)) == mapped.sum()
        d[0] += 1  # still the same pages, here and there
        assert summed(d) == summed(frozen) == mapped.sum() == total + 1
        total += 1
        assert held()[:2] == running, (held(), running)
        inherited = [name for name in open_files(synk.pids()[1]) if path in name]
        assert len(inherited) == 1, inherited  # the script's own
raised(synk.WorkerDied, act, f, 2, "kill")
del frozen
gc.collect()
assert held()[0] < running[0]
synk.restart()
d[0] = 0
assert summed(d) == mapped.sum()
raised(synk.WorkerDied, act, f, 2, "kill")
synk.close()
del d, e
gc.collect()
assert held()[1:] == (0, []) and held()[:2] == before, (held(), before)
""",
        tmp_path / "rows.npy",
        deaths,
        times,
    )
