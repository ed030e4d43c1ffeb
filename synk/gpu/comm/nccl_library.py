"""NCCL as CuPy has it: which version, what it is called with, and when it may be used.

    devices of all ranks, version -> connection -> "nccl" or "staged"
    array -> pointer; stream; mark -> whether the device is through

What NCCL does on GPUs is *unrun*: it is written from its documentation and sources.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

SHARES_A_GPU = 23000  # NCCL 2.30 is the first that lets several ranks have one GPU
SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
AT_ONCE = "NCCL_RUNTIME_CONNECT"  # "0": not at run time
ID_BYTES = 128
NOT_READY = 600  # cudaErrorNotReady


def connection(
    devices: Sequence[Hashable], version: int | None, environ: Mapping[str, str] | None = None
) -> str:
    """Decide how ranks are connected: by "nccl", or "staged" through host memory, see `StagedCommunicator`.

    ``devices`` hold, by rank, what tells its GPU from others: an index, or a UUID. ``version`` is NCCL's,
    as `Library.version` has it; None where there is none. In ``environ`` somebody may have forbidden that
    ranks share a GPU.
    """
    if version is None:
        return "staged"
    shared = len(set(devices)) < len(devices)
    forbidden = environ is not None and SHARING in environ and not is_on(environ[SHARING])
    return "staged" if shared and (version < SHARES_A_GPU or forbidden) else "nccl"


def allow_sharing(devices: Sequence[Hashable], environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Set what NCCL must find in the environment when several ranks have one GPU; return its names.

    It is read once, so this comes before NCCL is first called. What the user has set stays, and is not
    among those names.
    """
    most = max(Counter(devices).values(), default=0)
    wanted = {SHARING: "1"} if most > 1 else {}
    if most > 2:
        # Kernels of all ranks wait for each other on the GPU, so they must fit there together.
        wanted["NCCL_MAX_CTAS"] = "2"
    return _add(wanted, environ)


def connect_at_once(environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Let NCCL connect ranks when it links them, as `allow_sharing` sets and returns it.

    By default it does so within the first collective of each kind, where a rank whose peer fails before it
    comes would wait in NCCL for ever, and nothing may abort it.
    """
    return _add({AT_ONCE: "0"}, environ)


def _add(wanted: Mapping[str, str], environ: MutableMapping[str, str]) -> tuple[str, ...]:
    missing = {name: value for name, value in wanted.items() if name not in environ}
    environ.update(missing)
    return tuple(missing)


def told(error: Exception) -> str:
    """Return the text of an error of `Library.Error`."""
    return f"its result is {error}" if isinstance(error, KeyError) else str(error)


def remedy(environ: Mapping[str, str]) -> str:
    """Return an advice for a failure of NCCL."""
    more = "set NCCL_DEBUG=WARN to have it say more"
    if not is_on(environ.get(SHARING, "")):
        return more
    return f"{more}, or {SHARING}=0 to send arrays of ranks that share a GPU through host memory"


def is_on(value: str) -> bool:
    """Tell whether NCCL takes the value of a switch for on: it begins with a number other than 0."""
    number = re.match(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)", value)
    return number is not None and number[1].strip("0xX") != ""


def import_nccl() -> Any | None:
    """Return CuPy's module of NCCL, or None where either is not installed."""
    try:
        from cupy.cuda import nccl
    except (ImportError, UserWarning):  # CuPy warns, and says what to install; a warning may be an error
        return None
    return nccl if nccl.available else None


class Library:
    """The part of NCCL and CuPy that communicators use, for the device that is current when this is made.

    It is made of the modules ``cupy`` and ``cupy.cuda.nccl``, release 14 or later. ``xp`` is the array
    module; calls of NCCL raise one of ``Error``.
    """

    def __init__(self, cupy: Any, nccl: Any):
        self.xp = cupy
        # CuPy 14 knows no name for results after ncclRemoteError, and fails to raise those.
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
        """Return this rank's communicator, once all ranks have called this; on any thread."""
        with self.on_device():
            return self._nccl.NcclCommunicator(n_ranks, unique_id, rank)

    def on_device(self) -> AbstractContextManager[Any]:
        """Make the device current meanwhile; another thread may have another one."""
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
        """Return NCCL's number of a dtype or an operation."""
        return getattr(self._nccl, f"NCCL_{name.upper()}")

    def pointer(self, array: Any) -> int:
        """Return the address of an array on the device."""
        return array.data.ptr

    def stream(self) -> int:
        """Return the stream on which the arrays of this thread are computed."""
        return self.xp.cuda.get_current_stream().ptr

    def mark(self) -> Callable[[], bool]:
        """Return a function that tells whether this thread's stream has done all it was given until now."""
        event = self.xp.cuda.Event(disable_timing=True)
        event.record()
        runtime = self.xp.cuda.runtime

        def done() -> bool:
            status = runtime.eventQuery(event.ptr)
            if status not in (0, NOT_READY):
                raise runtime.CUDARuntimeError(status)
            return status == 0

        return done
