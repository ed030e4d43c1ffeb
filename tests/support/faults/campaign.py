"""Inflict faults on runs, at random moments, and count how each was survived.

deal -> hands of injuries -> referees, one a job -> records -> summary, exit status 1 if anything is wrong

python tests/support/faults/campaign.py --faults 300 --seconds 900 --jobs 2
python tests/support/faults/campaign.py --only SIGSTOP --faults 20
python tests/support/faults/campaign.py --repeat "1234:raises plain,SIGINT"
"""

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from summary import is_fault, promises_broken, summarize, table

HERE = Path(__file__).parent
EPISODE_SECONDS = 150.0  # without a word from a referee
MOST_IN_VAIN = 3  # episodes without a fault, one after the other: something else is wrong
HAND = 4  # injuries for one master
MOUNT = "mount -t tmpfs -o size=256m tmpfs /dev/shm"


def deal(names, fatal, seed):
    """Yield hands for ever: a seed and a few injuries, of which only the last may be fatal to the master.

    Every injury comes once before any comes again.
    """
    shuffled = random.Random(seed)
    while True:
        deck = shuffled.sample(list(names), len(names))
        last = [name for name in deck if name in fatal]
        rest = [name for name in deck if name not in fatal]
        for start in range(0, len(rest), HAND):
            hand = rest[start : start + HAND]
            yield shuffled.randrange(1 << 31), [*hand, *([last.pop()] if last else [])]
        for name in last:
            yield shuffled.randrange(1 << 31), [name]


def private_shared_memory():
    """Return the prefix of a command that gives it a private /dev/shm by name spaces; [] if impossible."""
    command = ["unshare", "-rm", "sh", "-c", f'{MOUNT} && exec "$0" "$@"']
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    return command if allowed else []


class Job:
    """A referee in a separate process, which is restarted if it does not answer."""

    def __init__(self, prefix):
        self._command = [
            *prefix,
            sys.executable,
            str(HERE / "referee.py"),
            *(["--private"] if prefix else []),
        ]
        self._process = None

    def play(self, seed, names):
        """Ask the referee to play one hand; return the records."""
        if self._process is None:
            self._start()
        process, records = self._process, []
        watchdog = threading.Timer(EPISODE_SECONDS, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps([seed, names]) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if line == '"done"\n':
                    return records
                records.append(json.loads(line))
        except BrokenPipeError:
            pass
        finally:
            watchdog.cancel()
        self.end()
        lost = {
            "kind": "referee",
            "seed": seed,
            "kinds": names,
            "wrong": ["the referee did not answer"],
            "hang": True,
        }
        return [*records, lost]

    def _start(self):
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ranks share the cores already.
            env=dict(os.environ, OMP_NUM_THREADS="1"),
        )

    def end(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._process = None


def conduct(hands, n_faults, seconds, n_jobs, heard):
    """Run episodes until there were enough faults or time is over; call ``heard(records)`` after each."""
    deadline, results = time.monotonic() + seconds, queue.SimpleQueue()
    prefix, lock, planned = private_shared_memory(), threading.Lock(), 0

    def next_hand():
        nonlocal planned
        with lock:
            if planned >= n_faults or time.monotonic() > deadline:
                return None
            hand = next(hands, None)
            planned += len(hand[1]) if hand else 0
            return hand

    def give_back(missing):
        """Plan anew the faults that an episode with an early end did not come to."""
        nonlocal planned
        with lock:
            planned -= max(0, missing)

    def work():
        job, in_vain = Job(prefix), 0
        try:
            while in_vain < MOST_IN_VAIN and (hand := next_hand()):
                records = job.play(*hand)
                in_vain = 0 if any(map(is_fault, records)) else in_vain + 1
                give_back(len(hand[1]) - sum(map(is_fault, records)))
                results.put(records)
        finally:
            job.end()
            results.put(None)

    for _ in range(n_jobs):
        threading.Thread(target=work, daemon=True).start()
    while n_jobs:
        records = results.get()
        if records is None:
            n_jobs -= 1
        else:
            heard(records)


def main():
    options = parse()
    from injuries import INJURIES

    names = [name for name in INJURIES if any(part in name for part in options.only or [""])]
    fatal = {name for name in names if INJURIES[name].outcome == "ended"}
    hands = deal(names, fatal, options.seed)
    if options.repeat:
        seed, _, kinds = options.repeat.partition(":")
        hands = iter([(int(seed), kinds.split(","))])
    began, everything = time.monotonic(), []

    def heard(records):
        everything.extend(records)
        faults, wrong = sum(map(is_fault, everything)), [record for record in records if record["wrong"]]
        kinds = ", ".join(record["kind"] for record in records)
        print(f"{time.monotonic() - began:6.1f} s {faults:4} faults  {kinds}", flush=True)
        for record in wrong:
            repeat = f"{record['seed']}:{','.join(record['kinds'])}"
            print(f"WRONG {record['kind']}: --repeat {repeat!r}\n" + "\n".join(record["wrong"]), flush=True)
            print(record.get("log", ""), flush=True)

    conduct(hands, options.faults, options.seconds, options.jobs, heard)
    summary = summarize(everything, time.monotonic() - began)
    print(f"seed {options.seed}\n{table(summary)}")
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "records": everything}, indent=1) + "\n")
    reasons = promises_broken(summary)
    if reasons:
        sys.exit("; ".join(reasons))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--seconds", type=float, default=900, help="begin none after so many (default 900)")
    parser.add_argument("--jobs", type=int, default=2, help="runs under test at a time (default 2)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--only", action="append", help="injuries whose name holds this; may be repeated")
    parser.add_argument("--repeat", metavar="SEED:KIND,...", help="play one hand again")
    parser.add_argument("--json", type=Path, help="where to write all records and the summary")
    return parser.parse_args()


if __name__ == "__main__":
    main()
