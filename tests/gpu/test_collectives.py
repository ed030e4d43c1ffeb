"""The suite of all communicators on arrays of a GPU: by way of the host, and through NCCL.

On the stand-in it runs in ``tests/transport/comm``; here once more as a slow test, for what ``groups`` adds.
"""

import os

import pytest

from support.communicators.suite import CommunicatorSuite, DisagreementSuite
from support.cupy.array_modules import TWIN_ON_A_GPU, import_arrays
from support.gpu.groups import NcclGroup, StagedGroup
from synk.gpu.comm.nccl_library import allow_sharing

ON_TWO = [
    pytest.param(("stand-in", 2), marks=pytest.mark.soak, id="stand-in-2-ranks"),
    pytest.param(("cupy", 2), marks=TWIN_ON_A_GPU, id="cupy-2-ranks"),
]
ON_ONE = pytest.param(("cupy", 1), marks=TWIN_ON_A_GPU, id="cupy-1-ranks")


def staged_group(request, monkeypatch):
    place, n_ranks = request.param
    group = StagedGroup(n_ranks, import_arrays(place, monkeypatch))
    yield group
    group.close()


class TestStaged(CommunicatorSuite):
    @pytest.fixture(params=[ON_ONE, *ON_TWO])
    def group(self, request, monkeypatch):
        yield from staged_group(request, monkeypatch)


class TestStagedDisagreement(DisagreementSuite):
    @pytest.fixture(params=ON_TWO)
    def group(self, request, monkeypatch):
        yield from staged_group(request, monkeypatch)


@pytest.fixture(scope="module")
def sharing():
    """Let NCCL, which looks once, find that ranks may share a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        environ = {}
        allow_sharing([0, 0], environ)
        for name, value in environ.items():
            patch.setenv(name, os.environ.get(name, value))
        yield


def nccl_group(n_ranks):
    cupy = pytest.importorskip("cupy")
    group = NcclGroup(n_ranks, cupy)
    yield group
    group.close()


@pytest.mark.usefixtures("sharing")
class TestNccl(CommunicatorSuite):
    pytestmark = TWIN_ON_A_GPU

    @pytest.fixture(params=[1, 2], ids="{}-ranks".format)
    def group(self, request):
        yield from nccl_group(request.param)


@pytest.mark.usefixtures("sharing")
class TestNcclDisagreement(DisagreementSuite):
    pytestmark = TWIN_ON_A_GPU

    @pytest.fixture
    def group(self):
        yield from nccl_group(2)
