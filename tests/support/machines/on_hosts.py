"""Run tests of one machine on several: their ranks are dealt out over hosts.

    python -m pytest -p support.machines.on_hosts --hosts h1,h2 tests/run/functions

The first host is this machine. A fork of n ranks becomes one of n ranks on all hosts together, where n is
enough for each to have one; others stay on this machine. With ``--ranks`` each host has so many, and only the
modules run that take any number (`runs_of`).
"""

import pytest

from support.machines.dealing import deal
from support.processes import of_rank


def pytest_addoption(parser):
    parser.addoption("--hosts", required=True, help="names of machines, this one first")
    parser.addoption("--interface", help="the network between them: 10.77.0.0/24, say")
    parser.addoption("--ranks", type=int, help="on each host; without it tests say how many there are")


def pytest_configure(config):
    """Let modules that run on any number of ranks run on so many."""
    ranks, runs_of = config.getoption("--ranks"), of_rank.runs_of
    if ranks is not None:
        of_rank.runs_of = lambda *numbers, later=(): runs_of(ranks * len(names(config)))


def pytest_collection_modifyitems(config, items):
    if config.getoption("--ranks") is not None:
        others = [item for item in items if not hasattr(item.module, "module_ranks")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if hasattr(item.module, "module_ranks")]


def names(config):
    return config.getoption("--hosts").split(",")


@pytest.fixture(autouse=True, scope="session")
def on_hosts(request):
    """Deal out the ranks of every fork."""
    from synk.run.session import current

    with pytest.MonkeyPatch.context() as patch:
        dealt = deal(current.fork, names(request.config), request.config.getoption("--interface"))
        patch.setattr(current, "fork", dealt)
        yield
