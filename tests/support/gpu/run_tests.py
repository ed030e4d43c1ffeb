"""Run all tests marked ``gpu``: each file in a process of its own, several at a time, none for too long.

    python run_tests.py --notes FOLDER --report PAGE
    collect -> parts_of -> run -> FOLDER/tests.json and the page of `gpu_report`, after each of them

What hangs or crashes CUDA takes its own file with it and no other; who is cut off has what was tested until
then. Tracebacks of all failures are in FOLDER/failures.txt. Exit status: 0 if all have passed, 1 if not, 3 if
there is no GPU; then all are skipped, with the reason.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where `support` is
sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import gpu_report
from gpu_facts import facts

from support.gpu.parts import collect, parts_of, run

# The rest comes after these, in the order of the files: what they say is worth most.
FIRST = ["residual", "training", "smoke", "runs", "networks", "collectives", "breakdowns", "random_graphs"]
NO_GPU = 3


def main():
    options = parse()
    options.notes.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with ThreadPoolExecutor() as pool:
        looking = pool.submit(facts)
        tests = collect(options.notes, options.only)
    found = looking.result()
    print(f"device: {found['device'] or 'no GPU: ' + found['missing']}", flush=True)
    parts = parts_of(tests, options.notes, options.only, found["missing"])
    parts.sort(key=lambda part: FIRST.index(part.name) if part.name in FIRST else len(FIRST))
    print(f"{len(tests)} tests in {len(parts)} parts, found in {time.monotonic() - start:.0f} s", flush=True)
    notes = options.notes / "tests.json"
    # Files that are not asked for now keep the outcomes that they have.
    before = gpu_report.load(notes).get("parts", {}) if options.only else {}

    def write(ended=False):
        results = {part.notes.stem: part.result() for part in parts}
        of_all = {"facts": found, "ended": ended, "seconds": time.monotonic() - start}
        gpu_report.save(notes, of_all | {"parts": before | results})
        (options.notes / "failures.txt").write_text("".join(tracebacks(results.values())))
        return gpu_report.write(options.notes, options.report)

    def done(part):
        tell(part)
        write()

    write()
    run(parts, options.jobs, start + options.seconds, options.limit, done)
    page = write(ended=True)
    if page:
        print(f"report: {page}")
    raise SystemExit(verdict(parts, bool(found["device"]), time.monotonic() - start))


def tracebacks(results):
    """Yield the full message of each failure, as far as the notes have it."""
    for result in results:
        for failure in result["failures"]:
            yield f"=== {failure['test']}: {failure['outcome']}\n{failure['said']}\n\n"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--notes", type=Path, default=Path("build/gpu"), help="folder to write to")
    add("--report", type=Path, metavar="PAGE", help="to write too; without a GPU it goes to the notes")
    add("--seconds", type=float, default=240, help="for all parts")
    add("--limit", type=float, default=200, help="for one part")
    add("--jobs", type=int, default=max(1, min(8, len(os.sched_getaffinity(0)) // 2)), help="parts at a time")
    add("--only", nargs="*", default=[], metavar="FILE", help="of tests")
    return parser.parse_args()


def tell(part):
    """Print a line, and the failures, when a file of tests has ended."""
    result = part.result()
    counts = ", ".join(f"{count} {outcome}" for outcome, count in result["counts"].items())
    print(f"{part.name:24} {result['seconds']:6.1f} s  {counts or 'nothing run'}", flush=True)
    for failure in result["failures"][:5]:
        said = gpu_report.last_line(failure["said"])
        print(f"    {failure['outcome']}: {failure['test']}: {said}", flush=True)


def verdict(parts, has_gpu, seconds):
    counts = gpu_report.total({"parts": {part: part.result() for part in parts}})
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"in {seconds:.0f} s: {told}")
    if not has_gpu:
        print("no GPU: nothing was tested on one", file=sys.stderr)
        return NO_GPU
    return int(set(counts) - {"passed", "skipped"} != set() or "passed" not in counts)


if __name__ == "__main__":
    main()
