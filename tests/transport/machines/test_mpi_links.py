"""Leaders that combine arrays over MPI: the suite of all, in one job for all tests."""

import pytest

from support.machines.mpi_group import MpiGroup, missing
from support.machines.suite import LeadersSuite

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def group():
    group = MpiGroup(3)
    yield group
    group.close()


@pytest.mark.slow
class TestMpi(LeadersSuite):
    """The processes of one job."""
