"""Deadlines: who hangs, is stopped or does not read is told of in time, with the stacks of all ranks."""

import pytest

from support.processes.scripts import WORLD, after, in_world
from support.slow import slow

CHECK_TIMEOUT = (
    WORLD
    + """
from synk import SynkTimeout

def check_timeout(call, victim, state, phase, function, seconds, stack, deadline=3):
    pids, began = synk.pids(), time.monotonic()
    error = raised(SynkTimeout, call)
    took = time.monotonic() - began
    assert seconds <= took < deadline, took
    assert isinstance(error, TimeoutError) and isinstance(error, synk.SynkError)
    assert (error.seconds, error.function) == (seconds, function), error
    assert victim in error.late, error.late
    assert [state.rank for state in error.ranks] == list(range(len(pids)))
    assert [state.pid for state in error.ranks] == list(pids)
    for told in error.ranks:
        if told.rank == victim:
            assert (told.state, told.phase) == (state, phase), told
            assert stack in told.stack if stack else told.stack == "", told
        else:
            assert told.state == "running", told
            assert told.stack.strip(), told
        assert str(told) in str(error)
    assert "<string>" in error.ranks[0].stack, error.ranks[0]
    assert "synk/run/session/" not in error.ranks[0].stack  # of the script, up to where it called
    assert f"rank {victim} (pid {pids[victim]}) {state}, {phase}" in str(error)
    # Every later call fails at once, with the same cause.
    reduce, make = lambda: synk.all_reduce(v), lambda: synk.data(ROWS)
    for later_call in (call, reduce, make, synk.commit, synk.distribute):
        before = time.monotonic()
        assert raised(SynkTimeout, later_call) is error
        assert time.monotonic() - before < 0.1
"""
)

with_timeouts = after(CHECK_TIMEOUT)


@pytest.mark.parametrize("what", ["python", slow("native")])
def test_a_rank_that_hangs_is_told_of_at_the_deadline_with_its_stack(what):
    with_timeouts(f"""
world(3, timeout=1)
where = "in hang_in_python" if "{what}" == "python" else "in hang_in_native_code"
for call, victim in ((both, 1), (f, 2)):  # while the others are in a collective, and wait for a command
    label = "acting" if call is f else "both"
    check_timeout(lambda: act(call, victim, "{what}"), victim, "running", "computing", label, 1.0, where)
    if call is both:
        restart()
began = time.monotonic()
pids = synk.pids()
synk.close()
assert time.monotonic() - began < 5
assert all(map(gone, pids[1:]))
assert held()[1:] == (0, []), held()
""")


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_told_of_in_every_phase():
    with_timeouts("""
warnings.simplefilter("ignore", synk.SynkWarning)
world(3, timeout=2)

def stopped_when_idle(call):
    os.kill(synk.pids()[2], signal.SIGSTOP)
    call()

def stopped_in_a_collective():
    later(0.5, os.kill, synk.pids()[2], signal.SIGSTOP)
    act(both, 1, "python")  # so rank 2 waits for rank 1

check_timeout(lambda: stopped_when_idle(works), 2, "stopped", "idle", "acting", 2.0, "")
synk.restart()
reduce = lambda: stopped_when_idle(lambda: synk.all_reduce(v))
check_timeout(reduce, 2, "stopped", "idle", "all_reduce", 2.0, "")
restart()
check_timeout(lambda: act(f, 2, "stopped"), 2, "stopped", "computing", "acting", 2.0, "")
restart()
error = raised(SynkTimeout, stopped_in_a_collective)
assert error.ranks[2][2:] == ("stopped", "in a collective", "")
assert (error.ranks[1].state, error.ranks[1].phase) == ("running", "computing")
assert "in hang_in_python" in error.ranks[1].stack
assert error.late == (1,), error.late  # rank 2 had come
restart()
""")


@pytest.mark.slow
def test_a_rank_that_goes_on_before_the_deadline_gives_the_right_result():
    in_world("""
world(3, timeout=20)
for call in (f, both):
    os.kill(synk.pids()[1], signal.SIGSTOP)
    later(1.2, os.kill, synk.pids()[1], signal.SIGCONT)
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert act(call, -1, "sleep") == 3
    assert time.monotonic() - began >= 1
    [warning] = [str(each.message) for each in caught]
    assert f"rank 1 (pid {synk.pids()[1]}, idle) is stopped by a signal" in warning, warning
    assert warning.startswith("acting: " if call is f else "both: ")
assert fine()
""")


@pytest.mark.parametrize("times", [1, slow(2)])
def test_a_rank_that_keeps_the_others_waiting_is_warned_of_once_in_the_script_s_line(times):
    in_world(f"""
import synk.run.launch.watchdog
synk.run.launch.watchdog.WARN_SECONDS = 0.4
world(3)
for call, rank in ((f, 1), (both, 2)):
    for _ in range({times}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert act(call, rank, "sleep") == 3
        [warning] = caught
        assert warning.category is synk.SynkWarning
        assert warning.filename == "<string>", warning.filename
        said = str(warning.message)
        assert f"rank {{rank}} (pid {{synk.pids()[rank]}}, computing) is keeping the others waiting" in said
        assert said.startswith("acting: " if call is f else "both: "), said
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert fine()
    assert act(f, 0, "sleep") == 3  # the master itself: nobody keeps it waiting
assert not caught, caught[0].message
""")


@pytest.mark.slow
def test_a_warning_made_an_error_is_raised_and_no_reply_mistaken():
    in_world("""
import synk.run.launch.watchdog
synk.run.launch.watchdog.WARN_SECONDS = 0.3
world(3)
warnings.simplefilter("error", synk.SynkWarning)
for call in (f, both):
    raised(synk.SynkWarning, act, call, 1, "sleep")
    warnings.simplefilter("ignore", synk.SynkWarning)
    assert fine()
    warnings.simplefilter("error", synk.SynkWarning)
""")


@pytest.mark.slow
@pytest.mark.parametrize("victims", [[2], slow([1, 2])])
def test_a_big_message_to_a_worker_that_does_not_read_ends_at_the_deadline(victims):
    with_timeouts(f"""
warnings.simplefilter("ignore", synk.SynkWarning)
world(3, timeout=1)
for victim in {victims}:
    os.kill(synk.pids()[victim], signal.SIGSTOP)
    big = pytensor.shared(np.ones(1 << 22), name="big")  # its value travels through the socket
    check_timeout(lambda: synk.all_reduce(big), victim, "stopped", "idle", "all_reduce", 1.0, "", deadline=2)
    restart()
synk.all_reduce(big)
assert (synk.get_value(2, big) == 1).all()
""")


@pytest.mark.slow
def test_messages_between_commands_have_a_deadline_of_their_own():
    with_timeouts("""
warnings.simplefilter("ignore", synk.SynkWarning)
world(2, timeout=1)
os.kill(synk.pids()[1], signal.SIGSTOP)
time.sleep(1.2)  # longer than the last command had
many, longest = [], 0.0

def fill():
    global began
    for _ in range(5000):  # each sends a word to a worker that does not read
        began = time.monotonic()
        many.append(synk.data(np.ones(1)))

error = raised(SynkTimeout, fill)
assert 1 <= time.monotonic() - began < 2, time.monotonic() - began
assert error.function == "a message to the workers", error.function
del many[:]
restart()
""")


@pytest.mark.slow
def test_deadlines_nest_and_are_each_thread_s_own():
    with_timeouts("""
world(2, timeout=0.3)
with synk.timeout(30):
    assert act(f, 1, "sleep") == 1  # takes a second
    with synk.timeout(None):
        assert act(f, 1, "sleep") == 1
    with synk.timeout(5):
        assert works()
    assert act(both, 1, "sleep") == 1
    caught = []
    thread = threading.Thread(target=lambda: caught.append(raised(SynkTimeout, act, f, 1, "sleep")))
    thread.start()
    thread.join()
    assert caught[0].seconds == 0.3
restart()
with synk.timeout(30), contextlib.suppress(ZeroDivisionError):
    with synk.timeout(20):
        1 / 0
assert raised(SynkTimeout, act, f, 1, "sleep").seconds == 0.3
synk.restart()
for wrong in (0, -1, float("nan")):
    raised(ValueError, synk.timeout, wrong)
for wrong in ("1", True):
    raised(TypeError, synk.timeout, wrong)
assert fine()
synk.close()
for wrong in (0, -1.0):
    raised(ValueError, lambda: synk.fork(2, timeout=wrong))
raised(synk.SynkStateError, synk.timeout, 1)
assert synk.fork(2, timeout=np.float32(5)) == 2
""")


@pytest.mark.slow
def test_what_the_master_computes_is_not_interrupted():
    in_world("""
world(3, timeout=0.3)
assert act(f, 0, "sleep") == 3
assert fine()
""")


@pytest.mark.slow
def test_an_alarm_of_the_script_s_own_while_a_message_is_sent_is_kept():
    in_world("""
warnings.simplefilter("ignore", synk.SynkWarning)
world(3)

def ring(number, frame):
    raise TimeoutError("the script's own")

signal.signal(signal.SIGALRM, ring)
os.kill(synk.pids()[1], signal.SIGSTOP)
big = pytensor.shared(np.ones(1 << 22), name="big")
signal.setitimer(signal.ITIMER_REAL, 0.5)
began = time.monotonic()
error = raised(TimeoutError, synk.all_reduce, big)
assert str(error) == "the script's own"
assert time.monotonic() - began < 2
# What was sent in part cannot be taken back.
assert "while a message was sent" in str(raised(synk.SynkStateError, fine))
restart()
synk.all_reduce(big)
""")
