"""Compute what an iterator yields ahead, in a thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Generator, Iterable
from queue import SimpleQueue
from typing import Any

import synk

JOIN_SECONDS = 5.0


def prefetched(items: Iterable[Any], ahead: int = 2) -> Generator[Any, None, None]:
    """Yield what `items` yields, which one thread computes up to `ahead` items before they are asked for.

    An exception comes where its item would have come. The thread ends with the iterator, when that is
    exhausted or closed, once the item that it computes is there. Items must not share memory: those that are
    waiting would change.
    """
    # Queues in C: a step that is fed by them makes two calls, where those of queue.Queue are a dozen.
    made: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    wanted: SimpleQueue[bool] = SimpleQueue()
    closed = False

    def work() -> None:
        error: BaseException = StopIteration()
        try:
            for item in items:
                made.put((item, None))
                wanted.get()
                if closed:
                    return
        except BaseException as raised:
            error = raised
        made.put((None, error))

    for _ in range(ahead - 1):
        wanted.put(True)
    thread = threading.Thread(target=work, name="synk prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            wanted.put(True)
            yield item
    finally:
        closed = True
        wanted.put(True)
        thread.join(JOIN_SECONDS)
        if thread.is_alive():
            warnings.warn(
                f"what yields batches has not returned within {JOIN_SECONDS:g} s of the end; its thread goes "
                "on until it does",
                synk.SynkWarning,
                stacklevel=2,
            )
