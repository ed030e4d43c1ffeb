"""The perceptron in synk; a script that `lines.Crew` starts.

python gpu_mlp_in_synk.py --device cuda [--precision tf32 --batch 250 --rows 20000 --graphs]
"""

import argparse
import time

# Before NumPy: it holds the libraries to one thread.
import gpu_leader
import lines
import mlp

import synk
from synk import ops
from synk.extensions import train, updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--batch", type=int, default=250)
    add("--rows", type=int, default=20_000)
    add("--ranks", type=int, default=1)
    gpu_leader.add_options(parser)
    options = parser.parse_args()
    start = time.perf_counter()
    finish = gpu_leader.fork(options)
    # As torch's modules have an Op for each; `benchmarks/mlp.py` has PyTensor's own on cores.
    net = mlp.network(mlp.first_layers(), ops.relu, ops.softmax_cross_entropy)
    rule = {"learning_rate": mlp.RATE, "momentum": mlp.MOMENTUM}
    step = train.make_train_function(net.loss, net.params, [net.x, net.y], updates.nesterov_momentum, **rule)
    x, y = (synk.data(values) for values in mlp.images(options.rows))

    def numbered_step(number: int) -> float:
        first = number * options.batch % options.rows
        return step(x, y, batch=slice(first, first + options.batch))

    lines.serve(numbered_step, synk.pids(), time.perf_counter() - start, finish)
    synk.close()


if __name__ == "__main__":
    main()
