"""Describe an exception that a rank has raised in a form that can be sent, and raise it on the master.

    exception -> failure -> Failure, in a reply -> raise_failures -> RemoteError
    the script's call of synk raises -> shorten: its traceback is the script's

What is left out is told where ``pytensor.config.exception_verbosity`` is not "low", as it is by default.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence

import pytensor

from synk.transport.commands.interfaces import Aborted
from synk.values import messages
from synk.values.errors import Failure, RemoteError, remote_error
from synk.values.script_frames import PACKAGE, below_this_package, without_this_package

# PyTensor writes so where a node of a graph has raised; then the frames by which it was run tell nothing.
OF_A_NODE = "\nApply node that caused the error: "
INSIDE = (PACKAGE, os.path.dirname(pytensor.__file__) + os.sep, "<array program")


def failure(rank: int, error: BaseException) -> Failure:
    """Describe an exception by its type and texts, which can be sent even if it cannot be pickled."""
    error.__traceback__ = below_this_package(error.__traceback__)
    summary = traceback.format_exception_only(error)[0].strip()
    whole = "".join(traceback.format_exception(error))
    return Failure(rank, type(error), summary, whole, brief=_brief(error) if is_brief() else "")


def is_brief() -> bool:
    """Return whether errors leave out what only those need who look into synk or PyTensor."""
    return bool(pytensor.config.exception_verbosity == "low")


def _brief(error: BaseException) -> str:
    """Return a traceback without frames of synk and PyTensor if a node of a graph has raised, else ""."""
    told = "".join(traceback.format_exception_only(error))
    if OF_A_NODE not in told:
        return ""
    stack = traceback.extract_tb(error.__traceback__)
    frames = traceback.format_list([frame for frame in stack if not frame.filename.startswith(INSIDE)])
    return "".join(["Traceback (most recent call last):\n", *frames, told]) if frames else told


def shorten(error: Exception) -> None:
    """Leave in a traceback the script's frames, and the innermost if it is not that which tells of ranks."""
    if is_brief():
        without_this_package(error, innermost=not isinstance(error, RemoteError))


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
        remote = remote_error(failures, n_ranks=len(replies) + 1)
        if not is_brief():
            raise remote from error
        # The report has what rank 0 raised, so it is not printed twice; debuggers find it as the context.
        remote.__context__, remote.__suppress_context__ = error, True
        raise remote
    assert error is None, "a rank aborts only because another failed"
