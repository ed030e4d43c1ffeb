"""Figures of a GPU: training steps beside torch, an all-reduce of two ranks, and how rows get there.

    python benchmarks/gpu.py                              all parts, three and a half minutes
    python benchmarks/gpu.py --only mlp
    python benchmarks/gpu.py --device cpu --quick         without a GPU, to see that the scripts run

Every part is a process of its own, ended when its time is over, so one that hangs costs the others nothing.
Candidates have processes of their own too, which wait while others are measured; see `pairs`. Figures go to
``--notes`` as JSON, for tests/gpu/gpu_report.py. Exit status: 0, 1 if a part was not measured, 3 without a
GPU. None of this has run on a GPU yet.

Parts are in ``gpu_figures``.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "gpu"))

from gpu_facts import facts  # noqa: E402

# Shares of the whole time. What is most likely to end is first; torch compiles for a minute in the last.
PARTS = {"mlp": 0.2, "all_reduce": 0.15, "feeding": 0.15, "resnet": 0.5}
NO_GPU = 3


def main() -> None:
    options = parse()
    found = facts()
    print(f"device: {found['device'] or 'no GPU: ' + found['missing']}", flush=True)
    if options.device == "cuda" and not found["device"]:
        print(
            "nothing is measured; --device cpu --quick shows that the scripts run",
            file=sys.stderr,
        )
        raise SystemExit(NO_GPU)
    options.notes.mkdir(parents=True, exist_ok=True)
    results, spare = [], 0.0
    for name in options.only:
        granted = options.seconds * PARTS[name] + spare
        result = measure(name, granted, options)
        spare = granted - result["seconds"]  # what is left goes to the next one
        results.append(result)
        print(told(result), flush=True)
    (options.notes / "bench.json").write_text(json.dumps({"facts": found, "parts": results}, indent=1))
    raise SystemExit(int(any(result.get("error") for result in results)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--quick", action="store_true", help="small sizes and few rounds")
    add("--seconds", type=float, default=200, help="for all parts")
    add("--notes", type=Path, default=Path("build/gpu"), help="folder to write to")
    return parser.parse_args()


def measure(name: str, seconds: float, options: argparse.Namespace) -> dict:
    """Return what a part found; ``error`` says why it did not."""
    answer = (options.notes / f"{name}.json").absolute()
    answer.unlink(missing_ok=True)
    script = [sys.executable, str(HERE / "gpu_figures.py"), name]
    command = [*script, "--device", options.device, "--to", str(answer)]
    start = time.monotonic()
    log = options.notes / f"bench_{name}.txt"
    with log.open("w") as output:
        running = subprocess.Popen(
            [*command, "--seconds", str(0.9 * seconds), *(["--quick"] if options.quick else [])],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = f"exit status {running.wait(seconds)}"
        except subprocess.TimeoutExpired:
            status = f"not through after {seconds:.0f} s"
        finally:
            end(running)
    taken = {"seconds": round(time.monotonic() - start, 1)}
    if answer.exists():
        return json.loads(answer.read_text()) | taken
    last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
    return {"title": name, "error": f"{status}: {last}"} | taken


def end(running: subprocess.Popen) -> None:
    """End a part and all its candidates."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def told(result: dict) -> str:
    """Return a part for a terminal."""
    if result.get("error"):
        return f"\n{result['title']}: not measured ({result['seconds']:.0f} s): {result['error']}"
    title = ["", f"{result['title']} ({result['seconds']:.0f} s)"]
    if "lines" in result:
        return "\n".join([*title, *result["lines"]])
    rows = [result["columns"], *result["rows"]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*title, result["note"], *lines])


if __name__ == "__main__":
    main()
