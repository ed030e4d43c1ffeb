"""The packages that targets of the Makefile install."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")


def commands(target, folder):
    """Return the commands of a target in an environment that is still to be made."""
    command = ["make", "--dry-run", target, f"VENV={folder}/venv"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("target", ["setup", "mnist", "resnet"])
def test_demos_need_no_developers_packages(target, tmp_path):
    said = commands(target, tmp_path)
    assert "[demos,onednn]" in said
    assert ",dev]" not in said


def test_the_distribution_under_its_former_name_is_removed_first(tmp_path):
    said = commands("setup", tmp_path)
    assert 0 < said.index("uninstall -qq --yes synk\n") < said.index("--editable")


@pytest.mark.parametrize("target", ["test", "test-all", "check", "soak", "other-processors"])
def test_tests_and_checks_add_theirs_to_the_same_environment(target, tmp_path):
    assert f"{tmp_path}/venv/bin/python -m pip" in commands(target, tmp_path).split("dev]")[0]
    assert ",dev]" in commands(target, tmp_path)
