"""Do one piece of work after the other in a thread, while the script goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Writer:
    """A thread for one piece of work at a time; the next one waits."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work, once the one before is done."""
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
        """Wait until nothing is being done; return what work has raised since it was asked last."""
        if self._thread is not None:
            self._done.wait()  # a join that an interrupt ends takes a thread for ended
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        return error

    def wait(self) -> None:
        """Wait until nothing is being done; raise what work has raised."""
        error = self.join()
        if error is not None:
            raise error
