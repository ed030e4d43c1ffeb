"""The way of the agent to rank 0: nobody else gets in."""

import contextlib
import os
import socket
import threading

import pytest

from support.transport.parts import nothing
from synk.transport.commands.interfaces import Disconnected
from synk.transport.machines import agent_listener
from synk.transport.machines.agent_listener import ADDRESS, TOKEN, AgentListener, connect_to_rank_0


@pytest.fixture
def listener(monkeypatch):
    listener = AgentListener()
    for name, value in listener.environment.items():
        monkeypatch.setenv(name, value)
    yield listener
    listener.close()


def visit(listener, word):
    """Connect as a stranger does, and say something."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(f"\0{listener.environment[ADDRESS]}")
    end.sendall(word)
    return end


def test_the_agent_gets_in(listener):
    with connect_to_rank_0() as theirs, listener.accept(nothing) as ours:
        theirs.sendall(b"question")
        assert ours.recv(100) == b"question"
        assert ours.gettimeout() is None


def test_whoever_does_not_know_the_token_stays_outside(listener, monkeypatch):
    monkeypatch.setattr(agent_listener, "WORD_SECONDS", 0.05)
    token = bytes.fromhex(listener.environment[TOKEN])
    wrong = [b"", b"x", token[:-1], token[:-1] + bytes([token[-1] ^ 1]), bytes(len(token)), os.urandom(5000)]
    strangers = [visit(listener, word) for word in wrong]
    with connect_to_rank_0() as agent, listener.accept(nothing) as end:
        agent.sendall(b"it is me")
        end.settimeout(10)
        assert end.recv(100) == b"it is me"
    for stranger in strangers:
        with stranger, contextlib.suppress(ConnectionResetError):  # where it had said more than was read
            assert stranger.recv(1) == b""


def test_other_users_stay_outside(listener, monkeypatch):
    monkeypatch.setattr(agent_listener, "is_own", lambda end: False)
    with visit(listener, bytes.fromhex(listener.environment[TOKEN])):
        looks = []

        def give_up():
            looks.append(1)
            if len(looks) == 3:
                raise TimeoutError

        with pytest.raises(TimeoutError):
            listener.accept(give_up)


def test_processes_of_this_user_are_told_by_the_kernel():
    one, other = socket.socketpair()
    with one, other:
        assert agent_listener.is_own(one)


def test_rank_0_looks_up_while_it_waits(listener):
    looks = []
    agent = threading.Timer(0.1, lambda: connect_to_rank_0().close())
    agent.start()
    with listener.accept(lambda: looks.append(1)):
        agent.join()
    assert len(looks) >= 3


def test_an_agent_without_rank_0_is_told_so(listener):
    listener.close()
    with pytest.raises(Disconnected):
        connect_to_rank_0()
