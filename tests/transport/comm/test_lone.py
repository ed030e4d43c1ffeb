"""The communicator of a run without workers: the suite of all."""

import pytest

from support.communicators.suite import (
    CommunicatorSuite,
)
from synk.transport.comm import LoneCommunicator


class LoneGroup:
    """The single rank of a run without workers."""

    n_ranks = 1

    def __init__(self):
        self.communicator = LoneCommunicator()

    def run(self, work):
        """Return ``[work(communicator)]``."""
        return [work(self.communicator)]


class TestLone(CommunicatorSuite):
    @pytest.fixture
    def group(self):
        return LoneGroup()
