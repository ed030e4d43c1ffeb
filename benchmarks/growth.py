"""Measure what processes keep of functions that were made, called and dropped, and of runs that were closed.

    python benchmarks/growth.py [--functions 1000] [--runs 200] [--from 200]

Two scripts make the same functions, no two of them alike (`growth_forms`): one by `synk.function` on two
ranks, one by ``pytensor.function`` in FAST_COMPILE, which runs Ops in Python, those of loops too. The first
then opens and closes runs. Printed is by how much resident memory has grown since function ``--from``, or the
first run, in each process; and the objects that Python's collector knows, mapped pieces of files, and
descriptors.
The exit status is 1 if a process of synk has grown by more than 2 MiB beyond PyTensor's.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import growth_forms
import pytensor

import synk

MOST = 2 << 20  # bytes
STEP = 50  # functions between two looks
PYTHON_OPS = "mode=FAST_COMPILE,linker=py,optimizer=fast_compile"  # for PyTensor's inner functions too


class Held(NamedTuple):
    """What a process holds."""

    resident: int  # bytes
    objects: int
    mapped: int
    descriptors: int


def held() -> Held:
    """Return what this process holds when its garbage is gone."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mapped = len(Path("/proc/self/maps").read_text().splitlines())
    return Held(
        pages * os.sysconf("SC_PAGE_SIZE"), len(gc.get_objects()), mapped, len(os.listdir("/proc/self/fd"))
    )


class Holder:
    """Says on each rank what it holds."""

    def __init__(self, rank: int):
        self.rank = rank

    def __call__(self) -> Held:
        """Return what this rank holds."""
        return held()


def by_synk(n_functions: int, n_runs: int) -> Iterator[tuple[str, list[Held]]]:
    """Use functions of synk, then runs, and yield what each rank holds in between."""
    synk.fork(2)
    look = synk.on_ranks(Holder)
    for number in range(n_functions):
        use(number, lambda one: synk.function(one.inputs, one.outputs, updates=one.updates))
        if (number + 1) % STEP == 0:
            synk.distribute()
            yield f"{number + 1} functions", look()
    synk.close()
    del look
    for number in range(n_runs):
        synk.fork(2)
        use(0, lambda one: synk.function(one.inputs, one.outputs, updates=one.updates))
        if number % STEP == STEP - 1 or number == 0:
            yield f"{number + 1} runs", synk.on_ranks(Holder)()
        synk.close()


def by_pytensor(n_functions: int, n_runs: int) -> Iterator[tuple[str, list[Held]]]:
    """Use functions of PyTensor, and yield what this process holds in between."""
    for number in range(n_functions):
        use(number, lambda one: pytensor.function(one.inputs, one.outputs, updates=one.updates))
        if (number + 1) % STEP == 0:
            yield f"{number + 1} functions", [held()]


def use(number: int, make: Callable) -> None:
    """Make a function, call it, and drop it."""
    graph = growth_forms.graph(number)
    make(graph)(*graph.values)


KINDS = {"synk": by_synk, "PyTensor": by_pytensor}


def script(kind: str, options: argparse.Namespace) -> list[tuple[str, list[Held]]]:
    """Return what the processes of a script of its own have held."""
    command = [sys.executable, __file__, "--only", kind, "--functions", str(options.functions)]
    flags = os.environ.get("PYTENSOR_FLAGS", "") + ("," + PYTHON_OPS if kind == "PyTensor" else "")
    looks = []
    with subprocess.Popen(
        [*command, "--runs", str(options.runs)],
        env={**os.environ, "PYTENSOR_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout:
            when, ranks = json.loads(line)
            looks.append((when, [Held(*rank) for rank in ranks]))
            print(f"{kind:10}{when:>16}", *(shown(rank) for rank in looks[-1][1]), sep="   ", flush=True)
    if process.returncode:
        raise SystemExit(f"the script of {kind} failed")
    return looks


def shown(one: Held) -> str:
    """Return what a process holds as text."""
    memory = f"{one.resident / 2**20:7.1f} MiB {one.objects:8,} objects"
    return f"{memory} {one.mapped:5} maps {one.descriptors:3} files"


def growth(looks: list[tuple[str, list[Held]]], unit: str, first: int) -> list[int]:
    """Return by how many bytes each process has grown since it had made so many of a unit."""
    after = [ranks for when, ranks in looks if when.endswith(unit) and int(when.split()[0]) >= first]
    return [end.resident - start.resident for start, end in zip(after[0], after[-1], strict=True)]


def main() -> None:
    """Print what is held, and by how much it has grown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--from", type=int, default=200, dest="first", help="functions before the first look")
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        warnings.simplefilter("ignore", synk.SynkWarning)
        for look in KINDS[options.only](options.functions, options.runs):
            print(json.dumps(look), flush=True)
        return
    looks = {kind: script(kind, options) for kind in KINDS}
    (usual,) = growth(looks["PyTensor"], "functions", options.first)
    print(f"\nPyTensor's process has grown by {usual / 2**20:.2f} MiB")
    grown = [*growth(looks["synk"], "functions", options.first)]
    master, worker = growth(looks["synk"], "runs", 1)
    for what, nbytes in zip(("rank 0", "rank 1", "rank 0 over the runs"), (*grown, master), strict=True):
        print(f"synk's {what} has grown by {nbytes / 2**20:.2f} MiB")
    print(f"synk's last worker is larger than the first run's by {worker / 2**20:.2f} MiB")
    raise SystemExit(any(nbytes > usual + MOST for nbytes in (*grown, master)))


if __name__ == "__main__":
    main()
