"""Choose the devices on which the ranks of a run compute, before any worker is started.

fork -> choose_devices -> CpuDevices, or what `synk.gpu` finds -> Devices.make(rank), in each rank's process

This file alone imports `synk.gpu`, which then enters itself wherever programs and runs on GPUs differ. It
does so unless ``device="cpu"``, or CuPy is not installed and ``device="cuda"`` does not insist.
"""

from __future__ import annotations

from importlib.util import find_spec

from synk.run.device.cpu import count_cores
from synk.run.device.devices import CpuDevices, Devices
from synk.run.device.options import GpuOptions

KINDS = ("cpu", "cuda")

# Packages that initialise CUDA at the first use of a GPU, or when they are imported; named in an error.
USERS_OF_CUDA = ("cupy", "jax", "numba.cuda", "pycuda", "tensorflow", "torch")


def choose_devices(
    device: str | None, n_parallel: int | None, threads: int | None, options: GpuOptions | None = None
) -> Devices:
    """Return the devices of all ranks; the arguments are those of `synk.fork`, and checked already.

    If ``device`` is None, they are GPUs if CuPy is installed and there are any, else cores; if the driver
    fails, they are cores, with a `SynkWarning`. ``device="cpu"`` does not look for GPUs.

    Raises
    ------
    CudaUnavailable
        If GPUs are asked for and cannot be had, naming what is missing.
    ValueError
        If ``options`` ask for what only GPUs have, and ranks compute on cores.
    """
    options = options or GpuOptions()
    if device == "cuda" or (device is None and find_cupy()):
        from synk.gpu.setup.choose_gpus import choose_gpus

        gpus = choose_gpus(device == "cuda", n_parallel, threads, options)
        if gpus is not None:
            return gpus
    options.refuse_on_cores()
    n_ranks = n_parallel or count_cores()
    return CpuDevices(n_ranks, threads or max(1, count_cores() // n_ranks))


def find_cupy() -> bool:
    """Return whether CuPy is installed, without importing it."""
    return find_spec("cupy") is not None
