"""Where the workers of a run come from: this process, or its fork server once this has used a GPU.

    fork -> Nursery.check, Nursery.forker -> Forker ... launch, restart: Forker.later

The server is started before the first run of several ranks on GPUs, and lives on when that is closed: the
next run needs it.
"""

from __future__ import annotations

from typing import NamedTuple

from synk.comm.nccl_library import import_nccl
from synk.device import Devices
from synk.processes.cuda_check import check_cuda
from synk.processes.fork_server import ForkServer
from synk.run.crew import open_standard_descriptors
from synk.run.flush import flush
from synk.run.post import arrive
from synk.values.errors import SynkStateError

TOO_LATE = (
    "The first run of several ranks on GPUs starts a process from which later runs get their workers; a run "
    "of one rank does not"
)


class Forker(NamedTuple):
    """Who forks the next workers of a run."""

    server: ForkServer | None = None  # kept for later where ``serves`` is not set
    serves: bool = False

    def later(self) -> Forker:
        """Return who does once rank 0 computes."""
        return self._replace(serves=self.server is not None)

    def check(self, what: str) -> None:
        """Raise SynkStateError if there is nobody any more."""
        trouble = self.server.trouble() if self.server is not None and self.serves else ""
        if trouble:
            raise SynkStateError(
                f"{what}: {trouble}. This process has used a GPU, so what is forked of it now cannot use "
                "one: save what is needed and start the script anew"
            )


class Nursery:
    """The fork server of this process, if it needs one."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None

    def check(self, what: str, devices: Devices) -> None:
        """Look whether workers can be had that can use CUDA, on GPUs if those are wanted.

        Raises
        ------
        CudaInitialisedError
            If this process has initialised CUDA, and has no fork server from before.
        """
        if not devices.gpus:
            check_cuda(what)
        elif self._server is None:
            check_cuda(what, TOO_LATE)
        elif trouble := self._server.trouble():
            check_cuda(what, f"Later runs get their workers from a server, but {trouble}")
            self._server = None  # there may be another

    def forker(self, devices: Devices) -> Forker:
        """Return who forks the first workers of a run, which `check` has let pass."""
        if devices.n_ranks == 1 or not devices.gpus:
            return Forker()
        if self._server is not None:
            return Forker(self._server, serves=True)  # nobody knows what this process has done since
        open_standard_descriptors()
        import_nccl()  # all workers share the memory
        flush()
        self._server = ForkServer(arrive)
        return Forker(self._server)

    def dismiss(self) -> None:
        """End the server: a run that is open cannot be restarted then."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
