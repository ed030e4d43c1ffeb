"""Replace `Shards` on a GPU: upload the rows of inputs while the GPU computes.

    Call, arrays, index list -> UploadedShards.inputs -> an UploadedInput for each input -> Program.run

While one slice computes, the rows of the next slice are uploaded, or of the next call's first slice. A shared
variable stays on the GPU, and its rows are selected there: ResidentInput.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.device.uploads import InputBuffers, Request, is_large
from synk.run.arrays.variables import RankVariables
from synk.run.device import Device
from synk.run.rank.row_inputs import RowInput
from synk.run.rank.shards import rows_of, share
from synk.values import messages
from synk.values.rows import SelectedRows, slices


class UploadedShards:
    """The rows that one rank reads on its GPU, by the methods of `Shards`."""

    def __init__(self, rank: int, n_ranks: int, device: CudaDevice):
        self._rank, self._n_ranks = rank, n_ranks
        self._device = device
        self._uploader = device.uploader()

    def inputs(
        self, step: messages.Call, selected: SelectedRows, arrays: Sequence[Any], indices: Any
    ) -> Sequence[Any]:
        """Return this rank's rows of each scattered input, as `UploadedInput` where they may be uploaded."""
        picked, paired = share(selected, self._rank, self._n_ranks)
        token, coming = 0, SelectedRows(0, 0)
        if step.ahead is not None:
            there, _ = share(rows_of(step.ahead.rows, indices), self._rank, self._n_ranks)
            token, coming = step.ahead.token, there.kept()  # the next call writes its own list over this one
        parts = slices(len(picked), step.num_slices)
        key = step.gathered or object()  # a new object matches no earlier upload
        inputs: list[Any] = []
        for position, (array, minibatch) in enumerate(zip(arrays, step.minibatch, strict=True)):
            rows = paired if minibatch else picked
            if not self._uploader.suits(array):
                inputs.append(RowInput(array, rows))
                continue
            buffers = self._uploader.buffers(step.function, position)
            following = None if minibatch else first_of_next(token, array, coming, step.num_slices)
            inputs.append(UploadedInput(array, rows, buffers, key, parts, following))
        return inputs

    def whole(self, *call: Any) -> None:
        """Do nothing: unlike `Shards`, this class takes no rows before `inputs`."""

    def sliced(self, variables: RankVariables, identity: int, rows: SelectedRows) -> Any:
        """Return rows of a shared variable; its value is moved to the GPU and stays there."""
        # Setting a variable's value stores an array of the host; programs move the variables that they read,
        # too.
        storage = variables[identity].container.storage
        storage[0] = self._device.from_host(storage[0])
        return ResidentInput(storage[0], rows, self._device)

    @contextmanager
    def read(self) -> Iterator[None]:
        """Return a context in which programs read inputs; when it ends, the caller may overwrite them."""
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the GPU may have failed, and fail again; the first error is raised
                self._uploader.finish()
            raise
        self._uploader.finish()

    def forget(self, function: int) -> None:
        """Free the buffers of a function."""
        self._uploader.forget(function)

    def end_threads(self) -> None:
        """Free all buffers, and end the threads that gather and upload."""
        self._uploader.close()


class UploadedInput(NamedTuple):
    """Rows of an array on the host, uploaded slice by slice.

    While one slice computes, the next is uploaded; during the last slice, the first one of the next call.
    """

    array: Any
    rows: SelectedRows
    buffers: InputBuffers
    key: Any  # of this call's rows: their upload may have been started under it
    parts: Sequence[tuple[int, int]]  # of the rows, in the order in which they will be asked for
    following: Request | None  # of the next call

    def part(self, start: int, stop: int) -> Any:
        request = self._request(start, stop)
        if not is_large(request):
            return request.rows.of(self.array)  # the program uploads it itself
        there = self.buffers.take(request)
        following = self._following(start, stop)
        if following is not None:
            self.buffers.start(following)
        return there

    def _request(self, start: int, stop: int) -> Request:
        return Request((self.key, start, stop), self.array, self.rows.part(start, stop))

    def _following(self, start: int, stop: int) -> Request | None:
        after = self.parts.index((start, stop)) + 1 if (start, stop) in self.parts else 0
        if 0 < after < len(self.parts):
            return self._request(*self.parts[after])
        return self.following


def first_of_next(key: Any, array: Any, rows: SelectedRows, num_slices: int) -> Request | None:
    """Return the request for the first slice of the next call; None if that has no rows."""
    parts = slices(len(rows), num_slices)
    if not parts:
        return None
    start, stop = parts[0]
    return Request((key, start, stop), array, rows.part(start, stop))


class ResidentInput(NamedTuple):
    """Rows of an array that stays on the device."""

    array: Any
    rows: SelectedRows
    device: Device

    def part(self, start: int, stop: int) -> Any:
        rows = self.rows.part(start, stop)
        if rows.indices is None:
            return rows.of(self.array)
        return self.array[self.device.from_host(rows.indices[rows.start : rows.stop])]
