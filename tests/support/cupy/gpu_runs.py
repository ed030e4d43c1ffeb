"""Fixtures of runs on GPUs that are not there: stand-ins for CuPy, and for NCCL between processes."""

import pytest

import synk
from support.communicators import fake_nccl_runs
from support.cupy import fake_cupy
from synk.gpu.device import input_buffers, uploads
from synk.gpu.device.probe import Gpu, Survey
from synk.run.session.current import dismiss_fork_server

SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"


@pytest.fixture
def cupy(monkeypatch):
    """Return the stand-in for CuPy, which ``import cupy`` finds; mistakes its streams see fail the test."""
    for name in ("CUPY_TF32", SHARING, "NCCL_MAX_CTAS", "NCCL_RUNTIME_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    with fake_cupy.installed(n_gpus=3) as made:
        used = "synk.run.launch.fork_source.cuda_is_initialised"
        monkeypatch.setattr(used, lambda: made.cuda.machine.process is not None)
        yield made
    assert made.cuda.machine.mistakes == []


@pytest.fixture
def gpus(cupy, monkeypatch):
    """Fork on GPUs, with this version of NCCL (None for none); return the fake of NCCL.

    Each call is as of a script of its own: this process has not used CUDA yet, and has no fork server.
    """

    def fork(n_ranks, n_gpus=None, version=23004, before=None, **options):
        dismiss_fork_server()
        cupy.cuda.machine.process = None
        found = Survey(tuple(Gpu(number, "NVIDIA H200") for number in range(n_gpus or n_ranks)))
        monkeypatch.setattr("synk.gpu.setup.choose_gpus.survey", lambda: found)
        nccl = fake_nccl_runs.install(cupy, n_ranks, version or 0)
        nccl.available = version is not None
        nccl.before = before or nccl.before
        synk.fork(n_ranks, device="cuda", **options)
        return nccl

    yield fork
    synk.close()


@pytest.fixture
def machine(cupy):
    """Return the fake GPU's record of streams, copies and locked memory."""
    return cupy.cuda.machine


@pytest.fixture
def any_size(monkeypatch):
    """Make uploads start at few rows already, in pieces of two or three rows."""
    monkeypatch.setattr(uploads, "SMALL_BYTES", 1)
    monkeypatch.setattr(uploads, "AHEAD_BYTES", 1)
    monkeypatch.setattr(input_buffers, "PIECE_BYTES", 64)
