"""Hosts of tests on several machines."""

import pytest

from support.machines.hosts import Hosts, missing


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Return two hosts that are name spaces of this machine."""
    if reason := missing():
        pytest.skip(reason)
    made = Hosts(2, tmp_path_factory.mktemp("hosts"))
    yield made
    made.close()
