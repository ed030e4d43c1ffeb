"""Replies as bytes, for a box of limited size.

    Reply -> encode_reply -> box -> decode_reply -> Reply

Most replies hold a few small arrays or nothing. These are written by marshal, which takes a tenth of the time
of pickle. Its format depends on the version of Python, but both processes run the same one.
"""

from __future__ import annotations

import marshal
import pickle
from typing import Any

import numpy as np

from synk.values import messages
from synk.values.by_value import dumps

PICKLED, MARSHALLED = b"pm"
SIMPLE = frozenset("biufc")  # kinds of dtypes that NumPy makes again from their string


def encode_reply(message: messages.Reply, room: int) -> bytes | None:
    """Return a reply as bytes, or None if there are more than ``room`` of them."""
    plain = None if message.failure is not None else _plain(message.results, room)
    if plain is None:
        return _pickled(message, room)
    payload = b"m" + marshal.dumps((plain, message.aborted))
    return payload if len(payload) <= room else None


def decode_reply(payload: memoryview) -> messages.Reply:
    """Return the reply from the bytes that `encode_reply` made of it."""
    if payload[0] == PICKLED:
        return messages.Reply(*pickle.loads(payload[1:]))
    plain, aborted = marshal.loads(payload[1:])
    return messages.Reply(
        [
            entry
            and messages.Results(
                [np.ndarray(shape, dtype, bytearray(content)) for dtype, shape, content in entry[0]], entry[1]
            )
            for entry in plain
        ],
        None,
        aborted,
    )


def _plain(results: Any, room: int) -> list[Any] | None:
    """Return results as values for marshal; None if one is no `Results` of simple arrays, or too long."""
    plain: list[Any] = []
    for result in results:
        if result is None:
            plain.append(None)
            continue
        if type(result) is not messages.Results:
            return None
        arrays = []
        for array in result.values:
            if type(array) is not np.ndarray or array.dtype.kind not in SIMPLE:
                return None
            if not array.flags.c_contiguous or array.nbytes > room:
                return None
            arrays.append((array.dtype.str, array.shape, array.data))
        plain.append((arrays, result.weight))
    return plain


def _pickled(message: messages.Reply, room: int) -> bytes | None:
    """Return the pickle of a reply, arrays included, or None if it is too long."""
    plain = message.results, message.failure, message.aborted
    arrays: list[pickle.PickleBuffer] = []
    payload = dumps(plain, arrays.append)
    if arrays:
        if sum(array.raw().nbytes for array in arrays) > room:
            return None
        payload = dumps(plain)
    return b"p" + payload if len(payload) < room else None
