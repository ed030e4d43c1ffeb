"""Let ^C end a training after the step that runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from synk.extensions.fit.training import Training


@contextmanager
def stopped_by_interrupt(training: Training) -> Iterator[None]:
    """Stop the training at the first ^C in the body, and raise KeyboardInterrupt at the second.

    A handler of the script, or an ignored SIGINT, stays as it is; so does ^C in threads but the main one.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed = False

    def handle(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        training.stop("interrupted")

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
