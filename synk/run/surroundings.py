"""Give a process what surrounds another: folder, imports, and the settings of NumPy and PyTensor.

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


class Surroundings(NamedTuple):
    """The folder, the path of imports, NumPy's handling of errors and PyTensor's settings of a process.

    Attributes
    ----------
    environ : mapping, optional
        Its environment; None for another machine, which has its own, and whose path of imports is kept, too.
    """

    folder: str | None  # None where it is gone
    path: list[str]
    float_errors: Mapping[str, Any]
    settings: Mapping[str, Any]
    environ: Mapping[str, str] | None

    @classmethod
    def present(cls, of_another_machine: bool = False) -> Surroundings:
        """Return those of this process, for a process of this machine or of another."""
        folder = None
        with suppress(OSError):
            folder = os.getcwd()
        settings = {name: getattr(pytensor.config, name) for name in SETTINGS}
        environ = None if of_another_machine else dict(os.environ)
        return cls(folder, list(sys.path), np.geterr(), settings, environ)

    def enter(self) -> None:
        """Make them those of this process."""
        if self.environ is None:
            sys.path += [folder for folder in self.path if folder not in sys.path]
        else:
            for name in {*os.environ} - {*self.environ}:
                del os.environ[name]
            os.environ.update(self.environ)
            sys.path[:] = self.path
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.folder)
        np.seterr(**self.float_errors)
        for name, value in self.settings.items():
            setattr(pytensor.config, name, value)
        importlib.invalidate_caches()  # modules may have come that were not there before
