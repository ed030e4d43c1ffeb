"""The benchmarks of a GPU: what they say without one, and that their scripts run on cores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def run(*arguments, **environment):
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | environment)


def test_without_a_gpu_nothing_is_measured(tmp_path):
    ended = run("--notes", str(tmp_path / "notes"), CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.startswith("device: no GPU: ")
    assert "nothing is measured" in ended.stderr
    assert not (tmp_path / "notes").exists()


@pytest.mark.soak
def test_scripts_run_on_cores(tmp_path):
    ended = run("--device=cpu", "--quick", "--only", "all_reduce", "mlp", "--notes", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["ended"]
    reduced, perceptron = found["parts"].values()
    assert [row[0] for row in reduced["rows"]] == ["synk, staged"]
    assert perceptron["rows"][0][0] == "synk"
    assert "MNIST perceptron" in ended.stdout


@pytest.mark.soak
def test_a_part_that_takes_too_long_is_ended_and_named(tmp_path):
    quick = ["--device=cpu", "--quick", "--only", "mlp", "--seconds=1"]
    ended = run(*quick, "--notes", str(tmp_path), "--report", str(tmp_path / "page.rst"))
    assert ended.returncode == 1
    assert "mlp: not measured" in ended.stdout
    assert "not through after" in ended.stdout
    # Beside what is asked, also on the page.
    assert "≥ 2 not measured no" in " ".join((tmp_path / "report.rst").read_text().split())
