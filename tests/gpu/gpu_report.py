"""Write what tests and benchmarks on a GPU have found as a page of reStructuredText.

    python gpu_report.py --notes build/gpu --to docs/gpu_report.rst

    tests.json of `gpu_tests`, bench.json of benchmarks/gpu.py -> page

A machine without a GPU gets a page that says so, beside the notes: docs/ is for what was seen on one.

Imports the standard library only.
"""

import argparse
import json
import time
from pathlib import Path

BROKEN = ("failed", "broken", "unfinished", "not run")
MOST_FAILURES = 40
LINE = 110


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=Path, default=Path("build/gpu"))
    parser.add_argument("--to", type=Path, default=Path("docs/gpu_report.rst"))
    options = parser.parse_args()
    tests, bench = (load(options.notes / f"{name}.json") for name in ("tests", "bench"))
    if not tests and not bench:
        raise SystemExit(f"nothing to report in {options.notes}: run make gpu-test or make gpu-bench")
    has_gpu = any(found.get("facts", {}).get("device") for found in (tests, bench))
    to = options.to if has_gpu else options.notes / "report.rst"
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(page(tests, bench, time.strftime("%Y-%m-%d")))
    print(f"report: {to}")


def load(path):
    return json.loads(path.read_text()) if path.exists() else {}


def page(tests, bench, day):
    """Return the page; either of the two may be empty."""
    facts = bench.get("facts") or tests.get("facts")
    title = f"Seen on {facts['device']}" if facts["device"] else "No GPU"
    parts = [heading(title, "="), f"{day}. ``make gpu-test`` and ``make gpu-bench`` wrote this page."]
    if not facts["device"]:
        parts.append(
            f"There is no GPU here: {literal(facts['missing'])}. Nothing on this page was seen on one."
        )
    told = [[name, value] for name, value in facts.items() if value and name != "missing"]
    parts.append(table(["", "version"], told))
    if bench:
        parts += [heading("Figures", "-"), *map(figures, bench["parts"])]
    if tests:
        parts += [heading("Tests", "-"), outcomes(tests), *failures(tests)]
    return "\n\n".join(part for part in parts if part) + "\n"


def figures(part):
    """Return one table of the benchmarks."""
    seconds = f"in {part['seconds']:.0f} s"
    if part.get("error"):
        return f"**{part['title']}**: not measured ({seconds}). {literal(part['error'])}"
    title = f"**{part['title']}** ({seconds})"
    if "lines" in part:  # as another script printed them
        return "\n".join([f"{title}::", "", *(f"    {line}" for line in part["lines"])])
    return "\n\n".join([title, part["note"], table(part["columns"], part["rows"])])


def outcomes(tests):
    """Return how the tests of each family ended."""
    kinds = [k for k in ("passed", *BROKEN, "skipped") if any(k in part["counts"] for part in tests["parts"])]
    rows = [
        [part["name"], *(str(part["counts"].get(kind, "")) for kind in kinds), f"{part['seconds']:.0f} s"]
        for part in tests["parts"]
    ]
    totals = [sum(part["counts"].get(kind, 0) for part in tests["parts"]) for kind in kinds]
    rows.append(["all", *map(str, totals), f"{tests['seconds']:.0f} s"])
    return table(["tests of", *kinds, "time"], rows)


def failures(tests):
    """Yield what failed, and the reasons for which tests were skipped."""
    broken = [failure for part in tests["parts"] for failure in part["failures"]]
    if broken:
        yield heading("What failed", "~")
        told = [f"* ``{one['test']}``: {one['outcome']}. {last_line(one['said'])}" for one in broken]
        yield "\n".join(told[:MOST_FAILURES])
        if len(broken) > MOST_FAILURES:
            yield f"And {len(broken) - MOST_FAILURES} more."
    reasons = sorted({reason for part in tests["parts"] for reason in part["skips"]})
    if reasons:
        yield heading("Why tests were skipped", "~")
        yield "\n".join(f"* {literal(reason)}" for reason in reasons)


def last_line(text):
    """Return what says most of a traceback: the last line that pytest marks as the error."""
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
