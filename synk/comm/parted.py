"""An all-reduce in parts: each goes out as soon as it is final on this rank, while the rest is computed.

    ranks agree -> finished(array, start), again and again -> parts on a stream of their own -> finish

Parts follow from the length alone, and all ranks launch them in one order, from the end of the array to its
start: that is how gradients come. What is not final before `finish` is launched there. *Unrun* on GPUs.
"""

from __future__ import annotations

from typing import Any

from synk.comm.nccl_library import Library, Side
from synk.comm.nccl_link import Link

PART_BYTES = 25 << 20  # enough for full speed; what goes out after the gradient is done is no more than one


def part_starts(count: int, itemsize: int) -> list[int]:
    """Return the first elements of the parts that so many elements go out in."""
    n_parts = max(1, -(-count * itemsize // PART_BYTES))
    return [count * part // n_parts for part in range(n_parts)]


class PartedReduction:
    """One all-reduce, between the agreement of the ranks and its end.

    Parameters
    ----------
    link : Link
        Made, on all ranks.
    library : Library
    side : Side
        Where parts are launched.
    count : int
        Elements.
    itemsize : int
        Bytes of one.
    code, operation : int
        NCCL's numbers of their dtype and of what is done to them.
    """

    def __init__(
        self, link: Link, library: Library, side: Side, count: int, itemsize: int, code: int, operation: int
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

        Raises
        ------
        ValueError
            If it is another array than that whose parts went out.
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
