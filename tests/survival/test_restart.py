"""Commits, and what `restart` brings back after whatever happened: the same bits, and nothing left behind."""

import pytest

from support.processes.peopled import peopled
from support.processes.scripts import in_world
from support.slow import slow

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


@pytest.mark.slow
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


@pytest.mark.slow
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
