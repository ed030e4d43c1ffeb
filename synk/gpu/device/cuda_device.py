"""The device of a rank that computes on an NVIDIA GPU, or on its share of one, through CuPy.

    fork -> CudaDevice (touches nothing) ... in the rank's own process: activate -> stream, memory pool

It has run on the tests' replacement of CuPy only, and on no GPU yet.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from importlib import import_module
from typing import Any

from synk.compile import EITHER, ArrayLinker, array_mode
from synk.compile.programs.text.transfer import NARROW, to_device
from synk.gpu.device.cupy_library import import_cupy, remedy
from synk.gpu.device.probe import Gpu
from synk.gpu.device.uploads import Uploader
from synk.run.device.cpu import CpuDevice
from synk.run.device.device import Device
from synk.run.device.options import PRECISIONS
from synk.values.errors import CudaUnavailable

TF32 = "CUPY_TF32"  # read by CuPy when it first multiplies float32 matrices
UNDECIDED = 0  # COMPUTE_TYPE_TBD: the next product reads the variable again


class CudaDevice(Device):
    """One GPU, or a share of its memory.

    To make a CudaDevice touches no GPU, so the script may do it before workers are forked; `activate`
    initialises the GPU, and is called in the rank's own process.

    Parameters
    ----------
    gpu : Gpu
    threads : int
        Threads that this rank uses for what is computed on the host.
    memory : float, optional
        The fraction of the GPU's memory that this rank's arrays may take; more raises CuPy's
        ``OutOfMemoryError``. Contexts and workspaces of libraries come on top.
    precision : {"float32", "tf32", "bfloat16", "float16"}, optional
        The format in which products of float32 matrices are computed. "tf32" keeps 10 bits of each factor;
        the last two also keep arrays between nodes in 16 bits (`synk.gpu.passes.narrow`). By default
        "tf32" if ``CUPY_TF32`` says so, else "float32".
    host_ops : {"allow", "warn", "raise"}
        What to do about Ops that compute on the host in the middle of a program.

    Attributes
    ----------
    precision : str
        The precision in use; kernels of other libraries follow it, too.
    stream : cupy.cuda.Stream
        The stream in which all of this rank's work is launched; None before `activate`.
    """

    name = "cuda"

    def __init__(
        self,
        gpu: Gpu,
        threads: int = 1,
        memory: float = 1.0,
        precision: str | None = None,
        host_ops: str = "warn",
    ):
        self.gpu = gpu
        self.memory = memory
        self.precision = default_precision() if precision is None else precision
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        self._narrow = self.precision if self.precision in NARROW else None
        self.stream: Any = None
        self._host = CpuDevice(threads)
        self._host_ops = host_ops
        self._launching: AbstractContextManager[Any] = nullcontext()  # held where a second thread launches
        self._undo = ExitStack()
        self._threads = threading.local()  # whether the thread has been bound to this GPU

    @property
    def xp(self) -> Any:
        """CuPy's module, which is imported when this is first read."""
        return import_cupy()

    def activate(self) -> None:
        """Make this process compute on the GPU: its own stream, memory pool and precision.

        Raises
        ------
        CudaUnavailable
            If CuPy is missing, or CUDA refuses the GPU.
        """
        cupy = self.xp
        with ExitStack() as undo:
            self._host.activate()
            undo.callback(self._host.deactivate)
            try:
                self._take(cupy, undo)
            except Exception as error:
                raise CudaUnavailable(
                    f"{self.gpu} cannot be used: {type(error).__name__}: {error}; see nvidia-smi, or "
                    f"{remedy()} if CuPy and the driver do not fit"
                ) from error
            self._undo = undo.pop_all()
        self.bind()

    def _take(self, cupy: Any, undo: ExitStack) -> None:
        """Acquire the GPU, a memory pool and a stream, and set TF32 on or off; ``undo`` takes back each."""
        undo.callback(cupy.cuda.Device().use)  # the device that is current before
        cupy.cuda.Device(self.gpu.number).use()
        pool = cupy.cuda.MemoryPool()
        pool.set_limit(fraction=self.memory)
        undo.callback(pool.free_all_blocks)
        undo.callback(cupy.cuda.set_allocator, cupy.cuda.get_allocator())
        cupy.cuda.set_allocator(pool.malloc)
        undo.callback(cupy.cuda.get_current_stream().use)
        # An ordinary stream would wait for launches that some library makes in the null stream.
        self.stream = cupy.cuda.Stream(non_blocking=True)
        undo.callback(self.stream.synchronize)
        undo.callback(_set_tf32, os.environ.get(TF32))
        _set_tf32("1" if self.precision == "tf32" else "0")

    def bind(self) -> None:
        """Make the calling thread use this GPU and stream: in CUDA, each thread has its own setting."""
        if not getattr(self._threads, "bound", False):
            self.xp.cuda.Device(self.gpu.number).use()
            self.stream.use()
            self._threads.bound = True

    def deactivate(self) -> None:
        """Wait for all launched work, and release stream, memory pool and precision.

        Arrays that are still held keep their memory.
        """
        with suppress(RuntimeError):  # an error of CUDA was reported where it first occurred; all is released
            self._undo.close()
        self._threads = threading.local()
        self.stream = None

    def mode(self, observe: Any = None) -> Any:
        linker = self._linker(
            host_ops=self._host_ops,
            observe=observe,
            outputs=EITHER,
            narrow=self._narrow,
        )
        return array_mode(linker)

    def _linker(self, **options: Any) -> ArrayLinker:
        return ArrayLinker(self.xp, **options)

    def uploader(self) -> Uploader:
        """Return a new uploader, which copies rows of inputs to this GPU."""
        return Uploader(self.xp, self.stream, self.bind, self._host.threads, self._launching)

    def from_host(self, array: Any) -> Any:
        return to_device(array, self.xp)

    def to_host(self, array: Any) -> Any:
        return self.xp.asnumpy(array) if isinstance(array, self.xp.ndarray) else array


def default_precision() -> str:
    """Return "tf32" if the environment variable ``CUPY_TF32`` asks for it, else "float32"."""
    try:
        return PRECISIONS[int(os.environ.get(TF32, "0")) > 0]
    except ValueError:
        raise ValueError(f"{TF32}={os.environ[TF32]!r} is not a number; set it to 0 or 1") from None


def _set_tf32(value: str | None) -> None:
    """Set the environment variable that switches TF32 in CuPy, and make CuPy read it again."""
    if value is None:
        os.environ.pop(TF32, None)
    else:
        os.environ[TF32] = value
    import_module("cupy._core._routines_linalg").set_compute_type("float32", UNDECIDED)
