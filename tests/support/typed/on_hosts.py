"""Train on several machines, and go on where one is lost, as a user's script with annotations would."""

import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import assert_type

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.extensions import checkpoint, train, updates
from synk.extensions.batches import batches


class Counter:
    """Counts, from another number on each rank."""

    def __init__(self, rank: int, start: int) -> None:
        self.count = start + rank

    def __call__(self, n: int) -> int:
        self.count += n
        return self.count


def main(folder: Path, hosts: str | Sequence[str] | None = None) -> list[float]:
    synk.fork(2, hosts=hosts, timeout=60)
    synk.topology(sys.stderr)
    rng = np.random.default_rng(0)
    inputs = synk.data(rng.normal(size=(100, 5)), name="inputs")
    targets = synk.data(shape=(100,), dtype="float64", oversize=2.0)
    targets[:] = inputs[:] @ np.arange(5.0)
    x, y, rate = pt.matrix("x"), pt.vector("y"), pt.scalar("rate")
    w = pytensor.shared(np.zeros(5), name="w")
    loss = ((x @ w - y) ** 2).mean()
    step = train.make_train_function(
        loss, [w], [x, y], updates.momentum, bcast_inputs=[rate], learning_rate=rate
    )
    losses: list[float] = []
    synk.commit(0)
    epoch = 0
    while epoch < 2:
        try:
            for rows in batches(len(inputs), 50, seed=(0, epoch)):
                losses.append(float(step(inputs, targets, 0.1, batch=rows)))
            epoch += 1
            synk.commit(epoch)
            checkpoint.save(folder / "run.npz", step.state, {"epoch": epoch})
        except (synk.WorkerDied, synk.MachineLost) as error:
            assert_type(error, synk.WorkerDied | synk.MachineLost)
            logging.warning("%s", error)
            epoch = synk.restart()

    table = pytensor.shared(np.zeros((4, 2)), name="table")
    synk.scatter(table, np.ones((4, 2)))
    synk.all_reduce([w], op="avg")
    far = synk.function([x, y], loss)
    together = synk.sequence(partial(synk.broadcast, w), far, (synk.all_reduce, w, "avg"), name="together")
    assert_type(together, synk.Function)
    lengths: tuple[int, ...] = synk.get_lengths(table)
    rows_of_all: np.ndarray = synk.gather(table, nd_up=0)
    assert rows_of_all.shape == (sum(lengths), 2)

    counters = synk.on_ranks(Counter, 5)
    assert_type(counters(1), list[int])
    with synk.turn("record"), synk.timeout(60):
        losses.append(float(together(inputs, targets)))
    assert_type(synk.pids(), tuple[int, ...])
    synk.close()
    return losses


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.argv[2:] or None))
