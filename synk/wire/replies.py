"""Replies as bytes, for a box of limited size.

    Reply -> packed -> box -> unpacked -> Reply

Most replies hold a few small arrays or nothing. Those are marshalled, array by array, in a tenth of the
time that pickle takes; marshal's format is that of one Python version, and both ends are one program.

Imports ``messages``, ``reduction`` and NumPy.
"""

from __future__ import annotations

import marshal
import pickle
from typing import Any

import numpy as np

from synk import messages
from synk.reduction import Partial

PICKLED, MARSHALLED = b"p", b"m"
SIMPLE = frozenset("biufc")  # kinds of dtypes that are told by their name


def packed(message: messages.Reply, room: int) -> bytes | None:
    """Return a reply as bytes, or None if they are more than ``room``."""
    plain = None if message.failure is not None else [_plain(result) for result in message.results]
    if plain is None or NotImplemented in plain:
        return _pickled(message, room)
    if sum(part[3].nbytes for entry in plain if entry for part in entry if part) > room:
        return None
    payload = MARSHALLED + marshal.dumps((plain, message.aborted))
    return payload if len(payload) <= room else None


def unpacked(payload: bytes) -> messages.Reply:
    """Return the reply that `packed` gave these bytes for."""
    if payload[:1] == PICKLED:
        return messages.Reply(*pickle.loads(memoryview(payload)[1:]))
    plain, aborted = marshal.loads(memoryview(payload)[1:])
    results = [None if entry is None else [_partial(part) for part in entry] for entry in plain]
    return messages.Reply(tuple(results), None, aborted)


def _plain(result: Any) -> Any:
    """Return the partial results of a call as plain values; NotImplemented if it is something else."""
    if result is None:
        return None
    if not isinstance(result, list):
        return NotImplemented
    plain = [None if part is None else _entry(part) for part in result]
    return NotImplemented if NotImplemented in plain else plain


def _entry(part: Any) -> Any:
    if not isinstance(part, Partial):
        return NotImplemented
    array = part.value
    if type(array) is not np.ndarray or array.dtype.kind not in SIMPLE or not array.flags.c_contiguous:
        return NotImplemented
    return part.weight, array.dtype.str, array.shape, array.data


def _partial(part: Any) -> Partial | None:
    if part is None:
        return None
    weight, dtype, shape, content = part
    return Partial(np.ndarray(shape, dtype, bytearray(content)), weight)


def _pickled(message: messages.Reply, room: int) -> bytes | None:
    """Return the pickle of a reply, arrays included, or None if it is too long."""
    # A plain tuple takes half the time of a named one.
    plain = tuple(message)
    arrays: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(plain, protocol=5, buffer_callback=arrays.append)
    if arrays:
        if sum(array.raw().nbytes for array in arrays) > room:
            return None
        payload = pickle.dumps(plain, protocol=5)
    return PICKLED + payload if len(payload) < room else None
