"""A U-Net in torch, trained by one process of a crew; a script that `lines.Crew` starts.

    python unet_in_torch.py --weights FILE --layout channels_last [--base 16 --depth 3 --size 64 --batch 16]
    python unet_in_torch.py --weights FILE --ranks 2 --rank 0 --port 29500 --per image

Modules are made in the order of synk's parameters, which the file holds. Nothing of synk or PyTensor is
imported.
"""

import os
import time

import lines
import torch
import unet_data as data
from resnet_in_torch import LAYOUTS, load
from torch import nn


class Joined(nn.Module):
    """Channels of the input, and behind them those of a branch."""

    def __init__(self, branch: nn.Module):
        super().__init__()
        self.branch = branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.branch(x)], 1)


def two_convolutions(n_in: int, n: int) -> nn.Sequential:
    """Return two convolutions of 3 x 3, each with its batch norm."""
    layers: list[nn.Module] = []
    for channels in (n_in, n):
        conv = nn.Conv2d(channels, n, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(n), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def level(n_in: int, n: int, depth: int) -> nn.Sequential:
    """Return a level with all below it."""
    if not depth:
        return two_convolutions(n_in, n)
    below = nn.Sequential(nn.MaxPool2d(2), level(n, 2 * n, depth - 1), nn.ConvTranspose2d(2 * n, n, 2, 2))
    return nn.Sequential(two_convolutions(n_in, n), Joined(below), two_convolutions(2 * n, n))


def main() -> None:
    start = time.perf_counter()
    options = data.parse(__doc__)
    torch.set_num_threads(1)
    layout = LAYOUTS[options.layout]
    net = nn.Sequential(level(1, options.base, options.depth), nn.Conv2d(options.base, 1, 1))
    net = net.to(memory_format=layout)
    load(net, options.weights)
    if options.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
        torch.distributed.init_process_group("gloo", rank=options.rank, world_size=options.ranks)
        # Gradients live in the buckets that are sent, without a second copy of them.
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    update = torch.optim.Adam(net.parameters(), lr=data.RATE)

    batch = options.batch * options.ranks
    rows = data.N_BATCHES * batch
    images, masks = map(torch.from_numpy, data.pictures(rows, options.size))
    images = images.to(memory_format=layout)  # once, outside of what is timed
    axes = (1, 2, 3) if options.per == "image" else (0, 1, 2, 3)

    def step(number: int) -> torch.Tensor:
        first = data.span(number, batch, rows).start + options.rank * options.batch
        mine = slice(first, first + options.batch)
        update.zero_grad()
        p, y = torch.sigmoid(net(images[mine])), masks[mine]
        coefficients = (2 * (p * y).sum(axes) + 1) / (p.sum(axes) + y.sum(axes) + 1)
        loss = (1 - coefficients).mean()
        loss.backward()
        update.step()
        return loss.detach()

    lines.serve(step, [os.getpid()], time.perf_counter() - start)
    if options.ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
