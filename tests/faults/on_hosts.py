"""Inflict faults on runs over several hosts, name spaces of this machine, and count how each was survived.

    hosts, voyages (masters on h1) -> legs, each with one injury -> records -> report, exit status 1 if
    anything is wrong

python tests/faults/on_hosts.py --hosts 3 --faults 200 --seconds 3000
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from summary import machine, spread  # noqa: E402

from support.machines.hosts import INTERFACE, Hosts, missing  # noqa: E402

PHASES = ("idle", "computing", "collective", "compiling", "committing", "restarting")
INJURIES = (
    "worker",
    "far worker",
    "leader",
    "agent",
    "mpirun",
    "daemon",
    "host",
    "link",
    "master",
    "first host",
)
FATAL = ("master", "first host")  # to the voyage
LOST = ("host", "link")  # the machine
FAR = (*LOST, "far worker", "leader", "daemon")  # on another host than the master
LEGS = 8  # of a voyage
START_SECONDS = 20.0  # in which a run that restarts has the process that is to be hit
HANG_SECONDS = 60.0  # without a word from the master
GONE_SECONDS = 12.0  # for all to have ended after the master's death, or a link's
ENOUGH = 50  # times, before a 99th percentile is one
PROMISES = {"lost_s": 3.0, "report_s": 3.0, "restart_s": 5.0}  # of the 99th percentile


class Hang(Exception):
    """The master has said nothing for long."""


class Ended(Exception):
    """The master has ended."""


class Master:
    """A voyage on the first host."""

    def __init__(self, hosts, ranks, seed):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by `end`
        command = hosts.command("h1", [sys.executable, HERE / "voyage.py"])
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=hosts.environment()
        )
        self._buffer = b""
        self.say(hosts=",".join(hosts.names), ranks=ranks, seed=seed, interface=INTERFACE)

    def say(self, **order):
        self._write(order)

    def _write(self, what):
        try:
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Ended from None

    def close(self):
        self._write("close")

    def hear(self, *wanted, seconds=HANG_SECONDS):
        """Return the next message that has one of these keys, and those before it."""
        deadline, before = time.monotonic() + seconds, []
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                if line.startswith(b'{"'):
                    message = json.loads(line)
                    if any(name in message for name in wanted):
                        return message, before
                    before.append(message)
                continue
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Hang
            some = os.read(self.process.stdout.fileno(), 1 << 16)
            if not some:
                raise Ended
            self._buffer += some

    def log(self):
        self._log.seek(0)
        return self._log.read()[-3000:]

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self._log.close()


class Crew:
    """The processes of a run on all hosts, as one sees them from outside."""

    def __init__(self, hosts):
        self.found = {name: hosts.processes(name) for name in hosts.names}

    def on(self, name, word, child_of_same=False):
        """Return pids on a host whose commands have a word; of those the children of such, or the others."""
        pids = {pid for pid, words in self.found[name].items() if word in words}
        return sorted(pid for pid in pids if (parent(pid) in pids) == child_of_same)

    def victims(self, injury, host):
        """Return the pids on a host that an injury may be meant for."""
        word, child_of_same = {
            "worker": ("voyage.py", True),
            "master": ("voyage.py", False),
            "agent": ("run/follower.py", False),
            "mpirun": ("bin/prterun", False),
            "far worker": ("run/follower.py", True),
            "leader": ("run/follower.py", False),
            "daemon": ("prted", False),
        }[injury]
        return self.on(host, word, child_of_same)


def counts(left):
    """Tell whether something that is left counts: folders of compilers stay where these are killed."""
    return "/synk-cc-" not in left


def parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


class Referee:
    """Hosts, one voyage after the other on them, and what is recorded of their legs."""

    def __init__(self, options, hosts):
        self.options, self.hosts = options, hosts
        self.records = []
        self._master = None
        self._missing = False  # whether some host is to be taken in again

    def play(self, injury, phase):
        """Inflict one fault; record how it was survived."""
        record = {"injury": injury, "phase": phase, "wrong": []}
        try:
            if self._master is None:
                self._master = Master(self.hosts, self.options.ranks, random.randrange(1 << 31))
                self._master.hear("forked")
            self._leg(record, injury, phase)
        except Hang:
            record["hang"] = True
            record["wrong"].append("the master hangs")
            self._give_up(record)
        except Ended:
            record["wrong"].append("the master has ended")
            self._give_up(record)
        self.records.append(record)
        return record

    def _leg(self, record, injury, phase):
        master, names = self._master, self.hosts.names
        master.say(phase=phase, hosts=",".join(names) if self._missing else None)
        self._missing = False
        master.hear("ready")
        before = Crew(self.hosts)
        time.sleep(random.uniform(0, 0.6))
        record["host"] = host = random.choice(names[1:]) if injury in FAR else names[0]
        hit = self._inflict(injury, host)
        if injury in FATAL:
            self._after_death(record)
            return
        message, _ = master.hear("raised")
        record |= {"error": message["raised"], "text": message["text"]}
        noticed = message["at"] - hit
        if message["raised"] != "NoneType":
            record["lost_s" if injury in LOST else "report_s"] = noticed
        elif injury in ("worker", "far worker", "leader", "agent", *LOST) and phase != "restarting":
            record["wrong"].append(f"nobody noticed for {noticed:.1f} s")
        if injury in LOST and phase != "restarting" and message["host"] != host:
            record["wrong"].append(f"the host lost is {message['host']}, not {host}: {message['text']}")
        master.say(go=True)
        message, tries = master.hear("done")
        record |= {"restart_s": message["done"], "tries": message["tries"], "ranks": message["ranks"]}
        record["failed_restarts"] = [one["text"] for one in tries]
        if tries and phase != "restarting":
            record["wrong"].append(f"a restart failed: {record['failed_restarts']}")
        self._mend(injury, host)
        lived = [name for name in names if name != host or injury != "host"]
        self._look_for_leaks(record, lived, before)

    def _inflict(self, injury, host):
        """Hit, as soon as there is what is to be hit; return when that was."""
        hit = time.monotonic()
        if injury in ("host", "first host"):
            self.hosts.kill(host)
        elif injury == "link":
            self.hosts.link(host, "down")
        else:
            hit = self._shoot(injury, host)
        return hit

    def _shoot(self, injury, host):
        deadline = time.monotonic() + START_SECONDS
        while True:
            victims = Crew(self.hosts).victims(injury, host)
            hit = time.monotonic()
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(random.choice(victims), signal.SIGKILL)
                return hit
            assert hit < deadline, f"there is no {injury} on {host}"

    def _mend(self, injury, host):
        if injury in LOST:
            self._missing = True
            if injury == "host":
                self.hosts.start(host)
            else:
                self.hosts.link(host, "up")

    def _look_for_leaks(self, record, lived, before):
        """Find processes of before, and segments and folders beyond those of one run."""
        deadline = time.monotonic() + GONE_SECONDS
        while leaks := list(self._leaks(lived, before)):
            if time.monotonic() > deadline:
                record["leak"] = True
                record["wrong"] += leaks
                return
            time.sleep(0.1)

    def _leaks(self, lived, before):
        for name in lived:
            now = self.hosts.processes(name)
            for pid in before.found[name].keys() & now.keys():
                if not (name == "h1" and "voyage.py" in now[pid] and parent(pid) not in now):
                    yield f"{name}: {pid} {now[pid]}"
            files = list(filter(counts, self.hosts.files(name)))
            if len(files) > 1:  # that of the present job
                yield f"{name}: {files}"

    def _after_death(self, record):
        """Nothing is left of a run whose master has ended, on any host that has not."""
        began = time.monotonic()
        if record["host"] == "h1" and record["injury"] == "first host":
            self.hosts.start("h1")
        self._master.end()
        self._master, self._missing = None, False
        self._await_nothing(record)
        record["end_s"] = time.monotonic() - began

    def _await_nothing(self, record):
        deadline = time.monotonic() + GONE_SECONDS
        while left := [one for name in self.hosts.names for one in self.hosts.left(name) if counts(one)]:
            if time.monotonic() > deadline:
                record["leak"] = True
                record["wrong"].append(f"left: {left}")
                self._restart_hosts()
                return
            time.sleep(0.1)

    def close_voyage(self):
        """End a voyage in peace."""
        if self._master is None:
            return
        record = {"injury": "close", "phase": "idle", "wrong": []}
        try:
            self._master.close()
            record["close_s"] = self._master.hear("closed")[0]["closed"]
        except (Hang, Ended) as error:
            record["wrong"].append(f"close: {type(error).__name__}")
            self._give_up(record)
        else:
            self._master.process.wait()
            self._master.end()
            self._master, self._missing = None, False
            self._await_nothing(record)
        self.records.append(record)
        return record

    def _give_up(self, record):
        """Start everything anew."""
        record["log"] = self._master.log() if self._master else ""
        if self._master is not None:
            self._master.end()
        self._master, self._missing = None, False
        self._restart_hosts()

    def _restart_hosts(self):
        for name in self.hosts.names:
            if self.hosts.first_process(name) is not None:
                self.hosts.kill(name)
            self.hosts.start(name)


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
    for field in ("lost_s", "report_s", "restart_s", "end_s", "close_s"):
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
