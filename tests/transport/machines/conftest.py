"""Hosts of tests on several machines."""

import pytest

from support.machines.hosts import Hosts, missing


@pytest.fixture(scope="module")
def hosts(request, tmp_path_factory):
    """Return hosts that are name spaces of this machine: 2, or as the module's ``N_HOSTS`` says."""
    if reason := missing():
        pytest.skip(reason)
    made = Hosts(getattr(request.module, "N_HOSTS", 2), tmp_path_factory.mktemp("hosts"))
    yield made
    made.close()
