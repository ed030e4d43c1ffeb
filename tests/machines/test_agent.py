"""An agent that is a thread, as other machines are: the suite of all, and the end of agent and rank 0."""

import socket
import threading

import pytest

from support.machines.leaders import thread_leaders
from support.machines.suite import LeadersSuite, agree, reduce
from support.transport.parts import nothing, on_threads
from synk.machines import agent_leaders
from synk.machines.agent import Agent
from synk.machines.agent_leaders import AgentFailed, AgentLeaders
from synk.machines.agent_messages import Answer
from synk.memory.shm import Segment
from synk.transport.base import Aborted, Disconnected
from synk.transport.frames import encode, send
from synk.values.errors import SharedMemoryFull


class AgentGroup:
    """Machines that are threads; the first has an agent in another one."""

    def __init__(self, n_machines):
        self.n_machines = n_machines
        self.ends = socket.socketpair()
        first, *others = thread_leaders(n_machines)
        self.agents, self.end = first, None
        self.leaders = [AgentLeaders(self.ends[0], n_machines), *others]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._command = 0

    def _serve(self):
        try:
            Agent(self.agents, self.ends[1]).run()
        except BaseException as end:
            self.end = end

    def outcomes(self, work, *arguments):
        """Run one command; return what each machine returned or raised."""
        self._command += 1

        def run(machine):
            self.leaders[machine].begin(self._command)
            return work(self.leaders[machine], nothing, *arguments)

        return on_threads(self.n_machines, run)

    def close(self):
        """End rank 0, and with it the agent."""
        self.leaders[0].close()
        self._thread.join(10)
        assert not self._thread.is_alive(), "the agent outlives rank 0"
        self.ends[1].close()


@pytest.fixture(params=[1, 2, 3], ids="{}-machines".format)
def group(request):
    group = AgentGroup(request.param)
    yield group
    group.close()


class TestAgentOnThreads(LeadersSuite):
    def test_the_agent_ends_with_rank_0(self, group):
        group.outcomes(agree)
        group.close()
        assert isinstance(group.end, Disconnected)

    def test_rank_0_notices_the_end_of_its_agent(self, group, monkeypatch):
        monkeypatch.setattr(agent_leaders, "END_SECONDS", 0.1)
        group.outcomes(agree)
        group.ends[1].shutdown(socket.SHUT_RDWR)
        group.leaders[0].begin(2)
        group.leaders[0].fail()  # never raises: there is an error to be raised already
        with pytest.raises(Disconnected):
            group.leaders[0].all_gather(b"", nothing)

    def test_what_ends_with_the_agent_is_told_where_it_is_found_a_moment_later(self, group):
        found = iter([None, None, LookupError("h2 is lost")])

        def watch():
            if lost := next(found):
                raise lost

        group.ends[1].shutdown(socket.SHUT_RDWR)
        group.leaders[0].begin(1)
        with pytest.raises(LookupError, match="h2 is lost"):
            group.leaders[0].all_gather(b"", watch)

    def test_what_the_agent_raises_is_raised_in_rank_0(self, group):
        group.agents.all_gather = lambda payload, watch: 1 / 0
        group.leaders[0].begin(1)
        with pytest.raises(AgentFailed, match=r"(?s)Traceback.*ZeroDivisionError"):
            group.leaders[0].all_gather(b"", nothing)

    def test_without_room_for_an_array_the_old_one_serves(self, group, monkeypatch):
        def refuse(nbytes):
            raise SharedMemoryFull(f"needed {nbytes}")

        group.outcomes(reduce, "sum", "float32", [100])
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "create", refuse)
            outcomes = group.outcomes(reduce_or_fail, 5000)
            others = {type(outcome) for outcome in outcomes[1:]}
            assert isinstance(outcomes[0], SharedMemoryFull)
            assert others <= {Aborted}
            self.results(group, reduce, "sum", "float32", [100])
        self.results(group, reduce, "sum", "float32", [5000])


def reduce_or_fail(leaders, watch, size):
    try:
        return reduce(leaders, watch, "sum", "float32", [size])
    except BaseException:
        leaders.fail()  # as ranks do
        raise


@pytest.fixture
def silent():
    """Leaders whose agent the test plays."""
    ours, theirs = socket.socketpair()
    leaders = AgentLeaders(ours, 1)
    leaders.begin(1)
    with theirs:
        yield leaders, theirs
    leaders.close()


def interrupt(*_):
    raise KeyboardInterrupt


def test_the_answer_to_what_was_given_up_is_not_taken_for_the_next(silent):
    leaders, end = silent
    with pytest.raises(KeyboardInterrupt):
        leaders.all_gather(b"", interrupt)
    for answer in (Answer(1, [b"old"]), Answer(2, [b"new"])):
        send(end, encode(answer))
    leaders.begin(2)
    assert leaders.all_gather(b"", nothing) == [b"new"]


@pytest.mark.parametrize("name", ["send", "encode"])
def test_after_a_part_of_a_message_nothing_is_said(silent, monkeypatch, name):
    leaders, end = silent
    with monkeypatch.context() as patch:
        patch.setattr(agent_leaders, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            leaders.all_gather(b"", nothing)
    send(end, encode(Answer(2, [b"new"])))
    if name == "send":
        with pytest.raises(Disconnected):
            leaders.all_gather(b"", nothing)
    else:  # none of it was sent
        assert leaders.all_gather(b"", nothing) == [b"new"]


def test_the_agent_leaves_a_meeting_as_soon_as_rank_0_does():
    group = AgentGroup(3)
    first, second, _ = group.leaders  # the third does not come, so nothing else ends the meeting
    for leaders in (first, second):
        leaders.begin(1)
    with pytest.raises(KeyboardInterrupt):
        first.all_gather(b"", interrupt)
    with pytest.raises(Aborted):
        second.all_gather(b"", nothing)
    group.close()
