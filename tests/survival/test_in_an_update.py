"""Deaths and ^C inside of an update of which each rank computes a part: no value is between two steps unsaid.

Each test is a script of its own. Ranks are stopped where it is worst, or at random moments.
"""

import signal

import pytest

from support.processes.scripts import after, check_gone
from support.slow import slow

script = after(
    '''
import mmap, random, warnings
from synk.extensions import updates
from synk.extensions.train import make_train_function
from synk.run.collectives.sharded_call import BoundParts, ShardedCall

STEPS = 4
rows = np.ones((4, 3), "float32")
armed = mmap.mmap(-1, 2)  # shared with the workers: who is stopped in its part, and who before: 1 the master
whole, waiting = BoundParts.run, ShardedCall.run

def is_armed(place):
    return armed[place] == 1 + (os.getpid() != MASTER)

def stop(place):
    """Stop this rank: the master by ^C, a worker by its death."""
    armed[place] = 0
    signal.raise_signal(signal.SIGINT if os.getpid() == MASTER else signal.SIGKILL)

def in_its_part(self, rank):
    if is_armed(0):
        self.progress[0] += 1
        for mine in self.parts:
            mine[: len(mine) // 2] += 7
        stop(0)
    whole(self, rank)

def before_it(self, rank):
    if is_armed(1):
        stop(1)
    waiting(self, rank)

BoundParts.run, ShardedCall.run = in_its_part, before_it


class Training:
    """One step, and the values that it began with."""

    def __init__(self, size, shard="auto"):
        x = pt.fmatrix("x")
        w = pytensor.shared(np.linspace(-1, 1, size, dtype="float32"), name="w")
        b = pytensor.shared(np.float32(0.1), name="b")
        loss = pt.sqr(w * x.mean() + b - 1).mean()
        self.step = make_train_function(loss, [w, b], [x], updates.adam, shard=shard)
        self.began = self.values()

    def values(self):
        return [variable.get_value() for variable in self.step.state]

    def begin_anew(self):
        for variable, value in zip(self.step.state, self.began):
            synk.broadcast(variable, value)
        self.step._items[-1]._n_layouts = 0  # or every rank would update all after many of them
        assert "live once" in "\\n".join(self.step.explanation())

    def train(self, n_steps=STEPS):
        for _ in range(n_steps):
            self.step(rows)

    def check(self, expected):
        for variable, value in zip(self.step.state, expected):
            for rank in range(synk.n_ranks()):
                np.testing.assert_array_equal(synk.get_value(rank, variable), value, err_msg=variable.name)


def undisturbed(size):
    training = Training(size, shard=None)
    training.train()
    return training.values()
'''
)


def test_a_death_inside_of_the_update_loses_nothing_of_the_commit():
    script(
        """
synk.fork(2)
warnings.simplefilter("error")
expected, training = undisturbed(1000), Training(1000)
synk.commit()  # before the first step has made variables of its own
for steps_before in (1, 0):
    training.train(steps_before)
    armed[0] = 2
    raised(synk.WorkerDied, training.train)
    synk.restart()
    training.train()
    training.check(expected)
    training.begin_anew()
    synk.commit()
"""
    )


@pytest.mark.slow
def test_without_a_commit_a_restart_says_that_an_update_was_cut_short():
    script(
        """
synk.fork(2)
training = Training(1000)
training.train()
armed[0] = 2
raised(synk.WorkerDied, training.train)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    synk.restart()
said, = [str(one.message) for one in seen]
assert "'w' (per rank since a call of 'update' was cut short" in said, said
assert "part 0" not in said and "flat_gradient" not in said, said
training.train(1)
training.check(training.values())
"""
    )


@pytest.mark.slow
def test_an_interrupt_inside_of_the_update_is_not_gone_over():
    script(
        """
synk.fork(2)
expected, training = undisturbed(1000), Training(1000)
training.train()
training.check(expected)
armed[1] = 1  # rank 0 never comes to the update: no rank has begun it
raised(KeyboardInterrupt, training.train)
training.check(expected)
training.train(1)
armed[0] = 1  # rank 0 has written a part of its part
raised(KeyboardInterrupt, training.train)
for _ in range(2):
    error = raised(ValueError, training.train)
    assert "since a call of 'update' was cut short; synk.restart() goes back to the last commit" in str(error)
training.begin_anew()
training.train()
training.check(expected)
"""
    )


@pytest.mark.parametrize(
    ("n_ranks", "size", "times"), [slow(2, 300_000, 20), slow(3, 3000, 20), slow(2, 2_000_000, 10)]
)
def test_deaths_at_random_moments_leave_the_bits_of_an_undisturbed_run(n_ranks, size, times):
    script(
        f"n_ranks, size, times = {n_ranks}, {size}, {times}"
        + """
synk.fork(n_ranks)
random.seed(size)
expected, training = undisturbed(size), Training(size)
began = time.perf_counter()
training.train(2 * STEPS)
seconds = time.perf_counter() - began
training.begin_anew()
synk.commit()
for _ in range(times):
    later(random.random() * seconds, os.kill, synk.pids()[random.randrange(1, n_ranks)], signal.SIGKILL)
    raised(synk.WorkerDied, training.train, 1_000_000)
    synk.restart()
    training.train()
    training.check(expected)
""",
        deadline=300,
    )


@pytest.mark.slow
def test_interrupts_at_random_moments_leave_equal_values_or_an_error():
    script(
        """
synk.fork(2)
random.seed(1)
training = Training(1_000_000)
training.train()
before = held()
began = time.perf_counter()
training.train(10)
seconds = time.perf_counter() - began

def interrupted():
    later(random.random() * seconds / 3, os.kill, MASTER, signal.SIGINT)
    training.train(1_000_000)

for _ in range(50):
    raised(KeyboardInterrupt, interrupted)
    try:
        training.train(1)
    except ValueError as error:
        assert "was cut short" in str(error)
        training.begin_anew()
    except synk.SynkStateError as error:  # in the middle of a message
        assert "synk.restart() starts new workers" in str(error)
        with warnings.catch_warnings(action="ignore"):  # there is no commit
            synk.restart()
        training.begin_anew()
    else:
        training.check(training.values())
training.train(1)  # variables that moved are laid out again
_, segments, children = held()
assert segments <= before[1] + 2 and len(children) == 1, (before, held())
""",
        deadline=300,
    )


CHECKPOINTED = """
from synk.extensions import checkpoint

path, who, whom = sys.argv[1:]

def stop(place):
    armed[place] = 0
    os.kill(MASTER, signal.SIGKILL) if whom == "master" else os.killpg(0, signal.SIGKILL)
    time.sleep(60)  # a worker in the middle of its part, whose master has died

if os.getpgrp() != os.getpid():
    os.setpgid(0, 0)  # what starts scripts is not to be killed with them
synk.fork(2)
print(*synk.pids(), flush=True)
expected, training = Training(1000, shard=None), Training(1000)
done = checkpoint.load(path, training.step)["done"] if os.path.exists(path) else 0
assert done == (0 if int(who) else STEPS)
for step in range(done, 2 * STEPS):
    armed[0] = int(who) if step == STEPS else 0
    training.step(rows)
    checkpoint.save(path, training.step, {"done": step + 1})
expected.train(2 * STEPS)
training.check(expected.values())
"""


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["master", "group"])
@pytest.mark.parametrize("who", [1, 2], ids=["in the master's part", "in a worker's part"])
def test_a_script_that_was_killed_there_leaves_nothing_and_goes_on_from_its_checkpoint(tmp_path, who, whom):
    killed = script(CHECKPOINTED, tmp_path / "run", who, whom, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    check_gone(map(int, killed.stdout.split()), 5)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    script(CHECKPOINTED, tmp_path / "run", 0, "nobody")  # it begins after the last step before
