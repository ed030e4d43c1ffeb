"""A rank that computes on a GPU: it uploads rows while it computes, and fetches results at the end."""

from __future__ import annotations

from typing import Any, cast

from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.rank.uploaded_shards import UploadedShards
from synk.run.arrays.variables import RankVariables
from synk.run.rank.program import RankProgram
from synk.run.rank.rank import Rank
from synk.run.rank.sums import on_host
from synk.transport.comm import Communicator
from synk.transport.commands.interfaces import Peers
from synk.transport.memory.segments import SegmentTable
from synk.values import messages


class GpuRank(Rank):
    """A `Rank` whose device is a GPU; its programs that compute on the host read rows as other ranks do."""

    def __init__(
        self,
        peers: Peers,
        communicator: Communicator,
        device: CudaDevice,
        segments: SegmentTable,
        variables: RankVariables,
    ):
        super().__init__(peers, communicator, device, segments, variables)
        self._uploads = UploadedShards(self.rank, self.n_ranks, device)

    def join(self, peers: Peers, communicator: Communicator) -> None:
        super().join(peers, communicator)
        self._uploads = UploadedShards(self.rank, self.n_ranks, cast(CudaDevice, self.device))

    def end_threads(self) -> None:
        super().end_threads()
        self._uploads.end_threads()

    def forget(self, message: messages.Forget) -> None:
        super().forget(message)
        self._uploads.forget(message.function)

    def call(self, step: messages.Call) -> messages.Results | None:
        with self._uploads.read():
            return super().call(step)

    def _run_steps(self, command: messages.Command) -> tuple[Any, ...]:
        self.device.bind()
        results = super()._run_steps(command)
        # To fetch a result waits for the GPU, so results are fetched after everything has been launched.
        return on_host(results, self.device)

    def _shards_for(self, program: RankProgram) -> Any:
        return self._uploads if program.variants.on_device else self._shards
