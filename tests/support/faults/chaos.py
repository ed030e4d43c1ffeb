"""One long training session, a fault every few seconds, resumed from its last commit; then undisturbed.

python tests/support/faults/chaos.py --seconds 6000 --every 5
"""

import argparse
import faulthandler
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from campaign import private_shared_memory
from marathon import Chaos
from referee import TELL_STACKS, Episode, await_orphans, inherit_orphans
from summary import promises_broken, summarize, table

MOST_GROWTH = 8.0  # MiB of resident memory
ENOUGH = 100  # faults, before growth is told from what is taken once


class Session(Episode):
    """The referee's side."""

    def __init__(self, options, private, log):
        super().__init__(options.seed, [], private, log)
        self._options, self._began = options, time.monotonic()

    def go_through(self, tell):
        Chaos(self.seed, tell, self.private, self._options.seconds, self._options.every).run()

    def _add(self, **record):
        super()._add(**record)
        shown = [record[name] for name in ("error", "report_s", "restart_s", "rss") if record.get(name)]
        numbers = [f"{value:9.3f}" if isinstance(value, float) else f"{value:<24}" for value in shown]
        took = time.monotonic() - self._began
        print(f"{took:7.1f} s  {record['kind']:<26}{''.join(numbers)}", flush=True)
        for text in record["wrong"]:
            print(f"WRONG {text}", flush=True)


def growth(records, field):
    """Return by how much a figure's median grew from the second tenth of the faults to the last."""
    values = [record[field] for record in records if field in record]
    tenth = max(1, len(values) // 10)
    if len(values) < 2:
        return 0.0
    return statistics.median(values[-tenth:]) - statistics.median(values[tenth : 2 * tenth])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6000, help="default 6000")
    parser.add_argument("--every", type=float, default=5, help="seconds from fault to fault (default 5)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--json", type=Path, help="where to write all records and the summary")
    parser.add_argument("--private", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    prefix = [] if options.private else private_shared_memory()
    if prefix:
        sys.exit(subprocess.run([*prefix, sys.executable, *sys.argv, "--private"]).returncode)
    inherit_orphans()
    faulthandler.enable()
    with tempfile.NamedTemporaryFile("a+", prefix="synk-chaos-") as log:
        faulthandler.register(TELL_STACKS, file=log)
        began = time.monotonic()
        records = Session(options, options.private, log).run()
        await_orphans()
        report(options, records, time.monotonic() - began)


def report(options, records, seconds):
    """Print the summary; exit with status 1 where a promise is broken."""
    summary = summarize(records, seconds)
    last = next((record for record in records if record["kind"] == "comparison"), {})
    summary["steps"], summary["steps_done"] = last.get("steps", 0), last.get("steps_done", 0)
    summary["same_bits"] = bool(last) and not last["wrong"]
    summary["growth"] = {field: growth(records, field) for field in ("rss", "descriptors")}
    print(f"seed {options.seed}\n{table(summary)}")
    print(f"{summary['steps']} steps kept of {summary['steps_done']}, same bits: {summary['same_bits']}")
    print("the master grew by {rss:.2f} MiB and {descriptors:.0f} descriptors".format(**summary["growth"]))
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "records": records}, indent=1) + "\n")
    for record in records:
        if "log" in record:
            print(record["log"])
    reasons = promises_broken(summary)
    if not summary["same_bits"]:
        reasons.append("it did not end with the bits of an undisturbed run")
    grew = summary["growth"]["rss"] > MOST_GROWTH and summary["faults"] >= ENOUGH
    if grew or summary["growth"]["descriptors"] > 0:
        reasons.append(f"the master grew by {summary['growth']}")
    if reasons:
        sys.exit("; ".join(reasons))


if __name__ == "__main__":
    main()
