"""Give a process what surrounds another: folder, arguments, imports, and settings of Python and libraries.

    Surroundings.present -> sent to a process that is no fork of this one -> enter

A fork has them already.
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

# Those of PyTensor that may change while it runs, and that graphs and errors depend on.
SETTINGS = ("floatX", "cast_policy", "warn_float64", "on_opt_error", "exception_verbosity")
OF_NUMPY = ("ignore", "warn", "raise", "print")


class Surroundings(NamedTuple):
    """The folder, arguments, path of imports and settings of a process.

    Attributes
    ----------
    environ : mapping, optional
        Its environment; None for another machine, which has its own, and whose path of imports comes behind.
    """

    folder: str | None  # None where it is gone
    path: list[str]
    float_errors: Mapping[str, Any]
    settings: Mapping[str, Any]
    recursion_limit: int
    argv: list[str]
    environ: Mapping[str, str] | None

    @classmethod
    def present(cls, of_another_machine: bool = False) -> Surroundings:
        """Return those of this process, for a process of this machine or of another."""
        folder = None
        with suppress(OSError):
            folder = os.getcwd()
        settings = {name: getattr(pytensor.config, name) for name in SETTINGS}
        environ = None if of_another_machine else dict(os.environ)
        # What np.seterrcall was given does not travel.
        errors = {kind: how if how in OF_NUMPY else "warn" for kind, how in np.geterr().items()}
        limit = sys.getrecursionlimit()
        return cls(folder, list(sys.path), errors, settings, limit, list(sys.argv), environ)

    def enter(self) -> None:
        """Make them those of this process."""
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
        importlib.invalidate_caches()  # modules may have come that were not there before
