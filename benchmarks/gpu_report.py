"""Write what tests and benchmarks of a GPU found as one page, after each of their parts.

    tests.json of `run_tests`, bench.json of benchmarks/gpu.py -> write -> page
    python benchmarks/gpu_report.py --notes build/gpu --to docs/gpu_report.rst     from notes brought home

A machine without a GPU gets a page that says so, beside the notes: docs/ is for what was seen on one.
"""

import argparse
import json
import os
import re
import time
from collections import Counter
from pathlib import Path

BROKEN = ("failed", "broken", "unfinished", "not run")
MOST_FAILURES = 40
LINE = 110


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=Path, default=Path("build/gpu"))
    parser.add_argument("--to", type=Path, default=Path("docs/gpu_report.rst"))
    options = parser.parse_args()
    written = write(options.notes, options.to)
    if written is None:
        raise SystemExit(f"nothing to report in {options.notes}: run make gpu-test or make gpu-bench")
    print(f"report: {written}")


def write(notes, to):
    """Write the page of all notes there are, and return where it is; None without any or without ``to``."""
    tests, bench = (load(notes / f"{name}.json") for name in ("tests", "bench"))
    if to is None or not (tests or bench):
        return None
    has_gpu = any(found.get("facts", {}).get("device") for found in (tests, bench))
    to = to if has_gpu else notes / "report.rst"
    to.parent.mkdir(parents=True, exist_ok=True)
    replace(to, page(tests, bench, time.strftime("%Y-%m-%d")))
    return to


def load(path):
    return json.loads(path.read_text()) if path.exists() else {}


def save(path, found):
    replace(path, json.dumps(found, indent=1))


def replace(path, text):
    """Write a file at once: who is ended meanwhile leaves the one from before."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text)
    os.replace(unfinished, path)


def page(tests, bench, day):
    """Return the page; either of the two may be empty."""
    facts = bench.get("facts") or tests.get("facts")
    title = f"Seen on {facts['device']}" if facts["device"] else "No GPU"
    parts = [heading(title, "="), f"{day}. ``make gpu-test`` and ``make gpu-bench`` wrote this page."]
    if not facts["device"]:
        parts.append(
            f"There is no GPU here: {literal(facts['missing'])}. Nothing on this page was seen on one."
        )
    for name, found in {"gpu-test": tests, "gpu-bench": bench}.items():
        if found and not found["ended"]:
            parts.append(f"``make {name}`` was cut off: what it had not reached is missing.")
    told = [[name, value] for name, value in facts.items() if value and name != "missing"]
    parts += [asked(tests, bench), table(["", "version"], told)]
    if bench:
        parts += [heading("Figures", "-"), *map(figures, bench["parts"].values())]
    if tests:
        parts += [heading("Tests", "-"), outcomes(tests), *failures(tests)]
    return "\n\n".join(part for part in parts if part) + "\n"


def asked(tests, bench):
    """Return the limit that was asked for beside the measured value."""
    measured = bench.get("parts", {}).values()
    rows = [[part[key] for key in ("what", "asked", "measured", "met")] for part in measured]
    if tests:
        counts = total(tests)
        passed, skipped, every = counts.get("passed", 0), counts.get("skipped", 0), sum(counts.values())
        met = "yes" if passed and passed + skipped == every else "no"
        rows.append(["tests marked gpu", "all pass", f"{passed} of {every}, {skipped} skipped", met])
    seconds = tests.get("seconds", 0) + sum(part["seconds"] for part in measured)
    if tests and bench:
        rows.append(["tests and figures", "in 480 s", f"{seconds:.0f} s", "yes" if seconds < 480 else "no"])
    return table(["what", "asked", "measured", "met"], rows)


def total(tests):
    """Return how many tests came to each outcome."""
    counts = Counter()
    for part in tests["parts"].values():
        counts.update(part["counts"])
    return counts


def figures(part):
    """Return one table of the benchmarks, or why there is none."""
    seconds = f"in {part['seconds']:.0f} s"
    said = [f"**{part['title']}** ({seconds})"]
    if part.get("error"):
        said = [f"**{part['title']}**: not measured ({seconds}). {literal(part['error'])}"]
    if "rows" in part:
        said += [escaped(part["note"]), table(part["columns"], part["rows"])]
    return "\n\n".join(said)


def escaped(text):
    """Return text in which nothing is markup."""
    return re.sub(r"([*`|_\\])", r"\\\1", text)


def outcomes(tests):
    """Return how the tests of each family ended."""
    parts, counts = tests["parts"].values(), total(tests)
    kinds = [kind for kind in ("passed", *BROKEN, "skipped") if counts[kind]]
    rows = [
        [part["name"], *(str(part["counts"].get(kind, "")) for kind in kinds), f"{part['seconds']:.0f} s"]
        for part in parts
    ]
    rows.append(["all", *(str(counts[kind]) for kind in kinds), f"{tests['seconds']:.0f} s"])
    return table(["tests of", *kinds, "time"], rows)


def failures(tests):
    """Yield what failed, and the reasons for which tests were skipped."""
    broken = [failure for part in tests["parts"].values() for failure in part["failures"]]
    if broken:
        yield heading("What failed", "~")
        told = [f"* ``{one['test']}``: {one['outcome']}. {last_line(one['said'])}" for one in broken]
        yield "\n".join(told[:MOST_FAILURES])
        if len(broken) > MOST_FAILURES:
            yield f"And {len(broken) - MOST_FAILURES} more."
    reasons = sorted({reason for part in tests["parts"].values() for reason in part["skips"]})
    if reasons:
        yield heading("Why tests were skipped", "~")
        yield "\n".join(f"* {literal(reason)}" for reason in reasons)


def last_line(text):
    """Return the line that says most of a traceback: the last one that pytest marks as the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    return literal((marked or lines or ["nothing said"])[0 if marked else -1])


def literal(text):
    return f"``{' '.join(str(text).replace('`', chr(39)).split())[:LINE]}``"


def heading(text, mark):
    return f"{text}\n{mark * len(text)}"


def table(headings, rows):
    """Return a simple table; an empty first cell would join its row to the one before."""
    cells = [[str(cell) or "\\" for cell in row] for row in [headings, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    rule = "  ".join("=" * width for width in widths)
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


if __name__ == "__main__":
    main()
