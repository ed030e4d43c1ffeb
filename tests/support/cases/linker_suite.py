"""Hold the linker to PyTensor's own tests of its Numba backend.

    make linker-suite SUITE=<checkout of pytensor at the tag that is installed>

The tests compare a graph with PyTensor's Python linker through one helper, ``compare_numba_and_py``;
here that helper compiles with `ArrayLinker` in place of Numba's linker. Tests that never reach it
test Numba itself and do not count. The suite runs once with ``host_ops="raise"``, which refuses every
Op that would run its own Python implementation, and once with ``"allow"``. With ``--stand-in`` it runs
once on the stand-in for a GPU's array module, which refuses transfers that nobody asked for.

As a script it runs both and prints a table; as a pytest plugin it does one.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytensor  # before the checkout, which has sources of the same name, is on the path
import pytest
from pytensor.compile.mode import Mode, get_mode

from synk.compile import ArrayLinker
from synk.compile.rewriting.rewrites import UNWANTED

TESTS = Path(__file__).parents[2]
DOCUMENTED = TESTS.parent / "docs" / "linker.rst"  # names the tests that fail, and why
WANTED_SHARE = 0.85  # of the tests, without host Ops

HELPERS = "tests.link.numba.test_basic"
HOST_OPS = "SYNK_SUITE_HOST_OPS"
REPORT = "SYNK_SUITE_REPORT"
STAND_IN = "SYNK_SUITE_STAND_IN"


# --- as a plugin -------------------------------------------------------------------------------


class Retarget:
    """Replace the helper, and note which tests reach it and how they end."""

    def __init__(self, host_ops: str, xp=np):
        self.linker = ArrayLinker(xp, host_ops=host_ops)
        self.running = ""
        self.reached: dict[str, str] = {}

    def mode_like(self, mode) -> Mode:
        """Return a mode with the rewrites of ``mode`` and the array linker."""
        query = copy.copy(get_mode(mode).provided_optimizer)
        # The backend's tag goes and with it this rewrite, which is not the backend's own.
        query.include = (query.include - {"numba"}) | {"scan_save_mem_no_prealloc"}
        return Mode(self.linker, query.excluding(*UNWANTED))

    def compare(
        self,
        graph_inputs,
        graph_outputs,
        test_inputs,
        *,
        assert_fn=None,
        numba_mode,
        py_mode,
        updates=None,
        inplace=False,
        eval_obj_mode=True,
    ):
        """Stand in for ``compare_numba_and_py``; same arguments, same result."""
        self.reached.setdefault(self.running, "passed")
        assert_fn = assert_fn or assert_close
        options = {"accept_inplace": inplace, "updates": updates}
        before = copy.deepcopy(list(test_inputs))
        of_suite = pytensor.function(graph_inputs, graph_outputs, mode=py_mode, **options)
        expected = of_suite(*copy.deepcopy(before))
        function = pytensor.function(graph_inputs, graph_outputs, mode=self.mode_like(numba_mode), **options)
        given = copy.deepcopy(before)
        result = function(*given)
        if not inplace:
            for now, old in zip(given, before, strict=True):
                assert_fn(now, old)
        several = isinstance(graph_outputs, tuple | list)
        for ours, theirs in zip(result, expected, strict=True) if several else [(result, expected)]:
            assert_fn(ours, theirs)
        return function, result

    def pytest_collectstart(self, collector):
        """Put the stand-in in place before a test module imports the helper by name."""
        if HELPERS in sys.modules or not isinstance(collector, pytest.Module):
            return
        helpers = importlib.import_module(HELPERS)
        self.modes = {"numba_mode": helpers.numba_mode, "py_mode": helpers.py_mode}
        helpers.compare_numba_and_py = lambda *args, **kw: self.compare(*args, **(self.modes | kw))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.running = item.nodeid
        return (yield)

    def pytest_runtest_logreport(self, report):
        if report.nodeid in self.reached and report.outcome != "passed":
            self.reached[report.nodeid] = "xfailed" if hasattr(report, "wasxfail") else report.outcome

    def pytest_sessionfinish(self):
        Path(os.environ[REPORT]).write_text(json.dumps(self.reached, indent=1))


def assert_close(x, y):
    """Agree in value, shape, dtype, and in being an array."""
    np.testing.assert_allclose(x, y, rtol=1e-4, strict=True)
    assert isinstance(x, np.ndarray) == isinstance(y, np.ndarray)


def pytest_configure(config):
    if STAND_IN in os.environ:
        stand_in = importlib.import_module("support.cupy.stand_in")
        stand_in.install()
        config.pluginmanager.register(Retarget(os.environ[HOST_OPS], stand_in))
    elif HOST_OPS in os.environ:
        config.pluginmanager.register(Retarget(os.environ[HOST_OPS]))


# --- as a script -------------------------------------------------------------------------------


def run(suite: Path, host_ops: str, arguments: list[str], stand_in: bool = False) -> dict[str, str]:
    """Run the suite and return how each test that reached the helper ended."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        # The checkout's tests, but the PyTensor that is installed: not the folder's of the same name.
        environment = {
            "PYTHONSAFEPATH": "1",
            HOST_OPS: host_ops,
            REPORT: str(report),
            "PYTHONPATH": str(TESTS),
        }
        environment |= {STAND_IN: "1"} if stand_in else {}
        command = [sys.executable, "-m", "pytest", "-q"]
        command += ["-p", "support.cases.linker_suite", "-p", "no:cacheprovider"]
        # What is marked xfail is what Numba cannot do: to pass there is no failure here.
        command += ["-c", os.devnull, "-o", "xfail_strict=false", f"--rootdir={suite}", *arguments]
        if not any((suite / argument.partition("::")[0]).exists() for argument in arguments):
            command.append("tests/link/numba")
        subprocess.run(command, cwd=suite, env=os.environ | environment, check=False)
        return json.loads(report.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path, help="checkout of pytensor")
    parser.add_argument("--host-ops", choices=("raise", "warn", "allow"), help="default: raise, then allow")
    parser.add_argument("--stand-in", action="store_true", help="on a strict array module, host Ops allowed")
    options, arguments = parser.parse_known_args()
    choices = ["allow"] if options.stand_in else ["raise", "allow"]
    if options.host_ops:
        choices = [options.host_ops]
    reports = {
        choice: run(options.suite.resolve(), choice, arguments, options.stand_in) for choice in choices
    }
    verdicts = [judge(choice, ended) for choice, ended in reports.items()]
    return int(not all(verdicts))


def judge(host_ops: str, ended: dict[str, str]) -> bool:
    """Print how a run ended; return whether it ended as the documentation says."""
    passed = sum(outcome == "passed" for outcome in ended.values())
    share = passed / max(len(ended), 1)
    print(
        f'\nhost_ops="{host_ops}", PyTensor {pytensor.__version__}: {passed} of {len(ended)} tests', end=" "
    )
    print(f"that reach the helper pass ({100 * share:.1f} %)")
    known = DOCUMENTED.read_text()
    unknown = 0
    for name, outcome in ended.items():
        if outcome != "passed":
            listed = name.removeprefix("tests/link/numba/").partition("[")[0] in known
            unknown += not listed
            print(f"  {outcome} {name}{'' if listed else ' (not in docs/linker.rst)'}")
    return share >= WANTED_SHARE if host_ops == "raise" else not unknown


if __name__ == "__main__":
    sys.exit(main())
