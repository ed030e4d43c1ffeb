"""Steps of commands that bring a leader and its workers into trouble."""

import os
import time
from dataclasses import dataclass

import numpy as np

from synk.run.launch.surroundings import Surroundings
from synk.values.messages import ArrayRef, Step


class Unsendable:
    """A result that no process can pickle."""

    def __reduce__(self):
        raise RuntimeError("not to be sent")


class Unreadable:
    """A result that no process can unpickle."""

    def __reduce__(self):
        return int, ("not to be read",)


@dataclass(slots=True)
class Give(Step):
    """Return its rank; but an instance of a class on one rank. It is said to read arrays."""

    rank: int = -1
    kind: type = object
    arrays: tuple = ()

    def run(self, rank):
        return self.kind() if rank.rank == self.rank else rank.rank


@dataclass(slots=True)
class Tell(Step):
    """Return facts about the rank's environment."""

    def run(self, rank):
        return Surroundings.present(of_another_machine=True)


@dataclass(slots=True)
class ReadArray(Step):
    """Return the values of an array."""

    ref: ArrayRef

    def run(self, rank):
        return rank.segments.array(self.ref).copy()


@dataclass(slots=True)
class Release(Step):
    """Let the leader make a segment for its machine and release it: workers hear of that later."""

    def run(self, rank):
        if rank.peers.place == 0:
            rank.segments.release(rank.segments.allocate(64))
        return os.getpid()


@dataclass(slots=True)
class Hang(Step):
    """Hang for a while on one rank."""

    rank: int
    seconds: float

    def run(self, rank):
        if rank.rank == self.rank:
            time.sleep(self.seconds)


class Meet(Step):
    """Exchange arrays with all ranks."""

    def run(self, rank):
        return rank.communicator.all_gather(np.zeros(1))
