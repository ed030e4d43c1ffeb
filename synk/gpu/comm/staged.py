"""Collectives of device arrays through host memory, which work on every machine.

    device array -> to_host -> HostCommunicator -> from_host -> device array

They are used where there is no NCCL, and where ranks share a GPU and NCCL does not allow that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from synk.transport.comm.communicator import Communicator, Read, Shared, copies
from synk.values.accumulator import Accumulator
from synk.values.errors import CollectiveMismatch
from synk.values.reduction import cast


class StagedCommunicator(Communicator):
    """Collectives of device arrays: copied to the host, exchanged by ``host``, and copied back.

    ``host`` is a communicator of NumPy arrays; arrays of bfloat16 are gathered by it and reduced here, in
    float32. No method reads the arrays in ``shared``, since a rank cannot read another rank's device memory;
    `broadcast` takes it as the sign that ``array`` is to be overwritten. ``to_host`` and ``from_host`` are
    the device's methods. ``from_host`` must copy: its argument may be overwritten once it has returned.
    """

    def __init__(self, host: Communicator, to_host: Callable[[Any], Any], from_host: Callable[[Any], Any]):
        super().__init__(host.rank, host.n_ranks)
        self._host = host
        self._to_host = to_host
        self._from_host = from_host

    @property
    def on_host(self) -> Communicator:
        return self._host

    def all_reduce(self, array: Any, op: str, shared: Shared = None) -> Any:
        if is_bfloat16(array):
            return self._put(self._reduced_bfloat16(array, op), array)
        return self._put(self._host.all_reduce(self._to_host(array), op), array)

    def reduce(
        self, array: Any, op: str, root: int = 0, shared: Shared = None, in_place: bool = False
    ) -> Any:
        if is_bfloat16(array):
            result = self._reduced_bfloat16(array, op)
        else:
            result = self._host.reduce(self._to_host(array), op, root, in_place=in_place)
        if self.rank != root:
            return None
        return self._put(result, array) if in_place else self._from_host(result)

    def broadcast(self, array: Any, root: int = 0, shared: Shared = None) -> Any:
        result = self._host.broadcast(self._plain(array), root)
        if self.rank == root:
            return array
        result = result.view(array.dtype)
        return self._put(result, array) if shared is not None else self._from_host(result)

    def all_gather(self, array: Any, shared: Shared = None, read: Read = copies) -> Any:
        return self._host.all_gather(self._plain(array), read=self._reading(read, array.dtype))

    def gather(
        self, array: Any, root: int = 0, shared: Shared = None, read: Read = copies, only: int | None = None
    ) -> Any:
        return self._host.gather(self._plain(array), root, read=self._reading(read, array.dtype), only=only)

    def _plain(self, array: Any) -> Any:
        """Return the array on the host; bfloat16 as uint16, since shared memory cannot describe it."""
        array = self._to_host(array)
        return array.view(np.uint16) if is_bfloat16(array) else array

    def _reading(self, read: Read, dtype: Any) -> Read:
        return lambda arrays: read([self._from_host(array.view(dtype)) for array in arrays])

    def _put(self, result: Any, array: Any) -> Any:
        """Copy the result into ``array`` and return that; if it cannot be written to, return the result."""
        if result is array:
            return array
        if not is_writable(array):
            return self._from_host(result)
        array[...] = self._from_host(result)
        return array

    def _reduced_bfloat16(self, array: Any, op: str) -> Any:
        """Return the combination of bfloat16 arrays, computed in float32 on every rank."""

        def read(slots: Sequence[Any]) -> Any:
            if len({slot.shape for slot in slots}) > 1:
                brought = "; ".join(f"rank {rank}: {list(slot.shape)}" for rank, slot in enumerate(slots))
                raise CollectiveMismatch(
                    f"ranks disagree on a collective: {op!r} of {array.dtype}, {brought}"
                )
            total = Accumulator(op)
            for slot in slots:
                total.add(slot.view(array.dtype).astype(np.float32), 1)
            result = total.partial()
            assert result is not None, "there is a slot for each rank"
            return cast(result.value, array.dtype)

        return self._host.all_gather(self._plain(array), read=read)


def is_bfloat16(array: Any) -> bool:
    """Return whether the array is of bfloat16, a dtype that NumPy only has through an extension."""
    return array.dtype.name == "bfloat16"


def is_writable(array: Any) -> bool:
    """Return whether the array may be written to; a broadcast one may not, since elements share memory."""
    flags = array.flags
    return (flags.c_contiguous or flags.f_contiguous) and getattr(flags, "writeable", True)
