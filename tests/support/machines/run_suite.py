"""Run the tests of functions, Data and collectives on several emulated hosts.

    python tests/support/machines/run_suite.py --hosts 3 [--ranks 2] [arguments of pytest]

Left out are those marked ``one_machine``, with the reason. With ``--ranks`` each host has so many, and those
tests are left out too that need another number.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS))

from support.machines.hosts import INTERFACE, Hosts, missing  # noqa: E402

MEANING = (
    *(
        "run/collectives",
        "run/functions",
        "run/arrays",
        "run/rank/test_program.py",
        "run/rank/test_shards.py",
    ),
    *("exact/test_results.py", "exact/test_run_values.py", "exact/rules/test_indexing.py"),
    *("exact/collectives/test_collectives.py", "extensions"),
)
MARKED = "not slow and not one_machine"
LEFT_OUT = ("extensions/fit", "extensions/pymc")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    options, rest = parser.parse_known_args()
    if reason := missing():
        sys.exit(f"no hosts can be made here: {reason}")
    paths = [] if any("tests/" in word for word in rest) else [str(TESTS / name) for name in MEANING]
    with tempfile.TemporaryDirectory(prefix="synk-suite-") as folder:
        hosts = Hosts(options.hosts, folder)
        pytest = [sys.executable, "-m", "pytest", "-p", "support.machines.on_hosts", "-q"]
        told = ["--hosts", ",".join(hosts.names), "--interface", INTERFACE, "-m", MARKED]
        ignored = [f"--ignore={TESTS / name}" for name in LEFT_OUT]
        command = ["env", "-C", str(TESTS.parent)]  # entering name spaces leaves the folder
        command += [*pytest, *told, *ignored, f"--basetemp={folder}/tests", *rest, *paths]
        environment = hosts.environment(PYTHONPATH=f"{TESTS}:{os.environ.get('PYTHONPATH', '')}")
        try:
            sys.exit(subprocess.run(hosts.command("h1", command), env=environment).returncode)
        finally:
            hosts.close()


if __name__ == "__main__":
    main()
