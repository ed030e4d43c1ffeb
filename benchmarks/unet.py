"""Training steps of a U-Net with a Dice loss: synk beside torch, with one thread and over two processes.

    python benchmarks/unet.py
    python benchmarks/unet.py --only ddp --rounds 20

Gradient and an update by Adam, float32, discs in noise for images. Everybody begins with the same weights,
and losses of the first steps must agree, or the speeds say nothing. Candidates take turns, and sleep while
others are measured; their peaks of memory are compared after equally many steps. torch has its images in its
own layout from the start, synk as (rows, channels, height, width).

`step` is one process each; `ddp` two ranks beside torch's DistributedDataParallel on gloo. There each image
has a coefficient of its own: averages of gradients are not the gradient of a coefficient of the batch.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import markdown_tables
from lines import Crew, free_port
from resnet import AGREE, SYNK, check, has_torch

from synk.tools.bench import pairs

N_RANKS = 2
OURS, TORCH = ["unet_in_synk.py"], ["unet_in_torch.py"]
REST = 0.3  # seconds: threads of a library spin for a while when their work is done


def main() -> None:
    options = parse()
    print(machine.describe(), flush=True)
    for part in options.only:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{PARTS[part](options, f'--weights={folder}/weights.npz')}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--base", type=int, default=16, help="channels of the first level")
    add("--depth", type=int, default=3, help="levels down")
    add("--size", type=int, default=64, help="of images, in pixels")
    add("--batch", type=int, default=16, help="images a rank")
    add("--rounds", type=int, default=10, help="in which each candidate makes its steps once")
    add("--steps", type=int, default=4, help="in a round")
    add("--quick", action="store_true", help="a small network, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.base, options.depth, options.size, options.batch, options.steps = 4, 1, 16, 4, 1
    return options


def time_step(options: argparse.Namespace, weights: str) -> str:
    """Compare steps of one process."""
    words = [*of_net(options), weights]
    candidates = {SYNK: Crew([*OURS, *words])}
    if has_torch():
        candidates["torch channels-last"] = Crew([*TORCH, *words, "--layout=channels_last"])
        candidates["torch NCHW"] = Crew([*TORCH, *words])
    return compare(options, candidates, n_ranks=1)


def time_ddp(options: argparse.Namespace, weights: str) -> str:
    """Compare steps of two ranks; a step has twice as many images."""
    words = [*of_net(options), weights, f"--ranks={N_RANKS}", "--per=image"]
    candidates = {SYNK: Crew([*OURS, *words])}
    if has_torch():
        for layout in ("channels_last", "contiguous"):
            port = free_port()
            leaders = [
                [*TORCH, *words, f"--layout={layout}", f"--port={port}", f"--rank={rank}"]
                for rank in range(N_RANKS)
            ]
            candidates[f"torch DDP, gloo, {layout.replace('_', '-')}"] = Crew(*leaders)
    return compare(options, candidates, n_ranks=N_RANKS)


PARTS = {"step": time_step, "ddp": time_ddp}


def of_net(options: argparse.Namespace) -> Iterator[str]:
    """Yield arguments of a leader."""
    for name in ("base", "depth", "size", "batch"):
        yield f"--{name}={getattr(options, name)}"


def compare(options: argparse.Namespace, candidates: Mapping[str, Crew], n_ranks: int) -> str:
    """Start crews, check that they agree, let them make steps in turn, and return a table."""
    clock: dict[str, list[float]] = {name: [] for name in candidates}
    processor: dict[str, list[float]] = {name: [] for name in candidates}
    with contextlib.ExitStack() as running:
        for crew in candidates.values():  # synk first: it writes the weights
            running.enter_context(crew).ready()
        check({name: crew.run(AGREE).losses for name, crew in candidates.items()})
        for _, name in markdown_tables.in_turn(list(candidates), options.rounds):
            time.sleep(REST)
            block = candidates[name].run(options.steps)
            clock[name].append(block.seconds / options.steps)
            processor[name].append(block.processor / options.steps)
        peaks = {name: max(crew.run(1).peaks) for name, crew in candidates.items()}
    n_images = options.batch * n_ranks
    title = f"U-Net, {options.base} channels, {options.depth} levels, {options.size} × {options.size}"
    return table(
        f"{title}, {n_images} images a step", pairs.Comparison(clock), pairs.Comparison(processor), peaks
    )


def table(title: str, clock: pairs.Comparison, processor: pairs.Comparison, peaks: Mapping[str, int]) -> str:
    """Return times of a step and peaks of memory, and how they compare with synk's."""
    header = [title]
    for kind in ("step", "of the processor"):
        header += [kind, "× synk's (quartiles)"]
    header += ["peak memory of a rank", "synk's ×"]
    rows = []
    for name in clock.seconds:
        words = [name]
        for one in (clock, processor):
            words += [pairs.in_units(one.median(name)), markdown_tables.in_words(one.ratio(name))]
        rows.append([*words, pairs.in_bytes(peaks[name]), f"{peaks[SYNK] / peaks[name]:.2f}"])
    return markdown_tables.aligned(header, rows)


if __name__ == "__main__":
    main()
