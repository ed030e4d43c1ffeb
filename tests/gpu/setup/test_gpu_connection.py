"""How ranks on GPUs are connected: decided from devices, what is installed and the environment."""

from types import SimpleNamespace

import pytest

from synk.gpu.device.probe import Gpu
from synk.gpu.rank.gpu_rank import GpuRank
from synk.gpu.setup import gpu_connection
from synk.gpu.setup.gpu_connection import GpuConnection
from synk.gpu.setup.gpu_devices import GpuDevices
from synk.run.rank.connection import decide

ONE, TWO = ((Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200"))[:n] for n in (1, 2))
APART = {"NCCL_RUNTIME_CONNECT": "0"}
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} | APART
CROWDED = SHARED | {"NCCL_MAX_CTAS": "2"}


@pytest.fixture
def nccl(monkeypatch):
    """Let this version of NCCL be there, or none; return the versions that were asked for."""
    asked = []

    def install(version):
        def import_nccl():
            asked.append(version)
            return None if version is None else SimpleNamespace(get_version=lambda: version)

        monkeypatch.setattr(gpu_connection, "import_nccl", import_nccl)
        return asked

    return install


@pytest.mark.parametrize(
    ("n_ranks", "gpus", "version", "kind", "added"),
    [
        (2, TWO, 22907, "nccl", APART),
        (2, TWO, None, "staged", APART),
        (2, ONE, 22907, "staged", SHARED),
        (2, ONE, 23004, "nccl", SHARED),
        (3, TWO, 23004, "nccl", SHARED),
        (3, ONE, 23004, "nccl", CROWDED),
    ],
)
def test_gpus(nccl, n_ranks, gpus, version, kind, added):
    nccl(version)
    environ = {"HOME": "/"}
    decided = decide(GpuDevices(n_ranks, 1, gpus=gpus), environ)
    assert (decided.kind, decided.rank) == (kind, GpuRank)
    assert environ == {"HOME": "/"} | added
    decided.withdraw(environ)
    assert environ == {"HOME": "/"}


def test_one_rank_never_asks_for_nccl(nccl):
    asked, environ = nccl(23004), {}
    decided = decide(GpuDevices(1, 1, gpus=ONE), environ)
    assert (decided, decided.rank) == (GpuConnection("none"), GpuRank)
    assert not environ
    assert not asked


def test_what_the_user_has_set_is_not_taken_back(nccl):
    nccl(23004)
    environ = {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}
    decided = decide(GpuDevices(2, 1, gpus=ONE), environ)
    assert decided.kind == "staged"
    decided.withdraw(environ)
    assert environ == {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}
