"""Play one leg of a voyage after the other, inflict a fault in each, and judge how it was survived.

injury, phase -> Referee.play -> record: what was raised when, how long a restart took, what is wrong
"""

import contextlib
import os
import random
import signal
import time

from processes_on_hosts import Crew, Ended, Hang, Master, parent

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
START_SECONDS = 20.0  # in which a run that restarts has the process that is to be hit
GONE_SECONDS = 12.0  # for all to have ended after the master's death, or a link's


def counts(left):
    """Return whether a leftover counts as a leak; temporary folders of killed compilers do not."""
    return "/synk-cc-" not in left


class Referee:
    """The hosts, the voyages that are run on them one after the other, and the records of their legs."""

    def __init__(self, options, hosts):
        self.options, self.hosts = options, hosts
        self.records = []
        self._master = None
        self._missing = False  # whether some host is to be taken in again

    def play(self, injury, phase):
        """Inflict one fault; record how it was survived."""
        record = {"injury": injury, "phase": phase, "load": os.getloadavg()[0], "wrong": []}
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
        """Inflict a fault as soon as its target exists; return the time."""
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
        """Find processes of earlier runs, and more segments and folders than one run has."""
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
        """Assert that nothing is left of a run whose master has ended, on all hosts that are up."""
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
        """End the master and the hosts, and start new ones."""
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
