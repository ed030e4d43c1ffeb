"""Commons that ranks share, by inheritance or by descriptors."""

import os

import pytest

from synk.transport.commands.commons import Commons
from synk.transport.commands.sync import ARRIVED


@pytest.fixture
def commons():
    made = Commons(3)
    yield made
    made.close()


def test_another_process_finds_the_same_words_bells_and_boxes(commons):
    descriptors = commons.descriptors()
    assert len(descriptors) == 2 + 3
    other = Commons(3, [os.dup(descriptor) for descriptor in descriptors])
    commons.control.set(1, ARRIVED, 7)
    assert other.control.get(1, ARRIVED) == 7
    other.bells.ring(2)
    assert os.eventfd_read(commons.bells.fileno(2)) == 1
    other.mailboxes.boxes[0].write(5, b"command")
    assert bytes(commons.mailboxes.boxes[0].content()) == b"command"
    other.close()


def test_sealed_commons_keep_their_bells_only(commons):
    before = len(os.listdir("/proc/self/fd"))
    commons.seal()
    commons.seal()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    with pytest.raises(AssertionError):
        commons.descriptors()


def test_what_cannot_be_made_whole_leaves_nothing(monkeypatch):
    def refuse(*arguments):
        raise OSError("no memory for you")

    monkeypatch.setattr("synk.transport.commands.commons.Mailboxes", refuse)
    with pytest.raises(OSError, match="no memory"):
        Commons(2)
