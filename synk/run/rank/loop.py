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
    """Handle the master's messages until it sends `Close` or is gone, and reply to commands."""
    # The failure of a message that has no reply of its own: it is sent with the next command's reply.
    earlier_failure: Failure | None = None
    while True:
        if rank.has_garbage and not channel.pending():
            # An idle worker allocates nothing, so Python would not collect garbage by itself.
            gc.collect()
            rank.has_garbage = False
        try:
            message, descriptor = channel.receive()
        except Disconnected:
            return
        if isinstance(message, messages.Close):
            return
        if isinstance(message, messages.Command):
            reply(channel, rank.rank, answer(rank, message, earlier_failure))
            earlier_failure = None
            after_reply()
            continue
        try:
            if isinstance(message, Exception):  # unpickling the message has raised it
                raise message
            rank.prepare(message, descriptor)
        except Exception as error:
            earlier_failure = earlier_failure or failure(rank.rank, error)


def answer(rank: Rank, command: messages.Command, earlier_failure: Failure | None = None) -> messages.Reply:
    """Run a command, and return its results, or the failure, as a reply.

    If an earlier message has failed, the command is not run, and that failure is the reply.
    """
    rank.peers.begin(command.number)
    try:
        if earlier_failure is not None:
            rank.peers.fail()
            return messages.Reply((), earlier_failure)
        return messages.Reply(rank.run(command), None)
    except Aborted:
        return messages.Reply((), None, aborted=True)
    except BaseException as error:
        return messages.Reply((), failure(rank.rank, error))


def reply(channel: CommandSource, rank: int, message: messages.Reply) -> None:
    """Send a reply; if it cannot be pickled, send the reason as a failure instead."""
    try:
        channel.reply(message)
    except Disconnected:
        os._exit(1)
    except Exception as error:
        reason = message.failure or failure(rank, error)
        try:
            channel.reply(messages.Reply((), reason, message.aborted))
        except Exception:  # the exception's class cannot be pickled
            channel.reply(messages.Reply((), reason._replace(kind=None), message.aborted))
