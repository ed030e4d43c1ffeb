"""Wait in tests for what another process or thread will do."""

import time


def wait_until(condition, seconds=20, otherwise=""):
    """Wait until a condition holds; fail, and say what is wrong ``otherwise``, if it does not within time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)
