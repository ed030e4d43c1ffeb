"""The demo of PyMC samples, finds what its data was made with, and draws a picture."""

import sys

import pytest

from support.processes.demo_scripts import DEMOS, start

SCRIPT = DEMOS / "pymc" / "radon.py"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PyMC 6 needs Python 3.12")
@pytest.mark.parametrize("arguments", [["--chains=2", "--cores=2"], ["--chains=2", "--cores=2", "--shard"]])
def test_the_effect_is_found_and_drawn(tmp_path, arguments):
    picture = tmp_path / "radon.png"
    done = start(SCRIPT, "--rows=200", "--counties=5", "--draws=150", f"--plot={picture}", *arguments)
    assert done.returncode == 0, done.stderr
    assert "2 chains of 150 draws" in done.stdout
    assert "effect: -0." in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
