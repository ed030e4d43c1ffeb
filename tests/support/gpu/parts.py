"""Run each file of tests by a separate pytest, several at a time.

collect -> parts_of -> run -> Part.result, of what ``notes`` has written down
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
COLLECTING_SECONDS = 150
THREADS = "2"  # of libraries, in each of several processes
PYTEST = [
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
    missing : str
        What keeps the GPU from computing, or "": then no process looks again.
    """

    def __init__(self, name, tests, arguments, notes, missing):
        self.name, self.tests, self.notes = name, tests, notes
        self._arguments, self._missing = arguments, missing
        self._process, self._seconds, self._said = None, 0.0, "out of time before it began"

    def run(self, deadline, limit):
        """Run the tests until ``deadline`` of `time.monotonic`, for ``limit`` seconds at most."""
        began = time.monotonic()
        if began >= deadline:
            return
        self._said = ""
        self._process = start(self._arguments, self.notes, self._missing)
        try:
            status = self._process.wait(min(limit, deadline - began))
            if status not in (0, 1, 5):  # passed, failed, nothing to run
                self._said = f"ended with status {status}"
        except subprocess.TimeoutExpired:
            self._said = f"ended after {time.monotonic() - began:.0f} s"
        finally:
            self.end()
            self._seconds = time.monotonic() - began

    def end(self):
        """Kill a process, if it still runs, and all its descendants."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def result(self):
        """Return counts of outcomes, failures with their messages, and seconds."""
        last = {note["test"]: note for note in read(self.notes) if "test" in note} if self._process else {}
        left = [test for test in self.tests if test not in last]
        counts, failures = Counter(), []
        for note in last.values():
            outcome = "unfinished" if note["outcome"] == "begun" else note["outcome"]
            counts[outcome] += 1
            if outcome not in ("passed", "skipped"):
                failures.append({"said": self._said} | note | {"outcome": outcome})
        if left:
            counts["not run"] = len(left)
            failures.append({"test": f"{len(left)} tests", "outcome": "not run", "said": self._said})
        skips = sorted({note["said"] for note in last.values() if note["outcome"] == "skipped"})
        return {
            "name": self.name,
            "seconds": round(self._seconds, 1),
            "counts": counts,
            "failures": failures,
            "skips": skips,
        }


def run(parts, jobs, deadline, limit, done):
    """Run parts, ``jobs`` at a time, until the deadline; ``done(part)`` is called when one is over."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            of = {pool.submit(part.run, deadline, limit): part for part in parts}
            for over in as_completed(of):
                over.result()
                done(of[over])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for part in parts:
                part.end()


def collect(folder, only):
    """Return the ids of the tests marked ``gpu`` in the files ``only``, in all if there are none."""
    notes = folder / "collected.jsonl"
    collecting = start(["--collect-only", *only], notes, "")
    with contextlib.suppress(subprocess.TimeoutExpired):
        collecting.wait(COLLECTING_SECONDS)
    collecting.kill()
    collecting.wait()
    for note in read(notes):
        if "collected" in note:
            return note["collected"]
    raise SystemExit(f"pytest collects nothing:\n{notes.with_suffix('.txt').read_text()[-6000:]}")


def parts_of(tests, folder, only, missing):
    """Return a part for each file of ``tests``, or one of all if a GPU is ``missing``."""
    if missing:
        return [Part("all", tests, only, folder / "all.jsonl", missing)]
    files = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    return [
        Part(name_of(file), those, [file], folder / f"{file.replace('/', '.')}.jsonl", missing)
        for file, those in files.items()
    ]


def name_of(file):
    """Return the subject of a file of tests, whose name is ``test_NAME.py``."""
    return Path(file).stem.removeprefix("test_")


def start(arguments, notes, missing):
    """Start a pytest, in a group of its own but in this session: what ends the session ends it too."""
    notes.unlink(missing_ok=True)
    path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {f"{library}_NUM_THREADS": THREADS for library in ("OMP", "OPENBLAS", "MKL")} | {
        "GPU_MISSING": missing,
        "GPU_NOTES": str(notes.absolute()),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the machine may have any number of them
    }
    with notes.with_suffix(".txt").open("w") as output:
        return subprocess.Popen(
            [*PYTEST, *arguments],
            cwd=TESTS.parent,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )


def read(notes):
    """Return the notes of a file, without a last line that was cut off."""
    lines = notes.read_text().split("\n")[:-1] if notes.exists() else []
    return [json.loads(line) for line in lines]
