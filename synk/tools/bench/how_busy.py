"""Describe the machine and its load, without which a figure means nothing.

describe -> BusyMachine -> lines above a table, or a part of JSON
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import synk

PACKAGES = ("numpy", "pytensor")


class BusyMachine(NamedTuple):
    """The hardware, software and present load of a machine."""

    processor: str
    cores: int  # that this process may use
    memory: float  # GiB
    kernel: str
    load: float  # processes that wanted a core, mean of the last minute
    python: str
    packages: dict[str, str]  # name: version

    def lines(self) -> list[str]:
        """Return the description as lines of text."""
        versions = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        size = f"{self.cores} cores, {self.memory:.0f} GiB"
        return [
            f"{self.processor}, {size}, Linux {self.kernel}, load {self.load:.1f}",
            f"Python {self.python}, {versions}",
        ]


def describe(others: dict[str, str] | None = None) -> BusyMachine:
    """Describe this machine; ``others`` are versions of libraries that run in other processes."""
    return BusyMachine(
        processor(),
        len(os.sched_getaffinity(0)),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        platform.release(),
        os.getloadavg()[0],
        platform.python_version(),
        {"synk": synk.__version__} | {package: installed(package) for package in PACKAGES} | (others or {}),
    )


def available_memory() -> int:
    """Return how many bytes processes can allocate before the machine swaps."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def processor() -> str:
    """Return the model of the processor, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def installed(package: str) -> str:
    """Return the version of a package, or a dash if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "–"
