"""Find cuDNN and its Python front end, or say why they cannot be used.

    module cudnn -> its version -> libcudnn -> its version -> libcublasLt -> FoundCudnn(module, reason)

The front end and the two libraries come in separate wheels. Loading them does not initialise CUDA, so they
are found without a driver, too.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

FRONT_END = "nvidia-cudnn-frontend"
OLDEST, TOO_NEW = (1, 22), (2,)  # of the front end
MAJOR = 9  # of cuDNN
REMEDY = (
    "pip install 'synk-pytensor[cuda13,cudnn13]' "
    "(for drivers that speak CUDA 12 only: 'synk-pytensor[cuda12,cudnn12]')"
)


@dataclass(frozen=True)
class FoundCudnn:
    """The outcome of `search`: cuDNN's Python front end, or the reason why it cannot be used."""

    module: Any  # the front end, or None if cuDNN cannot be used here
    reason: str = ""  # why not, and what to do; empty where it can
    installed: bool = True  # whether the front end is installed: if so, the user expects cuDNN to be used


@cache
def find() -> FoundCudnn:
    """Return the outcome of `search`, which runs once in a process."""
    return search()


def available() -> bool:
    """Return whether cuDNN can be used in this process; this loads it."""
    return find().module is not None


def reason() -> str:
    """Return why cuDNN cannot be used here, and what to do; empty where it can."""
    return find().reason


def serves(xp: ModuleType) -> bool:
    """Return whether cuDNN convolves arrays of module ``xp``: that is CuPy, and cuDNN can be used.

    Warn once if the front end is installed and cannot be used.
    """
    if xp.__name__ != "cupy":
        return False
    found = find()
    if found.installed and found.reason:
        _warn_once(found.reason)
    return found.module is not None


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"convolutions run without cuDNN, slower: {reason}", RuntimeWarning, stacklevel=3)


def search() -> FoundCudnn:
    """Import cuDNN's front end and check its version and those of the libraries that it has loaded."""
    if find_spec("cudnn") is None:
        return FoundCudnn(None, f"cuDNN's front end is not installed: {REMEDY}", installed=False)
    load_cudnn(Path(sysconfig.get_path("purelib")))
    try:
        module = import_module("cudnn")
    except Exception as error:  # one built for another Python, or a system without what it links to
        return FoundCudnn(None, f"{FRONT_END} cannot be imported ({type(error).__name__}: {error}): {REMEDY}")
    problem = unfit(module) or load_cublas_of(built_for())
    return FoundCudnn(None, f"{problem}: {REMEDY}") if problem else FoundCudnn(module)


def load_cudnn(packages: Path) -> None:
    """Load cuDNN where the front end would not find it.

    The front end looks in its own environment's ``packages``, then for a library of cuDNN's name that the
    process has loaded or that the system finds. An environment that uses the packages of another environment
    has cuDNN in neither place.
    """
    if any(packages.glob("nvidia/cudnn*/lib/libcudnn.so.*")):
        return
    with suppress(Exception):  # if there is no cuDNN at all, the front end will report it
        import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cudnn")


def unfit(module: Any) -> str:
    """Return why ``module`` cannot serve as the front end of cuDNN 9, or "" if it can."""
    version = getattr(module, "__version__", None)
    if version is None or not hasattr(module, "pygraph"):
        return f"the module cudnn in {getattr(module, '__file__', 'no file')} is not {FRONT_END}"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not OLDEST <= numbers < TOO_NEW:
        return f"{FRONT_END} is {version}, and synk was written for {'.'.join(map(str, OLDEST))}"
    try:
        number = module.backend_version()
    except RuntimeError as error:
        return f"{FRONT_END} {version} finds no cuDNN to load ({error})"
    thousands = 10000 if number >= 90000 else 1000  # 9.1.0 is 90100, and 8.9.7 was 8907
    if number // thousands != MAJOR:
        release = f"{number // thousands}.{number % thousands // 100}"
        return f"cuDNN is {release}, and synk was written for {MAJOR}"
    return ""


def built_for() -> int:
    """Return the major version of CUDA that the loaded cuDNN was built for, 0 if unknown."""
    try:
        library = ctypes.CDLL(f"libcudnn.so.{MAJOR}", mode=os.RTLD_NOLOAD)
        library.cudnnGetCudartVersion.restype = ctypes.c_size_t
        return library.cudnnGetCudartVersion() // 1000
    except (OSError, AttributeError):
        return 0


def load_cublas_of(major: int) -> str:
    """Load cuBLAS for CUDA ``major``; return why that is impossible, or "" if it worked.

    Without cuBLAS, cuDNN aborts the process when the first plan is made. cuDNN looks for it only in its own
    folders and among loaded libraries, so the process must load it first.
    """
    name = f"libcublasLt.so.{major}"
    if not major or _is_there(name):
        return ""
    try:  # comes with CuPy, and knows where wheels and systems keep CUDA's libraries
        import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cublasLt")
    except Exception as error:
        return f"cuDNN needs {name}, which cannot be loaded ({type(error).__name__})"
    if _is_there(name):
        return ""
    return f"cuDNN was built for CUDA {major}, whose {name} is not here but that of another CUDA"


def _is_there(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
