"""The way of the agent to rank 0: nobody else gets in."""

import contextlib
import os
import socket
import threading

import pytest

from support.transport.parts import nothing
from synk.transport.commands.interfaces import Disconnected
from synk.transport.machines import agent_door
from synk.transport.machines.agent_door import ADDRESS, TOKEN, Door, knock


@pytest.fixture
def door(monkeypatch):
    door = Door()
    for name, value in door.environment.items():
        monkeypatch.setenv(name, value)
    yield door
    door.close()


def visit(door, word):
    """Connect as a stranger does, and say something."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(f"\0{door.environment[ADDRESS]}")
    end.sendall(word)
    return end


def test_the_agent_gets_in(door):
    with knock() as theirs, door.open(nothing) as ours:
        theirs.sendall(b"question")
        assert ours.recv(100) == b"question"
        assert ours.gettimeout() is None


def test_whoever_does_not_know_the_token_stays_outside(door, monkeypatch):
    monkeypatch.setattr(agent_door, "WORD_SECONDS", 0.05)
    token = bytes.fromhex(door.environment[TOKEN])
    wrong = [b"", b"x", token[:-1], token[:-1] + bytes([token[-1] ^ 1]), bytes(len(token)), os.urandom(5000)]
    strangers = [visit(door, word) for word in wrong]
    with knock() as agent, door.open(nothing) as end:
        agent.sendall(b"it is me")
        end.settimeout(10)
        assert end.recv(100) == b"it is me"
    for stranger in strangers:
        with stranger, contextlib.suppress(ConnectionResetError):  # where it had said more than was read
            assert stranger.recv(1) == b""


def test_other_users_stay_outside(door, monkeypatch):
    monkeypatch.setattr(agent_door, "is_own", lambda end: False)
    with visit(door, bytes.fromhex(door.environment[TOKEN])):
        looks = []

        def give_up():
            looks.append(1)
            if len(looks) == 3:
                raise TimeoutError

        with pytest.raises(TimeoutError):
            door.open(give_up)


def test_processes_of_this_user_are_told_by_the_kernel():
    one, other = socket.socketpair()
    with one, other:
        assert agent_door.is_own(one)


def test_rank_0_looks_up_while_it_waits(door):
    looks = []
    agent = threading.Timer(0.1, lambda: knock().close())
    agent.start()
    with door.open(lambda: looks.append(1)):
        agent.join()
    assert len(looks) >= 3


def test_an_agent_without_rank_0_is_told_so(door):
    door.close()
    with pytest.raises(Disconnected):
        knock()
