"""Replies as bytes, and back."""

import numpy as np
import pytest

from synk import messages
from synk.errors import Failure
from synk.reduction import Partial
from synk.wire.replies import MARSHALLED, PICKLED, packed, unpacked

ROOM = 1 << 14

SMALL = [
    np.asarray(3.0),
    np.asarray(7, "i2"),
    np.asarray(True),
    np.arange(12, dtype="f4").reshape(3, 4),
    np.arange(3) * 1j,
    np.zeros((0, 3), "f2"),
    np.arange(4, dtype=">i4"),
]
OTHERS = [
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(10)[::2],
    np.array(["a", "b"]),
    np.float64(3.0),
    "text",
]


def same(one, other):
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("value", [*SMALL, *OTHERS], ids=repr)
def test_results_come_back(value):
    reply = messages.Reply(([Partial(value, 5), None], None), None)
    payload = packed(reply, ROOM)
    back = unpacked(payload)
    assert payload[:1] == (PICKLED if any(value is other for other in OTHERS) else MARSHALLED)
    [[part, nothing], none], failure, aborted = back
    assert (nothing, none, failure, aborted, part.weight) == (None, None, None, False, 5)
    same(value, part.value)


@pytest.mark.parametrize("value", SMALL, ids=repr)
def test_arrays_may_be_written_to(value):
    back = unpacked(packed(messages.Reply(([Partial(value, 1)],), None), ROOM))
    back.results[0][0].value[...] = 0


@pytest.mark.parametrize(
    "reply",
    [
        messages.Reply((), None, aborted=True),
        messages.Reply((None, None), None),
        messages.Reply(([(3, 4), ()],), None),
        messages.Reply(((1, 2),), None),
        messages.Reply((), Failure(1, ValueError, "ValueError: x", "Traceback ...")),
    ],
    ids=repr,
)
def test_other_replies_come_back(reply):
    assert unpacked(packed(reply, ROOM)) == reply


@pytest.mark.parametrize(
    "reply", [messages.Reply(([Partial(np.zeros(3000), 1)],), None), messages.Reply(("x" * ROOM,), None)]
)
def test_what_is_too_long_is_refused(reply):
    assert packed(reply, ROOM) is None


@pytest.mark.parametrize("room", range(1, 60))
def test_no_more_bytes_than_there_is_room(room):
    payload = packed(messages.Reply(([Partial(np.asarray(3.0), 1)],), None), room)
    assert payload is None or len(payload) <= room
