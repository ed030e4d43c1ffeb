"""How the ranks of a run on cores are connected."""

import pytest

from synk.run.device import CpuDevices
from synk.run.rank.connection import Connection, decide
from synk.run.rank.rank import Rank


@pytest.mark.parametrize("n_ranks", [1, 4])
def test_cores_need_nothing_in_the_environment(n_ranks):
    environ = {"HOME": "/"}
    decided = decide(CpuDevices(n_ranks, 1), environ)
    assert (decided, decided.rank, environ) == (Connection(), Rank, {"HOME": "/"})
    decided.withdraw(environ)
    assert environ == {"HOME": "/"}
