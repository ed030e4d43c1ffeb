"""Processes that train together and wait for orders between blocks of steps.

    Crew.run(steps) -> a pipe to each leader -> that many steps -> Block(seconds, losses)

synk's crew has one leader, which forks the other ranks; torch's ranks are leaders each.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from multiprocessing import get_context
from typing import Any, NamedTuple

import mlp
import numpy as np

PATIENCE = 120  # seconds for a block


class Block(NamedTuple):
    """The time and the losses of a block of steps."""

    seconds: float
    losses: list[float]  # mean over the batch, of each step


class Crew:
    """A context around processes that wait for `run`.

    Parameters
    ----------
    targets : sequence of (callable, arguments)
        What each leader runs: ``target(pipe, *arguments)``.
    """

    def __init__(self, *targets: tuple[Callable[..., None], tuple]):
        spawn = get_context("spawn")  # torch and PyTensor start threads: nothing of this process is inherited
        pipes = [spawn.Pipe() for _ in targets]
        self._pipes = [ours for ours, _ in pipes]
        self._leaders = [
            spawn.Process(target=target, args=(theirs, *arguments))
            for (target, arguments), (_, theirs) in zip(targets, pipes, strict=True)
        ]
        for leader in self._leaders:
            leader.start()
        for _, theirs in pipes:
            theirs.close()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # the end of its pipe is a leader's word to leave
        for leader in self._leaders:
            leader.join(PATIENCE)
            if leader.is_alive():
                leader.kill()

    def run(self, steps: int) -> Block:
        """Let the crew make some steps.

        Returns
        -------
        Block
            The time of the slowest leader, and the means of their losses.
        """
        for pipe in self._pipes:
            pipe.send(steps)
        blocks = [self._receive(pipe) for pipe in self._pipes]
        losses = np.mean([block.losses for block in blocks], axis=0)
        return Block(max(block.seconds for block in blocks), losses.tolist())

    def _receive(self, pipe: Any) -> Block:
        if not pipe.poll(PATIENCE):
            raise SystemExit(f"{type(self).__name__} did not answer in {PATIENCE} s")
        try:
            return pipe.recv()
        except EOFError:
            raise SystemExit(f"{type(self).__name__} broke down; see above") from None


class Synk(Crew):
    """Ranks of synk."""

    def __init__(self, n_ranks: int, rows: int, batch: int):
        super().__init__((train_in_synk, (n_ranks, rows, batch)))


class Ddp(Crew):
    """Ranks of torch."""

    def __init__(self, n_ranks: int, rows: int, batch: int):
        port = free_port()
        super().__init__(*((train_in_torch, (rank, n_ranks, port, rows, batch)) for rank in range(n_ranks)))


def free_port() -> int:
    """Return a port of this machine at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# --- in the leaders ----------------------------------------------------------------------------------


def serve(pipe: Any, step: Callable[[np.ndarray], float], batches: Iterator[np.ndarray]) -> None:
    """Make as many steps as the pipe says, again and again, until it ends."""
    while True:
        try:
            steps = pipe.recv()
        except EOFError:
            return
        start = time.perf_counter()
        losses = [float(step(rows)) for rows in islice(batches, steps)]
        pipe.send(Block(time.perf_counter() - start, losses))


def orders(rows: int, batch: int) -> Iterator[np.ndarray]:
    """Yield the rows of every batch, epoch after epoch; the same for both crews."""
    for epoch in count():
        order = np.random.default_rng(epoch).permutation(rows)
        yield from np.split(order, range(batch, rows, batch))


def train_in_synk(pipe: Any, n_ranks: int, rows: int, batch: int) -> None:
    """Fork the ranks, and let this one lead."""
    import synk
    from synk.extensions import updates
    from synk.extensions.train import make_train_function

    synk.fork(n_ranks, threads=1)
    net = mlp.network(mlp.first_layers())
    options = {"learning_rate": mlp.RATE, "momentum": mlp.MOMENTUM}
    train = make_train_function(net.loss, net.params, [net.x, net.y], updates.nesterov_momentum, **options)
    x, y = (synk.data(values) for values in mlp.images(rows))
    serve(pipe, lambda rows: train(x, y, batch=rows), orders(rows, batch))
    synk.close()


def train_in_torch(pipe: Any, rank: int, n_ranks: int, port: int, rows: int, batch: int) -> None:
    """Join the group, and train on this rank's part of every batch."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=n_ranks)
    net = torch.nn.parallel.DistributedDataParallel(mlp.module(torch, mlp.first_layers()))
    update = mlp.optimizer(torch, net)
    x, y = map(torch.tensor, mlp.images(rows))

    def step(rows):
        mine = torch.tensor(np.array_split(rows, n_ranks)[rank])
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[mine]), y[mine])
        loss.backward()
        update.step()
        return loss.item()

    serve(pipe, step, orders(rows, batch))
    torch.distributed.destroy_process_group()
