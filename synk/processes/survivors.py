"""Say which processes SIGKILL has not ended in time: they are traced, frozen, or in an uninterruptible sleep.

Process.reap -> False -> warn_of_survivors
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from synk.processes.watch import REAP_SECONDS, Process
from synk.values.errors import SynkWarning
from synk.values.script_frames import stacklevel


def warn_of_survivors(left: Mapping[str, Process]) -> None:
    """Warn of processes, by name, that `Process.reap` has left to the kernel."""
    if left:
        told = "; ".join(f"{name} (pid {process.pid}, {process.state()})" for name, process in left.items())
        warnings.warn(
            f"{told}: still there {REAP_SECONDS:g} s after it was told to end. The kernel is left to end it, "
            "and to free its memory, when whatever holds it lets go: a debugger, a frozen cgroup, a device",
            SynkWarning,
            stacklevel=stacklevel(),
        )
