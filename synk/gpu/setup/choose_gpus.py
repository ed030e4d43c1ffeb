"""Choose the GPUs of a run, if there are any that can be used.

fork -> choose_devices -> choose_gpus -> survey, import_cupy -> GpuDevices, or None: compute on cores
"""

from __future__ import annotations

from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.device.cupy_library import import_cupy, remedy
from synk.gpu.device.probe import Gpu, Survey, survey
from synk.gpu.setup.gpu_devices import MEMORY_LIMIT, GpuDevices
from synk.run.device.choose import find_cupy
from synk.run.device.cpu import count_cores
from synk.run.device.options import GpuOptions
from synk.values.errors import CudaUnavailable
from synk.values.script_frames import warn_the_script

SHARING = (
    "They compute one after the other and divide its memory: good for trying things out, not for speed. "
    "Leave n_parallel out for one rank per GPU, or compute on cores: device='cpu'"
)


def choose_gpus(
    insists: bool, n_parallel: int | None, threads: int | None, options: GpuOptions
) -> GpuDevices | None:
    """Return GPUs for all ranks; None if there are none that can be used, with a warning if they fail.

    Raises CudaUnavailable, naming what is missing, if the script ``insists`` on GPUs.
    """
    gpus = _required_gpus() if insists else _usable_gpus()
    if not gpus:
        return None
    n_ranks = n_parallel or len(gpus)
    devices = GpuDevices(
        n_ranks,
        threads or max(1, count_cores() // n_ranks),
        gpus=gpus[:n_ranks],
        memory_limit=MEMORY_LIMIT if options.memory_limit is None else options.memory_limit,
        precision=options.precision,
        gpu_device=_recording() if options.cuda_graphs else CudaDevice,
    )
    if len(devices.gpus) < n_ranks:
        warn_the_script(f"fork: {_describe_sharing(devices)}. {SHARING}")
    return devices


def _recording() -> type[CudaDevice]:
    """Return the device that records CUDA graphs, of a package that nothing else needs."""
    from synk.gpu.speedups.linker import RecordingDevice

    return RecordingDevice


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
    found = survey()
    if found.gpus:
        try:
            import_cupy(found.version)
        except CudaUnavailable as error:
            found = Survey(reason=f"there is {found.gpus[0]}, but {error}", is_trouble=True)
    if found.is_trouble:
        warn_the_script(f"fork computes on cores: {found.reason}. device='cpu' does not look for GPUs")
    return found.gpus


def _describe_sharing(devices: GpuDevices) -> str:
    """Return in words which ranks share which GPU, for a warning."""
    shares = [
        f"ranks {', '.join(map(str, devices.neighbours(number)))} share {gpu}"
        for number, gpu in enumerate(devices.gpus)
        if len(devices.neighbours(number)) > 1
    ]
    return "; ".join(shares)
