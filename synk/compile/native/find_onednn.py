"""Find oneDNN's shared library, or say why there is none.

    sys.prefix/lib -> files of the wheel -> the system's libraries -> FoundOnednn(library, reason)

Loading maps 50 MB of code and starts no thread, so a process may fork after it.
"""

import ctypes
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

FILE = "libdnnl.so.3"  # the 3 is the version of its interface
OPENMP = "libgomp.so.1"
DISTRIBUTION = "onednn-cpu-gomp"
REMEDY = "pip install 'synk-pytensor[onednn]'"

# Runtimes of threads whose number `omp_set_num_threads` sets, or that have one thread.
SEQUENTIAL, OMP = 1, 2
RUNTIMES = (SEQUENTIAL, OMP)


class OnednnVersion(ctypes.Structure):
    """The version of oneDNN, as ``dnnl_version`` tells it."""

    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


@dataclass(frozen=True)
class FoundOnednn:
    """The result of the search for oneDNN: the library, or the reason why there is none."""

    library: ctypes.CDLL | None  # oneDNN, if it can be used here
    reason: str = ""  # why not; empty where it can


@cache
def find() -> FoundOnednn:
    """Return the result of the search, which is made once in each process."""
    return search(places())


def available() -> bool:
    """Load oneDNN if that has not been tried yet, and tell whether it can be used here."""
    return find().library is not None


def reason() -> str:
    """Return why oneDNN cannot be used here, and what to do; "" if it can."""
    return find().reason


def search(candidates: Iterable[str]) -> FoundOnednn:
    """Load the first of ``candidates``, paths or names that the system's loader knows, that is oneDNN 3."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return FoundOnednn(
            None, f"oneDNN needs x86-64 Linux, and this is {sys.platform} on {platform.machine()}"
        )
    try:
        ctypes.CDLL(OPENMP)
    except OSError:
        return FoundOnednn(
            None, f"oneDNN needs {OPENMP}, which is missing: install the system's package libgomp1"
        )
    problems = []
    for candidate in candidates:
        try:
            library = ctypes.CDLL(candidate)
        except OSError as error:
            problems.append(f"{candidate} does not load ({error})")
            continue
        problem = unfit(library)
        if not problem:
            return FoundOnednn(library)
        problems.append(f"{candidate} {problem}")
    said = "; ".join(problems) or "oneDNN is not installed"
    return FoundOnednn(None, f"{said}: {REMEDY}")


def places() -> Iterator[str]:
    """Yield paths or names of the library: of what the wheel brought first, then the system's."""
    paths = [Path(sys.prefix, "lib", FILE), *_files_of_the_wheel()]
    found = [str(path) for path in dict.fromkeys(path.resolve() for path in paths) if path.exists()]
    yield from found
    # Only its own name can be asked of the loader, so a failure says nothing that a reader can use.
    if not found and _loads(FILE):
        yield FILE


def unfit(library: ctypes.CDLL) -> str:
    """Return why a library cannot serve as oneDNN 3, or "" if it can."""
    try:
        library.dnnl_version.restype = ctypes.POINTER(OnednnVersion)
        version = library.dnnl_version().contents
    except AttributeError:
        return "is not oneDNN"
    if version.major != 3:
        return f"is oneDNN {version.major}.{version.minor}, and not 3"
    if version.cpu_runtime not in RUNTIMES:
        return "starts its threads by something else than OpenMP"
    return ""


def _files_of_the_wheel() -> list[Path]:
    """Return the paths at which pip put the library; ``--user`` and ``--target`` put it elsewhere."""
    try:
        files = metadata.distribution(DISTRIBUTION).files or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name == FILE]


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
