"""Training steps of ResNet: synk beside torch, with one thread and over two processes.

    python benchmarks/resnet.py
    python benchmarks/resnet.py --only step --depth 18 --size 64
    python benchmarks/resnet.py --only start

Gradient and an update with momentum, float32, noise for images. Everybody begins with the same weights, and
losses of the first steps must agree, or the speeds say nothing. Each candidate has processes of its own,
which sleep while others are measured; their peaks of memory are compared too, after equally many steps.
torch has its images in its own layout from the start, synk as (rows, channels, height, width).

`step` is one process each, `ddp` two ranks beside torch's DistributedDataParallel on gloo, `start` what comes
before synk's first step. Without torch, synk is measured alone.
"""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import markdown_tables
import numpy as np
import starts
from lines import Crew, free_port

from synk.tools.bench import pairs

SYNK = "synk"
AGREE = 6  # steps; each batch has its turn
TOLERANCE = 5e-4  # of losses, relative: torch's two layouts differ by 3e-5 among themselves, after six steps
N_RANKS = 2


def main() -> None:
    options = parse()
    print(machine.describe(), flush=True)
    for part in options.only:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{PARTS[part](options, Path(folder))}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--depth", type=int, choices=(18, 34, 50), default=50)
    add("--size", type=int, default=224, help="of images, in pixels")
    add("--batch", type=int, default=8, help="images a rank")
    add("--rounds", type=int, default=10, help="in which each candidate makes its steps once")
    add("--steps", type=int, default=2, help="in a round")
    add("--quick", action="store_true", help="18 layers and small images, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.depth, options.size, options.batch, options.steps = 18, 64, 4, 1
    return options


# --- steps -------------------------------------------------------------------------------------------


def time_step(options: argparse.Namespace, folder: Path) -> str:
    """Compare steps of one process."""
    weights = str(folder / "weights.npz")
    torch = [*TORCH, *of_net(options), "--weights", weights]
    candidates = {SYNK: Crew([*OURS, *of_net(options), "--weights", weights])}
    if has_torch():
        candidates["torch channels-last"] = Crew([*torch, "--layout=channels_last"])
        candidates["torch NCHW"] = Crew([*torch, "--layout=contiguous"])
    return compare(options, candidates, n_ranks=1)


def time_ddp(options: argparse.Namespace, folder: Path) -> str:
    """Compare steps of two ranks; a step has twice as many images."""
    weights = str(folder / "weights.npz")
    ranks = [*of_net(options), "--weights", weights, "--ranks", str(N_RANKS)]
    candidates = {SYNK: Crew([*OURS, *ranks])}
    if has_torch():
        port = str(free_port())
        leaders = [[*TORCH, *ranks, "--port", port, "--rank", str(rank)] for rank in range(N_RANKS)]
        candidates["torch DDP, gloo, channels-last"] = Crew(*leaders)
    return compare(options, candidates, n_ranks=N_RANKS)


def compare(options: argparse.Namespace, candidates: Mapping[str, Crew], n_ranks: int) -> str:
    """Start crews, check that they agree, let them make steps in turn, and return a table."""
    with contextlib.ExitStack() as running:
        crews = {}
        for name, crew in candidates.items():  # synk first: it writes the weights
            crews[name] = running.enter_context(crew)
            crew.ready()
        check({name: crew.run(AGREE).losses for name, crew in crews.items()})
        blocks = {name: lambda crew=crew: crew.run(options.steps).seconds for name, crew in crews.items()}
        comparison = pairs.compare(blocks, options.rounds, warmup=1, timer=lambda block: block())
        peaks = {name: max(crew.run(1).peaks) for name, crew in crews.items()}
    n_images = options.steps * options.batch * n_ranks
    return table(title(options, n_ranks), comparison, peaks, n_images)


def check(losses: Mapping[str, list[float]], tolerance: float = TOLERANCE) -> None:
    """Raise SystemExit if losses differ by more than float32 does after that many steps."""
    for name, of_run in losses.items():
        error = np.abs(np.subtract(of_run, losses[SYNK]) / losses[SYNK]).max()
        first, last = f"{of_run[0]:.4f}", f"{of_run[-1]:.4f}"
        print(f"{name}: losses of {len(of_run)} steps {first} to {last}, {error:.1e} off", flush=True)
        if not error < tolerance:
            raise SystemExit(f"losses differ:\n{losses[SYNK]}\n{of_run}")


def table(title: str, comparison: pairs.Comparison, peaks: Mapping[str, int], n_images: int) -> str:
    """Return images per second, times and peaks of memory, and how they compare with synk's."""
    header = [title, "images/s", "× time of synk (quartiles)", "peak memory of a rank", "× synk's"]
    rows = []
    for name in comparison.seconds:
        speed = n_images / comparison.median(name)
        memory = [pairs.in_bytes(peaks[name]), f"{peaks[name] / peaks[SYNK]:.2f}"]
        rows.append([name, f"{speed:.2f}", markdown_tables.in_words(comparison.ratio(name)), *memory])
    return markdown_tables.aligned(header, rows)


# --- starts ------------------------------------------------------------------------------------------


def time_start(options: argparse.Namespace, folder: Path) -> str:
    """Time what comes before the first step, with nothing compiled kept and with all of it."""
    seconds: dict[str, list[float]] = {"warm": [], "cold": []}
    to_first_step(options, folder / "kept")
    for number, name in markdown_tables.in_turn(list(seconds), rounds=1 if options.quick else 3):
        caches = folder / ("kept" if name == "warm" else str(number))
        seconds[name].append(to_first_step(options, caches))
    rows = [[name, pairs.in_units(statistics.median(times))] for name, times in seconds.items()]
    return markdown_tables.aligned([title(options, 1), "from fork to first step, a step taken off"], rows)


def to_first_step(options: argparse.Namespace, caches: Path) -> float:
    """Return the seconds from a fork to its first step, less those of later steps."""
    with Crew([*OURS, *of_net(options)], environment=starts.compiled_in(caches)) as crew:
        before, first = crew.ready(), crew.run(1).seconds
        return before + first - statistics.median(crew.run(1).seconds for _ in range(3))


# --- what is run -------------------------------------------------------------------------------------

OURS, TORCH = ["resnet_in_synk.py"], ["resnet_in_torch.py"]
PARTS = {"step": time_step, "ddp": time_ddp, "start": time_start}


def of_net(options: argparse.Namespace) -> Iterator[str]:
    """Yield arguments of a leader."""
    for name in ("depth", "size", "batch"):
        yield f"--{name}={getattr(options, name)}"


def title(options: argparse.Namespace, n_ranks: int) -> str:
    """Say what is trained."""
    processes = f", {n_ranks} processes" if n_ranks > 1 else ""
    return f"ResNet-{options.depth}, {options.size} × {options.size}, batch {options.batch}{processes}"


def has_torch() -> bool:
    """Tell whether torch takes part, and say so if not."""
    if find_spec("torch"):
        return True
    print("without torch: it is not installed: make bench installs it in an environment of its own")
    return False


if __name__ == "__main__":
    main()
