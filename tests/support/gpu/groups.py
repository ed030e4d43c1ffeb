"""Ranks on threads that share a GPU, each with its stream, for the tests of all communicators.

Runs of processes are another matter: see ``acts``.
"""

import contextlib

import pytest

from support.communicators.on_device import OnDevice
from support.communicators.suite import HostGroup
from synk.gpu.comm.nccl import NcclCommunicator
from synk.gpu.comm.nccl_library import SHARES_A_GPU, Library, connection, import_nccl
from synk.gpu.comm.staged import StagedCommunicator


class OnStreams:
    """A group whose ranks compute on streams, where the array module has any."""

    def outcomes(self, work):
        def on_stream(comm):
            with stream_of(self.xp):
                return work(comm)

        return super().outcomes(on_stream)


def stream_of(xp):
    return xp.cuda.Stream(non_blocking=True) if xp.__name__ == "cupy" else contextlib.nullcontext()


class StagedGroup(OnStreams, HostGroup):
    """Ranks that meet by way of the host."""

    def __init__(self, n_ranks, xp):
        super().__init__(n_ranks)
        self.xp = xp
        self.communicators = [
            OnDevice(StagedCommunicator(comm, xp.asnumpy, xp.asarray), xp) for comm in self.communicators
        ]


class NcclGroup(OnStreams, HostGroup):
    """Ranks that meet through NCCL, if it lets so many share a GPU."""

    def __init__(self, n_ranks, xp):
        nccl = import_nccl()
        if nccl is None or connection([0] * n_ranks, nccl.get_version()) != "nccl":
            version = "none" if nccl is None else nccl.get_version()
            pytest.skip(f"needs NCCL, from version {SHARES_A_GPU} on for several ranks; there is {version}")
        super().__init__(n_ranks)
        self.xp = xp
        self.communicators = [
            OnDevice(NcclCommunicator(barrier, Library(xp, nccl), host), xp)
            for barrier, host in zip(self.barriers, self.communicators, strict=True)
        ]

    def close(self):
        # Together: NCCL may keep a rank in its abort until the others abort too.
        self.run(lambda comm: comm.inner.close())
        super().close()
