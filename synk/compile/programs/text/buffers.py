"""Write results into arrays that exist: programs call these functions where ``destination`` has decided so.

open_buffer -> array -> part -> the out= of a node
put: copies a piece of a join that is made elsewhere;  assemble: copies all that no node has written there
copy_update: copies an update that no node has written into its variable's array
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def open_buffer(xp: Any, shape: tuple[int, ...], dtype: str) -> Callable[..., Any]:
    """Return ``opened(array)``, which returns that array if it can hold such a result, else a new one."""

    def opened(array=None):
        fits = array is not None and array.shape == shape and array.dtype == dtype
        return array if fits and array.flags.c_contiguous and is_writeable(array) else xp.empty(shape, dtype)

    return opened


def is_writeable(array: Any) -> bool:
    """Tell whether an array may be written; those of some modules always may."""
    return getattr(array.flags, "writeable", True)


def part(start: int, stop: int, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """Return ``view(buffer)``, which returns the elements ``start:stop``, in C order, in shape ``shape``."""
    return lambda buffer: buffer.reshape(-1)[start:stop].reshape(shape)


def put(start: int, stop: int) -> Callable[[Any, Any], None]:
    """Return ``put(buffer, piece)``, which copies a piece to elements ``start:stop``, in C order."""

    def put(buffer, piece):
        check_piece(piece, stop - start)
        buffer.reshape(-1)[start:stop] = piece.reshape(-1)

    return put


def check_piece(piece: Any, size: int) -> None:
    """Raise ValueError unless a piece of a join has ``size`` elements, as its static shape says."""
    if piece.size != size:
        raise ValueError(f"a piece has {piece.size} elements, not the {size} of its static shape")


def assemble(pieces: Sequence[tuple[int, int, bool]]) -> Callable[..., Any]:
    """Return the implementation of a join along the first axis that copies the pieces missing in the buffer.

    ``pieces`` are, for each piece, the first element of its place, the end, and whether a node has written
    it.
    """
    # Counted from the end: the axis may come before the pieces.
    missing = [
        (index - len(pieces), start, stop) for index, (start, stop, there) in enumerate(pieces) if not there
    ]

    def join(*inputs, out):
        flat = out.reshape(-1)
        for index, start, stop in missing:
            piece = inputs[index]
            check_piece(piece, stop - start)
            flat[start:stop] = piece.reshape(-1)
        return out

    return join


def copy_update(array: Any, value: Any) -> Any:
    """Copy ``value`` into ``array`` and return that; return ``value`` if it does not fit."""
    if value is array or array is None or array.shape != value.shape or not is_writeable(array):
        return value
    array[...] = value
    return array
