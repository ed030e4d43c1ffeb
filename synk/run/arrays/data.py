"""Data: arrays in shared memory that every rank reads in place.

values -> Data (master) -> ArrayRef in a Call -> rows, gathered by each rank itself
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synk.run.arrays.owner import Owner
from synk.values import messages
from synk.values.checks import NUMBERS, as_array, checked_count, plain, remedy

MAX_OVERSIZE = 2.0
INTERNAL = {"ref", "known_ref", "changes", "note_written"}  # for other parts of synk; hidden from `dir`


class Data:
    """An array in shared memory, for input to functions: read and written like a NumPy array.

    `synk.data` makes it. The dtype and the number of dimensions are fixed, the shape is not: the memory grows
    when needed, keeps its contents, and shrinks only by `free_memory`. It is freed in every rank when Python
    deletes the Data.

    See Also
    --------
    synk.Function.build_inputs : makes Data for all inputs of a function.

    Examples
    --------
    >>> x = synk.data([1.0, 2.0, 3.0])
    >>> x[1:] = 0.0
    >>> x.shape, len(x), np.asarray(x).tolist()
    ((3,), 3, [1.0, 0.0, 0.0])
    """

    def __init__(self, owner: Owner, dtype: Any, ndim: int, minibatch: bool = False, name: str | None = None):
        owner.check_open("making Data")
        self._owner = owner
        self._name = name
        self._dtype = _checked_dtype(dtype, self._label())
        self._ndim = ndim
        self._minibatch = bool(minibatch)
        self._segment: int | None = None
        self._alloc_size = 0  # items
        self._shape = (0,) * ndim
        self._finalizer: Any = None
        self._ref: messages.ArrayRef | None = None  # None once memory or shape have changed
        self._changes = 0
        self._handed_out: list[weakref.ref[Any]] = []  # arrays through which the script may write

    # --- what it is ------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the items; it never changes."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions; it never changes."""
        return self._ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Present shape."""
        return self._shape

    @property
    def size(self) -> int:
        """Present number of items."""
        return math.prod(self._shape)

    @property
    def alloc_size(self) -> int:
        """Items that fit in the memory allocated, which may be more than `size`."""
        return self._alloc_size

    @property
    def minibatch(self) -> bool:
        """True if row i belongs to the i-th row that ``batch`` selects, not to row i of the other inputs."""
        return self._minibatch

    @property
    def name(self) -> str | None:
        """Name for messages, like that of a PyTensor variable; None without one."""
        return self._name

    @property
    def filename(self) -> Any:
        """The file of the values, as in `numpy.memmap.filename`; None if they are in shared memory."""
        return None

    @property
    def data(self) -> NDArray[Any]:
        """The values: a NumPy array over the shared memory, not a copy."""
        self._changes += 1  # the caller may write to it
        array = self._array()
        self._handed_out = [one for one in self._handed_out if one() is not None] + [weakref.ref(array)]
        return array

    def _array(self) -> NDArray[Any]:
        """Return the values like `data`, but without noting that the caller may write to them."""
        self._owner.check_open("Data")
        if self._segment is None and self.size:  # only 0-d Data have an item before they have memory
            self._allocate(self.size)
        if self._segment is None:
            return np.empty(self._shape, self._dtype)
        return self._owner.memory.segments[self._segment].array(self._dtype, self._shape)

    def ref(self) -> messages.ArrayRef:
        """Return the reference by which messages to the ranks name this array."""
        self._owner.check_open("Data")
        if self._ref is None:
            if self._segment is None:
                self._allocate(self.size)
            assert self._segment is not None
            self._ref = messages.ArrayRef(self._segment, self._dtype.str, self._shape)
        return self._ref

    @property
    def known_ref(self) -> messages.ArrayRef | None:
        """The object that `ref` returned last, or None if memory or shape have changed since."""
        return self._ref

    @property
    def changes(self) -> int:
        """Number of times that somebody got access to the values; if it has grown, they may have changed."""
        return self._changes

    def note_written(self) -> None:
        """Note that the objects of `synk.on_ranks` may have written new values."""
        self._changes += 1

    def _version(self) -> int | None:
        """Return a number that changes with every possible write.

        While it stays the same, the values need not be sent to other machines again. It is None while the
        script holds an array through which it may write.
        """
        return None if any(one() is not None for one in self._handed_out) else self._changes

    # --- like an array -----------------------------------------------------------------------

    def __len__(self) -> int:
        if not self._ndim:
            raise TypeError("0-d Data has no length")
        return self._shape[0]

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.data[key] = plain(value, f"the value for {self._label()}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._array() if copy else self.data, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __repr__(self) -> str:
        label = f" {self._name!r}" if self._name else ""
        kind = ", minibatch" if self._minibatch else ""
        return f"<synk.Data{label}: {self._dtype}, shape {self._shape}{self._capacity()}{kind}>"

    def _capacity(self) -> str:
        """Return the words of `repr` on how many rows fit into the memory; "" if rows have no items."""
        row_size = math.prod(self._shape[1:])
        return f", capacity {self._alloc_size // row_size:,} rows" if self._ndim and row_size else ""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL]

    # --- changing it -------------------------------------------------------------------------

    def set_value(self, input_data: Any, *, force_cast: bool = False, oversize: float = 1) -> None:
        """Overwrite the values, and take the shape of the new ones.

        Parameters
        ----------
        input_data : array_like
            The new values, with the same number of dimensions.
        force_cast : bool
            Cast to this Data's dtype even if that loses precision.
        oversize : float, 1 to 2
            If memory must grow, allocate this multiple of the memory needed.

        Raises
        ------
        TypeError
            If the dtype does not fit, or the number of dimensions differs.
        SharedMemoryFull
            If there is no room; the old values are kept.

        Examples
        --------
        >>> x = synk.data(np.zeros(2))
        >>> x.set_value([1.0, 2.0, 3.0])
        >>> x.shape
        (3,)
        """
        values = self._as_stored(input_data, force_cast)
        self._reshape(values.shape, oversize, keep=False)
        self.data[...] = values

    def set_length(self, length: int, *, oversize: float = 1) -> None:
        """Change the number of rows; rows that fit keep their values, new ones are undefined.

        Parameters
        ----------
        length : int
            Rows.
        oversize : float, 1 to 2
            If memory must grow, allocate this multiple of the memory needed.

        Raises
        ------
        TypeError
            If the Data is 0-d.
        SharedMemoryFull
            If there is no room.

        Examples
        --------
        >>> x = synk.data([1.0, 2.0])
        >>> x.set_length(3, oversize=2)
        >>> x[2] = 3.0
        >>> x[:].tolist()
        [1.0, 2.0, 3.0]
        """
        if not self._ndim:
            raise TypeError("0-d Data has no length")
        self._reshape((checked_count("length", length, least=0), *self._shape[1:]), oversize, keep=True)

    def set_shape(self, shape: Any, *, oversize: float = 1) -> None:
        """Change the shape; items that fit keep their place in memory (C order), new ones are undefined.

        Parameters
        ----------
        shape : tuple of int
            Of as many dimensions as before.
        oversize : float, 1 to 2
            If memory must grow, allocate this multiple of the memory needed.

        Raises
        ------
        ValueError
            If the number of dimensions differs.
        SharedMemoryFull
            If there is no room.

        Examples
        --------
        >>> x = synk.data(np.arange(6.0).reshape(2, 3))
        >>> x.set_shape((3, 2))
        >>> x[0].tolist()
        [0.0, 1.0]
        """
        shape = tuple(checked_count("length", length, least=0) for length in shape)
        if len(shape) != self._ndim:
            raise ValueError(f"shape {shape} has {len(shape)} dimensions, this Data has {self._ndim}")
        self._reshape(shape, oversize, keep=True)

    def _as_stored(self, input_data: Any, force_cast: bool) -> NDArray[Any]:
        """Return ``input_data`` as an array of this Data's dtype; raise TypeError if it does not fit."""
        values = as_array(input_data, f"the value for {self._label()}")
        if values.ndim != self._ndim:
            raise TypeError(f"value has {values.ndim} dimensions, {self._label()} has {self._ndim}")
        if not (
            force_cast
            or np.can_cast(values.dtype, self._dtype, "safe")
            or self._holds_exactly(input_data, values)
        ):
            raise TypeError(
                f"value of dtype {values.dtype} does not fit {self._label()} of dtype {self._dtype}; "
                f"{remedy(values.dtype, str(self._dtype))}"
                + (", or synk.data(..., force_cast=True)" if values.dtype.kind in NUMBERS else "")
            )
        return values.astype(self._dtype, copy=False)

    def _holds_exactly(self, input_data: Any, values: NDArray[Any]) -> bool:
        """Return whether ``input_data`` are numbers of Python, all of which this dtype holds exactly."""
        if not isinstance(input_data, list | tuple | range | int | float) or values.dtype.kind not in NUMBERS:
            return False
        with np.errstate(all="ignore"):
            return np.array_equal(values.astype(self._dtype), values, equal_nan=True)

    def free_memory(self) -> None:
        """Free the memory in every rank; the shape becomes empty.

        Examples
        --------
        >>> x = synk.data(np.ones((2, 3)))
        >>> x.free_memory()
        >>> x.shape
        (0, 0)
        """
        self._owner.check_open("Data")
        if self._finalizer is not None:
            self._finalizer()
        self._segment, self._finalizer, self._alloc_size = None, None, 0
        self._ref, self._shape = None, (0,) * self._ndim

    # --- memory ------------------------------------------------------------------------------

    def _reshape(self, shape: tuple[int, ...], oversize: float, keep: bool) -> None:
        """Take a new shape, in more memory if needed; with ``keep``, the old items are copied there."""
        self._owner.check_open("Data")
        if not 1 <= oversize <= MAX_OVERSIZE:
            raise ValueError(f"oversize={oversize} is not between 1 and {MAX_OVERSIZE:g}")
        size = math.prod(shape)
        if size > self._alloc_size or self._segment is None:
            old = self.data.reshape(-1)
            self._allocate(max(size, int(size * oversize)), kept=old if keep else old[:0])
        self._ref, self._shape = None, tuple(shape)

    def _allocate(self, size: int, kept: NDArray[Any] | None = None) -> None:
        """Use a new segment with room for ``size`` items, beginning with copies of the items in ``kept``."""
        segments = self._owner.memory.segments
        number = segments.allocate(size * self._dtype.itemsize)
        try:
            if kept is not None:
                segments[number].array(self._dtype, (size,))[: kept.size] = kept
        except BaseException:  # of a signal handler
            segments.release(number)
            raise
        self._hold(number, size)

    def _hold(self, number: int, size: int) -> None:
        """Use segment ``number``, which has room for ``size`` items, from now on, and release the former one.

        A signal handler may raise between any two lines, so the Data always refer to a segment that is
        mapped.
        """
        old, new = self._finalizer, weakref.finalize(self, self._owner.memory.segments.release, number)
        new.atexit = False
        stamp = weakref.WeakMethod(self._version)
        self._owner.memory.segments.vouch(number, lambda: (asked := stamp()) and asked())
        self._ref, self._segment, self._alloc_size, self._finalizer = None, number, size, new
        if old is not None:
            old()

    def _label(self) -> str:
        return f"Data {self._name!r}" if self._name else "this Data"


def _checked_dtype(dtype: Any, label: str) -> np.dtype[Any]:
    checked = np.dtype(dtype)
    if checked.kind not in NUMBERS:
        raise TypeError(
            f"{label}: dtype {checked} cannot be in shared memory, only booleans and numbers; "
            f"{remedy(checked, 'float64')}"
        )
    return checked.newbyteorder("=")  # compiled programs compute in the machine's byte order
