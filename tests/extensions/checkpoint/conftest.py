"""Checkpoints that several files of tests load."""

import pytest

from support.checkpoints import variables
from synk.extensions import checkpoint


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "checkpoint"
    checkpoint.save(path, variables(7.0))
    return path
