import os
import warnings

import pytest

from synk.run.launch import watchdog as watchdog
from synk.run.launch.watchdog import LOOK_SECONDS, Watchdog, _above
from synk.transport.commands.deadline import Deadline
from synk.values.errors import SynkTimeout, SynkWarning


class FakeProcess:
    """A worker's process in a state that a test sets."""

    def __init__(self, pid, state="running"):
        self.pid, self.state = pid, state

    def stopped(self):
        return self.state == "stopped"

    def wait(self, seconds):
        return self.state == "ended"


class FakeStacks:
    def __init__(self, asked, process):
        self.asked, self.process = asked, process

    def ask(self, process):
        assert process is self.process
        self.asked.append(process.pid)

    def read(self):
        assert len(self.asked) == 3  # all were asked before one is waited for
        return f"stack of {self.process.pid}"


class FakeControl:
    def phase(self, rank):
        return f"phase {rank}"


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(watchdog.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def processes():
    return [FakeProcess(101), FakeProcess(102), FakeProcess(103)]


class Watcher:
    """A watchdog, and the command that it watches over."""

    def __init__(self, processes):
        asked = []
        stacks = [FakeStacks(asked, process) for process in processes]
        self.watchdog, self.deadline = Watchdog(processes, stacks, FakeControl()), None

    def look(self, late):
        self.watchdog.look(self.deadline, late)


@pytest.fixture
def watcher(processes):
    return Watcher(processes)


def begin(watcher, label, seconds):
    watcher.deadline = Deadline(label, seconds)


def look_for(watcher, clock, late, seconds):
    """Look as often as the master does; return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        end = clock.now + seconds
        while clock.now < end:
            clock.now += 0.1
            watcher.look(late)
    return [str(each.message) for each in caught]


def test_a_command_without_a_deadline_has_none(watcher, clock):
    begin(watcher, "f", None)
    clock.now += 1e9
    watcher.look([1])


def test_the_deadline_counts_from_the_start_of_the_command(watcher, clock):
    begin(watcher, "f", 10.0)
    clock.now += 9.9
    watcher.look([1])
    begin(watcher, "g", 10.0)
    clock.now += 9.9
    watcher.look([1])
    clock.now += 0.2
    with pytest.raises(SynkTimeout):
        watcher.look([1])


def test_a_timeout_holds_the_state_of_every_rank(watcher, clock, processes):
    processes[1].state, processes[2].state = "stopped", "ended"
    begin(watcher, "f", 2.0)
    clock.now += 2
    with pytest.raises(SynkTimeout) as caught:
        watcher.look([1, 2])
    error = caught.value
    assert (error.seconds, error.function, error.late) == (2.0, "f", (1, 2))
    assert [state.rank for state in error.ranks] == [0, 1, 2, 3]
    assert [state.pid for state in error.ranks] == [os.getpid(), 101, 102, 103]
    assert [state.state for state in error.ranks] == ["running", "running", "stopped", "ended"]
    assert [state.phase for state in error.ranks] == [f"phase {rank}" for rank in range(4)]
    assert [state.stack for state in error.ranks[1:]] == ["stack of 101", "stack of 102", "stack of 103"]
    assert "test_watchdog.py" in error.ranks[0].stack.splitlines()[0]
    assert "f did not end within 2 s, waiting for rank 1, rank 2" in str(error)


def test_the_rank_that_keeps_others_waiting_is_named_once_a_command(watcher, clock):
    for label in ("f", "g"):
        begin(watcher, label, None)
        assert look_for(watcher, clock, [2], watchdog.WARN_SECONDS - 0.5) == []
        [said] = look_for(watcher, clock, [2], 60.0)
        assert said == f"{label}: rank 2 (pid 102, phase 2) is keeping the others waiting for 5 s"


def test_the_master_s_own_work_does_not_count_as_waiting(watcher, clock):
    begin(watcher, "f", None)
    clock.now += 100  # it computes
    assert look_for(watcher, clock, [1], watchdog.WARN_SECONDS - 1) == []
    assert len(look_for(watcher, clock, [1], 2)) == 1


def test_a_stopped_rank_is_named_at_the_next_look(watcher, clock, processes):
    begin(watcher, "f", None)
    processes[0].state = "stopped"
    said = look_for(watcher, clock, [1, 3], 2 * LOOK_SECONDS)
    assert said == ["f: rank 1 (pid 101, phase 1) is stopped by a signal; SIGCONT lets it go on"]


@pytest.mark.parametrize(("stopped", "late"), [(0, 2), (-1, 0)], ids=["another waits", "the master is late"])
def test_a_stopped_rank_that_nobody_waits_for_is_not_named(watcher, clock, processes, stopped, late):
    processes[stopped].state = "stopped"
    begin(watcher, "f", None)
    assert look_for(watcher, clock, [late], 1) == []


def test_a_warning_names_the_line_outside_of_this_package(watcher, clock, processes):
    begin(watcher, "f", None)
    processes[0].state = "stopped"
    clock.now += 1
    with pytest.warns(SynkWarning) as caught:
        watcher.look([1])
    assert caught[0].filename == __file__


def test_how_a_command_reaches_the_program_is_left_out():
    stack = (
        "Thread 0x1 (most recent call first):\n"
        '  File "user.py", line 1 in work\n'
        f'  File "{watchdog.SERVING}", line 100 in run\n'
        '  File "script.py", line 2 in <module>\n'
        "\n"
        "Current thread 0x2 (most recent call first):\n"
        '  File "other.py", line 3 in wait\n'
    )
    assert _above(stack).splitlines() == [
        "Thread 0x1 (most recent call first):",
        '  File "user.py", line 1 in work',
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "other.py", line 3 in wait',
    ]
