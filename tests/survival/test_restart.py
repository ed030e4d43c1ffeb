"""Commits, and what `restart` brings back after whatever happened: the same bits, and nothing left behind."""

from copy import deepcopy

import numpy as np
import pytest

from support.processes.scripts import WORLD, after, in_world, script
from support.slow import slow
from synk.run.collectives.read import digest
from synk.run.launch.recovery import RunState
from synk.values import messages

PEOPLED = (
    WORLD
    + '''
from functools import partial
from synk.extensions import train, updates

def people():
    """Add variables of every kind, Data and functions to the world."""
    global w, ragged, draw, sums, d, view, summed, late
    w = pytensor.shared(np.random.default_rng(0).normal(size=5), name="w")
    synk.broadcast(w)
    synk.set_value(1, w, np.arange(5.0))  # not the same on every rank
    ragged = pytensor.shared(np.zeros((4, 2), "f4"), name="ragged")
    synk.scatter(ragged, np.arange(14, dtype="f4").reshape(7, 2))
    sums = synk.function([], (ragged.sum(axis=0), "sum"), sliceable_shareds=[ragged])
    generator = pytensor.shared(np.random.default_rng(3), name="generator")
    following, numbers = pt.random.uniform(size=(2,), rng=generator).owner.outputs
    draw = synk.function([], (numbers, "gather"), updates=[(generator, following)])
    d = synk.data(ROWS, oversize=2)
    view = d.data
    x = pt.vector("x")
    summed = synk.function([x], (x.sum(), "sum"))
    summed(d)
    draw()

def state():
    return [*synk.gather(w), *(synk.get_value(r, ragged) for r in range(len(synk.pids())))]

def same_bits(one, other):
    return [a.tobytes() for a in one] == [b.tobytes() for b in other] and len(one) == len(other)

def check_back(kept, drawn):
    """All is as at the commit, but Data have kept what they hold."""
    assert same_bits(state(), kept)
    assert same_bits([draw(), draw()], drawn)
    assert synk.get_lengths(ragged) == lengths
    assert (sums() == [42, 49]).all()
    rows = sums(batch_s=[[1], [0], *[[]] * (len(lengths) - 2)])
    assert (rows == kept[-len(lengths)][1] + kept[1 - len(lengths)][0]).all()
    assert fine()
    assert summed(d) == view.sum()
    view[0] += 1  # still the same memory, here and there
    assert summed(d) == view.sum() == d.data.sum()
    d[1] = 7.0
    assert summed(d) == view.sum()

def spoil():
    """Do what a restart takes back."""
    synk.all_reduce(w, "sum")
    synk.scatter(ragged, np.zeros((3, 2), "f4"))
    sums()  # so that lengths are known
    draw()
'''
)

peopled = after(PEOPLED)


USUAL_DEATHS = ["all", "collective", "hangs in native code", "nothing"]


@pytest.mark.parametrize(
    "tried",
    [
        pytest.param(USUAL_DEATHS, id="usual"),
        slow(["idle", "quits", "killed", "segfault", "exit", "hangs", "stopped", "nothing"], id="others"),
    ],
)
def test_a_restart_after_every_kind_of_death_goes_on_from_the_commit(tried):
    peopled(
        """
tried = eval(sys.argv[1])
world(3)
people()
lengths = synk.get_lengths(ragged)
assert lengths == [3, 2, 2]

BROKEN = (synk.WorkerDied, synk.SynkTimeout)

def several():
    for pid in synk.pids()[1:]:
        os.kill(pid, signal.SIGKILL)
    f(ROWS, -1, 0)

def idle(number):
    os.kill(synk.pids()[2], number)
    await_end(synk.pids()[2])
    f(ROWS, -1, 0)

def in_a_collective():
    later(0.3, os.kill, synk.pids()[2], signal.SIGKILL)
    act(both, 1, "sleep")

def in_time(call, *arguments):
    with synk.timeout(0.7):
        call(*arguments)

deaths = {
    "idle": partial(idle, signal.SIGKILL),
    "quits": partial(idle, signal.SIGVTALRM),
    "all": several,
    "collective": in_a_collective,
    "killed": partial(act, f, 2, "kill"),
    "segfault": partial(act, both, 1, "segfault"),
    "exit": partial(act, both, 2, "leave"),
    "hangs": partial(in_time, act, f, 1, "python"),
    "hangs in native code": partial(in_time, act, both, 2, "native"),
    "stopped": partial(in_time, act, f, 2, "stopped"),
    "nothing": None,
}
warnings.simplefilter("error")
warnings.filterwarnings("ignore", ".*stopped by a signal", synk.SynkWarning)
for name in tried:
    death = deaths[name]
    synk.commit()
    kept, drawn, pids = state(), [draw(), draw()], synk.pids()
    spoil()
    if death is not None:
        raised(BROKEN, death)
    del death
    began = time.monotonic()
    synk.restart()
    took = time.monotonic() - began
    assert took < 2, (name, took)
    assert synk.pids()[0] == pids[0] and not set(synk.pids()[1:]) & set(pids[1:])
    assert all(map(gone, pids[1:])), name
    check_back(kept, drawn)
    synk.restart()  # twice in a row, and of a run that is well
    check_back(kept, drawn)
synk.close()
assert held()[1] <= 1, held()  # the view holds its own
del view, d, deaths
assert held()[1:] == (0, []), held()
""",
        tried,
        deadline=200,
    )


# --- workers that do not end ---------------------------------------------------------------------------

SHORT = """
from synk.transport.processes import process as watch
from synk.run.launch import crew
crew.REAP_SECONDS = watch.REAP_SECONDS = 0.3
"""


GONE = 42  # the exit code of a script whose debugger somebody else has ended


@pytest.mark.slow
@pytest.mark.parametrize("end", ["restart", "close"])
def test_a_worker_that_a_debugger_holds_is_left_to_the_kernel_with_a_warning(end):
    body = (
        WORLD
        + SHORT
        + f"""
def be_traced():
    me, (read, write) = os.getpid(), os.pipe()
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER: any
    tracer = os.fork()
    if tracer == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # nothing but SIGKILL ends it early
        os.write(write, b"y" if libc.ptrace(0x4206, me, 0, 0) == 0 else b"n")  # PTRACE_SEIZE
        time.sleep(90)
        os._exit(0)
    assert os.read(read, 1) == b"y"
    print(tracer, file=sys.stderr)

ACTS["traced"] = be_traced
world(3)
try:
    act(f, 2, "traced")
except synk.RemoteError:
    print("nobody may trace here")
    sys.exit()
synk.commit()
pid = synk.pids()[2]
tracer = int(next(line for line in open(f"/proc/{{pid}}/status") if line.startswith("TracerPid")).split()[1])
began = time.monotonic()
caught = warned(synk.{end})
assert time.monotonic() - began < 4
held_by = open(f"/proc/{{tracer}}/status").read()  # it is there, whatever else fails
if not caught and "(zombie)" in held_by:
    os._exit({GONE})
(said,) = [str(one.message) for one in caught] or [held_by]
assert f"rank 2 (pid {{pid}}, " in said and f"traced by pid {{tracer}}" in said, said
if {end!r} == "restart":
    assert fine()
os.kill(tracer, signal.SIGKILL)
deadline = time.monotonic() + 5
while os.path.exists(f"/proc/{{pid}}"):  # reaped, when it ends
    assert time.monotonic() < deadline
    time.sleep(0.01)
synk.close()
"""
    )
    for _ in range(3):
        done = script(body, check=False)
        if done.returncode != GONE:
            break
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", ["idle", "in a barrier"])
def test_a_master_that_may_not_signal_its_workers_any_more_restarts_and_closes(where):
    script(
        WORLD
        + SHORT
        + f"""
def refuse(*_):  # as the kernel does after setuid
    raise PermissionError(1, "Operation not permitted")

warnings.simplefilter("error")
world(3)
synk.commit()
signal.pidfd_send_signal = refuse
for _ in range(2):
    pids = synk.pids()[1:]
    if {where!r} == "in a barrier":
        with contextlib.suppress(synk.WorkerDied):
            act(both, 1, "leave")
    synk.restart()
    assert all(map(gone, pids))
    assert fine()
pids = synk.pids()[1:]
synk.close()
assert all(map(gone, pids))
"""
    )


def test_without_a_commit_all_ranks_start_from_rank_0_and_a_warning_names_the_variables():
    peopled("""
world(3)
people()
mine = synk.get_value(0, w)
[warning] = warned(synk.restart)
assert warning.category is synk.SynkWarning and warning.filename == "<string>"
assert all(name in str(warning.message) for name in ("'w'", "'ragged'", "'generator'")), warning.message
assert same_bits(synk.gather(w), [mine] * 3)
assert len({draw()[2 * rank:2 * rank + 2].tobytes() for rank in range(3)}) == 3  # streams of their own
synk.commit()
late = pytensor.shared(np.zeros(2), name="late")
synk.set_value(2, late, np.ones(2))
[warning] = warned(synk.restart)
assert "'late'" in str(warning.message) and "'w'" not in str(warning.message), warning.message
assert (synk.gather(late) == 0).all()
# A warning made an error comes when all is done: the run works.
warnings.simplefilter("error", synk.SynkWarning)
raised(synk.SynkWarning, synk.restart)
assert fine()
synk.commit()
restart()
""")


@pytest.mark.slow
def test_what_was_dropped_between_death_and_restart_stays_dropped():
    peopled("""
world(3)
people()
synk.commit()
before = held()[:2]
x = pt.vector("x")
extra = pytensor.shared(np.ones(1 << 16), name="extra")
synk.all_reduce(extra)
more = synk.data(np.ones(1 << 16))
g = synk.function([x], ((x * extra.sum()).sum(), "sum"))
g(more)
synk.commit()
lose(1)
del extra, more, g, x
gc.collect()
synk.restart()
assert fine() and summed(d) == view.sum()
assert held()[:2] == before, (held(), before)
assert len(synk.run.session.current.session("test")._rank._programs) == 3  # those that were used
""")


@pytest.mark.slow
def test_what_is_dropped_by_the_garbage_collector_in_the_middle_of_a_commit_or_restart_does_no_harm():
    peopled("""
world(2)
people()
shared = synk.run.session.current.session("test").memory.shared
gc.disable()

def drop():
    loop = [pytensor.shared(np.ones(3), name="in a cycle")]
    synk.broadcast(loop[0])
    loop.append(loop)

def collecting(call):
    def called():
        result = call()
        gc.collect()  # as it may happen anywhere
        return result
    return called

for name in ("shares", "_alive"):
    setattr(shared, name, collecting(getattr(shared, name)))
warnings.simplefilter("ignore", synk.SynkWarning)
for verb in (synk.commit, synk.restart) * 2:
    drop()
    verb()
    assert fine()
gc.collect()
del shared.shares, shared._alive
assert "in a cycle" not in [share.name for share in shared.shares()]
synk.commit()
restart()
""")


@pytest.mark.slow
def test_a_restart_that_is_not_allowed_changes_nothing():
    in_world("""
raised(synk.SynkStateError, synk.restart)
raised(synk.SynkStateError, synk.commit)
world(2)
caught = []

def handler(number, frame):
    for verb in (synk.restart, synk.commit):
        caught.append(str(raised(synk.SynkStateError, verb)))

signal.signal(signal.SIGALRM, handler)
pids = synk.pids()
for rank in (0, 1):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    assert act(f, rank, "sleep") == 1
assert len(caught) == 4 and "restart was called in the middle of acting" in caught[0], caught
assert synk.pids() == pids and fine()

faulthandler.cancel_dump_traceback_later()
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    raised(synk.SynkStateError, synk.restart)
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert fine()
synk.close()
assert "no run is open" in str(raised(synk.SynkStateError, synk.restart))
""")


@pytest.mark.parametrize("refused", [slow("fork"), "descriptors"])
def test_a_restart_that_fails_leaves_the_run_broken_and_the_next_one_works(refused):
    peopled(
        f"""
import errno, resource
world(3)
people()
lengths = synk.get_lengths(ragged)
synk.commit()
kept, drawn = state(), [draw(), draw()]
lose(1)
fork, asked = os.fork, []

def refuse():
    asked.append(1)
    if len(asked) == 2:
        raise BlockingIOError(errno.EAGAIN, "no process for you")
    return fork()

limits = resource.getrlimit(resource.RLIMIT_NOFILE)
n_held, failures = [], 0
os.fork, asked = refuse, [1]
raised(OSError, synk.restart)  # the old workers' descriptors are closed
for attempt in range(60):
    if "{refused}" == "fork":
        os.fork, asked[:] = refuse, []
    else:  # room for a few descriptors more each time
        room = len(os.listdir("/proc/self/fd")) + 2 * attempt
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, limits[1]))
    try:
        synk.restart()
    except OSError as error:
        assert error.errno == errno.EAGAIN or "files" in str(error), error
        failures += 1
        n_restarted = len(synk.pids()) - 1
    else:
        n_restarted = None
    finally:
        os.fork = fork
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    if n_restarted is None:
        with contextlib.suppress(synk.WorkerDied):  # the workers open a few, too
            assert fine()
        break
    n_held.append(held()[0])
    assert n_restarted == 0 and held()[2] == []  # those that came are gone again
    for call in (fine, synk.commit, lambda: synk.data(ROWS)):
        raised(synk.SynkError, call)
    if failures == 5 and "{refused}" == "fork":
        break
assert failures >= 5, failures
assert len(set(n_held)) == 1, n_held
synk.restart()
check_back(kept, drawn)
synk.close()
""",
        deadline=200,
    )


@pytest.mark.slow
def test_a_run_that_could_not_be_restarted_is_closed_as_any_other():
    peopled("""
world(3)
people()
synk.commit()
fork = os.fork

def refuse():
    raise BlockingIOError("no process for you")

os.fork = refuse
raised(OSError, synk.restart)
os.fork = fork
mine = synk.run.session.current.session("test").memory.variables
synk.close()
del d, view
assert held()[1:] == (0, []), held()
assert (w.get_value() == np.random.default_rng(0).normal(size=5)).all()  # plain variables again
world(2)
""")


@pytest.mark.slow
def test_an_interrupted_restart_leaves_nothing_and_the_next_one_works():
    peopled(
        """
world(4)
people()
lengths = synk.get_lengths(ragged)
synk.commit()
kept, drawn = state(), [draw(), draw()]
signal.signal(signal.SIGALRM, press)
interrupted = 0
synk.restart()
began = time.monotonic()
synk.restart()
took = time.monotonic() - began
n_held = held()[0]
delays = np.linspace(0.0005, 1.2 * took, 16)
for delay in delays:
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        synk.restart()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Pressed:
        interrupted += 1
    else:
        assert fine()
        continue
    if interrupted % 2:
        assert len(held()[2]) in (0, 3), (delay, held())
    synk.restart()
    assert len(held()[2]) == 3, (delay, held())
    assert held()[0] <= n_held, (delay, held(), n_held)
assert interrupted > 3, interrupted
check_back(kept, drawn)
synk.close()
del d, view
assert held()[1:] == (0, []), held()
""",
        deadline=200,
    )


@pytest.mark.slow
def test_twenty_restarts_leave_nothing():
    peopled(
        """
world(3)
people()
synk.commit()
counts = []
for _ in range(20):
    lose(2)
    synk.restart()
    assert summed(d) == view.sum()
    synk.all_reduce(w)
    counts.append((held()[:2], len(held()[2]), threading.active_count()))
    synk.commit()
assert len(set(counts[1:])) == 1, counts
synk.close()
del d, view
assert held()[1:] == (0, []), held()
""",
        deadline=200,
    )


def test_one_rank_commits_and_restarts_too():
    peopled("""
world(1)
w = pytensor.shared(np.zeros(3), name="w")
step = synk.function([], updates=[(w, w + 1)])
step()
synk.commit()
step()
synk.restart()
assert (w.get_value() == 1).all()
step()
assert (synk.get_value(0, w) == 2).all() and fine()
""")


@pytest.mark.slow
def test_a_restart_may_come_from_a_thread_that_ends():
    in_world("""
world(3)
synk.commit()
warnings.simplefilter("ignore", synk.SynkWarning)
thread = threading.Thread(target=synk.restart)
thread.start()
thread.join()
time.sleep(0.5)
assert fine()
lose(1)
restart()
""")


# --- the parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [np.ones(3, "f4"), np.ones((3, 1)), -np.zeros(3), np.full(3, np.nan), np.random.default_rng(0), 1.0],
)
def test_what_differs_in_any_way_has_another_digest(other):
    assert digest(np.zeros(3), 0).tolist() != digest(other, 1).tolist()
    assert (digest(other, 1) == digest(deepcopy(other), 2)).all() == isinstance(other, np.ndarray)


def test_values_that_ranks_have_alike_are_sent_and_kept_once():
    peopled("""
world(3)
people()
same = pytensor.shared(np.arange(6.0).reshape(2, 3).T, name="same")  # not in C order
nan = pytensor.shared(np.full(3, np.nan), name="nan")
synk.broadcast([same, nan])
session = synk.run.session.current.session("test")
replies, run = [], session.run
session.run = lambda *steps: replies.append(run(*steps)) or replies[-1]
synk.commit()
identities = session.memory.shared.identify_all([w, ragged, same, nan, v])
[[*by_rank]] = replies[0]
order = list(session._recovery._committed)
sent = [[by_rank[rank][order.index(one)] is not None for rank in range(3)] for one in identities]
assert sent == [[True, True, False], [True] * 3, *[[True, False, False]] * 3], sent
kept = session._recovery._committed
assert all(kept[identities[2]][rank] is kept[identities[2]][0] for rank in range(3))
del session.run
synk.restart()
assert (synk.gather(same) == np.arange(6.0).reshape(2, 3).T).all() and np.isnan(synk.gather(nan)).all()
""")


def share(identity, value):
    return messages.Share(identity, dict, None, None, value)


def test_a_state_gives_each_rank_its_own_values_and_copies_them():
    value, kept = np.zeros(2), [np.full(2, rank) for rank in range(3)]
    state = RunState(
        shares=[share(1, value), share(2, value)], values={2: kept}, storage=["storage"], functions=["build"]
    )
    first, second, *rest = state.messages(rank=2)
    assert first.value is not value
    assert (first.value == 0).all()
    assert not first.own
    assert second.value is not kept[2]
    assert (second.value == 2).all()
    assert second.own
    assert rest == ["storage", "build"]


@pytest.mark.parametrize("restarts", [2, slow(5)])
def test_without_a_commit_ranks_start_from_what_rank_0_had_before_it_went_on(restarts):
    in_world(f"""
warnings.simplefilter("ignore", synk.SynkWarning)
synk.fork(3)
q = pytensor.shared(np.arange(3.0), name="q")
synk.all_reduce(q, "max")  # it lives in shared memory now
add = synk.function([], updates=[(q, q + 1)])
for number in range(1, {restarts} + 1):
    add()
    synk.restart()
    add()  # at once: the new workers are still at their start
    assert (synk.gather(q) == np.arange(3.0) + 2 * number).all(), synk.gather(q)
""")


def test_an_op_that_workers_have_not_seen_travels_to_new_ones_too():
    in_world("""
synk.fork(2)

class Late(Op):
    def make_node(self, x):
        return Apply(self, [x], [pt.vector()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + 1

x = pt.vector("x")
late = synk.function([x], (Late()(x), "gather"))
assert late(ROWS).tolist() == (ROWS + 1).tolist()
synk.restart()
assert late(ROWS).tolist() == (ROWS + 1).tolist()
synk.close()
""")


# --- with fewer ranks ------------------------------------------------------------------------------------


def test_a_restart_returns_what_was_committed_beside_the_variables():
    in_world("""
world(2)
assert synk.restart() is None
kept = {"epoch": 3, "losses": [1.0]}
synk.commit(kept)
kept["losses"].append(2.0)  # in what the script has, not in the commit
for _ in range(2):
    back = synk.restart()
    assert back == {"epoch": 3, "losses": [1.0]}, back
    back["epoch"] = 4
lose(1)
raised(synk.WorkerDied, synk.commit, "lost")
assert synk.restart() == {"epoch": 3, "losses": [1.0]}
synk.commit()
assert synk.restart() is None
""")


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


@pytest.mark.slow
def test_a_restart_that_the_system_refuses_may_be_tried_with_fewer():
    in_world("""
from synk.run.launch import start_workers as launching
world(3)
fork_child = launching.fork_child

def refuse(body):
    if body.args[0].rank > 1:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork_child(body)

synk.commit()
launching.fork_child = refuse
before = held()[2]
raised(BlockingIOError, synk.restart)
assert not held()[2], held()
raised(synk.SynkStateError, f, ROWS, -1, 0)
synk.restart(2)
assert len(synk.pids()) == 2 and fine()
""")


@pytest.mark.slow
def test_a_death_that_a_finalizer_finds_is_raised_by_the_next_call():
    in_world("""
world(2)
x = pt.vector("x")
extra = synk.function([x], (x.sum(), "sum"))
extra(ROWS)
ignored = []
sys.unraisablehook = ignored.append
os.kill(synk.pids()[1], signal.SIGKILL)
await_end(synk.pids()[1])
del extra
gc.collect()
assert not ignored, ignored
assert raised(synk.WorkerDied, f, ROWS, -1, 0).rank == 1
synk.restart()
assert fine()
""")
