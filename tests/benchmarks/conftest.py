"""The scripts of ``benchmarks/`` as modules."""

import os
from pathlib import Path

import pytest

from support.processes.demo_scripts import modules_in


@pytest.fixture(scope="module")
def module():
    """Import modules beside the scripts as these do; forget them and what they set after the tests."""
    environment = os.environ.copy()
    yield from modules_in(Path(__file__).parents[2] / "benchmarks")
    os.environ.clear()
    os.environ.update(environment)
