"""The GPUs of a run, and which rank computes on which of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from synk.gpu.comm.nccl_library import import_nccl
from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.device.probe import Gpu
from synk.gpu.setup.fork_server import ForkServer
from synk.run.device.device import Device
from synk.run.device.devices import Devices, Live
from synk.transport.processes.process import flush_streams

MEMORY_LIMIT = 0.9  # the rest is left to CUDA contexts, NCCL and other libraries, which allocate themselves


@dataclass(frozen=True)
class GpuDevices(Devices):
    """GPUs that ranks compute on, each for one rank or several.

    Attributes
    ----------
    gpus : tuple of Gpu
        Rank i has GPU i modulo their number.
    memory_limit : float
        The fraction of each GPU's memory for the arrays of all ranks on it together.
    precision : {"float32", "tf32", "bfloat16", "float16"}, optional
        The precision in which `CudaDevice` multiplies matrices.
    gpu_device : type
        The class of a GPU's device; `synk.gpu.speedups` has another one.
    """

    gpus: tuple[Gpu, ...] = ()
    memory_limit: float = MEMORY_LIMIT
    precision: str | None = None
    gpu_device: type[CudaDevice] = CudaDevice

    on_host = False

    def with_ranks(self, n_ranks: int) -> GpuDevices:
        return replace(super().with_ranks(n_ranks), gpus=self.gpus[:n_ranks])

    def make(self, rank: int) -> Device:
        return self.gpu_device(
            self.of(rank),
            self.threads,
            self.memory_limit / len(self.neighbours(rank)),
            self.precision,
            host_ops="warn" if rank == 0 else "allow",  # all ranks have the same programs
        )

    def of(self, rank: int) -> Gpu:
        """Return the GPU of a rank."""
        return self.gpus[rank % len(self.gpus)]

    def neighbours(self, rank: int) -> range:
        """Return the ranks on the same GPU, this one included."""
        return range(rank % len(self.gpus), self.n_ranks, len(self.gpus))

    def name(self, rank: int) -> str:
        return str(self.of(rank))

    def check_ranks(self, n_ranks: int) -> None:
        """Raise ValueError if there are more than at the `fork`, which decided how arrays are exchanged."""
        if n_ranks > self.n_ranks:
            raise ValueError(
                f"n_parallel={n_ranks} is more than the {self.n_ranks} ranks on GPUs with which this run was "
                "forked: close() it, and fork() more"
            )

    @property
    def needs_fork_server(self) -> bool:
        """Say that workers, if there are any, could not use CUDA if this process had initialised it."""
        return self.n_ranks > 1

    def start_fork_server(self, live: Live) -> ForkServer:
        import_nccl()  # imported before the forks, it is in memory once for all workers
        flush_streams()
        return ForkServer(live)
