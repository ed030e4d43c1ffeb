"""Fork a master for each episode, fire at it from outside, and see that nothing of it remains.

    episode on standard input -> master (`Ordeal`) -> shots, records -> nothing left? -> records, printed

An episode is a line of JSON, ``[seed, [injury, ...]]``, and so is each record; a line ``"done"`` ends it.

Run by ``campaign``, where it may in name spaces of its own: then all that lies in shared memory is ours.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

from acts import the_stage
from ordeal import Ordeal

sys.path.append(str(Path(__file__).parents[2]))  # where helpers of all tests are
from support.processes import leaks

HANG_SECONDS = 25.0  # without a word from the master
GONE_SECONDS = 2.0  # for workers to follow their master
END_SECONDS = 5.0  # for a master to end that was told to
TELL_STACKS = signal.SIGRTMAX - 3
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Gallery:
    """Signals to be sent: those that are due, and those that wait for an event."""

    def __init__(self, master):
        self._master = master
        self.cease()

    def cease(self):
        self._shots, self._follow, self._newborn = [], None, None

    def take(self, orders):
        """Store a request of the master for signals."""
        now = time.monotonic()
        self._shots += [(now + after, pid, number) for after, pid, number in orders.get("shots", ())]
        self._follow = orders.get("follow", self._follow)
        self._newborn = orders.get("newborn", self._newborn)
        if "cease" in orders:
            self.cease()

    def patience(self):
        """Return the seconds until there is something to do."""
        if self._follow or self._newborn:
            return 0.0002
        return min((max(0.0, due - time.monotonic()) for due, _, _ in self._shots), default=1.0)

    def fire(self):
        """Send the signals that are due."""
        now = time.monotonic()
        if self._newborn:
            after, number, known = self._newborn
            if born := set(children_of(self._master)) - set(known):
                self._shots.append((now + after, born.pop(), number))
                self._newborn = None
        if self._follow and the_stage.struck:
            (after, pid, number), self._follow = self._follow, None
            self._shots.append((now + after, pid, number))
        for shot in [shot for shot in self._shots if shot[0] <= now]:
            self._shots.remove(shot)
            the_stage.strike()
            with contextlib.suppress(ProcessLookupError):
                os.kill(shot[1], shot[2])


def children_of(pid):
    """Return the pids of a process's children."""
    with (
        contextlib.suppress(FileNotFoundError, ProcessLookupError),
        open(f"/proc/{pid}/task/{pid}/children") as row,
    ):
        return list(map(int, row.read().split()))
    return []


def used():
    """Return the blocks in use of the file system of shared memory."""
    usage = os.statvfs("/dev/shm")
    return usage.f_blocks - usage.f_bfree


class Episode:
    """One master, from its fork until nothing of it is left."""

    def __init__(self, seed, names, private, log):
        self.seed, self.names, self.private, self.log = seed, names, private, log
        self._fault = {}
        self._unread = b""

    def run(self):
        """Return the records of all faults; the last record has what was wrong at the end."""
        before = used(), set(os.listdir("/dev/shm"))
        self.records = []
        ours, theirs = os.pipe()
        sys.stdout.flush()
        master = os.fork()
        if master == 0:
            os.close(ours)
            self._be_master(theirs)
        os.close(theirs)
        try:
            code, ended = self._watch(master, ours)
        finally:
            os.close(ours)
        kind = self._fault.get("begin", "the end")
        if wrong := list(self._judge_end(code, ended)):
            self._add(kind=kind, wrong=wrong)
        if wrong := list(self._judge_remains(before)):
            self._add(kind=kind, wrong=wrong, leak=True)
        if any(record["wrong"] for record in self.records):
            self.records[-1]["log"] = self._last_words()
        return self.records

    def go_through(self, tell):
        """Run the master under test, in a separate process."""
        Ordeal(self.seed, self.names, tell, self.private).run()

    def _be_master(self, pipe):
        """Go through the ordeal and end as an interpreter would; never returns."""
        code = 70
        try:
            die_with_parent()
            os.setpgid(0, 0)
            os.dup2(self.log.fileno(), 1)
            os.dup2(self.log.fileno(), 2)
            the_stage.disarm()
            before = leaks.take()
            self.go_through(partial(_tell, pipe))
            # In a shared memory that is not ours alone others come and go.
            left = leaks.leftovers(before, frozenset() if self.private else frozenset({"segments"}))
            _tell(pipe, left=left)
            code = 0
        except SystemExit as leaving:
            code = leaving.code
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            with contextlib.suppress(BaseException):
                atexit._run_exitfuncs()
            os._exit(code)

    # --- while it runs ---------------------------------------------------------------------------------

    def _watch(self, master, pipe):
        """Follow the master's messages until it has ended; return its exit code, and when that was."""
        gallery, heard = Gallery(master), time.monotonic()
        life = os.pidfd_open(master)
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        poll.register(life, select.POLLIN)
        try:
            while True:
                ready = dict(poll.poll(1000 * gallery.patience()))
                gallery.fire()
                if ready.get(pipe, 0) & select.POLLIN:
                    heard = time.monotonic()
                    for orders in self._read(pipe):
                        gallery.take(orders)
                        self._note(orders)
                elif life in ready:
                    return os.waitstatus_to_exitcode(os.waitpid(master, 0)[1]), time.monotonic()
                if time.monotonic() - heard > HANG_SECONDS:
                    self._end_hang(master)
                    heard = time.monotonic()
        finally:
            os.close(life)

    def _read(self, pipe):
        *lines, self._unread = (self._unread + os.read(pipe, 1 << 20)).split(b"\n")
        return [json.loads(line) for line in lines]

    def _note(self, orders):
        if "begin" in orders:
            self._fault = orders
        if "record" in orders:
            self._add(**orders["record"])
            self._fault = {}
        for kind, those in orders.get("left", {}).items():
            self._add(kind="the end", wrong=[f"left {kind}: {', '.join(those)}"], leak=True)

    def _add(self, **record):
        self.records.append(dict(record, seed=self.seed, kinds=self.names))

    def _end_hang(self, master):
        self._add(kind=self._fault.get("begin", "the end"), wrong=["hang"], hang=True)
        for pid in (master, *children_of(master)):
            with contextlib.suppress(ProcessLookupError), open(f"/proc/{pid}/stat") as stat:
                self.log.write(f"--- pid {pid}, {stat.read()[:60]}\n")
                self.log.flush()
                os.kill(pid, TELL_STACKS)
                time.sleep(0.3)
        os.kill(master, signal.SIGKILL)

    # --- afterwards --------------------------------------------------------------------------------------

    def _judge_end(self, code, ended):
        fault = self._fault
        if fault.get("outcome") == "ended":
            took = ended - the_stage.struck
            self._add(kind=fault["begin"], end_s=took, wrong=[])
            if code not in fault["codes"]:
                yield f"the master's exit code is {code}, not {fault['codes']}"
            if took > END_SECONDS:
                yield f"the master ended after {took:.2f} s"
        elif code != 0 and not any(record["wrong"] for record in self.records):
            yield f"the master's exit code is {code}"

    def _judge_remains(self, before):
        """See that all processes end, and that shared memory is as it was."""
        deadline = time.monotonic() + GONE_SECONDS
        while (left := self._remaining()) and time.monotonic() < deadline:
            time.sleep(0.005)
        if left:
            yield f"processes outlive the master by {GONE_SECONDS} s: {left}"
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        names = {name for name in set(os.listdir("/dev/shm")) - before[1] if self.private or "synk" in name}
        if names:
            yield f"names are left in shared memory: {names}"
        if self.private and used() != before[0]:
            yield f"{used() - before[0]} blocks of shared memory are left"

    def _remaining(self):
        """Return the processes that are left; this process inherits the orphans."""
        for pid in children_of(os.getpid()):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return children_of(os.getpid())

    def _last_words(self, most=12_000):
        self.log.flush()
        with open(self.log.name, errors="replace") as log:
            return log.read()[-most:]


def _tell(pipe, **orders):
    line = json.dumps(orders).encode() + b"\n"
    while line:
        line = line[os.write(pipe, line) :]


def die_with_parent():
    """Ask the kernel to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def inherit_orphans():
    """Make this process adopt orphaned descendants, so that leaked ones are found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def await_orphans(seconds=10):
    """Wait for the last of them, which on a busy machine take a while to end."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)


def main():
    private = "--private" in sys.argv
    die_with_parent()
    inherit_orphans()
    faulthandler.enable()
    for line in sys.stdin:
        seed, names = json.loads(line)
        with tempfile.NamedTemporaryFile("a+", prefix="synk-faults-") as log:
            faulthandler.register(TELL_STACKS, file=log)
            for record in Episode(seed, names, private, log).run():
                print(json.dumps(record), flush=True)
            faulthandler.unregister(TELL_STACKS)
        print('"done"', flush=True)
    await_orphans()


if __name__ == "__main__":
    main()
