"""ResNet in synk, trained by the ranks that this process forks; a script that `lines.Crew` starts.

    python resnet_in_synk.py --weights FILE [--depth 50 --size 224 --batch 8 --ranks 2]
    python resnet_in_synk.py --weights FILE --device cuda --precision tf32

The network is that of demos/resnet/. Its first weights are written to the file, for torch to begin with.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

# Before NumPy: it holds the libraries to one thread.
import gpu_leader
import lines
import numpy as np
import pytensor.tensor as pt
import resnet_data as data

import synk
from synk.extensions import train, updates
from synk.values.atomic_write import atomic_write

sys.path.append(str(Path(__file__).resolve().parents[1] / "demos" / "resnet"))
import model


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--weights", metavar="NPZ", help="where to write the first weights")
    add("--depth", type=int, choices=model.BLOCKS, default=50)
    add("--size", type=int, default=224)
    add("--batch", type=int, default=8, help="images a rank")
    add("--ranks", type=int, default=1)
    gpu_leader.add_options(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    batch = options.batch * options.ranks
    rows = data.N_BATCHES * batch
    pictures = data.pictures(rows, options.size)
    start = time.perf_counter()
    finish = gpu_leader.fork(options)
    x, y = pt.tensor("x", shape=(None, 3, options.size, options.size), dtype="float32"), pt.lvector("y")
    net = model.build(x, y, options.depth, data.N_CLASSES, seed=0)
    damp(net.params)
    if options.weights:
        # There at once, or not at all: torch may be waiting for it.
        with atomic_write(options.weights) as file:
            np.savez(file, *(param.get_value(borrow=True) for param in net.params.values()))
    rule = {"learning_rate": data.RATE, "momentum": data.MOMENTUM}
    step = train.make_train_function(
        net.train_loss, net.params.values(), [x, y], updates.momentum, updates=net.updates, **rule
    )
    images, labels = (synk.data(values) for values in pictures)
    pids = synk.pids()
    del pictures

    def numbered_step(number: int) -> float:
        return step(images, labels, batch=data.span(number, batch, rows))

    lines.serve(numbered_step, pids, time.perf_counter() - start, finish)
    synk.close()


def damp(params: dict[str, Any]) -> None:
    """Begin with blocks that add little to their shortcuts.

    Else 50 layers blow rounding up so much that losses after a few steps cannot be compared: by a hundredth
    between torch's own two layouts.
    """
    for name, param in params.items():
        if name.endswith("branch.norm.gamma"):
            param.set_value(np.full_like(param.get_value(), 0.25))


if __name__ == "__main__":
    main()
