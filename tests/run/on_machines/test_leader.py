"""A leader and its worker in processes of their own; the test is their master."""

import os
import pickle
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from support.machines.leader_steps import Give, Hang, Meet, ReadArray, Release, Tell, Unreadable, Unsendable
from support.processes import scripts
from support.processes.warm import Warm
from synk.run.device import CpuDevices
from synk.run.launch.recovery import RunState
from synk.run.launch.surroundings import Surroundings
from synk.run.on_machines.leader import LeaderSpec
from synk.run.rank.connection import Connection
from synk.transport.commands.frames import encode
from synk.transport.commands.leader_link import LeaderLink
from synk.values import messages
from synk.values.errors import SharedMemoryFull
from synk.values.machine import machines

FLOAT_ERRORS = {"divide": "raise", "over": "warn", "under": "ignore", "invalid": "raise"}
SURROUNDINGS = Surroundings(
    "/", ["/from/here"], FLOAT_ERRORS, {"floatX": "float32"}, 2345, ["train.py"], None
)
MACHINE = machines(["one", "two"], [1, 2])[1]
PATIENCE = 30.0  # seconds
TESTS = Path(__file__).parents[2]

LEADER = """
import socket, sys
sys.path[:0] = {paths!r}
from support.machines.leaders import thread_leaders
from synk.run.on_machines.leader import lead
from synk.transport.commands.leader_link import LeaderEnd
end = socket.socket(socket.AF_UNIX)
end.connect({address!r})
lead(LeaderEnd(end), lambda: thread_leaders(2)[1])
"""


class Master:
    """The master of one other machine, whose ranks are 1 and 2."""

    def __init__(self, start):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("")  # any name that is free
            listening.listen()
            paths = [str(TESTS.parent), str(TESTS)]
            self.process = start(LEADER.format(paths=paths, address=listening.getsockname()))
            ours, _ = listening.accept()
        self.link = LeaderLink(MACHINE, ours)
        spec = LeaderSpec(MACHINE, CpuDevices(1, 1), Connection(), (), RunState(), SURROUNDINGS)
        self.link.send(encode(spec))
        self.link.hear(time.monotonic() + PATIENCE)
        self.link.greet(PATIENCE)
        self._number = 0

    def replies(self, *steps, fills=()):
        """Run a command; return the machine's replies, or None if it has lost a worker."""
        self.start(*steps, fills=fills)
        self.link.look(PATIENCE)
        return self.link.replies

    def start(self, *steps, fills=()):
        """Begin a command."""
        self._number += 1
        self.link.replies = None
        self.link.send(encode(messages.Relay(fills, self._number, pickle.dumps(steps), 0, 0)))

    def inquiry_answer(self, seconds=PATIENCE):
        """Return what the leader answers to an inquiry, or None."""
        self.link.inquire()
        self.link.hear(time.monotonic() + seconds)
        return self.link.inquiry_answer

    def close(self):
        self.link.dismiss()
        self.link.close()
        with self.process:
            assert self.process.wait(PATIENCE) == 0, self.process.stderr.read()


@pytest.fixture(scope="module")
def master():
    """Return the master of a machine that tests leave as it was."""
    with Warm() as warm:  # one for itself: scripts of the other run one after the other
        master = Master(warm.start)
        yield master
        master.close()


@pytest.fixture
def own_master(warm_interpreter):
    """Return the master of a machine of which one test may lose a worker, or change what it has."""
    master = Master(scripts.start)
    yield master
    master.close()


def results(replies):
    assert [reply.failure for reply in replies] == [None, None]
    return [reply.results[0] for reply in replies]


def test_replies_come_from_all_ranks_of_the_machine(master):
    assert results(master.replies(Give())) == [1, 2]
    assert len(set(results(master.replies(Release())))) == 2
    assert results(master.replies(Release())) == list(master.link.pids)


def test_ranks_work_where_the_master_does_with_its_settings(master):
    for found in results(master.replies(Tell())):
        assert (found.folder, found.float_errors, found.path[0]) == ("/", FLOAT_ERRORS, "/from/here")
        assert (found.settings["floatX"], found.recursion_limit, found.argv) == (
            "float32",
            2345,
            ["train.py"],
        )


@pytest.mark.parametrize("rank", [1, 2])
def test_a_result_that_does_not_pickle_is_its_rank_s_failure(master, rank):
    replies = master.replies(Give(rank, Unsendable))
    failures = {reply.failure.rank: reply.failure for reply in replies if reply.failure}
    assert list(failures) == [rank]
    assert "not to be sent" in failures[rank].summary
    assert failures[rank].host == "two"
    assert results(master.replies(Give())) == [1, 2]


def test_a_worker_s_result_that_does_not_unpickle_is_told(master):
    replies = master.replies(Give(2, Unreadable))
    assert list(replies[0].results) == [1]
    assert "not to be read" in replies[1].failure.summary
    assert replies[1].failure.host == "two"
    assert results(master.replies(Give())) == [1, 2]


@pytest.mark.parametrize("what", ["a step", "a message"])
def test_what_cannot_be_unpickled_there_is_told_and_the_machine_lives(master, what):
    if what == "a message":
        master.link.send(encode(Unreadable()))
    replies = master.replies(Unreadable() if what == "a step" else Give())
    assert "not to be read" in replies[0].failure.summary
    assert replies[0].failure.host == "two"
    assert results(master.replies(Give())) == [1, 2]


def test_a_segment_that_cannot_be_made_is_told_with_the_next_reply(own_master):
    own_master.link.send(encode(messages.Attach(1, 1 << 60)))
    failures = [reply.failure for reply in own_master.replies(Give())]
    assert failures[0].kind is SharedMemoryFull
    assert results(own_master.replies(Give())) == [1, 2]
    reads_it = Give(arrays=(messages.ArrayRef(1, "<f8", (3,)),))
    assert own_master.replies(reads_it)[0].failure.kind is SharedMemoryFull  # and no KeyError
    assert results(own_master.replies(Give())) == [1, 2]


def test_what_comes_beside_an_array_without_room_is_written(own_master):
    own_master.link.send(encode(messages.Attach(1, 1 << 60)))
    own_master.link.send(encode(messages.Attach(2, 24)))
    refs = [messages.ArrayRef(number, "<f8", (3,)) for number in (1, 2)]
    values = np.array([1.0, 2, 3])
    fills = tuple([messages.Fill(number, 0, values.view("u1")) for number in (1, 2)])
    assert own_master.replies(Give(arrays=tuple(refs)), fills=fills)[0].failure.kind is SharedMemoryFull
    assert [list(read) for read in results(own_master.replies(ReadArray(refs[1])))] == [[1, 2, 3]] * 2


def test_a_worker_that_dies_is_a_loss_and_its_leader_lives(own_master):
    os.kill(own_master.link.pids[1], signal.SIGKILL)
    assert own_master.replies(Give()) is None
    assert (own_master.link.loss.rank, own_master.link.loss.death.pid) == (2, own_master.link.pids[1])
    assert "SIGKILL on host two" in own_master.link.loss.death.cause
    assert not own_master.link.is_cut


def test_a_worker_that_dies_before_it_hears_of_a_release_is_a_loss_too(own_master):
    own_master.replies(Release())
    os.kill(own_master.link.pids[1], signal.SIGKILL)
    assert own_master.replies(Give()) is None
    assert own_master.link.loss.rank == 2


def test_a_leader_says_which_of_its_workers_it_waits_for_and_where_that_hangs(master):
    master.start(Hang(2, 1.0))
    answer = master.inquiry_answer()
    assert answer.late == (2,)
    assert [(state.rank, state.pid) for state in answer.ranks] == list(
        zip((1, 2), master.link.pids, strict=True)
    )
    assert answer.ranks[1].state == "running on host two"
    assert "leader_steps.py" in answer.ranks[1].stack
    master.link.look(PATIENCE)
    assert len(master.link.replies) == 2
    assert results(master.replies(Give())) == [1, 2]


def test_a_leader_that_waits_for_other_machines_names_none_of_its_own(own_master):
    own_master.start(Meet())
    assert own_master.inquiry_answer().late == ()


@pytest.mark.slow
def test_a_leader_that_hangs_says_nothing_and_its_reply_counts(master):
    master.start(Hang(1, 1.0))
    assert master.inquiry_answer(0.3) is None
    master.link.hear(time.monotonic() + PATIENCE)
    assert len(master.link.replies) == 2
    assert results(master.replies(Give())) == [1, 2]  # the inquiry is forgotten
