"""What tests on simulated ranks share."""

import pytest
from pytensor.graph.rewriting.basic import SequentialGraphRewriter

from synk.compile.dispatch.scan import steps


@pytest.fixture
def steps_as_written(monkeypatch):
    """Compute the steps of loops as they are written: to rewrite them takes longer than all the rest."""
    monkeypatch.setattr(steps, "inner_rewriter", lambda xp: SequentialGraphRewriter())
