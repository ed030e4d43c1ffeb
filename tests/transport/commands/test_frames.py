import errno
import os
import pickle
import socket
import threading

import numpy as np
import pytest

from support.processes import leaks
from synk.transport.commands import frames
from synk.transport.commands.frames import HEAD, Disconnected, Frame, Outbox, Receiver, encode, pair, send
from synk.transport.memory.shm import Segment

FRAME = b"".join(encode({"x": np.arange(10)}).parts)


def open_descriptors():
    return set(leaks.descriptors())


@pytest.fixture
def ends():
    ours, theirs = pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def meanwhile(work, *arguments):
    """Start ``work`` on a thread: what is large does not fit into a socket at once."""
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread


def test_an_outbox_says_when_the_other_end_must_attach():
    outbox = Outbox()
    size, descriptor = outbox.put([memoryview(b"12345"), memoryview(b"678")])
    assert (size, os.fstat(descriptor).st_size) == (8, 8)
    segment = Segment.attach(os.dup(descriptor), 8)
    assert segment.array("S8", ()) == b"12345678"
    outbox.sent()
    assert outbox.put([memoryview(b"abcd")]) == (8, None)
    assert segment.array("S8", ()) == b"abcd5678"
    size, descriptor = outbox.put([memoryview(b"123456789")])
    assert size == 9
    assert descriptor is not None
    outbox.close()
    segment.close()


class Gone(Exception):
    """The error of patience that ends."""


def patience(times):
    """Return a function that is patient so many times."""
    left = iter(range(times))

    def wait():
        if next(left, None) is None:
            raise Gone

    return wait


@pytest.mark.parametrize("cut", [1, HEAD.size - 1, HEAD.size, HEAD.size + 3, HEAD.size + 20, len(FRAME) - 1])
@pytest.mark.parametrize("error", [Disconnected, Gone])
def test_half_a_message_is_none_calls_patience_and_leaves_no_descriptor(ends, cut, error):
    file = os.memfd_create("test")
    socket.send_fds(ends[0], [FRAME[:cut]], [file])
    os.close(file)
    if error is Disconnected:
        ends[0].close()
    ends[1].settimeout(0.01)
    before = open_descriptors()
    with pytest.raises(error):
        Receiver(ends[1], patience(3)).receive()
    left = open_descriptors() - before
    for descriptor, _ in left:
        os.close(descriptor)
    assert not left


def test_a_message_in_many_pieces_is_one(ends):
    def trickle():
        for byte in FRAME:
            ends[0].sendall(bytes([byte]))

    sending = meanwhile(trickle)
    arrived, _ = Receiver(ends[1]).receive()
    sending.join()
    assert arrived["x"].tolist() == list(range(10))


class Interrupted:
    """An end whose first system call takes seven bytes, as one that a signal interrupts may."""

    def __init__(self, end):
        self._end = end
        self.sendall = end.sendall

    def send(self, data):
        return self._end.send(data[:7])

    def sendmsg(self, buffers, *rest):
        return self._end.sendmsg([bytes(buffers[0])[:7]], *rest)


@pytest.mark.parametrize("with_descriptor", [False, True])
def test_an_interrupted_send_goes_on(ends, with_descriptor):
    file = os.memfd_create("test")
    frame = encode({"x": np.arange(10)})._replace(descriptor=file if with_descriptor else None)
    send(Interrupted(ends[0]), frame)
    arrived, descriptor = Receiver(ends[1]).receive()
    assert arrived["x"].tolist() == list(range(10))
    assert (descriptor is not None) == with_descriptor
    for each in {file, descriptor} - {None}:
        os.close(each)


def test_a_frame_longer_than_the_socket_takes_is_sent_whole(ends):
    # The pickle itself is large here, and a descriptor goes with its first piece.
    text = "x" * (4 << 20)
    file = os.memfd_create("test")
    sending = meanwhile(send, ends[0], encode([text])._replace(descriptor=file))
    arrived, descriptor = Receiver(ends[1]).receive()
    sending.join()
    assert os.path.sameopenfile(descriptor, file)
    os.close(descriptor)
    os.close(file)
    assert arrived == [text]


def test_arrays_are_sent_from_where_they_are():
    array = np.arange(1000)
    frame = encode([array])
    assert isinstance(frame, Frame)
    assert np.shares_memory(np.frombuffer(frame.parts[1], array.dtype), array)


def test_other_processes_cannot_reach_a_channel():
    ours, theirs = pair()
    assert ours.family == socket.AF_UNIX
    assert ours.getsockname() == theirs.getsockname() == ""
    assert not ours.get_inheritable()
    assert not theirs.get_inheritable()
    ours.close()
    theirs.close()


def test_a_frame_is_a_head_sizes_a_pickle_and_buffers():
    payload = pickle.dumps("text", protocol=5)
    [only] = encode("text").parts
    assert only == HEAD.pack(len(payload), 0, 0) + payload
    first, *buffers = encode([np.zeros(1000), np.zeros((200, 20), "f4")]).parts
    assert HEAD.unpack(first[: HEAD.size])[1:] == (2, 0)
    assert [frames.SIZE.unpack_from(first, HEAD.size + 8 * i)[0] for i in (0, 1)] == [8000, 16000]
    assert [buffer.nbytes for buffer in buffers] == [8000, 16000]


def test_small_buffers_take_no_system_call_of_their_own():
    assert len(encode([np.zeros(3)] * 1000).parts) == 1


@pytest.mark.parametrize("parts", ["one", "many"])
def test_sending_to_an_end_that_does_not_read_calls_patience(ends, parts):
    ends[0].settimeout(0.01)
    large = [np.zeros(1 << 16, "u1") for _ in range(64)] if parts == "many" else "x" * (4 << 20)
    with pytest.raises(Gone):
        send(ends[0], encode(large), patience(3))


def test_sending_goes_on_where_it_was_once_the_other_end_reads(ends):
    ends[0].settimeout(0.01)
    called, received = [], []

    def wait():
        called.append(1)
        if len(called) == 3:
            reading.append(meanwhile(lambda: received.append(Receiver(ends[1]).receive()[0])))

    reading = []
    array = np.random.default_rng(0).integers(0, 256, 4 << 20, "u1")
    send(ends[0], encode(array), wait)
    reading[0].join()
    assert len(called) >= 3
    np.testing.assert_array_equal(received[0], array)


@pytest.mark.parametrize("cut", [1, HEAD.size + 3, len(FRAME) - 1])
def test_a_frame_whose_rest_comes_late_is_whole(ends, cut):
    ends[1].settimeout(0.01)
    ends[0].sendall(FRAME[:cut])
    called = []

    def wait():
        if not called:
            ends[0].sendall(FRAME[cut:])
        called.append(1)

    assert Receiver(ends[1], wait).receive()[0]["x"].tolist() == list(range(10))
    assert called


def test_an_end_without_a_timeout_calls_no_patience(ends):
    later = threading.Timer(0.1, ends[0].sendall, [FRAME])
    later.start()
    assert Receiver(ends[1], patience(0)).receive()[0]["x"].tolist() == list(range(10))
    later.join()


def test_what_a_signal_handler_raises_is_kept(ends):
    """A TimeoutError of the script's own is not the socket's."""

    class Ringing:
        def send(self, data):
            raise TimeoutError("the script's alarm")

    with pytest.raises(TimeoutError, match="the script's alarm"):
        send(Ringing(), encode("text"), patience(1))


def test_crowded_descriptors_are_sent_again(ends, monkeypatch):
    refusals = [OSError(errno.ETOOMANYREFS, "too many")] * 3
    original = socket.send_fds

    def crowded(*arguments):
        if refusals:
            raise refusals.pop()
        return original(*arguments)

    monkeypatch.setattr(socket, "send_fds", crowded)
    send(ends[0], encode("one of many")._replace(descriptor=ends[0].fileno()))
    message, descriptor = Receiver(ends[1]).receive()
    os.close(descriptor)
    assert (message, refusals) == ("one of many", [])


def test_too_many_descriptors_in_flight_for_long_are_an_error(ends, monkeypatch):
    def crowded(*arguments):
        raise OSError(errno.ETOOMANYREFS, "too many")

    monkeypatch.setattr(socket, "send_fds", crowded)
    monkeypatch.setattr(frames, "CROWDED_SECONDS", 0.01)
    with pytest.raises(OSError, match="too many"):
        send(ends[0], encode("one of many")._replace(descriptor=ends[0].fileno()))
