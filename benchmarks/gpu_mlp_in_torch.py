"""The perceptron in torch; a script that `lines.Crew` starts.

python gpu_mlp_in_torch.py --device cuda [--precision tf32 --batch 250 --rows 20000 --resident --compile]
"""

import argparse
import os
import time
from typing import Any

import gpu_torch
import lines
import mlp
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--rows", type=int, default=20_000)
    gpu_torch.add_options(parser)
    options = parser.parse_args()
    start = time.perf_counter()
    torch.set_num_threads(1)
    gpu = gpu_torch.Gpu(options)
    net = gpu.compiled(mlp.module(torch, mlp.first_layers()).to(gpu.device))
    update = mlp.optimizer(torch, net)
    images, labels = gpu.pinned(*map(torch.from_numpy, mlp.images(options.rows)))

    def step(number: int) -> Any:
        first = number * options.batch % options.rows
        x, y = gpu.here(images[first : first + options.batch], labels[first : first + options.batch])
        update.zero_grad()
        with gpu.autocast():
            loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        update.step()
        return loss.detach()

    lines.serve(step, [os.getpid()], time.perf_counter() - start, gpu.finish)


if __name__ == "__main__":
    main()
