"""Show where the time of a training step goes, node by node in synk and operation by operation in torch.

    python benchmarks/per_op.py

What ratios of `linker.py` leave open: which Op to improve. One thread.
"""

import argparse

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import mlp
import rivals

from synk.compile import ArrayLinker, array_mode
from synk.compile.observe.profile import Profile

WARMUP = 3  # steps


def main() -> None:
    options = parse()
    print(machine.describe())
    print(f"\n{of_synk(options.rows, options.steps)}")
    torch = rivals.torch_or_none()
    if torch:
        print(f"\n{of_torch(torch, options.rows, options.steps)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=250, help="images in a step")
    parser.add_argument("--steps", type=int, default=30)
    return parser.parse_args()


def of_synk(rows: int, steps: int) -> str:
    """Return the report of synk's own profile."""
    # Kernels are compiled when they first run, and kept: what is timed then finds them.
    mlp.candidates(rows, {rivals.SYNK: array_mode()}, None)[rivals.SYNK].step()
    profile = Profile()
    mode = array_mode(ArrayLinker(observe=profile))
    step = mlp.candidates(rows, {rivals.SYNK: mode}, None)[rivals.SYNK].step
    for _ in range(steps):
        with profile.call():
            step()
    return str(profile.report("MLP step"))


def of_torch(torch, rows: int, steps: int) -> str:
    """Return the report of torch's profiler."""
    step = mlp.candidates(rows, {}, torch)["torch"].step
    for _ in range(WARMUP):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(steps):
            step()
    return profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40)


if __name__ == "__main__":
    main()
