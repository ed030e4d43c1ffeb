"""NVRTC, which compiles CUDA for a GPU that need not be there.

    text -> machine code, compiled once and kept, by the text, the options and the file of the library

What was compiled is where synk keeps its own kernels.
"""

import ctypes
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from synk.compile.native.store import Store, name_of
from synk.gpu.elementwise.cuda_source import OPTIONS

ARCHITECTURE = "sm_90"


@cache
def library():
    """Return the library, or skip the test where it is not installed."""
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):  # where wheels for CUDA 12 and 13 have it
        try:
            spec = find_spec(package)
        except ModuleNotFoundError:
            spec = None
        folders = [] if spec is None else spec.submodule_search_locations
        # Some releases look for their built-in functions by name, not beside themselves.
        names = ("libnvrtc-builtins.so*", "libnvrtc.so*")
        found = [path for folder in folders for name in names for path in Path(folder, "lib").glob(name)]
        loaded = [ctypes.CDLL(str(path)) for path in found]
        if loaded:
            return loaded[-1]
    pytest.skip('NVRTC is not installed: pip install "synk-pytensor[nvrtc]"')


@cache
def release():
    """Return a digest of NVRTC: environments with the same library share compiled code."""
    with open(library()._name, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compile_cuda(text):
    """Return the machine code for CUDA text, or fail the test with the compiler's message."""
    options = [f"--gpu-architecture={ARCHITECTURE}", *OPTIONS]
    store, name = Store(), name_of("nvrtc", text, release(), *options)
    kept = store.find(name)
    if kept is not None:
        return kept
    code = _compiled(text, options)
    store.keep(name, code)
    return code


def _compiled(text, options):
    nvrtc, program, size = library(), ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"k.cu", 0, None, None) == 0
    words = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetCUBIN(program, code) == 0
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw
