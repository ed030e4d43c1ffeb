"""Run tests of one machine on several: their ranks are dealt out over hosts.

    python -m pytest -p support.machines.on_hosts --hosts h1,h2 tests/functions

The first host is this machine. A fork of n ranks becomes one of n ranks on all hosts together, where n is
enough for each to have one; others stay on this machine.
"""

import pytest

from synk.values.rows import split


def pytest_addoption(parser):
    parser.addoption("--hosts", required=True, help="names of machines, this one first")
    parser.addoption("--interface", help="the network between them: 10.77.0.0/24, say")


@pytest.fixture(autouse=True, scope="session")
def on_hosts(request):
    """Deal out the ranks of every fork."""
    from synk.run import current

    hosts, fork = request.config.getoption("--hosts").split(","), current.fork
    interface = request.config.getoption("--interface")

    def dealt(n_parallel, device, timeout, undeclared, given, network, **options):
        n_ranks = n_parallel or 2
        if given is None and n_ranks >= len(hosts) and device in (None, "cpu"):
            sizes = [stop - start for start, stop in split(n_ranks, len(hosts))]
            given = ",".join(f"{host}:{size}" for host, size in zip(hosts, sizes, strict=True))
            n_parallel, network = None, interface
        return fork(n_parallel, device, timeout, undeclared, given, network, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(current, "fork", dealt)
        yield
