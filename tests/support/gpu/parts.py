"""Files of tests, each run by a pytest of its own, as many at a time as there are jobs.

Collecting -> [Part] -> Pool.run -> Part.result, of what ``notes`` has written down
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
ROOT = TESTS.parent
LOOK_SECONDS = 0.1
COLLECTING_SECONDS = 150
THREADS = "2"  # of libraries, in each of several processes


class Part:
    """Tests that one process runs.

    Parameters
    ----------
    name : str
        Of what they test.
    tests : list of str
        Ids of pytest.
    arguments : list of str
        What to run them by.
    notes : Path
        The file for `notes`; what pytest prints goes beside it.
    missing : str, optional
        What keeps the GPU from computing, or "": then no process looks again.
    """

    def __init__(self, name, tests, arguments, notes, missing=None):
        self.name, self.n_tests, self.notes = name, len(tests), notes
        self._missing = missing
        self._tests, self._arguments = tests, arguments
        self._process = None
        self.started = self.seconds = 0.0
        self.said = "out of time before it began"

    def start(self):
        self.notes.unlink(missing_ok=True)
        self.started, self.said = time.monotonic(), ""
        with self.notes.with_suffix(".txt").open("w") as output:
            # A group of its own, in this session: what ends the session ends it too.
            self._process = subprocess.Popen(
                [*pytest_command(), *self._arguments],
                cwd=ROOT,
                env=environment(self.notes, self._missing),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def over(self, until):
        """Tell whether all tests have ended; after ``until`` they are ended."""
        status = self._process.poll()
        if status is None and time.monotonic() < until:
            return False
        if status is None:
            self.said = f"ended after {time.monotonic() - self.started:.0f} s"
        elif status not in (0, 1, 5):  # passed, failed, nothing to run
            self.said = f"ended with status {status}"
        self.end()
        return True

    def end(self):
        """End the process and what it has forked, whether it has ended or not."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.seconds = time.monotonic() - self.started

    def result(self):
        """Return counts of outcomes, failures with what they said, and seconds."""
        last = {note["test"]: note for note in read(self.notes) if "test" in note} if self._process else {}
        left = [test for test in self._tests if test not in last]
        counts, failures = {}, []
        for note in last.values():
            outcome = "unfinished" if note["outcome"] == "begun" else note["outcome"]
            counts[outcome] = counts.get(outcome, 0) + 1
            if outcome not in ("passed", "skipped"):
                failures.append({"said": self.said} | note | {"outcome": outcome})
        if left:
            counts["not run"] = len(left)
            failures.append({"test": f"{len(left)} tests", "outcome": "not run", "said": self.said})
        skips = sorted({note["said"] for note in last.values() if note["outcome"] == "skipped"})
        return {
            "name": self.name,
            "seconds": round(self.seconds, 1),
            "counts": counts,
            "failures": failures,
            "skips": skips,
        }


class Pool:
    """Runs parts, ``jobs`` at a time, until the deadline.

    Parameters
    ----------
    jobs : int
    deadline : float
        Of `time.monotonic`; what runs then is ended, what has not begun is left.
    limit : float
        Seconds for one part.
    done : callable
        ``done(part)`` is called when one is over.
    """

    def __init__(self, jobs, deadline, limit, done):
        self._jobs, self._deadline, self._limit, self._done = jobs, deadline, limit, done

    def run(self, parts):
        waiting, running = list(parts), []
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs and time.monotonic() < self._deadline:
                    running.append(waiting.pop(0))
                    running[-1].start()
                for part in list(running):
                    if part.over(min(self._deadline, part.started + self._limit)):
                        running.remove(part)
                        self._done(part)
                if not running and time.monotonic() >= self._deadline:
                    break
                time.sleep(LOOK_SECONDS)
        finally:
            for part in running:
                part.end()
        for part in waiting:
            self._done(part)


class Collecting:
    """A pytest that finds the tests marked ``gpu``, while others look at the machine.

    Parameters
    ----------
    folder : Path
        For notes.
    only : sequence of str
        Files of tests; all if empty.
    """

    def __init__(self, folder, only=()):
        self._folder, self._only = folder, list(only)
        self._notes, self._said = folder / "collected.jsonl", folder / "collected.txt"
        self._notes.unlink(missing_ok=True)
        with self._said.open("w") as output:
            self._process = subprocess.Popen(
                [*pytest_command(), "--collect-only", *only],
                cwd=ROOT,
                env=environment(self._notes, ""),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def parts(self, missing):
        """Return a part for each file, or one of all if a GPU is ``missing``."""
        try:
            self._process.wait(COLLECTING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        found = [note["collected"] for note in read(self._notes) if "collected" in note]
        if not found:
            raise SystemExit(f"pytest collects nothing:\n{self._said.read_text()[-6000:]}")
        if missing:
            return [Part("all", found[0], self._only, self._folder / "all.jsonl", missing)]
        files = {}
        for test in found[0]:
            files.setdefault(test.partition("::")[0], []).append(test)
        return [Part(name_of(f), tests, [f], self._notes_of(f), missing) for f, tests in files.items()]

    def _notes_of(self, file):
        return self._folder / f"{file.replace('/', '.')}.jsonl"


def name_of(file):
    """Return the subject of a file of tests: its name is ``test_NAME.py`` or ``test_dispatch_NAME.py``."""
    return Path(file).stem.removeprefix("test_").removeprefix("dispatch_")


def pytest_command():
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "support.gpu.notes",
        "-p",
        "no:cacheprovider",
    ]


def environment(notes, missing=None):
    """Return the environment of a pytest: where to write, whether there is a GPU, how many threads."""
    threads = {f"{library}_NUM_THREADS": THREADS for library in ("OMP", "OPENBLAS", "MKL")}
    known = {} if missing is None else {"GPU_MISSING": missing}
    path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return (
        os.environ
        | threads
        | known
        | {
            "GPU_NOTES": str(notes.absolute()),
            "PYTHONPATH": os.pathsep.join(path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the machine may have any number of them
        }
    )


def read(notes):
    """Return the notes of a file, without a last line that was cut off."""
    lines = notes.read_text().split("\n")[:-1] if notes.exists() else []
    return [json.loads(line) for line in lines]
