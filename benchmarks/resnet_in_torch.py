"""ResNet in torch, trained by one process of a crew; a script that `lines.Crew` starts.

    python resnet_in_torch.py --weights FILE --layout channels_last [--depth 50 --size 224 --batch 8]
    python resnet_in_torch.py --weights FILE --layout channels_last --ranks 2 --rank 0 --port 29500
    python resnet_in_torch.py --weights FILE --device cuda --precision bfloat16 --compile

The network is "v1.5", as torchvision has it: a bottleneck strides in its 3 x 3 convolution. Modules are
made in the order of synk's parameters, which the file holds. Nothing of synk or PyTensor is imported.
"""

import argparse
import os
import time

import gpu_torch
import lines
import numpy as np
import resnet_data as data
import torch
from torch import nn

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
PATIENCE = 150  # seconds for the other side to build its network
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


class Residual(nn.Module):
    """``relu(branch(x) + shortcut(x))``."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module):
        super().__init__()
        self.branch, self.shortcut, self.relu = branch, shortcut, nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.branch(x)
        out += self.shortcut(x)
        return self.relu(out)


def convolution(n_in: int, n_out: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its batch norm."""
    conv = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(n_out)]


def basic(n_in: int, width: int, stride: int) -> tuple[list[nn.Module], int]:
    """Return two 3 x 3 convolutions, and how many channels come out."""
    layers = [*convolution(n_in, width, 3, stride), nn.ReLU(inplace=True), *convolution(width, width, 3)]
    return layers, width


def bottleneck(n_in: int, width: int, stride: int) -> tuple[list[nn.Module], int]:
    """Return a 3 x 3 convolution between two of 1 x 1, and how many channels come out."""
    layers = [
        *convolution(n_in, width, 1),
        nn.ReLU(inplace=True),
        *convolution(width, width, 3, stride),
        nn.ReLU(inplace=True),
        *convolution(width, 4 * width, 1),
    ]
    return layers, 4 * width


def resnet(depth: int) -> nn.Module:
    """Return the network, with weights of torch's own."""
    kind = bottleneck if depth >= 50 else basic
    layers = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    n_in = 64
    for stage, n_blocks in enumerate(BLOCKS[depth]):
        for block in range(n_blocks):
            stride = 2 if stage and not block else 1
            branch, n_out = kind(n_in, 64 * 2**stage, stride)
            shortcut = convolution(n_in, n_out, 1, stride) if stride > 1 or n_in != n_out else [nn.Identity()]
            layers.append(Residual(nn.Sequential(*branch), nn.Sequential(*shortcut)))
            n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, data.N_CLASSES))


def load(net: nn.Module, path: str) -> None:
    """Take over weights, one after the other; those of a dense layer lie (inputs, outputs) there.

    Where both sides start at the same time, they are waited for.
    """
    give_up = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        if time.monotonic() > give_up:
            raise SystemExit(f"nobody has written weights to {path} within {PATIENCE} s")
        time.sleep(0.1)
    with np.load(path) as weights, torch.no_grad():
        for name, param in zip(weights.files, net.parameters(), strict=True):
            value = weights[name]
            param.copy_(torch.from_numpy(value.T if value.ndim == 2 else value))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--weights", required=True, metavar="NPZ")
    add("--layout", choices=LAYOUTS, default="channels_last")
    add("--depth", type=int, choices=BLOCKS, default=50)
    add("--size", type=int, default=224)
    add("--batch", type=int, default=8, help="images a rank")
    add("--ranks", type=int, default=1)
    add("--rank", type=int, default=0)
    add("--port", type=int, default=0)
    gpu_torch.add_options(parser)
    return parser.parse_args()


def main() -> None:
    start = time.perf_counter()
    options = parse()
    torch.set_num_threads(1)
    gpu = gpu_torch.Gpu(options)
    layout = LAYOUTS[options.layout]
    net = resnet(options.depth)
    net = gpu.compiled(net.to(gpu.device, memory_format=layout))
    if options.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
        torch.distributed.init_process_group("gloo", rank=options.rank, world_size=options.ranks)
        # Gradients live in the buckets that are sent, without a second copy of them.
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    update = torch.optim.SGD(net.parameters(), lr=data.RATE, momentum=data.MOMENTUM)

    batch = options.batch * options.ranks
    rows = data.N_BATCHES * batch
    images, labels = map(torch.from_numpy, data.pictures(rows, options.size))
    images, labels = gpu.pinned(images.to(memory_format=layout), labels)  # once, outside of what is timed

    def step(number: int) -> float:
        first = data.span(number, batch, rows).start + options.rank * options.batch
        mine = slice(first, first + options.batch)
        x, y = gpu.here(images[mine], labels[mine])
        update.zero_grad()
        with gpu.autocast():
            loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        update.step()
        return loss.detach()

    if options.compile:  # weights are not asked for yet: both sides build at the same time
        x, y = gpu.here(images[:batch], labels[:batch])
        with gpu.autocast():
            nn.functional.cross_entropy(net(x), y).backward()
    load(net, options.weights)
    lines.serve(step, [os.getpid()], time.perf_counter() - start, gpu.finish)
    if options.ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
