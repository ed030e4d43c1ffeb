"""Describe an exception that a rank has raised in a form that can be sent, and raise it on the master.

exception -> failure -> Failure, in a reply -> raise_failures -> RemoteError
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from synk.transport.commands.interfaces import Aborted
from synk.values import messages
from synk.values.errors import Failure, remote_error
from synk.values.script_frames import below_this_package


def failure(rank: int, error: BaseException) -> Failure:
    """Describe an exception by its type and texts, which can be sent even if it cannot be pickled."""
    error.__traceback__ = below_this_package(error.__traceback__)
    summary = traceback.format_exception_only(error)[0].strip()
    return Failure(rank, type(error), summary, "".join(traceback.format_exception(error)))


def raise_failures(error: BaseException | None, replies: Sequence[messages.Reply]) -> None:
    """Raise what ranks have raised: ``error`` on rank 0, and the failures in the ``replies`` of others."""
    if error is not None and not isinstance(error, Exception):
        raise error
    failures = [reply.failure for reply in replies if reply.failure is not None]
    if error is not None and not isinstance(error, Aborted):
        if not replies:
            raise error
        failures.insert(0, failure(0, error))
    if failures:
        raise remote_error(failures, n_ranks=len(replies) + 1) from error
    assert error is None, "a rank aborts only because another failed"
