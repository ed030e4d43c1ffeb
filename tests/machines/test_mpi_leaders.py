"""Leaders over MPI: the suite of all, in one job for all tests."""

import pytest

from support.machines.mpi_group import MpiGroup, missing
from support.machines.suite import LeadersSuite, gather, payload_of

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def group():
    group = MpiGroup(3)
    yield group
    group.close()


class TestMpi(LeadersSuite):
    def test_large_messages_go_in_pieces(self, group):
        group.outcomes(set_piece_bytes, 1000)
        try:
            sizes = [999, 1000, 1001, 5000, 0, 20_000]
            for result in self.results(group, gather, sizes):
                assert result == [
                    [payload_of(machine, size, n) for machine in range(3)] for n, size in enumerate(sizes)
                ]
        finally:
            group.outcomes(set_piece_bytes, 1 << 30)


def set_piece_bytes(leaders, watch, nbytes):
    from synk.machines import mpi_links

    mpi_links.PIECE_BYTES = nbytes
