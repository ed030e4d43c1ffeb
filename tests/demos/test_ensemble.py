"""The demo of another sampler finds what its data was made with, and says what it needs."""

import sys

import pytest

from support.processes.demo_scripts import DEMOS, start

SCRIPT = DEMOS / "pymc" / "ensemble.py"

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="PyMC 6 needs Python 3.12")


def test_walkers_find_the_effect():
    done = start(SCRIPT, "--ranks=2", "--rows=200", "--counties=2", "--walkers=16", "--steps=800")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [
        "centre",
        "spread",
        "effect",
        "noise",
    ]


def test_a_missing_sampler_is_named(tmp_path, monkeypatch):
    (tmp_path / "emcee.py").write_text("raise ModuleNotFoundError('hidden', name='emcee')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = start(SCRIPT)
    assert done.returncode == 1
    assert "emcee, which is not installed. Use pip install emcee" in done.stderr
