"""Write results where they are to live: programs call these functions where ``destination`` has decided so.

open_buffer -> array -> part -> out= of a node; put: a piece that is made elsewhere
assemble: the pieces of a join that no node wrote there; settle: the updates that no node wrote there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def open_buffer(xp: Any, shape: tuple[int, ...], dtype: str) -> Callable[..., Any]:
    """Return ``opened(array)``: that array if it can hold such a result, else a new one."""

    def opened(array=None):
        fits = array is not None and array.shape == shape and array.dtype == dtype
        return array if fits and array.flags.c_contiguous and is_writeable(array) else xp.empty(shape, dtype)

    return opened


def is_writeable(array: Any) -> bool:
    """Tell whether an array may be written; those of some modules always may."""
    return getattr(array.flags, "writeable", True)


def part(start: int, stop: int, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """Return ``view(buffer)``: its elements ``start:stop`` in C order, in shape ``shape``."""
    return lambda buffer: buffer.reshape(-1)[start:stop].reshape(shape)


def put(start: int, stop: int) -> Callable[[Any, Any], None]:
    """Return ``put(buffer, piece)``, which copies a piece to its elements ``start:stop`` in C order."""

    def put(buffer, piece):
        check_piece(piece, stop - start)
        buffer.reshape(-1)[start:stop] = piece.reshape(-1)

    return put


def check_piece(piece: Any, size: int) -> None:
    """Raise ValueError if a piece of a join has not the size of its static shape."""
    if piece.size != size:
        raise ValueError(f"a piece has {piece.size} elements, not the {size} of its static shape")


def assemble(pieces: Sequence[tuple[int, int, bool]]) -> Callable[..., Any]:
    """Return the implementation of a join along the first axis: copy the pieces that are not there yet.

    ``pieces`` are start and stop of the elements that each takes, and whether it has been written there.
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


def settle(array: Any, value: Any) -> Any:
    """Copy ``value`` into ``array`` and return that; return ``value`` if it does not fit."""
    if value is array or array is None or array.shape != value.shape or not is_writeable(array):
        return value
    array[...] = value
    return array
