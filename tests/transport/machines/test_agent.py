"""An agent that is a thread, as other machines are: the suite of all, and the end of agent and rank 0."""

import socket
import threading

import numpy as np
import pytest

from support.machines.leaders import ThreadGroup
from support.machines.suite import LeadersSuite, agree, reduce
from support.slow import slow
from support.transport.parts import nothing, on_threads
from synk.transport.commands.frames import encode, send
from synk.transport.commands.interfaces import Aborted, Disconnected
from synk.transport.machines import agent_reduce
from synk.transport.machines.agent import Agent
from synk.transport.machines.agent_messages import Reduced
from synk.transport.machines.agent_reduce import AgentFailed, AgentReduce
from synk.transport.machines.all_reduce import MachineAllReduce
from synk.transport.machines.linked_leaders import LinkedLeaders
from synk.transport.memory.shm import Segment
from synk.values.errors import SharedMemoryFull


class AgentGroup(ThreadGroup):
    """Machines that are threads; the first has an agent in another one."""

    def __init__(self, n_machines):
        super().__init__(n_machines)
        self.ends = socket.socketpair()
        links = self.leaders[0].links
        self.reduction, self.end = MachineAllReduce(links), None
        self.leaders[0] = LinkedLeaders(links, AgentReduce(self.ends[0]))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        try:
            Agent(self.reduction, self.ends[1]).run()
        except BaseException as end:
            self.end = end

    def close(self):
        """End rank 0, and with it the agent."""
        self.leaders[0].close()
        self._thread.join(10)
        assert not self._thread.is_alive(), "the agent outlives rank 0"
        self.ends[1].close()


@pytest.fixture(params=[slow(1), slow(2), 3], ids="{}-machines".format)
def group(request):
    group = AgentGroup(request.param)
    yield group
    group.close()


@pytest.mark.slow
class TestAgentOnThreads(LeadersSuite):
    """The agent of an MPI job passes the same suite."""


class TestTheEndOfAnAgent:
    results = staticmethod(LeadersSuite.results)

    def test_the_agent_ends_with_rank_0(self, group):
        group.outcomes(agree)
        group.close()
        assert isinstance(group.end, Disconnected)

    def test_rank_0_notices_the_end_of_its_agent(self, group, monkeypatch):
        monkeypatch.setattr(agent_reduce, "END_SECONDS", 0.1)
        group.outcomes(agree)
        group.ends[1].shutdown(socket.SHUT_RDWR)
        group.leaders[0].begin(2)
        group.leaders[0].fail()  # never raises: there is an error to be raised already
        with pytest.raises(Disconnected):
            group.leaders[0].all_reduce(np.ones(3), "sum", nothing)

    def test_what_ends_with_the_agent_is_told_where_it_is_found_a_moment_later(self, group):
        found = iter([None, None, LookupError("h2 is lost")])

        def watch():
            if lost := next(found):
                raise lost

        group.ends[1].shutdown(socket.SHUT_RDWR)
        group.leaders[0].begin(1)
        with pytest.raises(LookupError, match="h2 is lost"):
            group.leaders[0].all_reduce(np.ones(3), "sum", watch)

    def test_what_the_agent_raises_is_raised_in_rank_0(self, group):
        group.reduction.run = lambda *arguments: 1 / 0
        group.leaders[0].begin(1)
        with pytest.raises(AgentFailed, match=r"(?s)Traceback.*ZeroDivisionError"):
            group.leaders[0].all_reduce(np.ones(3), "sum", nothing)

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
    """The reductions of rank 0 whose agent the test plays."""
    ours, theirs = socket.socketpair()
    reduction = AgentReduce(ours)
    with theirs:
        yield reduction, theirs
    reduction.close()


def interrupt(*_):
    raise KeyboardInterrupt


def test_the_answer_to_what_was_given_up_is_not_taken_for_the_next(silent):
    reduction, end = silent
    with pytest.raises(KeyboardInterrupt):
        reduction.run(np.ones(3), "sum", 1, interrupt)
    for answer in (Reduced(1, "old"), Reduced(2)):
        send(end, encode(answer))
    reduction.run(np.ones(3), "sum", 2, nothing)


@pytest.mark.parametrize("name", ["send", "encode"])
def test_after_a_part_of_a_message_nothing_is_said(silent, monkeypatch, name):
    reduction, end = silent

    def run():
        reduction.run(np.ones(3), "sum", 2, nothing)

    send(end, encode(Reduced(2)))
    run()
    with monkeypatch.context() as patch:
        patch.setattr(agent_reduce, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run()
    send(end, encode(Reduced(2)))
    if name == "send":
        with pytest.raises(Disconnected):
            run()
    else:  # none of it was sent
        run()


def test_the_agent_leaves_a_reduction_as_soon_as_rank_0_does():
    group = AgentGroup(3)
    first, second, _ = group.leaders  # the third does not come, so nothing else ends the reduction
    on_threads(3, lambda machine: begin_and_agree(group.leaders[machine]))
    with pytest.raises(KeyboardInterrupt):
        first.all_reduce(np.ones(3), "sum", interrupt)
    first.fail()  # as ranks do
    with pytest.raises(Aborted):
        second.all_reduce(np.ones(3), "sum", nothing)
    for leaders in group.leaders:
        leaders.begin(2)
    arrays = [np.ones(3) for _ in range(3)]
    on_threads(3, lambda machine: group.leaders[machine].all_reduce(arrays[machine], "sum", nothing))
    assert [set(array) for array in arrays] == [{3.0}] * 3
    group.close()


def begin_and_agree(leaders):
    leaders.begin(1)
    agree(leaders, nothing)
