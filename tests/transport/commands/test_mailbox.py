"""Commands and replies through shared memory, with ranks on threads of one process."""

import contextlib
import threading

import numpy as np
import pytest

from support.transport.parts import Channels
from synk.run.collectives.gather import AllGatherStep
from synk.run.collectives.read import ShapesStep
from synk.transport.commands import sync
from synk.transport.commands.mailbox import AREA
from synk.transport.commands.sync import Doorbells
from synk.values import messages

N_RANKS = 3
DEADLINE = 20.0


class Life:
    """Stands for a worker's process, which does not end."""

    def __init__(self, descriptor):
        self._descriptor = descriptor

    def fileno(self):
        return self._descriptor


class Run(Channels):
    """The two sides of all mailboxes and channels of a run."""

    def __init__(self, spins):
        self.lives = Doorbells(N_RANKS)
        lives = [Life(self.lives.fileno(rank)) for rank in range(1, N_RANKS)]
        super().__init__(lives, self.die, spins=spins)
        self.control, self.mailboxes = self.commons.control, self.commons.mailboxes

    @staticmethod
    def die(rank):
        raise RuntimeError(f"rank {rank} died")

    def close(self):
        super().close()
        self.lives.close()


@pytest.fixture(params=[False, True], ids=["sleeping", "spinning"])
def run(request):
    with contextlib.closing(Run(request.param)) as run:
        yield run


def serve(channel, answers, count=1):
    """Be a worker for ``count`` commands: note every message, answer each command by ``answers(command)``."""
    seen = []

    def work():
        while count > sum(isinstance(message, messages.Command) for message in seen):
            message, _ = channel.receive()
            seen.append(message)
            if isinstance(message, messages.Command):
                channel.reply(answers(message))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, seen


def served(run, commands, answers, before=()):
    """Post ``before`` and run commands; return what the master got for each, and what each worker saw."""
    served = [serve(channel, answers, len(commands)) for channel in run.workers]
    replies = []
    for message in before:
        run.master.post(message)
    for command in commands:
        run.master.command(command)
        replies.append(run.master.collect(DEADLINE))
    for thread, _ in served:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    return replies, [seen for _, seen in served]


def reply(command, *results):
    return messages.Reply(results, None)


def test_commands_and_replies_arrive(run):
    commands = [messages.Command(number, (messages.Compile((number % 2,)), "more")) for number in range(1, 8)]
    replies, seen = served(run, commands, lambda command: reply(command, command.number))
    assert seen == [commands] * (N_RANKS - 1)
    assert replies == [[reply(command, command.number)] * (N_RANKS - 1) for command in commands]


def test_commands_that_are_equal_as_tuples_are_told_apart(run):
    steps = [ShapesStep((1,)), AllGatherStep((1,)), ShapesStep((1,)), ShapesStep((1,))]
    commands = [messages.Command(number, (step,)) for number, step in enumerate(steps, start=1)]
    _, seen = served(run, commands, reply)
    for of_one in seen:
        assert [type(command.steps[0]) for command in of_one] == [type(step) for step in steps]


def test_small_messages_use_no_socket(run, monkeypatch):
    sent = []
    monkeypatch.setattr("synk.transport.commands.channel.send", lambda *arguments: sent.append(arguments))
    served(run, [messages.Command(1, ("step",))], lambda command: reply(command, np.ones(3)))
    assert sent == []


@pytest.mark.parametrize("nbytes", [0, 8, AREA - 8, AREA, 40 * AREA])
def test_messages_of_any_length_arrive(run, nbytes):
    array = np.arange(nbytes // 8, dtype="int64")
    command = messages.Command(5, (b"x" * nbytes,))
    [replies], seen = served(run, [command], lambda command: reply(command, array))
    assert seen == [[command]] * (N_RANKS - 1)
    for answer in replies:
        np.testing.assert_array_equal(answer.results[0], array)


def test_a_short_command_after_a_long_one(run):
    commands = [
        messages.Command(1, (b"x" * 2 * AREA,)),
        messages.Command(2, ("short",)),
        messages.Command(3, (b"y" * AREA,)),
    ]
    replies, seen = served(run, commands, lambda command: reply(command, len(command.steps[0])))
    assert seen == [commands] * (N_RANKS - 1)
    assert [[answer.results[0] for answer in of_one] for of_one in replies] == [
        [2 * AREA] * 2,
        [5] * 2,
        [AREA] * 2,
    ]


def test_what_was_posted_before_a_command_comes_before_it(run):
    before = [messages.Forget(number) for number in range(5)]
    command = messages.Command(1, ("step",))
    _, seen = served(run, [command], reply, before)
    assert seen == [[*before, command]] * (N_RANKS - 1)


def test_sleepers_are_woken(run):
    asleep = [serve(channel, reply) for channel in run.workers]
    for rank in range(1, N_RANKS):
        until(lambda rank=rank: run.control.get(rank, sync.SLEEPING))
    run.master.command(messages.Command(1, ("step",)))
    assert len(run.master.collect(DEADLINE)) == N_RANKS - 1
    for thread, _ in asleep:
        thread.join(DEADLINE)


def test_a_reply_of_the_command_before_does_not_count(run):
    served(run, [messages.Command(1, ("step",))], reply)
    run.master.command(messages.Command(2, ("step",)))
    with pytest.raises(TimeoutError):
        run.master.collect(0.3)
    workers = [serve(channel, lambda command: reply(command, 2)) for channel in run.workers]
    assert run.master.collect(DEADLINE) == [messages.Reply((2,), None)] * (N_RANKS - 1)
    for thread, _ in workers:
        thread.join(DEADLINE)


def test_a_worker_that_dies_after_its_answer_is_found(run):
    workers = [serve(channel, reply) for channel in run.workers]
    run.master.command(messages.Command(1, ("step",)))
    for thread, _ in workers:
        thread.join(DEADLINE)
    run.lives.ring(1)
    with pytest.raises(RuntimeError, match="rank 1 died"):
        run.master.collect(DEADLINE)


def test_a_death_ends_the_wait(run):
    run.master.command(messages.Command(1, ("step",)))
    run.lives.ring(2)
    with pytest.raises(RuntimeError, match="rank 2 died"):
        run.master.collect(DEADLINE)


def test_a_reply_that_does_not_pickle_leaves_the_box_alone(run):
    def answers(command):
        return reply(command, threading.Lock())

    channel = run.workers[0]
    run.master.command(messages.Command(1, ("step",)))
    command, _ = channel.receive()
    with pytest.raises(TypeError):
        channel.reply(answers(command))
    channel.reply(reply(command, "fine"))
    run.workers[1].reply(reply(run.workers[1].receive()[0], "fine"))
    assert [answer.results for answer in run.master.collect(DEADLINE)] == [("fine",)] * 2


def until(true, deadline=DEADLINE):
    """Wait until something is true."""
    pause = threading.Event()
    for _ in range(int(deadline / 0.01)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("never true")
