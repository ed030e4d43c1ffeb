"""One process of torch's DistributedDataParallel with the perceptron; a script that `lines.Crew` starts.

python ddp_in_torch.py --ranks 2 --rank 0 --place 127.0.0.1:29500 --rows 20000 --batch 500
"""

import argparse
import time

# Before NumPy: it holds the libraries to one thread.
import machine  # noqa: F401

# isort: split

import lines
import mlp
import mlp_data as data
import numpy as np
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--place", required=True, help="where rank 0 listens")
    data.add_options(parser)
    options = parser.parse_args()
    start = time.perf_counter()
    torch.set_num_threads(1)
    group = {"rank": options.rank, "world_size": options.ranks}
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{options.place}", **group)
    net = torch.nn.parallel.DistributedDataParallel(data.module(torch, data.first_layers()))
    update = mlp.optimizer(torch, net)
    x, y = map(torch.tensor, data.images(options.rows))
    batches = data.batches(options)

    def step(number: int) -> float:
        mine = torch.tensor(np.array_split(next(batches), options.ranks)[options.rank])
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[mine]), y[mine])
        loss.backward()
        update.step()
        return loss.item()

    lines.serve(step, [], time.perf_counter() - start)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
