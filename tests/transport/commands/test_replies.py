"""Replies as bytes, and back."""

import numpy as np
import pytest

from synk.transport.commands.replies import MARSHALLED, PICKLED, decode_reply, encode_reply
from synk.values import messages
from synk.values.errors import Failure

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


def round_trip(reply):
    return decode_reply(memoryview(encode_reply(reply, ROOM)))


@pytest.mark.parametrize("value", [*SMALL, *OTHERS], ids=repr)
def test_results_come_back(value):
    reply = messages.Reply([messages.Results([value, np.asarray(1.0)], 5), None], None)
    back = round_trip(reply)
    assert encode_reply(reply, ROOM)[0] == (
        PICKLED if any(value is other for other in OTHERS) else MARSHALLED
    )
    results, none = back.results
    assert (none, back.failure, back.aborted, results.weight) == (None, None, False, 5)
    same(value, results.values[0])
    same(np.asarray(1.0), results.values[1])


@pytest.mark.parametrize("value", SMALL, ids=repr)
def test_arrays_may_be_written_to(value):
    back = round_trip(messages.Reply([messages.Results([value], 1)], None))
    back.results[0].values[0][...] = 0


@pytest.mark.parametrize(
    "reply",
    [
        messages.Reply([], None, aborted=True),
        messages.Reply([None, None], None),
        messages.Reply([[(3, 4), ()]], None),
        messages.Reply([(1, 2)], None),
        messages.Reply([], Failure(1, ValueError, "ValueError: x", "Traceback ...")),
    ],
    ids=repr,
)
def test_other_replies_come_back(reply):
    assert round_trip(reply) == reply


@pytest.mark.parametrize(
    "reply",
    [
        messages.Reply([messages.Results([np.zeros(3000)], 1)], None),
        messages.Reply([messages.Results([np.zeros(1500), np.zeros(1500)], 1)], None),
        messages.Reply(["x" * ROOM], None),
    ],
)
def test_what_is_too_long_is_refused(reply):
    assert encode_reply(reply, ROOM) is None


@pytest.mark.parametrize("room", range(1, 60))
def test_no_more_bytes_than_there_is_room(room):
    payload = encode_reply(messages.Reply([messages.Results([np.asarray(3.0)], 1)], None), room)
    assert payload is None or len(payload) <= room
