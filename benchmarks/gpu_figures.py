"""One part of the figures of a GPU, in the process that `gpu` gives it.

    gpu_figures.py PART --device cuda --seconds 60 --to FILE -> crews -> Race.run -> FILE, a table

A target is met or not by the median of ratios of the same round. None of this has run on a GPU yet.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

# Before NumPy: it holds the libraries to one thread.
import machine  # noqa: F401
from gpu_race import Race
from lines import Crew

SYNK = "synk"
EAGER = "torch eager"
TOLERANCES = {"float32": 1e-3, "tf32": 1e-2, "bfloat16": 0.1, "float16": 0.1}  # of losses, relative
NCCL_SHARES = 23000  # the first NCCL that lets ranks share a GPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("part", choices=PARTS)
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--precision", choices=TOLERANCES, help="of both sides; unless told, what a GPU is best at")
    add("--seconds", type=float, default=60)
    add("--quick", action="store_true")
    add("--to", type=Path, required=True)
    options = parser.parse_args()
    options.end = time.monotonic() + options.seconds
    PARTS[options.part](options)


def precision_of(options: argparse.Namespace, best: str) -> str:
    return "float32" if options.device == "cpu" else options.precision or best


# --- parts -------------------------------------------------------------------------------------------


def of_mlp(options: argparse.Namespace) -> None:
    """A perceptron of MNIST's size: what counts is launches."""
    precision = precision_of(options, "tf32")
    batch, rows = 250, (1_000 if options.quick else 20_000)
    common = ["--device", options.device, "--precision", precision, f"--batch={batch}", f"--rows={rows}"]
    crews = {SYNK: Crew(["gpu_mlp_in_synk.py", *common])}
    if options.device == "cuda":
        crews[f"{SYNK}, CUDA graphs"] = Crew(["gpu_mlp_in_synk.py", *common, "--graphs"])
    if has_torch():
        crews[EAGER] = Crew(["gpu_mlp_in_torch.py", *common])
        crews[f"{EAGER}, data on the GPU"] = Crew(["gpu_mlp_in_torch.py", *common, "--resident"])
    Race(
        options,
        "MNIST perceptron",
        f"Training steps, batch {batch}, {precision}, rows from host memory unless said. synk returns "
        "the loss of each step as a number; torch's are read after the last one.",
        steps=5 if options.quick else 200,
        amount=batch,
        tolerance=TOLERANCES[precision],
        rival=EAGER,
        times=2,
    ).run(crews)


def of_resnet(options: argparse.Namespace) -> None:
    """ResNet-50 from the same weights, with momentum."""
    precision = precision_of(options, "bfloat16")
    depth, size, batch, steps = (18, 32, 4, 1) if options.quick else (50, 224, 256, 10)
    with tempfile.TemporaryDirectory() as folder:
        net = [f"--depth={depth}", f"--size={size}", f"--batch={batch}", f"--weights={folder}/weights.npz"]
        common = [*net, "--device", options.device, "--precision", precision]
        crews = {SYNK: Crew(["resnet_in_synk.py", *common])}
        if has_torch():
            crews[EAGER] = Crew(["resnet_in_torch.py", *common])
            if not options.quick:
                crews["torch.compile"] = Crew(["resnet_in_torch.py", *common, "--compile"])
        Race(
            options,
            f"ResNet-{depth}",
            f"{size} × {size}, batch {batch}, {precision} with float32 weights, images of float32 in host "
            "memory. torch: channels-last, autocast, cudnn.benchmark, page-locked memory.",
            steps=steps,
            amount=batch,
            tolerance=TOLERANCES[precision],
            rival=EAGER,
        ).run(crews)


def of_all_reduce(options: argparse.Namespace) -> None:
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
    Race(
        options,
        "All-reduce",
        f"{4 * items / 1e6:.0f} MB of float32, average of two ranks on one device, {times} in a command.",
        steps=1,
        times_a_step=times,
        amount=4 * items,
        unit="GB/s",
        scale=1e-9,
    ).run(crews)


def of_feeding(options: argparse.Namespace) -> None:
    """Measure the transfer of rows, by the script `feeding`."""
    script = Path(__file__).with_name("feeding.py")
    few = ["--rounds", "3", "--rows", "16"] if options.quick else []
    command = [sys.executable, str(script), *few, "--to", str(options.to), "--seconds", str(options.seconds)]
    raise SystemExit(subprocess.run(command).returncode)


PARTS = {"mlp": of_mlp, "resnet": of_resnet, "all_reduce": of_all_reduce, "feeding": of_feeding}


# --- what is there -----------------------------------------------------------------------------------


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
