"""Make a fork a process that only waits: it keeps nothing of the script alive but its memory.

ForkServer -> be_a_server -> waits
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

from synk.processes.signals import ignore_signals
from synk.processes.watch import forbid_core_dumps


def be_a_server(kept: Iterable[int]) -> None:
    """Let go of signals and descriptors of the script.

    Parameters
    ----------
    kept : iterable of int
        Descriptors that it needs.
    """
    ignore_signals()
    forbid_core_dumps()
    _close_the_others({*kept, *_of_streams()})
    gc.freeze()  # a collection would copy pages that are shared until then


def _of_streams() -> Iterator[int]:
    """Yield where Python prints to, if that is a file of its own: forks print there too."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            if (descriptor := stream.fileno()) > 2:
                yield descriptor


def _close_the_others(kept: Iterable[int]) -> None:
    """Have all other descriptors lead nowhere.

    Their numbers stay taken: an object of the script that thinks that one is its file would write to whatever
    got it next.
    """
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor in kept or descriptor == nowhere:
            continue
        with suppress(OSError):  # the one that lists is closed by now
            os.fstat(descriptor)
            os.dup2(nowhere, descriptor, inheritable=descriptor <= 2)
    if nowhere > 2:
        os.close(nowhere)
