"""One process of a rival, a script: it waits for a request, executes it, and answers with the time.

    python rival_rank.py {memcpy,gloo,mpi} SOCKET [RANK N_RANKS STORE]
    mpirun ... python rival_rank.py {group-gloo,group-mpi} SOCKET [ADDRESS]

    Crew -> (verb, *arguments) -> Member.verb -> answer -> Crew

On several machines only rank 0 is connected; it passes requests on to the others through the rival's library.

It sleeps between requests, so that rivals leave the cores to each other. The script does not import synk,
which would change settings of the process.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Client
from typing import Any

import numpy as np

NAP_SECONDS = 1e-3  # pause between checks for a request, since MPI's own waiting keeps a core busy


class Member:
    """A rank of a library, whose name and version are ``about``; requests name the method to call."""

    def __init__(self, rank: int, about: str):
        self.rank = rank
        self.about = about
        self._arrays: dict[int, np.ndarray] = {}

    def sum_of(self, array: np.ndarray) -> None:
        """Replace the array by its sum over the ranks."""
        raise NotImplementedError

    def ping(self) -> None:
        """Do nothing: the caller measures the round trip of the request."""

    def check(self, n_items: int) -> tuple[float, float]:
        """Return the first and last item of an all-reduce, in which rank r contributes r + 1."""
        array = np.full(n_items, self.rank + 1, "float32")
        self.sum_of(array)
        return float(array[0]), float(array[-1])

    def all_reduce(self, n_items: int, times: int) -> float:
        """Return the mean seconds of an all-reduce of ``n_items`` of float32."""
        array = self._array(n_items)
        return repeat(lambda: self.sum_of(array), times)

    def copy(self, n_items: int, times: int) -> float:
        """Return the mean seconds of copying ``n_items`` of float32."""
        source, target = self._array(n_items), self._array(-n_items)
        return repeat(lambda: np.copyto(target, source), times)

    def _array(self, key: int) -> np.ndarray:
        if key not in self._arrays:
            # Zeros, whose sums stay finite. They are written, because pages that were never written share
            # memory.
            self._arrays[key] = np.full(abs(key), 0, "float32")
        return self._arrays[key]


class Gloo(Member):
    """A rank of torch.distributed."""

    def __init__(self, rank: str, n_ranks: str, store: Any):
        import torch

        torch.set_num_threads(1)
        super().__init__(int(rank), f"torch {torch.__version__}")
        self._torch = torch
        found = {"init_method": f"file://{store}"} if isinstance(store, str) else {"store": store}
        torch.distributed.init_process_group("gloo", rank=self.rank, world_size=int(n_ranks), **found)

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


class GlooGroup(Gloo):
    """A rank of torch.distributed that gets requests from rank 0, and returns its answers to it, by torch.

    Of several machines only that of rank 0 is connected to the benchmark.
    """

    def __init__(self, address: str):
        import torch

        rank, n_ranks = (os.environ[f"OMPI_COMM_WORLD_{name}"] for name in ("RANK", "SIZE"))
        host, port = address.split(":")
        self._store = torch.distributed.TCPStore(
            host, int(port), int(n_ranks), rank == "0", timedelta(days=1)
        )
        self._n_requests = 0
        super().__init__(rank, n_ranks, self._store)

    def hand_on(self, request: Any) -> Any:
        """Return rank 0's request on every rank; the others sleep until it comes."""
        self._n_requests += 1
        key = f"request {self._n_requests}"
        if self.rank == 0:
            self._store.set(key, pickle.dumps(request))
        return pickle.loads(self._store.get(key))

    def collect(self, answer: Any) -> Any:
        """Return the answers of all ranks on rank 0."""
        answers = [None] * self._torch.distributed.get_world_size() if self.rank == 0 else None
        self._torch.distributed.gather_object(answer, answers)
        return answers


class MpiGroup(Mpi):
    """A rank of MPI that gets requests from rank 0, and returns its answers to it, through MPI.

    Of several machines only that of rank 0 is connected to the benchmark.
    """

    def hand_on(self, request: Any) -> Any:
        """Return rank 0's request on every rank; the others nap until it comes."""
        world = self._mpi.COMM_WORLD
        if self.rank == 0:
            for other in range(1, world.size):
                world.send(request, other)
            return request
        while not world.Iprobe(source=0):
            time.sleep(NAP_SECONDS)
        return world.recv(source=0)

    def collect(self, answer: Any) -> Any:
        """Return the answers of all ranks on rank 0."""
        return self._mpi.COMM_WORLD.gather(answer)


def repeat(action: Callable[[], Any], times: int) -> float:
    """Return the mean seconds of an action; it is run a few times before, to fill caches."""
    for _ in range(1 + times // 10):
        action()
    start = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - start) / times


MEMBERS: dict[str, Callable[..., Member]] = {"memcpy": Memcpy, "gloo": Gloo, "mpi": Mpi}
GROUPS: dict[str, Callable[..., Any]] = {"group-gloo": GlooGroup, "group-mpi": MpiGroup}


def main(kind: str, address: str, *arguments: str) -> None:
    """Serve requests until the other end of the connection closes."""
    if kind in GROUPS:
        serve_group(GROUPS[kind](*arguments), address)
        return
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


def serve_group(member: Any, address: str) -> None:
    """Execute requests on all ranks of a group, of which only rank 0 is connected."""
    connection = Client(address, "AF_UNIX") if member.rank == 0 else None
    if connection:
        connection.send((0, member.about))
    while (request := member.hand_on(connection and received(connection))) is not None:
        verb, *values = request
        answers = member.collect(getattr(member, verb)(*values))
        if connection:
            connection.send(answers)


def received(connection: Any) -> Any:
    """Return the next request, or None once the connection is closed."""
    try:
        return connection.recv()
    except EOFError:
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])
