"""Find out whether CUDA is in use in this process, without touching it.

A child that is forked after CUDA was initialised cannot use it, and fails where nobody expects it. The driver
itself says whether it is initialised; where it is not even loaded, nobody can have done that.

    fork -> check_cuda -> libcuda.so.1, if it is loaded -> CudaInitialisedError, before anything is forked
"""

from __future__ import annotations

import ctypes
import os
import sys

from synk.values.errors import CudaInitialisedError

DRIVER = "libcuda.so.1"
SUCCESS = 0

# Packages that initialise CUDA at the first use of a GPU, some of them when they are imported.
USERS = ("cupy", "jax", "numba.cuda", "pycuda", "tensorflow", "torch")


def check_cuda(what: str, also: str = "") -> None:
    """Raise unless child processes will be able to use CUDA.

    Parameters
    ----------
    what : str
        The call that is about to fork, for the message.
    also : str
        What the message says besides.

    Raises
    ------
    CudaInitialisedError
        If this process has initialised CUDA.
    """
    if not cuda_is_initialised():
        return
    users = [name for name in USERS if name in sys.modules]
    suspects = f"; imported here: {', '.join(users)}" if users else ""
    raise CudaInitialisedError(
        f"{what}: this process has initialised CUDA, which child processes cannot use then{suspects}. "
        "Call synk.fork() before anything touches a GPU (an array or a tensor made there, a device "
        "selected or counted), or compute on the CPU: synk.fork(device='cpu')" + (also and f". {also}")
    )


def cuda_is_initialised() -> bool:
    """Return whether this process has initialised CUDA; never loads nor initialises it."""
    try:
        driver = ctypes.CDLL(DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        ask = driver.cuDeviceGetCount
    except (OSError, AttributeError):  # not loaded, or not a driver that we know
        return False
    # Until cuInit has succeeded every other function returns an error code.
    return bool(ask(ctypes.byref(ctypes.c_int())) == SUCCESS)
