"""Tell the script's frames from this package's, so that warnings and tracebacks show the script's lines.

warn_the_script(message) -> a warning at the script's line
below_this_package(traceback) -> the part that the script, or a program, is in
without_this_package(error) -> its traceback has the script's frames, and the one that raised
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from types import TracebackType

from synk.values.errors import SynkWarning

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def warn_the_script(message: str) -> None:
    """Give a `SynkWarning` at the line of the script that has called this package."""
    warnings.warn(message, SynkWarning, stacklevel=stacklevel())


def stacklevel() -> int:
    """Return the stacklevel at which a warning names the script's line, not one of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def below_this_package(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the first frame outside of this package.

    The frames before it, by which a command reaches the program, would be the same in every rank's traceback.
    """
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def without_this_package(error: BaseException, innermost: bool = True) -> None:
    """Take frames of this package out of an error's traceback; the innermost frame stays if asked for."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        if not _is_ours(trace.tb_frame.f_code.co_filename) or (innermost and trace.tb_next is None):
            frames.append(trace)
        trace = trace.tb_next
    below = None
    for one in reversed(frames):
        below = TracebackType(below, one.tb_frame, one.tb_lasti, one.tb_lineno)
    error.__traceback__ = below


def stack_of_the_script() -> str:
    """Return this thread's stack as text, innermost frame first, from the script's call of this package."""
    frames = traceback.extract_stack()
    while len(frames) > 1 and _is_ours(frames[-1].filename):
        frames.pop()
    lines = [f"  File {frame.filename!r}, line {frame.lineno} in {frame.name}" for frame in reversed(frames)]
    return "\n".join(lines)


def _is_ours(filename: str) -> bool:
    return filename.startswith(PACKAGE)
