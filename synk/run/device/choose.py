"""Choose the devices on which the ranks of a run compute, before any worker is started.

fork -> choose_devices -> survey of GPUs, find_cupy -> Devices -> Devices.make(rank), in each rank's process
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from synk.compile.programs.text.transfer import NARROW, check_narrow
from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.device.cupy_library import find_cupy, import_cupy, remedy
from synk.gpu.device.probe import Gpu, Survey, survey
from synk.run.device.cpu import CpuDevice, count_cores
from synk.run.device.device import Device
from synk.values.errors import CudaUnavailable, SynkWarning
from synk.values.script_frames import stacklevel

KINDS = ("cpu", "cuda")
MEMORY_LIMIT = 0.9  # the rest is left to CUDA contexts, NCCL and other libraries, which allocate themselves


@dataclass(frozen=True)
class Devices:
    """The devices that the ranks of a run compute on.

    Attributes
    ----------
    n_ranks : int
        The number of ranks on this machine.
    threads : int
        The number of threads for matrix products of each rank, on cores.
    asks_threads : bool
        Whether the script has given ``threads``.
    bind : {"none", "core", "numa"}
        Whether each rank is bound to cores of its own, or to those of a NUMA node.
    gpus : tuple of Gpu
        Rank i has GPU i modulo their number. If there are none, ranks compute on cores.
    memory_limit : float
        The fraction of each GPU's memory for the arrays of all ranks on it together.
    precision : {"float32", "tf32", "bfloat16", "float16"}, optional
        The precision in which `CudaDevice` multiplies matrices.
    gpu_device : type
        The class of a GPU's device; `synk.gpu.speedups` has another one.
    """

    n_ranks: int
    threads: int
    gpus: tuple[Gpu, ...] = ()
    memory_limit: float = MEMORY_LIMIT
    precision: str | None = None
    gpu_device: type[CudaDevice] = CudaDevice
    bind: str = "none"
    asks_threads: bool = False

    def with_ranks(self, n_ranks: int) -> Devices:
        """Return the devices for another number of ranks on this machine."""
        threads = self.threads if self.asks_threads else max(1, count_cores() // n_ranks)
        return replace(self, n_ranks=n_ranks, threads=threads, gpus=self.gpus[:n_ranks])

    def make(self, rank: int) -> Device:
        """Return the device of one rank, not activated."""
        if not self.gpus:
            return CpuDevice(self.threads)
        return self.gpu_device(
            self.gpus[rank % len(self.gpus)],
            self.threads,
            self.memory_limit / len(self.neighbours(rank)),
            self.precision,
            host_ops="warn" if rank == 0 else "allow",  # all ranks have the same programs
        )

    def neighbours(self, rank: int) -> range:
        """Return the ranks on the same GPU, this one included."""
        return range(rank % len(self.gpus), self.n_ranks, len(self.gpus))


def choose_devices(
    device: str | None,
    n_parallel: int | None,
    threads: int | None,
    memory_limit: float = MEMORY_LIMIT,
    precision: str | None = None,
) -> Devices:
    """Return the devices of all ranks; the arguments are those of `synk.fork`, and checked already.

    If ``device`` is None, they are GPUs if CuPy is installed and there are any, else cores; if the driver
    fails, they are cores, with a `SynkWarning`. ``device="cpu"`` does not look for GPUs.

    Raises
    ------
    CudaUnavailable
        If GPUs are asked for and cannot be had, naming what is missing.
    ValueError
        If ``precision`` has 16 bits and ranks compute on cores.
    ImportError
        If ``precision`` is bfloat16, and the package that implements it is not installed.
    """
    if precision in NARROW:
        check_narrow(precision)
        if device == "cpu":
            raise ValueError(_refusal_of_16_bits(precision))
    gpus = () if device == "cpu" else _required_gpus() if device == "cuda" else _usable_gpus()
    if precision in NARROW and not gpus:
        raise ValueError(_refusal_of_16_bits(precision))
    n_ranks = n_parallel or len(gpus) or count_cores()
    n_threads = threads or max(1, count_cores() // n_ranks)
    devices = Devices(n_ranks, n_threads, gpus[:n_ranks], memory_limit, precision)
    if len(devices.gpus) < n_ranks and devices.gpus:
        _warn(f"fork: {_describe_sharing(devices)}. {SHARING}")
    return devices


SHARING = (
    "They compute one after the other and divide its memory: good for trying things out, not for speed. "
    "Leave n_parallel out for one rank per GPU, or compute on cores: device='cpu'"
)


def _refusal_of_16_bits(precision: str) -> str:
    """Return the message of the error that a ``precision`` of 16 bits is for GPUs only."""
    return (
        f"precision={precision!r} is for GPUs, and this run computes on cores, in float32: leave precision "
        f"out; for its numbers on cores, pass mode=array_mode(ArrayLinker(narrow={precision!r})), of "
        "synk.compile, to synk.function"
    )


def _required_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs for ``device="cuda"``; raise CudaUnavailable if there are none that can be used."""
    found = survey()
    if not found.gpus:
        also = "" if find_cupy() else f"; CuPy is not installed either: {remedy(found.version)}"
        raise CudaUnavailable(
            f"device='cuda': {found.reason}{also}. `python -m synk doctor` looks further; device='cpu' "
            "computes on cores"
        )
    import_cupy(found.version)
    return found.gpus


def _usable_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that can be used, if any; warn if there are some that fail."""
    if not find_cupy():
        return ()
    found = survey()
    if found.gpus:
        try:
            import_cupy(found.version)
        except CudaUnavailable as error:
            found = Survey(reason=f"there is {found.gpus[0]}, but {error}", is_trouble=True)
    if found.is_trouble:
        _warn(f"fork computes on cores: {found.reason}. device='cpu' does not look for GPUs")
    return found.gpus


def _describe_sharing(devices: Devices) -> str:
    """Return in words which ranks share which GPU, for a warning."""
    shares = [
        f"ranks {', '.join(map(str, devices.neighbours(number)))} share {gpu}"
        for number, gpu in enumerate(devices.gpus)
        if len(devices.neighbours(number)) > 1
    ]
    return "; ".join(shares)


def _warn(message: str) -> None:
    warnings.warn(message, SynkWarning, stacklevel=stacklevel())
