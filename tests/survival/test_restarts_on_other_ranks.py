"""A run goes on with fewer ranks, or with more, and rows are dealt out again."""

import pytest

from support.processes.peopled import peopled
from support.processes.scripts import WORLD, in_world, script
from support.slow import slow


@pytest.mark.slow
def test_a_run_goes_on_with_fewer_ranks_and_then_with_one():
    script(
        WORLD
        + """
from synk.extensions import train, updates

warnings.simplefilter("error", synk.SynkWarning)
x, y = pt.dmatrix("x"), pt.dvector("y")
random = np.random.default_rng(0)
rows, targets = random.normal(size=(31, 4)), random.normal(size=31)

def make():
    w = pytensor.shared(np.zeros(4), name="w")
    step = train.make_train_function(((x @ w - y) ** 2).mean(), [w], [x, y], updates.adam, learning_rate=0.1)
    generator = pytensor.shared(np.random.default_rng(3), name="generator")
    following, numbers = pt.random.uniform(size=(2,), rng=generator).owner.outputs
    draw = synk.function([], (numbers, "gather"), updates=[(generator, following)])
    spread = synk.function([x], [x.std(axis=0), (x.sum(), "sum")])  # ranks meet in the graph
    return w, step, draw, spread

synk.fork(1)
w, step, draw, spread = make()
expected = [float(step(rows, targets)) for _ in range(9)]
alone = [w.get_value(), *spread(rows)]
first = draw()
synk.close()

synk.fork(3)
w, step, draw, spread = make()
data = step.build_inputs(rows, targets)
losses = []
for left in (3, 2, 1):
    losses += [float(step(*data)) for _ in range(3)]
    draw()
    mean, total = spread(data[0])
    synk.commit(left)
    step(*data)  # is taken back
    pids = synk.pids()
    if left == 2:
        os.kill(pids[1], signal.SIGKILL)
        raised(synk.WorkerDied, step, *data)
    fewer = max(left - 1, 1)
    assert synk.restart(fewer) == left
    assert synk.n_ranks() == len(synk.pids()) == fewer
    assert all(map(gone, pids[1:]))
    drawn = draw().reshape(fewer, 2)
    assert len({one.tobytes() for one in drawn}) == fewer  # streams of their own
assert np.allclose(losses, expected, rtol=1e-12)
assert np.allclose(w.get_value(), alone[0], rtol=1e-12)
for mine, one in zip(spread(data[0]), alone[1:]):
    assert np.allclose(mine, one, rtol=1e-12)
new = pytensor.shared(np.zeros(2), name="new")
synk.broadcast(new, np.ones(2))
assert synk.gather(new).tolist() == [[1, 1]]
synk.close()
"""
    )


@pytest.mark.slow
def test_fewer_ranks_are_refused_where_each_has_its_own_and_nothing_changes():
    peopled("""
world(2)
people()
synk.commit()
pids, mine = synk.pids(), state()
error = raised(synk.SynkStateError, synk.restart, 1)
assert "each rank has its own 'w', for which another number of ranks has no place" in str(error), error
for wrong, kind in ((0, ValueError), (True, TypeError), ("1", TypeError), (1.0, TypeError)):
    assert f"n_parallel={wrong!r}" in str(raised(kind, synk.restart, wrong))
assert synk.pids() == pids and same_bits(state(), mine) and fine()
synk.restart(2)
assert same_bits(state(), mine)
""")


@pytest.mark.parametrize("n_ranks", [slow(1), 2])
def test_rows_are_dealt_out_again_to_fewer_ranks(n_ranks):
    in_world(f"""
world(3)
rows, alike = pytensor.shared(np.zeros((0, 2)), name="rows"), pytensor.shared(np.zeros(0), name="alike")
synk.scatter([rows, alike], [np.arange(14.0).reshape(7, 2), np.ones(6)])  # two ones on each rank
synk.commit()
synk.scatter(rows, np.zeros((2, 2)))
synk.restart({n_ranks})
assert synk.gather(rows, nd_up=0).tolist() == np.arange(14.0).reshape(7, 2).tolist()
assert synk.get_lengths(rows) == [len(part) for part in np.array_split(range(7), {n_ranks})]
assert synk.gather(alike, nd_up=0).tolist() == [1] * 6
assert synk.per_rank(rows).kind == "rows" and fine()
""")


@pytest.mark.parametrize("numbers", [(3, 1), slow((3, 1, 4, 2))])
def test_a_run_goes_on_with_more_ranks_up_from_one(numbers):
    """Functions that one rank had alone exchange between several, and variables that it made are tracked."""
    script(
        WORLD
        + """
x, y = pt.dmatrix("x"), pt.dvector("y")
random = np.random.default_rng(0)
rows, targets = random.normal(size=(31, 4)), random.normal(size=31)

def made():
    w = pytensor.shared(np.zeros(4), name="w")
    loss = ((x @ w - y) ** 2).mean()
    step = synk.function([x, y], loss, updates=[(w, w - 0.1 * pytensor.grad(loss, w))])
    return w, step, synk.function([x], [x.std(axis=0), x.max()])

synk.fork(1)
w, step, spread = made()
spread(rows), step(rows, targets)
joined = synk.sequence(step, spread)
joined(rows, targets)
other = pytensor.shared(np.zeros(3), name="other")
synk.broadcast(other)
at = w.get_value()
for n_ranks in eval(sys.argv[1]):
    w.set_value(at)
    synk.commit(n_ranks)
    assert synk.restart(n_ranks) == n_ranks
    assert synk.n_ranks() == len(synk.pids()) == n_ranks
    expected = at.copy()
    for call in (step, joined, step):
        expected -= 0.1 * 2 * rows.T @ (rows @ expected - targets) / len(rows)
        call(rows, targets)
        assert np.allclose(synk.gather(w), expected, rtol=1e-12), n_ranks
    std, largest = spread(rows)
    assert np.allclose(std, rows.std(axis=0), rtol=1e-12) and largest == rows.max()
    later, *_ = made()  # while there are so many
    fresh = synk.function([x], x.std(axis=0))
    assert np.allclose(fresh(rows), rows.std(axis=0), rtol=1e-12)
    if n_ranks > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", synk.SynkWarning)
            other.set_value(np.ones(3))
        error = raised(ValueError, synk.function([], other.sum()))
        assert "'other'" in str(error), error
        synk.broadcast(other)
    at = synk.get_value(0, w)
synk.commit()
synk.restart(1)
synk.scatter(other, np.arange(5.0))
total = synk.function([], (other.sum(), "sum"), sliceable_shareds=[other])
assert total() == 10
synk.commit()
synk.restart(3)
assert synk.get_lengths(other) == [2, 2, 1] and total() == 10  # dealt out, not copied
synk.close()
""",
        numbers,
    )
