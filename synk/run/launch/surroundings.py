"""Copy a process's working folder, arguments, import path and settings to another process.

    Surroundings.present -> sent to a process that was not forked by this one -> Surroundings.enter

A forked process inherits all of this.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytensor

# The settings of PyTensor that may be changed at run time, and on which graphs and errors depend.
SETTINGS = ("floatX", "cast_policy", "warn_float64", "on_opt_error", "exception_verbosity")
OF_NUMPY = ("ignore", "warn", "raise", "print")


class Surroundings(NamedTuple):
    """The working folder, arguments, import path and settings of a process.

    Attributes
    ----------
    environ : mapping, optional
        The environment variables. None if they are for another machine: its processes keep their environment,
        and their import path is appended to this one.
    """

    folder: str | None  # None if it was removed
    path: list[str]
    float_errors: Mapping[str, Any]
    settings: Mapping[str, Any]
    recursion_limit: int
    argv: list[str]
    environ: Mapping[str, str] | None

    @classmethod
    def present(cls, of_another_machine: bool = False) -> Surroundings:
        """Return the surroundings of this process, for a process on this machine or another one."""
        folder = None
        with suppress(OSError):
            folder = os.getcwd()
        settings = {name: getattr(pytensor.config, name) for name in SETTINGS}
        environ = None if of_another_machine else dict(os.environ)
        # A function that was set by np.seterrcall cannot be sent: floating-point errors warn instead.
        errors = {kind: how if how in OF_NUMPY else "warn" for kind, how in np.geterr().items()}
        limit = sys.getrecursionlimit()
        return cls(folder, list(sys.path), errors, settings, limit, list(sys.argv), environ)

    def enter(self) -> None:
        """Give this process these surroundings."""
        if self.environ is None:
            sys.path[:] = dict.fromkeys([*self.path, *sys.path])
        else:
            for name in {*os.environ} - {*self.environ}:
                del os.environ[name]
            os.environ.update(self.environ)
            sys.path[:] = self.path
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.folder)
        np.seterr(**self.float_errors)
        sys.setrecursionlimit(self.recursion_limit)
        sys.argv[:] = self.argv
        for name, value in self.settings.items():
            setattr(pytensor.config, name, value)
        importlib.invalidate_caches()  # modules may have been created since this process started
