"""Run tasks in a thread, one at a time, while the script goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Writer:
    """A thread that runs one task at a time; to start the next waits for the one before."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start a task, once the previous one has ended."""
        self.join()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error
            finally:
                self._done.set()

        self._done.clear()
        # No daemon: what is begun is written, even if the script ends meanwhile.
        thread = threading.Thread(target=run, name="synk checkpoint")
        try:
            thread.start()
        except RuntimeError:  # the system refuses a thread
            run()
        else:
            self._thread = thread

    def join(self) -> BaseException | None:
        """Wait until no task runs; return the error of the last task, once, or None."""
        if self._thread is not None:
            self._done.wait()  # a join that an interrupt ends takes a thread for ended
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        return error

    def wait(self) -> None:
        """Wait until no task runs; raise the error of the last task, if any."""
        error = self.join()
        if error is not None:
            raise error
