"""A U-Net in synk, trained by the ranks that this process forks; a script that `lines.Crew` starts.

    python unet_in_synk.py --weights FILE [--base 16 --depth 3 --size 64 --batch 16 --ranks 2]

The network is that of demos/unet/. Its first weights are written to the file, for torch to begin with.
"""

import sys
import time
from pathlib import Path

# Before NumPy: it holds the libraries to one thread.
import lines
import numpy as np
import pytensor.tensor as pt
import unet_data as data

import synk
from synk.extensions import losses, train, updates
from synk.values.atomic_write import atomic_write

sys.path.append(str(Path(__file__).resolve().parents[1] / "demos" / "unet"))
import model


def main() -> None:
    options = data.parse(__doc__)
    batch = options.batch * options.ranks
    rows = data.N_BATCHES * batch
    images, masks = data.pictures(rows, options.size)
    start = time.perf_counter()
    synk.fork(options.ranks, threads=1, device="cpu")
    shape = (None, 1, options.size, options.size)
    x, y = (pt.tensor(name, shape=shape, dtype="float32") for name in ("x", "y"))
    net = model.unet(options.base, options.depth, np.random.default_rng(0), norm="own", dtype="float32")
    logits, running = net.training(x)
    params = list(net.params.values())
    # There at once, or not at all: torch may be waiting for it.
    with atomic_write(options.weights) as file:
        np.savez(file, *(param.get_value(borrow=True) for param in params))
    loss = losses.dice(pt.sigmoid(logits), y, per=options.per)
    step = train.make_train_function(
        loss, params, [x, y], updates.adam, updates=running, learning_rate=data.RATE
    )
    images, masks = synk.data(images), synk.data(masks)

    def numbered_step(number: int) -> float:
        return step(images, masks, batch=data.span(number, batch, rows))

    lines.serve(numbered_step, synk.pids(), time.perf_counter() - start)
    synk.close()


if __name__ == "__main__":
    main()
