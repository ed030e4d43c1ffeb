"""One rank of a rival, in a process of its own: it waits for a request, serves it, and answers with the time.

    python rival_rank.py {memcpy,gloo,mpi} SOCKET [RANK N_RANKS STORE]

    Crew -> (verb, *arguments) -> Member.verb -> answer -> Crew

Between requests it sleeps, so that rivals leave the cores to each other. It runs as a script that does not
load synk, which would set up the rival's process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client
from typing import Any

import numpy as np


class Member:
    """A rank of a library, whose name and version are ``about``; its methods are the requests it serves."""

    def __init__(self, rank: int, about: str):
        self.rank = rank
        self.about = about
        self._arrays: dict[int, np.ndarray] = {}

    def sum_of(self, array: np.ndarray) -> None:
        """Replace the array by its sum over the ranks."""
        raise NotImplementedError

    def ping(self) -> None:
        """Do nothing, which takes a round trip."""

    def check(self, n_items: int) -> tuple[float, float]:
        """Return the first and the last item of the sum over ranks of 1, 2, 3, ..."""
        array = np.full(n_items, self.rank + 1, "float32")
        self.sum_of(array)
        return float(array[0]), float(array[-1])

    def all_reduce(self, n_items: int, times: int) -> float:
        """Return the seconds that summing float32 takes."""
        array = self._array(n_items)
        return repeat(lambda: self.sum_of(array), times)

    def copy(self, n_items: int, times: int) -> float:
        """Return the seconds that copying float32 takes."""
        source, target = self._array(n_items), self._array(-n_items)
        return repeat(lambda: np.copyto(target, source), times)

    def _array(self, key: int) -> np.ndarray:
        if key not in self._arrays:
            # Zeros, whose sums stay finite; written, for pages that are only promised are all one in memory.
            self._arrays[key] = np.full(abs(key), 0, "float32")
        return self._arrays[key]


class Gloo(Member):
    """A rank of torch.distributed."""

    def __init__(self, rank: str, n_ranks: str, store: str):
        import torch

        torch.set_num_threads(1)
        super().__init__(int(rank), f"torch {torch.__version__}")
        self._torch = torch
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=self.rank, world_size=int(n_ranks)
        )

    def sum_of(self, array: np.ndarray) -> None:
        self._torch.distributed.all_reduce(self._torch.from_numpy(array))


class Mpi(Member):
    """A rank that mpirun started."""

    def __init__(self) -> None:
        from mpi4py import MPI

        super().__init__(MPI.COMM_WORLD.rank, MPI.Get_library_version().split(",")[0])
        self._mpi = MPI

    def sum_of(self, array: np.ndarray) -> None:
        self._mpi.COMM_WORLD.Allreduce(self._mpi.IN_PLACE, array)


class Memcpy(Member):
    """A rank that only copies."""

    def __init__(self, rank: str):
        super().__init__(int(rank), f"numpy {np.__version__}")


def repeat(action: Callable[[], Any], times: int) -> float:
    """Return the mean seconds of an action, after some that wake everybody up and fill the caches."""
    for _ in range(1 + times // 10):
        action()
    start = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - start) / times


MEMBERS: dict[str, Callable[..., Member]] = {"memcpy": Memcpy, "gloo": Gloo, "mpi": Mpi}


def main(kind: str, address: str, *arguments: str) -> None:
    """Serve requests until the other end of the connection closes."""
    member = MEMBERS[kind](*arguments)
    # Open to the end of the process: errors are printed before it closes.
    connection = Client(address, "AF_UNIX")
    connection.send((member.rank, member.about))
    while True:
        try:
            verb, *values = connection.recv()
        except EOFError:
            return
        connection.send(getattr(member, verb)(*values))


if __name__ == "__main__":
    main(*sys.argv[1:])
