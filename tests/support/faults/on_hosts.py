"""Inflict faults on runs over several hosts, name spaces of this machine, and count how each was survived.

    hosts, voyages (masters on h1) -> legs, each with one injury -> records -> report, exit status 1 if
    anything is wrong

python tests/support/faults/on_hosts.py --hosts 3 --faults 200 --seconds 3000
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from referee_on_hosts import INJURIES, Referee
from summary import machine, spread

from support.machines.hosts import Hosts, missing

PHASES = ("idle", "computing", "collective", "compiling", "committing", "restarting")
LEGS = 8  # of a voyage
ENOUGH = 50  # times, before a 99th percentile is one
PROMISES = {"lost_s": 3.0, "report_s": 3.0, "restart_s": 5.0}  # of the 99th percentile


def report(records, seconds):
    """Print the summary; return what was promised otherwise."""
    faults = [record for record in records if record["injury"] != "close"]
    wrong = [record for record in records if record["wrong"]]
    print(f"{len(faults)} faults in {seconds:.0f} s on {machine()}")
    for field in ("injury", "phase", "error"):
        print(f"  {dict(Counter(record.get(field, '-') for record in faults))}")
    counts = {name: sum(name in record for record in records) for name in ("hang", "leak")}
    print(f"hangs {counts['hang']}, leaks {counts['leak']}, wrong {len(wrong)}")
    reasons = [f"{len(wrong)} wrong"] if wrong else []
    for field in ("lost_s", "report_s", "restart_s", "end_s", "close_s", "load"):
        found = spread(records, field)
        print(f"{field:<12}{found}")
        if found["n"] >= ENOUGH and found["p99"] > PROMISES.get(field, 1e9):
            reasons.append(f"p99 of {field} is {found['p99']:.2f} s, more than {PROMISES[field]} s")
    return reasons


def deal(injuries, phases):
    """Yield injuries and phases for ever, every pair once before any comes again."""
    pairs = list(product(injuries, phases))
    while True:
        yield from random.sample(pairs, len(pairs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2, help="on each host (default 2)")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3600, help="begin none after so many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--only", action="append", choices=INJURIES)
    parser.add_argument("--phase", action="append", choices=PHASES)
    parser.add_argument("--json", type=Path, help="where to write all records")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(f"no hosts can be made here: {reason}")
    random.seed(options.seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="synk-hosts-") as folder:
        hosts = Hosts(options.hosts, folder)
        referee = Referee(options, hosts)
        try:
            dealt = deal(options.only or INJURIES, options.phase or PHASES)
            for number, (injury, phase) in zip(range(options.faults), dealt, strict=False):
                if time.monotonic() - began > options.seconds:
                    break
                show(began, referee.play(injury, phase))
                if number % LEGS == LEGS - 1:
                    show(began, referee.close_voyage())
            show(began, referee.close_voyage())
        finally:
            hosts.close()
    print(f"seed {options.seed}")
    reasons = report(referee.records, time.monotonic() - began)
    if options.json:
        options.json.write_text(json.dumps(referee.records, indent=1) + "\n")
    if reasons:
        sys.exit("; ".join(reasons))


def show(began, record):
    if record is None:
        return
    times = " ".join(f"{name} {record[name]:.2f}" for name in record if name.endswith("_s"))
    print(
        f"{time.monotonic() - began:6.1f} s  {record['injury']:<11}{record['phase']:<11}"
        f"{record.get('error', ''):<14}{times}",
        flush=True,
    )
    for text in record["wrong"]:
        print(f"  WRONG {text}", flush=True)
    if record.get("log"):
        print(record["log"], flush=True)


if __name__ == "__main__":
    main()
