"""Ops on arrays of a GPU that is not there."""

import pytest

from support.cupy import fake_cupy


@pytest.fixture
def cupy():
    """Return the stand-in for CuPy, which ``import cupy`` finds meanwhile."""
    with fake_cupy.installed() as made:
        yield made
