"""The processes of a run over hosts, as one from outside talks to them and finds them.

Master: say -> voyage.py on the first host -> hear
Crew: all processes of a run -> victims, those that an injury may be meant for
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.machines.hosts import INTERFACE

HERE = Path(__file__).parent
HANG_SECONDS = 60.0  # without a word from the master


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
        """Return the pids on a host whose command has a word, if their parent's has it, too, or if not."""
        pids = {pid for pid, words in self.found[name].items() if word in words}
        return sorted(pid for pid in pids if (parent(pid) in pids) == child_of_same)

    def victims(self, injury, host):
        """Return the pids on a host that an injury may be meant for."""
        word, child_of_same = {
            "worker": ("voyage.py", True),
            "master": ("voyage.py", False),
            "agent": ("run/on_machines/follower.py", False),
            "mpirun": ("bin/prterun", False),
            "far worker": ("run/on_machines/follower.py", True),
            "leader": ("run/on_machines/follower.py", False),
            "daemon": ("prted", False),
        }[injury]
        return self.on(host, word, child_of_same)


def parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0
