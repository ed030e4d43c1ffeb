"""This rank's rows of the scattered inputs of a call: where they are, or gathered ahead already.

    Call, arrays, index list -> Shards.inputs -> a RowInput each -> Program.run
                             -> Gatherer.start, where the call says what comes next

On a device that is fed, an UploadedInput each instead, which brings the rows there, and behind them those
that come next; rows of a shared variable stay there: ResidentInput.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

from synk.arrays.variables import RankVariables
from synk.device import Device
from synk.device.uploads import InputBuffers, Request, is_large
from synk.memory.gathering import SMALL_BYTES, Gatherer, RowsToGather
from synk.memory.segments import SegmentTable
from synk.rank.program import RowInput
from synk.values import messages
from synk.values.rows import Rows, slices, split

NOTHING = nullcontext()


class Shards:
    """The rows that one rank reads of scattered inputs, on the device that it computes on."""

    def __init__(self, rank: int, n_ranks: int, device: Device, segments: SegmentTable):
        self._rank = rank
        self._n_ranks = n_ranks
        self._gatherer = Gatherer()
        self._device = device
        self._segments = segments
        self._uploader = device.uploader()
        if self._uploader is not None:
            segments.before_allocation = self._uploader.sweep

    def inputs(
        self, step: messages.Call, selected: Rows, arrays: Sequence[Any], indices: Any, to_device: bool = True
    ) -> list[Any]:
        """Return the rows of this rank, a `RowInput` or `UploadedInput` for each scattered input.

        ``selected`` are those of all ranks; ``indices`` are what listed spans of the step refer to.
        ``to_device`` says whether the program reads rows there, if the device is one that is fed.
        """
        if self._uploader is not None and to_device:
            return self._uploaded(step, selected, arrays, indices)
        there = self._gathered(step, arrays, indices)
        start, stop = split(selected.stop - selected.start, self._n_ranks)[self._rank]
        picked = Rows(selected.start + start, selected.start + stop, selected.indices)
        inputs = []
        for position, (array, minibatch) in enumerate(zip(arrays, step.minibatch, strict=True)):
            if minibatch:
                inputs.append(RowInput(array, Rows(start, stop)))
            elif position in there:
                inputs.append(RowInput(there[position], Rows(0, stop - start)))
            elif picked.indices is None:
                inputs.append(RowInput(array, picked))
            else:
                inputs.append(RowInput(array, picked, self._gatherer.memory_of(step.function, position)))
        return inputs

    def whole(
        self, step: messages.Call, start: int, stop: int, arrays: Sequence[Any], indices: Any
    ) -> list[Any] | None:
        """Return this rank's rows as plain arrays; None if they must be uploaded, sliced or gathered ahead.

        ``start`` and ``stop`` are of this rank's rows; with ``indices``, of the list of them. None where
        `inputs` must see to it.
        """
        if self._uploader is not None or step.num_slices > 1 or True in step.minibatch:
            return None
        if self._gatherer.pending or step.ahead is not None:
            return None
        if indices is None:
            return [array[start:stop] for array in arrays]
        for array in arrays:
            if array.strides[0] * (stop - start) >= SMALL_BYTES or not array.flags.c_contiguous:
                return None
        listed = indices[start:stop]
        return [array.take(listed, axis=0) for array in arrays]

    def _share(self, selected: Rows) -> tuple[Rows, Rows]:
        """Return this rank's part of a selection: rows of the data set, rows of the selection."""
        mine = split(len(selected), self._n_ranks)[self._rank]
        return selected.part(*mine), Rows(*mine)

    def _gathered(self, step: messages.Call, arrays: Sequence[Any], indices: Any) -> dict[int, Any]:
        """Return the rows that are there already, by position; begin to gather those of the next call."""
        there = self._gatherer.take(step.function, step.gathered)
        if step.ahead is not None:
            picked, _ = self._share(rows_of(step.ahead.rows, indices))
            rows = picked.kept()  # the next call writes its own list over this one
            sources = {
                position: RowsToGather(array, rows, self._gatherer.memory_of(step.function, position))
                for position, (array, minibatch) in enumerate(zip(arrays, step.minibatch, strict=True))
                if not minibatch
            }
            self._gatherer.start(step.function, step.ahead.token, sources)
        return there

    # --- on a device that is fed ---------------------------------------------------------------

    def _uploaded(
        self, step: messages.Call, selected: Rows, arrays: Sequence[Any], indices: Any
    ) -> list[Any]:
        """Return the rows of this rank for a program that reads them on the device."""
        picked, paired = self._share(selected)
        token, coming = 0, Rows(0, 0)
        if step.ahead is not None:
            # Kept: the next call writes its own list over this one.
            token, coming = step.ahead.token, self._share(rows_of(step.ahead.rows, indices))[0].kept()
        parts = slices(len(picked), step.num_slices)
        key = step.gathered or object()  # a fresh one: nothing that was uploaded before matches
        inputs: list[Any] = []
        for position, (array, minibatch) in enumerate(zip(arrays, step.minibatch, strict=True)):
            rows = paired if minibatch else picked
            if not self._uploader.suits(array):
                inputs.append(RowInput(array, rows))
                continue
            buffers = self._uploader.buffers(step.function, position)
            memory = self._segments[step.inputs[position].segment].lockable
            following = None if minibatch else first_of_next(token, array, coming, step.num_slices, memory)
            inputs.append(UploadedInput(array, rows, buffers, key, parts, following, memory))
        return inputs

    def sliced(self, variables: RankVariables, identity: int, rows: Rows, to_device: bool = True) -> Any:
        """Return rows of a shared variable; where the device is fed, its value moves there and stays."""
        if self._uploader is None or not to_device:
            return RowInput(variables.on_host(identity), rows)
        # As programs do with the variables that they read: what sets a value puts an array of the host there.
        storage = variables[identity].container.storage
        storage[0] = self._device.from_host(storage[0])
        return ResidentInput(storage[0], rows, self._device)

    def read(self) -> AbstractContextManager[None]:
        """Let a program read its inputs in the body; afterwards the caller may write to them."""
        return NOTHING if self._uploader is None else self._upload_read()

    @contextmanager
    def _upload_read(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the GPU may be what failed
                self._uploader.finish()
            raise
        self._uploader.finish()

    def forget(self, function: int) -> None:
        """Free what is kept for a function."""
        self._gatherer.forget(function)
        if self._uploader is not None:
            self._uploader.forget(function)

    def detach(self, number: int) -> None:
        """Drop a segment, in a worker."""
        self._segments.drop(number)
        if self._uploader is not None:
            self._uploader.sweep()

    def rest(self) -> None:
        """End the threads that gather, if there are any."""
        self._gatherer.close()
        if self._uploader is not None:
            self._uploader.close()


def rows_of(span: messages.Span, indices: Any) -> Rows:
    """Return the rows that a span in a message means."""
    return Rows(span.start, span.stop, indices if span.listed else None)


class UploadedInput(NamedTuple):
    """Rows of an array on the host, brought to the device slice by slice.

    While one slice computes, the next is brought; while the last one does, the first of the next call.
    """

    array: Any
    rows: Rows
    buffers: InputBuffers
    key: Any  # of this call's rows: under it they may have been started
    parts: Sequence[tuple[int, int]]  # of the rows, in the order in which they will be asked for
    following: Request | None  # of the next call
    memory: Any = None  # as of `Request`

    def part(self, start: int, stop: int) -> Any:
        request = self._request(start, stop)
        if not is_large(request):
            rows = request.rows.of(self.array)  # the program sends it itself
            # From page-locked memory, as this may be for larger parts, CuPy would read when the call is over.
            return rows if self.memory is None or request.rows.indices is not None else rows.copy()
        there = self.buffers.take(request)
        following = self._following(start, stop)
        if following is not None:
            self.buffers.start(following)
        return there

    def _request(self, start: int, stop: int) -> Request:
        return Request((self.key, start, stop), self.array, self.rows.part(start, stop), self.memory)

    def _following(self, start: int, stop: int) -> Request | None:
        after = self.parts.index((start, stop)) + 1 if (start, stop) in self.parts else 0
        if 0 < after < len(self.parts):
            return self._request(*self.parts[after])
        return self.following


def first_of_next(key: Any, array: Any, rows: Rows, num_slices: int, memory: Any) -> Request | None:
    """Return the request for the first slice of a call to come, if it has rows."""
    parts = slices(len(rows), num_slices)
    if not parts:
        return None
    start, stop = parts[0]
    return Request((key, start, stop), array, rows.part(start, stop), memory)


class ResidentInput(NamedTuple):
    """Rows of an array that is on the device."""

    array: Any
    rows: Rows
    device: Device

    def part(self, start: int, stop: int) -> Any:
        rows = self.rows.part(start, stop)
        if rows.indices is None:
            return rows.of(self.array)
        return self.array[self.device.from_host(rows.indices[rows.start : rows.stop])]
