"""A vector copied from a GPU to pinned memory and back, by CuPy alone; a script that `lines.Crew` starts.

    python gpu_copies.py [--items 25557032 --times 10]

This is the least that staging an all-reduce through the host costs. It has not run on a GPU yet.
"""

import argparse
import os
import time

import cupy
import lines
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=25_557_032)
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    start = time.perf_counter()
    there = cupy.zeros(options.items, "float32")
    memory = cupy.cuda.alloc_pinned_memory(there.nbytes)
    here = np.frombuffer(memory, "float32", options.items)

    def step(number: int) -> float:
        for _ in range(options.times):
            there.get(out=here)
            there.set(here)
        return 0.0

    lines.serve(step, [os.getpid()], time.perf_counter() - start, cupy.cuda.Device().synchronize)


if __name__ == "__main__":
    main()
