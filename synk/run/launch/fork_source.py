"""Decide which process forks the workers of a run: this one, or a fork server once this one has used a GPU.

    fork -> ForkSource.check, prepare ... launch, restart -> ForkSource.server

A process that is forked after CUDA was initialised cannot use CUDA, and fails in unexpected places. So a fork
server, a process that never uses a GPU, is started before the first run of several ranks on GPUs. It stays
when that run is closed, for the next one.

Whether CUDA is initialised is asked of the driver library itself; if that is not loaded, it cannot be.
"""

from __future__ import annotations

import ctypes
import os
import sys

from synk.run.device import Devices
from synk.run.device.choose import USERS_OF_CUDA
from synk.run.device.devices import ForkingServer
from synk.run.launch.birth import receive_and_run
from synk.run.launch.imported import ImportedModules
from synk.transport.processes.process import open_standard_descriptors
from synk.values.errors import CudaInitialisedError, SynkStateError

DRIVER = "libcuda.so.1"
SUCCESS = 0

TOO_LATE = (
    "The first run of several ranks on GPUs starts a process from which later runs get their workers; a run "
    "of one rank does not"
)


class ForkSource:
    """This process and its fork server, which fork the workers of all runs of the script."""

    def __init__(self) -> None:
        self._server: ForkingServer | None = None
        self.imported = ImportedModules()  # the modules of the process that forks the workers
        self._has_launched = False  # whether a run was started since the server was: it may have used a GPU

    def check(self, what: str, devices: Devices) -> None:
        """Check for the call ``what`` that workers forked now could use CUDA.

        Raises CudaInitialisedError if this process has initialised CUDA, unless the run is on GPUs and a fork
        server can fork for it.
        """
        if not devices.needs_fork_server:
            check_cuda(what)
        elif self._server is None:
            check_cuda(what, TOO_LATE)
        elif trouble := self._server.trouble():
            check_cuda(what, f"Later runs get their workers from a server, but {trouble}")
            self._server = None  # `prepare` may start another

    def prepare(self, devices: Devices) -> None:
        """Start the fork server if a run on these devices needs one and has none; call `check` before."""
        if devices.needs_fork_server and self._server is None:
            open_standard_descriptors()
            self._server, self._has_launched = devices.start_fork_server(receive_and_run), False
            self.imported = ImportedModules()

    def check_restart(self, devices: Devices) -> None:
        """Raise SynkStateError if new workers need the fork server, but it has ended."""
        if not (devices.needs_fork_server and self._has_launched):
            return
        trouble = self._server.trouble() if self._server is not None else "the fork server was dismissed"
        if trouble:
            raise SynkStateError(
                f"restart: {trouble}. This process has used a GPU, so what is forked of it now cannot use "
                "one: save what is needed and start the script anew"
            )

    def server(self, devices: Devices) -> ForkingServer | None:
        """Return the server if it must fork the workers, None if this process can fork them."""
        return self._server if devices.needs_fork_server and self._has_launched else None

    def note_forking(self) -> None:
        """Note that this process forks workers now, which then have its present modules."""
        self.imported = ImportedModules()

    def note_launched(self) -> None:
        """Note that a run was started, so that this process may use a GPU from now on."""
        self._has_launched = True

    def close(self) -> None:
        """End the server; an open run on GPUs cannot be restarted then."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


def check_cuda(what: str, also: str = "") -> None:
    """Raise CudaInitialisedError, for the call ``what``, if this process has initialised CUDA."""
    if not cuda_is_initialised():
        return
    users = [name for name in USERS_OF_CUDA if name in sys.modules]
    suspects = f"; imported here: {', '.join(users)}" if users else ""
    raise CudaInitialisedError(
        f"{what}: this process has initialised CUDA, which child processes cannot use then{suspects}. "
        "Call synk.fork() before anything touches a GPU (an array or a tensor made there, a device "
        "selected or counted), or compute on the CPU: synk.fork(device='cpu')" + (also and f". {also}")
    )


def cuda_is_initialised() -> bool:
    """Return whether this process has initialised CUDA, without loading or initialising it."""
    try:
        driver = ctypes.CDLL(DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        ask = driver.cuDeviceGetCount
    except (OSError, AttributeError):  # not loaded, or not CUDA's driver
        return False
    # Until cuInit has succeeded every other function returns an error code.
    return bool(ask(ctypes.byref(ctypes.c_int())) == SUCCESS)
