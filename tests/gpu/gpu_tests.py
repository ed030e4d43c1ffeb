"""Run all tests marked ``gpu``: each file in a process of its own, several at a time, none for too long.

    python gpu_tests.py --notes FOLDER -> collect -> Part, Part, ... -> FOLDER/tests.json, for `gpu_report`

What hangs or crashes CUDA takes its own file with it and no other. Exit status: 0 if all have passed, 1 if
not, 3 if there is no GPU; then all are skipped, with the reason.

Imports the standard library, ``gpu_facts``, ``gpu_parts`` and ``gpu_report``.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from gpu_facts import facts
from gpu_parts import Part, Pool, collect
from gpu_report import last_line

# The rest comes after these, in the order of the files: what they say is worth most.
FIRST = ["surface", "runs", "networks", "collectives", "breakdowns", "training", "random_graphs"]
NO_GPU = 3


def main():
    options = parse()
    options.notes.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    found = facts()
    print(f"device: {found['device'] or 'no GPU: ' + found['missing']}", flush=True)
    parts = collect(options.notes, bool(found["device"]), options.only)
    parts.sort(key=lambda part: FIRST.index(part.name) if part.name in FIRST else len(FIRST))
    seconds = f"{time.monotonic() - start:.0f} s"
    print(
        f"{sum(part.n_tests for part in parts)} tests in {len(parts)} parts, found in {seconds}", flush=True
    )
    pool = Pool(options.jobs, deadline=start + options.seconds, limit=options.limit, done=tell)
    pool.run(parts)
    results = {
        "facts": found,
        "seconds": time.monotonic() - start,
        "parts": [part.result() for part in parts],
    }
    (options.notes / "tests.json").write_text(json.dumps(results, indent=1))
    raise SystemExit(verdict(parts, bool(found["device"]), results["seconds"]))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--notes", type=Path, default=Path("build/gpu"), help="folder to write to")
    add("--seconds", type=float, default=240, help="for all parts")
    add("--limit", type=float, default=200, help="for one part")
    add("--jobs", type=int, default=max(1, min(8, len(os.sched_getaffinity(0)) // 2)), help="parts at a time")
    add("--only", nargs="*", default=[], metavar="FILE", help="of tests")
    return parser.parse_args()


def tell(part: Part):
    """Print a line when a part is over, and what failed."""
    result = part.result()
    counts = ", ".join(f"{count} {outcome}" for outcome, count in result["counts"].items())
    print(f"{part.name:24} {result['seconds']:6.1f} s  {counts or 'nothing run'}", flush=True)
    for failure in result["failures"][:5]:
        print(f"    {failure['outcome']}: {failure['test']}: {last_line(failure['said'])}", flush=True)


def verdict(parts, has_gpu, seconds):
    counts = {}
    for part in parts:
        for outcome, count in part.result()["counts"].items():
            counts[outcome] = counts.get(outcome, 0) + count
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"in {seconds:.0f} s: {told}")
    if not has_gpu:
        print("no GPU: nothing was tested on one", file=sys.stderr)
        return NO_GPU
    return int(set(counts) - {"passed", "skipped"} != set() or "passed" not in counts)


if __name__ == "__main__":
    main()
