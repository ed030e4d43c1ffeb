"""Write out what is buffered before a fork, else children would write it again."""

from __future__ import annotations

import sys
from contextlib import suppress


def flush() -> None:
    """Flush Python's standard streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()
