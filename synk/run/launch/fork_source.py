"""Fork the workers of a run: by this process, or by its fork server once this has used a GPU.

    fork -> ForkSource.check, prepare ... launch, restart -> ForkSource.server

The server is started before the first run of several ranks on GPUs, and lives on when that is closed: the
next run needs it.

A child that is forked after CUDA was initialised cannot use it, and fails where nobody expects it. The driver
itself says whether it is; where it is not even loaded, nobody can have done that.
"""

from __future__ import annotations

import ctypes
import os
import sys

from synk.gpu.comm.nccl_library import import_nccl
from synk.run.device import Devices
from synk.run.launch.birth import arrive
from synk.run.launch.imported import ImportedModules
from synk.transport.processes.fork_server import ForkServer
from synk.transport.processes.process import flush_streams, open_standard_descriptors
from synk.values.errors import CudaInitialisedError, SynkStateError

DRIVER = "libcuda.so.1"
SUCCESS = 0

# Packages that initialise CUDA at the first use of a GPU, some of them when they are imported.
USERS = ("cupy", "jax", "numba.cuda", "pycuda", "tensorflow", "torch")

TOO_LATE = (
    "The first run of several ranks on GPUs starts a process from which later runs get their workers; a run "
    "of one rank does not"
)


class ForkSource:
    """This process and its fork server, for all runs, one after the other."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self.imported = ImportedModules()  # by what forks the workers
        self._has_launched = False  # since the server was started: this process may have used a GPU

    def check(self, what: str, devices: Devices) -> None:
        """Look whether workers can be had that can use CUDA, on GPUs if those are wanted.

        Raises CudaInitialisedError if this process has initialised CUDA, and has no fork server from before.
        """
        if not devices.gpus:
            check_cuda(what)
        elif self._server is None:
            check_cuda(what, TOO_LATE)
        elif trouble := self._server.trouble():
            check_cuda(what, f"Later runs get their workers from a server, but {trouble}")
            self._server = None  # there may be another

    def prepare(self, devices: Devices) -> None:
        """Start the fork server if a run, which `check` has let pass, needs it and there is none."""
        if _needs_server(devices) and self._server is None:
            open_standard_descriptors()
            import_nccl()  # all workers share the memory
            flush_streams()
            self._server, self._has_launched = ForkServer(arrive), False
            self.imported = ImportedModules()

    def check_restart(self, devices: Devices) -> None:
        """Raise SynkStateError if there is nobody to fork the workers of a run anew."""
        if not (_needs_server(devices) and self._has_launched):
            return
        trouble = self._server.trouble() if self._server is not None else "the fork server was dismissed"
        if trouble:
            raise SynkStateError(
                f"restart: {trouble}. This process has used a GPU, so what is forked of it now cannot use "
                "one: save what is needed and start the script anew"
            )

    def server(self, devices: Devices) -> ForkServer | None:
        """Return the server if it is to fork the workers, None where this process can do so."""
        return self._server if _needs_server(devices) and self._has_launched else None

    def note_forking(self) -> None:
        """Note that this process forks workers itself."""
        self.imported = ImportedModules()

    def note_launched(self) -> None:
        """Note that rank 0 computes from now on, on a GPU perhaps."""
        self._has_launched = True

    def close(self) -> None:
        """End the server: a run that is open cannot be restarted then."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


def _needs_server(devices: Devices) -> bool:
    return devices.n_ranks > 1 and bool(devices.gpus)


def check_cuda(what: str, also: str = "") -> None:
    """Raise CudaInitialisedError, for the call ``what``, if this process has initialised CUDA."""
    if not cuda_is_initialised():
        return
    users = [name for name in USERS if name in sys.modules]
    suspects = f"; imported here: {', '.join(users)}" if users else ""
    raise CudaInitialisedError(
        f"{what}: this process has initialised CUDA, which child processes cannot use then{suspects}. "
        "Call synk.fork() before anything touches a GPU (an array or a tensor made there, a device "
        "selected or counted), or compute on the CPU: synk.fork(device='cpu')" + (also and f". {also}")
    )


def cuda_is_initialised() -> bool:
    """Return whether this process has initialised CUDA; never loads nor initialises it."""
    try:
        driver = ctypes.CDLL(DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        ask = driver.cuDeviceGetCount
    except (OSError, AttributeError):  # not loaded, or not a driver that we know
        return False
    # Until cuInit has succeeded every other function returns an error code.
    return bool(ask(ctypes.byref(ctypes.c_int())) == SUCCESS)
