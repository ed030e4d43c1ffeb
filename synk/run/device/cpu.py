"""Processor cores as a device: each rank computes with its share of the cores."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import threadpoolctl

from synk.compile import ArrayLinker, array_mode
from synk.run.device.device import Device

# Environment variables for BLAS libraries that are loaded only after the fork.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class CpuDevice(Device):
    """A share of the processor's cores: matrix products use ``threads`` threads."""

    name = "cpu"
    xp = np

    def __init__(self, threads: int):
        self.threads = threads
        self._limits: Any = None
        self._environment: dict[str, str | None] = {}

    def activate(self) -> None:
        self._environment = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(self.threads)))
        self._limits = threadpoolctl.threadpool_limits(limits=self.threads)

    def deactivate(self) -> None:
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._limits is not None:
            self._limits.restore_original_limits()

    def mode(self, observe: Any = None) -> Any:
        return array_mode(ArrayLinker(observe=observe))

    def from_host(self, array: Any) -> Any:
        return array

    def to_host(self, array: Any) -> Any:
        return array
