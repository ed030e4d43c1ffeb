"""The loop of a worker: messages in order, garbage when nothing waits."""

import gc
from types import SimpleNamespace

import pytest

from synk.run.rank.loop import serve
from synk.values import messages


class Channel:
    """Holds bursts of messages; after each, the worker finds nothing for a moment."""

    def __init__(self, *bursts):
        self._bursts = [list(burst) for burst in bursts]

    def pending(self):
        if self._bursts[0]:
            return True
        del self._bursts[0]
        return False

    def receive(self):
        return self._bursts[0].pop(0), None


@pytest.fixture
def collections(monkeypatch):
    """The collections of garbage that were asked for."""
    found = []
    monkeypatch.setattr(gc, "collect", lambda: found.append(1))
    return found


def test_garbage_of_many_messages_is_collected_once(collections):
    rank = SimpleNamespace(rank=1, has_garbage=False, followed=[])

    def prepare(message, descriptor):
        rank.followed.append(message)
        rank.has_garbage = True

    rank.prepare = prepare
    dropped = [messages.Unshare(number) for number in range(100)]
    serve(rank, Channel(dropped[:60], dropped[60:], [messages.Close()]), lambda: None)
    assert rank.followed == dropped
    assert len(collections) == 2
