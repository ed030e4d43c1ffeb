"""A call that waits for other ranks within NCCL, watched from outside, since they may never come.

    call on a thread of its own; look, again and again -> its result, or what looking raised: the call is left

NCCL's communicators block, and must not be aborted while a thread is inside: what a call that was left behind
holds is given up once it returns, which it does when the other ranks give up theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any


def watched(
    call: Callable[[], Any], look: Callable[[], None], give_up: Callable[[Any], None], seconds: float
) -> Any:
    """Return what a call returns, or raise what it raises, or what ``look`` raises before that.

    Parameters
    ----------
    call : callable
    look : callable
        Looks around once.
    give_up : callable
        Called once a call that was left behind has ended, with its result, or None if it raised; on the
        thread of whoever comes to know of it.
    seconds : float
        Between looks.
    """
    results: list[Any] = []
    errors: list[BaseException] = []
    is_left = False

    def dispose() -> None:
        with suppress(IndexError):  # whichever of two threads comes first
            give_up(results.pop())

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
            results.append(None)
        if is_left:
            dispose()

    thread = Thread(target=work, name="synk NCCL link", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(seconds)
            if thread.is_alive():
                look()
    except BaseException:
        is_left = True
        dispose()
        raise
    if errors:
        raise errors[0]
    return results[0]
