"""Run the demos' scripts as a reader does, and import their modules as the scripts do."""

import importlib
import sys
from pathlib import Path

from support.processes import scripts

DEMOS = Path(__file__).parents[3] / "demos"
SHARED = DEMOS / "shared"
SECONDS = 200  # for a script to end

# Runs the script in argv[2] as ``python -W error`` does, or as if the package in argv[1] were not installed.
AS_SCRIPT = """
import os, runpy, sys, warnings
if sys.argv[1]:
    sys.modules[sys.argv[1]] = None
else:
    warnings.simplefilter("error")
del sys.argv[:2]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(script, *arguments, seconds=SECONDS):
    """Run a script, which must end well, warnings being errors; return its output."""
    done = start(script, *arguments, seconds=seconds)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def start(script, *arguments, seconds=SECONDS):
    """Run a script, warnings being errors, and return how it ended."""
    return scripts.run(AS_SCRIPT, "", script, *arguments, deadline=seconds)


def start_without(package, script, *arguments):
    """Run a script as if a package were not installed, and return how it ended."""
    return scripts.run(AS_SCRIPT, package, script, *arguments, deadline=SECONDS)


def modules_beside(script):
    """Yield a function that imports modules beside a script and of all demos; forget them then."""
    return modules_in(SHARED, script.parent)


def modules_in(*folders):
    """Yield a function that imports modules of folders as their scripts do; forget them then, and demos'."""
    known, paths = set(sys.modules), [*sys.path]
    sys.path[:0] = map(str, folders)
    yield importlib.import_module
    sys.path[:] = paths
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith((str(DEMOS), *map(str, folders))):
            del sys.modules[name]
