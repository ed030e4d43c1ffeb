"""The loop in which workers wait for the master's messages.

channel -> serve -> Rank.prepare (Attach, Share, Build, ...)
                 -> Rank.run (Call, AllReduce, ...) -> reply
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from synk.run.rank.failures import failure
from synk.run.rank.rank import Rank
from synk.transport.commands.interfaces import Aborted, CommandSource, Disconnected
from synk.values import messages
from synk.values.errors import Failure


def serve(rank: Rank, channel: CommandSource, after_reply: Callable[[], None]) -> None:
    """Follow the master's messages until it says `Close` or is gone."""
    trouble: Failure | None = None  # of a message without an answer; told with the next reply
    while True:
        if rank.has_garbage and not channel.pending():
            # An idle worker makes nothing that would start a collection.
            gc.collect()
            rank.has_garbage = False
        try:
            message, descriptor = channel.receive()
        except Disconnected:
            return
        if isinstance(message, messages.Close):
            return
        if isinstance(message, messages.Command):
            reply(channel, rank.rank, answer(rank, message, trouble))
            trouble = None
            after_reply()
            continue
        try:
            if isinstance(message, Exception):  # raised by unpickling it
                raise message
            rank.prepare(message, descriptor)
        except Exception as error:
            trouble = trouble or failure(rank.rank, error)


def answer(rank: Rank, command: messages.Command, trouble: Failure | None = None) -> messages.Reply:
    """Run a command and put its end into a reply."""
    rank.peers.begin(command.number)
    try:
        if trouble is not None:
            rank.peers.fail()
            return messages.Reply((), trouble)
        return messages.Reply(rank.run(command), None)
    except Aborted:
        return messages.Reply((), None, aborted=True)
    except BaseException as error:
        return messages.Reply((), failure(rank.rank, error))


def reply(channel: CommandSource, rank: int, message: messages.Reply) -> None:
    """Send a reply; what cannot be pickled is left out."""
    try:
        channel.reply(message)
    except Disconnected:
        os._exit(1)
    except Exception as error:
        told = message.failure or failure(rank, error)
        try:
            channel.reply(messages.Reply((), told, message.aborted))
        except Exception:  # the exception's class does not pickle
            channel.reply(messages.Reply((), told._replace(kind=None), message.aborted))
