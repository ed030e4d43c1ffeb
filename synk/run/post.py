"""What a worker that the fork server made is sent, since it inherits nothing of the master as it is now.

    launch -> post_birth -> Letter, descriptors, Attach ..., Share ..., Build ... -> arrive -> live

The environment, the folder and the path of imports are those of the master now; modules, and what stands in
``__main__``, are as they were when the server was forked, and what has been defined since is not there.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from socket import socket
from typing import Any, NamedTuple, NoReturn

from synk.device import Device
from synk.memory.segments import SegmentTable
from synk.processes.printout import Printout
from synk.processes.stacks import Stacks
from synk.processes.watch import die_with
from synk.rank.connection import Connection
from synk.run.birth import Birth, Family, live
from synk.run.crew import Crew, Worker, make_log
from synk.run.seed import Seed
from synk.transport.commons import Commons
from synk.transport.frames import Disconnected, Receiver, encode, send
from synk.values import messages

N_STANDARD = 3  # descriptors that every process has
SECONDS = 60.0  # for a worker to take the next part of what it is sent


class Letter(NamedTuple):
    """The first that a worker is sent; then come descriptors, and what the numbers announce."""

    rank: int
    n_ranks: int
    make_device: Callable[[int], Device]
    connection: Connection
    environ: Mapping[str, str]
    folder: str | None  # None where it is gone
    path: list[str]
    n_segments: int
    n_messages: int


# --- in the master -----------------------------------------------------------------------------------


def post_birth(
    worker: Worker,
    rank: int,
    crew: Crew,
    make_device: Callable[[int], Device],
    seed: Seed,
    connection: Connection,
) -> None:
    """Send a worker what it starts from.

    One that dies meanwhile is found dead by the first command.

    Raises
    ------
    TimeoutError
        If it lives but does not read.
    """
    letter = Letter(
        rank,
        crew.n_ranks,
        make_device,
        connection,
        dict(os.environ),
        _folder(),
        list(sys.path),
        len(seed.mapped),
        len(seed.shares) + len(seed.storage) + len(seed.functions),
    )
    of_worker = worker.log.fileno(), crew.printout.fileno(), worker.stacks.fileno()
    descriptors = [*range(N_STANDARD), *of_worker, *crew.commons.descriptors()]
    worker.end.settimeout(SECONDS)
    with suppress(Disconnected):
        _send(worker.end, letter)
        for descriptor in descriptors:
            _send(worker.end, None, descriptor)
        for attach, descriptor in seed.attachments():
            _send(worker.end, attach, descriptor)
        for message in seed.messages(rank):
            _send(worker.end, message)


def _send(end: socket, message: Any, descriptor: int | None = None) -> None:
    send(end, encode(message)._replace(descriptor=descriptor), _give_up)


def _give_up() -> None:
    raise TimeoutError(f"a new worker did not take what it starts from within {SECONDS:g} s")


def _folder() -> str | None:
    with suppress(OSError):
        return os.getcwd()
    return None


# --- in the worker -----------------------------------------------------------------------------------


def arrive(end: socket, parent: int) -> NoReturn:
    """Be a worker of what comes by a socket, until the end."""
    try:
        die_with(parent)
        receiver = Receiver(end)
        letter, _ = receiver.receive()
        if isinstance(letter, Letter):  # else it says that no worker is needed any more
            birth = _take(letter, receiver, end)
            live(birth, Family(parent, by_main_thread=True))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _take(letter: Letter, receiver: Receiver, end: socket) -> Birth:
    for standard in range(N_STANDARD):
        given = _descriptor(receiver)
        os.dup2(given, standard)
        os.close(given)
    log, printout, stacks, *shared = [_descriptor(receiver) for _ in range(3 + 2 + letter.n_ranks)]
    commons = Commons(letter.n_ranks, shared)
    _move(letter)
    return Birth(
        letter.rank,
        commons,
        end,
        make_log(letter.rank, commons.control, log),
        Printout(printout),
        Stacks(stacks),
        letter.make_device,
        PostedSeed(receiver, letter.n_segments, letter.n_messages),
        letter.connection,
    )


def _descriptor(receiver: Receiver) -> int:
    _, descriptor = receiver.receive()
    if descriptor is None:
        raise OSError("a new worker had no descriptor left for what it shares with the others; see ulimit -n")
    return descriptor


def _move(letter: Letter) -> None:
    """Be where the master is now."""
    for name in {*os.environ} - {*letter.environ}:
        del os.environ[name]
    os.environ.update(letter.environ)
    if letter.folder is not None:
        with suppress(OSError):
            os.chdir(letter.folder)
    sys.path[:] = letter.path
    importlib.invalidate_caches()  # modules may have come that were not there before


@dataclass(frozen=True)
class PostedSeed:
    """A `Seed` as it comes from the master, part by part."""

    receiver: Receiver
    n_segments: int
    n_messages: int

    def segments(self) -> SegmentTable:
        """Return a worker's table of segments."""
        table = SegmentTable()
        for _ in range(self.n_segments):
            message, descriptor = self.receiver.receive()
            assert isinstance(message, messages.Attach)
            table.attach(message, descriptor)
        return table

    def messages(self, rank: int) -> Iterator[Any]:
        """Yield variables with their values, then functions."""
        for _ in range(self.n_messages):
            yield self.receiver.receive()[0]
