"""One part of the figures of a GPU, in the process that `gpu` gives it.

    gpu_figures.py PART --device cuda --seconds 60 --to FILE -> crews -> pairs.compare -> FILE, a table

A target is met or not by the median of ratios of the same round. None of this has run on a GPU yet.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Before NumPy: it holds the libraries to one thread.
import gpu_leader
import machine  # noqa: F401
import resnet
from lines import Crew

from synk.bench import pairs

SYNK = "synk"
EAGER = "torch eager"
AGREE = 6  # steps
TOLERANCES = {"float32": 1e-3, "tf32": 1e-2, "bfloat16": 0.1, "float16": 0.1}  # of losses, relative
NCCL_SHARES = 23000  # the first NCCL that lets ranks share a GPU


class Target(NamedTuple):
    """How many times as long as synk another candidate is to take."""

    rival: str
    times: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("part", choices=PARTS)
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--seconds", type=float, default=60)
    add("--quick", action="store_true")
    add("--to", type=Path, required=True)
    options = parser.parse_args()
    options.end = time.monotonic() + options.seconds
    options.to.write_text(json.dumps(PARTS[options.part](options)))


# --- parts -------------------------------------------------------------------------------------------


def of_mlp(options: argparse.Namespace) -> dict:
    """A perceptron of MNIST's size: what counts is launches."""
    precision = "tf32" if options.device == "cuda" else "float32"
    batch, rows = 250, (1_000 if options.quick else 20_000)
    common = ["--device", options.device, "--precision", precision, f"--batch={batch}", f"--rows={rows}"]
    crews = {SYNK: Crew(["gpu_mlp_in_synk.py", *common])}
    if gpu_leader.GRAPHS and options.device == "cuda":
        crews[f"{SYNK}, CUDA graphs"] = Crew(["gpu_mlp_in_synk.py", *common, "--graphs"])
    if has_torch():
        crews[EAGER] = Crew(["gpu_mlp_in_torch.py", *common])
        crews[f"{EAGER}, data on the GPU"] = Crew(["gpu_mlp_in_torch.py", *common, "--resident"])
    comparison = compare(crews, options, steps=5 if options.quick else 200, tolerance=TOLERANCES[precision])
    note = f"Training steps, batch {batch}, {precision}, rows from host memory unless said."
    return table("MNIST perceptron", note, comparison, 5 if options.quick else 200, batch, [Target(EAGER, 2)])


def of_resnet(options: argparse.Namespace) -> dict:
    """ResNet-50 from the same weights, with momentum."""
    narrow = "bfloat16" in gpu_leader.precisions()
    precision = "float32" if options.device == "cpu" else "bfloat16" if narrow else "tf32"
    depth, size, batch, steps = (18, 32, 4, 1) if options.quick else (50, 224, 256, 10)
    with tempfile.TemporaryDirectory() as folder:
        net = [f"--depth={depth}", f"--size={size}", f"--batch={batch}", f"--weights={folder}/weights.npz"]
        common = [*net, "--device", options.device, "--precision", precision]
        crews = {SYNK: Crew(["resnet_in_synk.py", *common])}
        if has_torch():
            crews[EAGER] = Crew(["resnet_in_torch.py", *common])
            if not options.quick:
                crews["torch.compile"] = Crew(["resnet_in_torch.py", *common, "--compile"])
        comparison = compare(crews, options, steps, TOLERANCES[precision])
    note = f"{size} × {size}, batch {batch}, {precision}, torch channels-last; images from host memory."
    return table(f"ResNet-{depth}", note, comparison, steps, batch, [Target(EAGER, 1)])


def of_all_reduce(options: argparse.Namespace) -> dict:
    """Two ranks on one GPU: by way of the host, and through NCCL where it lets them."""
    items, times = (250_000, 2) if options.quick else (25_557_032, 10)
    common = ["gpu_all_reduce.py", "--device", options.device, f"--items={items}", f"--times={times}"]
    apart = {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}
    crews = {f"{SYNK}, staged": Crew(common, environment=apart)}
    if options.device == "cuda":
        if nccl_version() >= NCCL_SHARES:
            crews[f"{SYNK}, NCCL {nccl_version()}"] = Crew(common)
        crews["down and up, pinned, one rank"] = Crew(
            ["gpu_copies.py", f"--items={items}", f"--times={times}"]
        )
    comparison = compare(crews, options, steps=1, tolerance=None)
    note = f"{4 * items / 1e6:.0f} MB of float32, average of two ranks on one device, {times} in a command."
    return table("All-reduce", note, comparison, times, 4 * items, [], unit="GB/s", scale=1e-9)


def of_feeding(options: argparse.Namespace) -> dict:
    """What the script beside this one prints."""
    script = Path(__file__).with_name("feeding.py")
    if not script.exists():
        raise SystemExit("there is no benchmarks/feeding.py")
    quick = ["--quick"] if options.quick else []
    ended = subprocess.run([sys.executable, str(script), *quick], capture_output=True, text=True)
    print(ended.stdout, ended.stderr, sep="\n")
    if ended.returncode:
        raise SystemExit((ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1])
    return {"title": "Feeding", "lines": ended.stdout.splitlines()}


PARTS = {"mlp": of_mlp, "resnet": of_resnet, "all_reduce": of_all_reduce, "feeding": of_feeding}


# --- how they are compared ---------------------------------------------------------------------------


def compare(
    candidates: Mapping[str, Crew], options: argparse.Namespace, steps: int, tolerance: float | None
) -> pairs.Comparison:
    """Start crews, see that losses agree, and let them make steps in turn until the time is over.

    A rival that breaks down is left out.
    """
    first, *others = candidates
    with contextlib.ExitStack() as running:
        crews = {first: running.enter_context(candidates[first])}
        crews[first].ready()  # it writes the weights that others read
        crews |= {name: running.enter_context(candidates[name]) for name in others}
        losses = {first: crews[first].run(AGREE).losses}
        for name in others:  # all have been starting meanwhile; the one that compiles longest is the last
            try:
                crews[name].ready()
                losses[name] = crews[name].run(AGREE).losses
            except SystemExit as error:
                print(f"without {name}: {error}", flush=True)
                del crews[name]
        if tolerance is not None:
            resnet.check({SYNK: losses.pop(first)} | losses, tolerance)
        blocks = {name: lambda crew=crew: crew.run(steps).seconds for name, crew in crews.items()}
        rounds, left = (3, 5.0) if options.quick else (40, max(5.0, options.end - time.monotonic() - 5))
        return pairs.compare(blocks, rounds, warmup=1, timer=lambda block: block(), seconds=left)


def table(
    title: str,
    note: str,
    comparison: pairs.Comparison,
    steps: int,
    amount: float,
    targets: list[Target],
    unit: str = "images/s",
    scale: float = 1.0,
) -> dict:
    """Return the times of a step, what that makes in a second, and ratios; ``amount`` is that of a step."""
    asked = {target.rival: target.times for target in targets}
    best = min((name for name in comparison.seconds if name.startswith(SYNK)), key=comparison.median)
    rows = []
    for name in comparison.seconds:
        median = comparison.median(name) / steps
        row = [name, pairs.in_units(median), f"{scale * amount / median:,.4g}"]
        ratio = comparison.ratio(name, to=best)
        verdict = ""
        if name in asked:
            verdict = f"≥ {asked[name]:g}: {'yes' if ratio.median >= asked[name] else 'no'}"
        rows.append([*row, pairs.in_words(ratio), verdict])
    columns = ["candidate", "a step", unit, f"× time of {best} (quartiles)", "asked"]
    note = f"{note} {len(comparison.seconds[best])} rounds."
    return {"title": title, "note": note, "columns": columns, "rows": rows}


def nccl_version() -> int:
    """Return NCCL's version, 0 without one; it is asked in a process of its own."""
    code = "from cupy.cuda import nccl; print(nccl.get_version())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ).stdout
    return int(said or 0)


def has_torch() -> bool:
    if find_spec("torch"):
        return True
    print("without torch: it is not installed", flush=True)
    return False


if __name__ == "__main__":
    main()
