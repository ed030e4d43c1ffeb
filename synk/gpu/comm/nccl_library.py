"""Call NCCL through CuPy, and decide by its version when it may be used.

    devices of all ranks, version -> connection -> "nccl" or "staged"
    array -> pointer; stream; mark -> whether the device has done its work

This is *unrun* on GPUs: it was written from NCCL's documentation and sources.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

SHARES_A_GPU = 23000  # NCCL 2.30 is the first that lets several ranks have one GPU
SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
AT_ONCE = "NCCL_RUNTIME_CONNECT"  # "0": connect when the communicator is made, not in the first collective
ID_BYTES = 128
NOT_READY = 600  # cudaErrorNotReady


def connection(
    devices: Sequence[Hashable], version: int | None, environ: Mapping[str, str] | None = None
) -> str:
    """Return how to connect the ranks: "nccl", or "staged" for `StagedCommunicator`, through host memory.

    ``devices`` has an identity of each rank's GPU, an index or a UUID. ``version`` is NCCL's, as
    `Library.version` returns it, or None without NCCL. A variable in ``environ`` may forbid NCCL to let ranks
    share a GPU.
    """
    if version is None:
        return "staged"
    shared = len(set(devices)) < len(devices)
    forbidden = environ is not None and SHARING in environ and not is_on(environ[SHARING])
    return "staged" if shared and (version < SHARES_A_GPU or forbidden) else "nccl"


def allow_sharing(devices: Sequence[Hashable], environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Set the variables that NCCL needs when several ranks share a GPU; return the names of those set.

    NCCL reads them once, so call this before NCCL is first called. Variables that the user has set keep their
    values, and are not among the names.
    """
    most = max(Counter(devices).values(), default=0)
    wanted = {SHARING: "1"} if most > 1 else {}
    if most > 2:
        # Kernels of all ranks wait for each other on the GPU, so they must fit there together.
        wanted["NCCL_MAX_CTAS"] = "2"
    return _add(wanted, environ)


def connect_at_once(environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Make NCCL connect all ranks when a communicator is made; return the names of the variables set.

    By default NCCL connects two ranks within their first collective of each kind. If one of them fails before
    it gets there, the other would wait inside NCCL for ever, where no other thread may abort it.
    """
    return _add({AT_ONCE: "0"}, environ)


def _add(wanted: Mapping[str, str], environ: MutableMapping[str, str]) -> tuple[str, ...]:
    missing = {name: value for name, value in wanted.items() if name not in environ}
    environ.update(missing)
    return tuple(missing)


def error_text(error: Exception) -> str:
    """Return the text of an error of NCCL; CuPy raises KeyError for results that it has no name for."""
    return f"its result is {error}" if isinstance(error, KeyError) else str(error)


def remedy(environ: Mapping[str, str]) -> str:
    """Return advice for the user after a failure of NCCL."""
    more = "set NCCL_DEBUG=WARN to have it say more"
    if not is_on(environ.get(SHARING, "")):
        return more
    return f"{more}, or {SHARING}=0 to send arrays of ranks that share a GPU through host memory"


def is_on(value: str) -> bool:
    """Return whether NCCL takes a variable's value as "on": it begins with a number other than 0."""
    number = re.match(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)", value)
    return number is not None and number[1].strip("0xX") != ""


def import_nccl() -> Any | None:
    """Return CuPy's module for NCCL, or None if CuPy or NCCL is not installed."""
    try:
        from cupy.cuda import nccl
    except (ImportError, UserWarning):  # CuPy warns, and says what to install; a warning may be an error
        return None
    return nccl if nccl.available else None


class Library:
    """The functions of NCCL and CuPy that communicators call, for the device that is current at its making.

    ``cupy`` and ``nccl`` are the modules ``cupy`` and ``cupy.cuda.nccl``, release 14 or later. ``xp`` is the
    array module; ``Error`` is the tuple of the exceptions that calls of NCCL raise.
    """

    def __init__(self, cupy: Any, nccl: Any):
        self.xp = cupy
        # CuPy 14 has no names for results after ncclRemoteError, and raises a KeyError for them.
        self.Error = (nccl.NcclError, KeyError)
        self._nccl = nccl
        self._device = cupy.cuda.runtime.getDevice()

    def version(self) -> int:
        """Return NCCL's version, 23004 for 2.30.4."""
        return self._nccl.get_version()

    def unique_id(self) -> bytes:
        """Return a new id by which ranks find each other, of `ID_BYTES` bytes."""
        return self._nccl.get_unique_id()

    def connect(self, n_ranks: int, unique_id: bytes, rank: int) -> Any:
        """Return this rank's communicator of NCCL, once all ranks have called this; any thread may."""
        with self.on_device():
            return self._nccl.NcclCommunicator(n_ranks, unique_id, rank)

    def on_device(self) -> AbstractContextManager[Any]:
        """Return a context in which the calling thread uses this device: in CUDA, each thread has its own."""
        return self.xp.cuda.Device(self._device)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Let everything that is launched inside run at the same time."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def code(self, name: str) -> int:
        """Return NCCL's number for the name of a dtype or an operation."""
        return getattr(self._nccl, f"NCCL_{name.upper()}")

    def pointer(self, array: Any) -> int:
        """Return the address of an array on the device."""
        return array.data.ptr

    def stream(self) -> int:
        """Return the address of the stream in which this thread computes its arrays."""
        return self.xp.cuda.get_current_stream().ptr

    def mark(self) -> Callable[[], bool]:
        """Return a function that says whether this thread's stream has done what it was given so far."""
        event = self.xp.cuda.Event(disable_timing=True)
        event.record()
        runtime = self.xp.cuda.runtime

        def done() -> bool:
            status = runtime.eventQuery(event.ptr)
            if status not in (0, NOT_READY):
                raise runtime.CUDARuntimeError(status)
            return status == 0

        return done
