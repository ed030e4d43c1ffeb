"""All leaders linked with each other, over TCP on this machine."""

import socket
import time
from contextlib import closing

import pytest

from support.transport.parts import on_threads
from synk.transport.machines.handshake import Listener
from synk.transport.machines.mesh import link
from synk.transport.machines.proof import HandshakeRefused, new_token

SECONDS = 20.0


class Late(Exception):
    """Raised by ``watch``."""


@pytest.fixture
def listeners():
    made = [Listener("127.0.0.1") for _ in range(4)]
    yield made
    for listener in made:
        listener.close()


def test_each_machine_has_a_way_to_each_other(listeners):
    token, addresses = new_token(), [listener.address for listener in listeners]
    deadline = time.monotonic() + SECONDS

    def meet(machine):
        time.sleep(0.02 * (machine % 2))
        with closing(link(machine, addresses, listeners[machine], token, deadline)) as links:
            for other in range(4):
                if other != machine:
                    links.send(other, b"%d to %d" % (machine, other))
            found = {}
            while len(found) < 3:
                assert links.rest(SECONDS)
                links.receive(lambda sender, message: found.update({sender: bytes(message)}))
            for way in links._ways.values():  # who does not read for long is not cut off
                assert way.end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
            return found

    for machine, found in enumerate(on_threads(4, meet)):
        assert found == {other: b"%d to %d" % (other, machine) for other in range(4) if other != machine}


def test_who_does_not_come_is_not_waited_for_longer_than_told(listeners):
    addresses = [listener.address for listener in listeners]
    with pytest.raises(TimeoutError):
        link(0, addresses, listeners[0], new_token(), time.monotonic() + 0.3)


def test_the_wait_can_be_given_up(listeners):
    def watch():
        raise Late

    addresses = [listener.address for listener in listeners]
    with pytest.raises(Late):
        link(0, addresses, listeners[0], new_token(), time.monotonic() + SECONDS, watch)


def test_strangers_are_not_linked(listeners):
    addresses, deadline = [listener.address for listener in listeners[:2]], time.monotonic() + 1.0

    def meet(machine):
        with pytest.raises((HandshakeRefused, TimeoutError)) as caught:
            link(machine, addresses, listeners[machine], new_token(), deadline)
        return caught.type

    assert on_threads(2, meet) == [TimeoutError, HandshakeRefused]
