"""All-reduces of a vector that lives on the device, by ranks of synk; a script that `lines.Crew` starts.

    python gpu_all_reduce.py --device cuda [--items 25557032 --ranks 2 --times 10]

A step is one command of ``--times`` all-reduces. Its "loss" is the first number of the vector, averaged.
"""

import argparse
import time

# Before NumPy: it holds the libraries to one thread.
import gpu_leader
import lines
import numpy as np
import pytensor

import synk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--items", type=int, default=25_557_032, help="float32: parameters of ResNet-50")
    add("--ranks", type=int, default=2)
    add("--times", type=int, default=10)
    gpu_leader.add_options(parser)
    options = parser.parse_args()
    start = time.perf_counter()
    finish = gpu_leader.fork(options)
    flat = pytensor.shared(np.zeros(options.items, "float32"), name="flat")
    count = synk.function([], (flat[0], "avg"), updates=[(flat, flat + 1)])  # leaves it on the device
    step = synk.sequence(count, *[(synk.all_reduce, flat, "avg")] * options.times)
    lines.serve(lambda number: step(), synk.pids(), time.perf_counter() - start, finish)
    synk.close()


if __name__ == "__main__":
    main()
