"""Scripts with annotations are accepted by mypy, with the settings that the docs show."""

import subprocess
import sys

import pytest
from test_docs import ROOT, blocks

from support.processes.scripts import run

SCRIPTS = ROOT / "tests" / "support" / "typed"
PAGE = ROOT / "docs" / "howto" / "types.rst"


def checked(folder, *paths):
    """Return what ``mypy --strict`` says of scripts, with the settings of the page."""
    settings = folder / "pyproject.toml"
    settings.write_text("\n".join(blocks(PAGE, "toml")))
    command = ["-m", "mypy", "--config-file", settings, "--cache-dir", ROOT / ".mypy_cache" / "users", *paths]
    # From elsewhere synk is an installed package, of which a user sees no errors, and not the code to check.
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_scripts_with_annotations_pass_strict_checks(tmp_path):
    page = tmp_path / "page.py"
    page.write_text("\n\n".join(blocks(PAGE, "python")))
    said = checked(tmp_path, page, *sorted(SCRIPTS.glob("*.py")))
    assert "Success: no issues found in 4 source files" in said, said


@pytest.mark.slow
def test_mistakes_in_a_script_are_found(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import synk
from synk.extensions.fit import fit

step = synk.function([], [], naem="step")
fit(step, (), epochs="2")
fit(step, (), epochs=2, validation=(step,))
synk.fork(2) + "ranks"
"""
    )
    said = checked(tmp_path, script)
    lines = [line.split(":")[1] for line in said.splitlines() if ": error:" in line]
    assert lines == ["5", "6", "7", "8"], said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "on_hosts", "regression"])
def test_scripts_with_annotations_run(name, tmp_path):
    if name == "regression" and sys.version_info < (3, 12):
        pytest.skip("PyMC 6 needs Python 3.12")
    text = (SCRIPTS / f"{name}.py").read_text().replace("sys.argv[1]", repr(str(tmp_path)))
    done = run(text, deadline=200)
    assert done.returncode == 0, done.stderr
