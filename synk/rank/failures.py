"""What a rank raises, in a form that travels, and how the master raises it.

    exception -> failure -> Failure, in a reply -> raise_failures -> RemoteError

Imports ``errors``, ``messages`` and ``sync``.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from typing import Any

from synk import messages
from synk.errors import Failure, remote_error
from synk.wire.sync import Aborted


def failure(rank: int, error: BaseException) -> Failure:
    """Describe an exception in a form that always travels."""
    error.__traceback__ = _below_this_package(error.__traceback__)
    summary = traceback.format_exception_only(error)[0].strip()
    return Failure(rank, type(error), summary, "".join(traceback.format_exception(error)))


def _below_this_package(trace: Any) -> Any:
    """Leave out how a command reaches the program: every rank's traceback would start with it."""
    here = os.path.dirname(os.path.dirname(__file__))
    while (
        trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(here)
    ):
        trace = trace.tb_next
    return trace


def raise_failures(error: BaseException | None, replies: Sequence[messages.Reply]) -> None:
    """Raise what ranks raised: ``error`` on rank 0, the others' in ``replies``."""
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
