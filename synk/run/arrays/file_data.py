"""Data whose values stay in a file, which every rank maps to read its rows from the page cache.

    numpy.memmap -> FileData (master) -> a segment over the file, the same in every rank -> ArrayRef in a Call

Nothing is copied and no memory is allocated, so the file may be larger than the memory of the machine.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synk.run.arrays.data import Data
from synk.run.arrays.owner import Owner
from synk.transport.memory.files import check_length, file_label, reopened
from synk.values import messages


class FileData(Data):
    """Data whose values are those of a file.

    ``array`` is the memmap that `files.as_memmap` returns. Writes go to the file; if ``array`` is read-only,
    so are the Data.
    """

    def __init__(
        self, owner: Owner, array: np.memmap[Any, Any], minibatch: bool = False, name: str | None = None
    ):
        super().__init__(owner, array.dtype, array.ndim, minibatch, name)
        if owner.on_machines and array.flags.writeable:
            raise ValueError(
                f"{file_label(array.filename)} is open for writing, which other machines would not "
                "see; open it read-only: mmap_mode='r', or give its path"
            )
        self._filename = array.filename
        self._writable = array.flags.writeable
        self._offset = 0  # bytes
        self._mapped: int | None = (
            None  # the segment over the file; after `free_memory`, `_segment` is another
        )
        if array.size:  # else there is nothing to map
            file, self._offset = reopened(array)
            path = os.path.abspath(self._filename) if self._filename is not None else str(file.name)
            segments = owner.memory.segments
            self._mapped = segments.map_file(file, path, array.nbytes, self._offset, self._writable)
            self._hold(self._mapped, array.size)
            if owner.on_machines:
                with owner.turn("data"):
                    owner.run(())  # once it returns, all machines have opened the file: its name may change
        self._shape = array.shape

    @property
    def filename(self) -> Any:
        return self._filename

    @property
    def data(self) -> NDArray[Any]:
        """The values: a NumPy array over the file, not a copy; read-only if the file was opened so."""
        return super().data if self._writable else self._array()  # the latter notes no write

    def _array(self) -> NDArray[Any]:
        self._check_file()
        array = super()._array()
        array.flags.writeable &= (
            self._writable
        )  # an array without rows is not mapped, so it would be writable
        return array

    def ref(self) -> messages.ArrayRef:
        self._check_file()
        return super().ref()

    @property
    def known_ref(self) -> messages.ArrayRef | None:
        if self._ref is not None:
            self._check_file()
        return self._ref

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check_writable()
        super().__setitem__(key, value)

    def __repr__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        kinds = [] if self._writable else ["read-only"]
        if self.minibatch:
            kinds.append("minibatch")
        what = [str(self.dtype), f"shape {self.shape}", f"in {file_label(self._filename)}", *kinds]
        return f"<synk.Data{label}: {', '.join(what)}>"

    def set_value(self, input_data: Any, *, force_cast: bool = False, oversize: float = 1) -> None:
        self._check_writable()
        super().set_value(input_data, force_cast=force_cast, oversize=oversize)

    def _reshape(self, shape: tuple[int, ...], oversize: float, keep: bool) -> None:
        self._owner.check_open("Data")
        if math.prod(shape) > self._alloc_size:
            raise ValueError(
                f"shape {shape} is more than the {self._alloc_size} items that {self._label()} has in "
                f"{file_label(self._filename)}, which does not grow; make Data of a larger file"
            )
        super()._reshape(shape, oversize, keep)

    def _check_writable(self) -> None:
        self._owner.check_open("Data")
        if not self._writable:
            raise ValueError(
                f"{self._label()} cannot be written to: {file_label(self._filename)} was opened read-only; "
                "use mmap_mode='r+'"
            )

    def _check_file(self) -> None:
        """Raise ValueError if the file has become too short for the values; the check takes a microsecond."""
        self._owner.check_open("Data")
        if self._segment is not None and self._segment == self._mapped:
            needed = self._offset + self.size * self._dtype.itemsize
            check_length(self._filename, self._owner.memory.segments[self._segment].file_bytes, needed)
