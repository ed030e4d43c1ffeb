"""Commands and ranks know what connects them by its interface only: here ranks are threads."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from pytensor import shared

from support.transport.threads import ThreadCommunicator, ThreadWorkers, make_rank
from synk.run.collectives.read import CommitStep
from synk.run.collectives.reduce import AllReduceStep
from synk.run.device import CpuDevices
from synk.run.launch.fork_source import ForkSource
from synk.run.rank.connection import Connection
from synk.run.session import run_processes
from synk.run.session.commands import Commands
from synk.run.session.session import Session
from synk.run.session.turns import Turns
from synk.values import messages
from synk.values.errors import RemoteError, SynkStateError, SynkTimeout, WorkerDied
from synk.values.messages import Step

N_RANKS = 3
held = threading.Event()  # lets a `Hang` go on


@dataclass(slots=True)
class Fail(Step):
    """Raise on one rank; the others meet."""

    rank: int

    def run(self, rank):
        if rank.rank == self.rank:
            raise KeyError(f"rank {rank.rank}")
        rank.communicator.all_gather(np.zeros(1))


@dataclass(slots=True)
class Hang(Step):
    """Keep the others waiting on one rank, until a test is over."""

    rank: int
    meets: bool

    def run(self, rank):
        if rank.rank == self.rank:
            held.wait(20)
        elif self.meets:
            rank.communicator.all_gather(np.zeros(1))


class Run:
    """The commands of a run without processes."""

    def __init__(self, timeout=None):
        self.workers = ThreadWorkers(N_RANKS)
        self.commands = Commands(Turns(timeout))
        self.rank = make_rank(self.workers.peers(self.commands.on_death, self.commands.on_late))
        self.commands.connect(self.workers, self.rank)

    def share(self, identity, value):
        variable = shared(np.asarray(value, "float64"))
        message = messages.Share(identity, type(variable), variable.type, None, variable.get_value())
        self.commands.post(message)
        self.rank.prepare(message)

    def do(self, *steps):
        with self.commands.turn("a test"):
            return self.commands.run(steps)

    def values(self, identity):
        return [rank.variables.value(identity).tolist() for rank in (self.rank, *self.workers.ranks)]


@pytest.fixture
def run():
    held.clear()
    made = []

    def make(timeout=None):
        made.append(Run(timeout))
        return made[0]

    yield make
    held.set()
    for one in made:
        one.workers.dismiss(0)


def test_steps_run_on_every_rank_and_results_come_by_step_then_by_rank(run):
    run = run()
    run.share(1, [1.0, 2.0])
    before, summed, after = run.do(CommitStep((1,)), AllReduceStep((1,), "sum"), CommitStep((1,)))
    assert summed == (None,) * N_RANKS
    assert before[0][0].tolist() == [1.0, 2.0]
    assert after[0][0].tolist() == [3.0, 6.0]
    assert list(after[1:]) == [[None]] * (N_RANKS - 1)  # the same
    assert run.values(1) == [[3.0, 6.0]] * N_RANKS


@pytest.mark.parametrize("rank", range(N_RANKS))
def test_a_failure_is_told_and_the_run_goes_on(run, rank):
    run = run()
    run.share(1, [1.0])
    with pytest.raises(RemoteError, match=f"rank {rank}") as caught:
        run.do(Fail(rank))
    assert [failure.rank for failure in caught.value.failures] == [rank]  # the others were aborted
    run.do(AllReduceStep((1,), "max"))
    assert run.values(1) == [[1.0]] * N_RANKS


def test_trouble_with_a_message_is_told_with_the_next_reply(run):
    run = run()
    run.commands.post(messages.UseStorage(7, (messages.ArrayRef(1, "f8", (2,)),)))  # there is no segment 1
    with pytest.raises(RemoteError, match="KeyError"):
        run.do(AllReduceStep((), "sum"))
    run.do()


@pytest.mark.parametrize("meets", [True, False], ids=["at a meeting", "for a reply"])
def test_a_death_breaks_the_run(run, meets):
    run = run()
    threading.Timer(0.1, run.workers.kill, (2,)).start()
    with pytest.raises(WorkerDied, match="rank 2 .* a test"):
        run.do(Hang(2, meets))
    with pytest.raises(WorkerDied):
        run.do()


@pytest.mark.parametrize("meets", [True, False], ids=["at a meeting", "for a reply"])
def test_a_late_rank_is_given_up_at_the_deadline(run, meets):
    run = run(timeout=0.2)
    with pytest.raises(SynkTimeout, match="rank 1"):
        run.do(Hang(1, meets))
    with pytest.raises(SynkTimeout):
        run.do()


def test_messages_wait_until_the_run_is_at_rest(run):
    run = run()
    run.share(1, [1.0])
    with run.commands.turn("a test"):
        run.commands.release(messages.Unshare(1))
        run.commands.run((AllReduceStep((1,), "sum"),))
    run.do()  # workers have followed the message before they reply
    assert all(1 not in rank.variables._variables for rank in run.workers.ranks)


def test_nothing_is_sent_in_the_middle_of_a_command(run):
    run = run()

    @dataclass(slots=True)
    class Post(Step):
        def run(self, rank):
            run.commands.post(messages.Forget(1))

    step = Post()
    Post.__reduce__ = lambda self: (AllReduceStep, ((), "sum"))  # what the workers get
    with pytest.raises(SynkStateError, match="in the middle of a test"):
        run.do(step)
    run.do()


def test_a_session_knows_what_connects_its_ranks_by_the_same_interface(monkeypatch):
    class OnThreads(Connection):
        def communicator(self, peers, device, grow):
            return ThreadCommunicator(peers)

    monkeypatch.setattr(run_processes, "decide", lambda devices, environ: OnThreads())
    monkeypatch.setattr(run_processes, "launch", lambda *run: ThreadWorkers(N_RANKS))
    run = Session(CpuDevices(N_RANKS, threads=1), Turns(), ForkSource())
    try:
        with run.turn("a test"):
            variable = shared(np.ones(2))
            identity = run.memory.shared.identify(variable)
            _, kept = run.run((AllReduceStep((identity,), "sum"), CommitStep((identity,))))
        assert kept[0][0].tolist() == [3.0, 3.0]
        assert list(kept[1:]) == [[None]] * (N_RANKS - 1)
    finally:
        run.close()
