"""Figures of a GPU: training steps beside torch, an all-reduce of two ranks, and the transfer of rows.

    python benchmarks/gpu.py                              all parts, three and a half minutes
    python benchmarks/gpu.py --only resnet --precision tf32 --seconds 150
    python benchmarks/gpu.py --device cpu --quick         without a GPU, to see that the scripts run

Every part is a process of its own, ended when its time is over, so one that hangs costs the others nothing.
Candidates have processes of their own too, which wait while others are measured; see `gpu_race`. After every
part all figures go to ``--notes`` as JSON, and together with the tests' notes to the page ``--report``, so a
run that is cut off keeps what was measured until then. Exit status: 0, 1 if a part was not measured, 3
without a GPU. None of this has run on a GPU yet.

Parts are in ``gpu_figures``.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_report
from gpu_facts import facts

HERE = Path(__file__).resolve().parent

# Shares of the whole time. What is most likely to end is first; torch compiles for a minute in the last.
PARTS = {"mlp": 0.2, "all_reduce": 0.12, "feeding": 0.13, "resnet": 0.55}
ASKED = {
    "mlp": ("MNIST perceptron, torch eager's time of a step by synk's", "≥ 2"),
    "all_reduce": ("all-reduce of 102 MB by two ranks on one GPU", "a figure"),
    "feeding": ("rows to the GPU, of the rate of a page-locked copy", "≥ 0.8"),
    "resnet": ("ResNet-50 in bfloat16, torch eager's time of a step by synk's", "≥ 1"),
}
NO_GPU = 3
LAST_LINES = 25  # of what a part printed, shown if it was not measured


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
    notes = options.notes / "bench.json"
    # Parts that are not measured now keep the figures that they have.
    parts = {} if set(options.only) == set(PARTS) else gpu_report.load(notes).get("parts", {})
    spare, shares = 0.0, sum(PARTS[name] for name in options.only)
    for name in options.only:
        granted = options.seconds * PARTS[name] / shares + spare
        parts[name] = measure(name, granted, options)
        spare = granted - parts[name]["seconds"]  # what is left goes to the next one
        print(told(parts[name]), flush=True)
        ended = name == options.only[-1]
        gpu_report.save(notes, {"facts": found, "ended": ended, "parts": parts})
        gpu_report.write(options.notes, options.report)
    raise SystemExit(int(any(parts[name].get("error") for name in options.only)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--precision", help="of training; tf32 for the perceptron and bfloat16 for images unless told")
    add("--quick", action="store_true", help="small sizes and few rounds")
    add("--seconds", type=float, default=215, help="for all parts")
    add("--notes", type=Path, default=Path("build/gpu"), help="folder to write to")
    add("--report", type=Path, metavar="PAGE", help="to write too; without a GPU it goes to the notes")
    return parser.parse_args()


def measure(name: str, seconds: float, options: argparse.Namespace) -> dict:
    """Return the figures of a part; ``error`` says why there are none."""
    answer = (options.notes / f"{name}.json").absolute()
    answer.unlink(missing_ok=True)
    script = [sys.executable, str(HERE / "gpu_figures.py"), name]
    command = [*script, "--device", options.device, "--to", str(answer)]
    if options.precision:
        command.append(f"--precision={options.precision}")
    if options.quick:
        command.append("--quick")
    start = time.monotonic()
    log = options.notes / f"bench_{name}.txt"
    with log.open("w") as output:
        # A group of its own, in this session: what ends the session ends it too.
        running = subprocess.Popen(
            [*command, "--seconds", str(0.9 * seconds)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            status = f"exit status {running.wait(seconds)}"
        except subprocess.TimeoutExpired:
            status = f"not through after {seconds:.0f} s"
        finally:
            end(running)
    asked = dict(zip(("what", "asked"), ASKED[name], strict=True))
    result = {"title": name} | gpu_report.load(answer)
    if "rows" not in result:  # it was ended, or broke down, before there was a round
        result.setdefault("error", f"{status}: {last_lines(log, 1)}")
    if result.get("error"):
        print(f"\n{name} said at last:\n{last_lines(log, LAST_LINES)}", flush=True)
    return {"measured": "not measured", "met": "no"} | result | asked | {"seconds": time.monotonic() - start}


def last_lines(log: Path, count: int) -> str:
    return "\n".join(log.read_text().strip().splitlines()[-count:]) or "nothing"


def end(running: subprocess.Popen) -> None:
    """End a part and all its candidates."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def told(result: dict) -> str:
    """Return a part for a terminal."""
    lines = ["", f"{result['title']} ({result['seconds']:.0f} s)"]
    if result.get("error"):
        lines = ["", f"{result['title']}: not measured ({result['seconds']:.0f} s): {result['error']}"]
    if "rows" not in result:
        return "\n".join(lines)
    rows = [result["columns"], *result["rows"]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    asked = f"{result['what']}: asked {result['asked']}, measured {result['measured']}  {result['met']}"
    return "\n".join([*lines, result["note"], *table, asked.rstrip()])


if __name__ == "__main__":
    main()
