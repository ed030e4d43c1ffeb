"""All-reduces in parts: each goes out as soon as it is final on this rank, while the rest is computed.

    OverlappingCommunicator.begin: ranks agree -> finished(array, start), again and again
        -> parts on a stream of their own -> OverlappingCommunicator.all_reduce: finish

Parts follow from the length alone, and all ranks launch them in one order, from the end of the array to its
start: that is how gradients come. What is not final before `finish` is launched there. *Unrun* on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from synk.gpu.comm.carrier import carrier_of
from synk.gpu.comm.nccl_library import Library
from synk.gpu.comm.nccl_link import Link
from synk.transport.comm import NcclCommunicator
from synk.transport.comm.communicator import Shared

PART_BYTES = 25 << 20  # enough for full speed; what goes out after the gradient is done is no more than one


def part_starts(count: int, itemsize: int) -> list[int]:
    """Return the first elements of the parts that so many elements go out in."""
    n_parts = max(1, -(-count * itemsize // PART_BYTES))
    return [count * part // n_parts for part in range(n_parts)]


class Described(NamedTuple):
    """The shape and dtype of an array, which ranks compare."""

    shape: tuple[int, ...]
    dtype: Any


class OverlappingCommunicator(NcclCommunicator):
    """NCCL, with all-reduces that begin before all of their array is final."""

    _side: SideStream | None = None
    _begun: PartedReduction | None = None

    def begin(self, count: int, dtype: Any, op: str) -> PartedReduction | None:
        """Begin the next all-reduce, of ``count`` elements of which the last become final first.

        None where it cannot begin early, on all ranks alike. Raises CollectiveMismatch on every rank if ranks
        disagree.
        """
        carrier = carrier_of(op, dtype, self.n_ranks)
        if carrier is None or carrier.steps or not count:
            return None
        self._meet("all_reduce", op, Described((count,), dtype))
        self._side = self._side or SideStream(self._library)
        codes = self._codes(carrier)
        self._begun = PartedReduction(self._link, self._library, self._side, count, dtype.itemsize, *codes)
        return self._begun

    def all_reduce(self, array: Any, op: str, shared: Shared = None) -> Any:
        begun, self._begun = self._begun, None
        return super().all_reduce(array, op, shared) if begun is None else begun.finish(array)

    def abandon(self) -> None:
        """Give up what was begun, since this rank failed."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.abandon()


class PartedReduction:
    """One all-reduce of ``count`` elements, between the agreement of linked ranks and its end.

    Parts are launched in the stream ``side``; ``code`` and ``operation`` are NCCL's numbers of the elements'
    dtype and of what is done to them.
    """

    def __init__(
        self,
        link: Link,
        library: Library,
        side: SideStream,
        count: int,
        itemsize: int,
        code: int,
        operation: int,
    ):
        self._link, self._library, self._side = link, library, side
        self._count, self._itemsize = count, itemsize
        self._code, self._operation = code, operation
        self._starts = part_starts(count, itemsize)  # the last one is launched next
        self._stop = count
        self._array: Any = None

    def finished(self, array: Any, start: int) -> None:
        """Launch the parts in ``array[start:]``, which is final for what the stream has been given."""
        if self._array is None and (array.size == self._count and array.flags.c_contiguous):
            self._array = array
        if array is not self._array or not self._starts or start > self._starts[-1]:
            return
        self._side.follow()
        while self._starts and self._starts[-1] >= start:
            self._launch(self._starts.pop())

    def finish(self, array: Any) -> Any:
        """Launch what has not been, wait for all ranks, and return ``array``, which holds the result.

        Raises ValueError if it is another array than that whose parts went out.
        """
        if self._array is None:
            self.finished(array, self._count)  # looks at the array, and launches nothing
        if array is not self._array:
            raise ValueError(
                f"a value of shape {list(array.shape)} cannot be all-reduced in parts: {self._count} "
                "elements were expected, in C order, where the old value was"
            )
        self.finished(array, 0)
        self._link.complete(self._side.join(), "all_reduce")
        return array

    def abandon(self) -> None:
        """Give up; other ranks may wait for parts that do not come."""
        if self._stop < self._count:
            self._link.abort()

    def _launch(self, start: int) -> None:
        where, length = self._library.pointer(self._array) + start * self._itemsize, self._stop - start
        self._stop = start
        self._link.launch(
            lambda comm, stream: comm.allReduce(where, where, length, self._code, self._operation, stream),
            self._side.ptr,
            "all_reduce",
        )


class SideStream:
    """A second stream, for what goes on beside the current one."""

    def __init__(self, library: Library):
        cuda = library.xp.cuda
        self._library = library
        self._stream = cuda.Stream(non_blocking=True)
        self._event = cuda.Event(disable_timing=True)
        self.ptr = self._stream.ptr

    def follow(self) -> None:
        """Make later launches here wait for the launches of the current stream so far."""
        self._event.record(self._library.xp.cuda.get_current_stream())
        self._stream.wait_event(self._event)

    def join(self) -> Callable[[], bool]:
        """Make the current stream wait for the launches here; return a test of whether they are done."""
        self._event.record(self._stream)
        self._library.xp.cuda.get_current_stream().wait_event(self._event)
        return self._library.mark(self._stream)
