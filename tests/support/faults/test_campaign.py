"""A short campaign: every kind of fault is survived, or refused, or reported, as promised; nothing is left.

`make faults` inflicts hundreds, `make chaos` one every few seconds for hours; docs/faults.rst tells of both.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.machines.hosts import missing

HERE = Path(__file__).parent
DEADLINE = 280  # seconds for one script; how long faults take depends on what else the machine does


def run(script, *arguments):
    """Run a script of this folder; return its exit status and what it printed."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_faults_at_random_moments_are_survived(seed, tmp_path):
    code, said = run(
        "campaign.py", "--faults", 10, "--seconds", 40, "--seed", seed, "--json", tmp_path / "all.json"
    )
    assert code == 0, said
    summary = json.loads((tmp_path / "all.json").read_text())["summary"]
    assert summary["faults"] >= 8, said
    assert summary["hangs"] == summary["leaks"] == summary["wrong"] == 0


def test_faults_of_machines_are_survived(tmp_path):
    if reason := missing():
        pytest.skip(reason)
    injuries = ("--only", "leader", "--only", "host", "--only", "master")
    code, said = run("on_hosts.py", "--hosts", 2, "--ranks", 1, "--faults", 3, "--seed", 1, *injuries)
    assert code == 0, said
    assert "hangs 0, leaks 0, wrong 0" in said


def test_training_disturbed_by_faults_ends_with_the_same_bits(tmp_path):
    code, said = run("chaos.py", "--seconds", 15, "--every", 2, "--seed", 3, "--json", tmp_path / "all.json")
    assert code == 0, said
    summary = json.loads((tmp_path / "all.json").read_text())["summary"]
    assert summary["faults"] >= 3, said
    assert summary["same_bits"]
