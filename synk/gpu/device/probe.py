"""Find the GPUs that a run may use, in a child process, so that CUDA is not initialised in this one.

survey -> python driver.py (a deadline) -> Survey: GPUs, or the reason why there are none
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("driver.py")

# Where no daemon keeps the driver awake, it wakes GPUs one after the other, some seconds each.
SECONDS = 60.0

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a part of one, as the driver shows it.

    Attributes
    ----------
    number : int
        The driver's number, from 0; GPUs hidden by ``CUDA_VISIBLE_DEVICES`` are not counted.
    name, uuid : str
        ``uuid`` is empty where the driver does not tell.
    nbytes : int
        Bytes of memory, 0 where the driver does not tell.
    """

    number: int
    name: str
    uuid: str = ""
    nbytes: int = 0

    def __str__(self) -> str:
        size = f", {self.nbytes / 2**30:.0f} GiB" if self.nbytes else ""
        return f"GPU {self.number} ({self.name}{size})"


@dataclass(frozen=True)
class Survey:
    """The GPUs of a machine.

    Attributes
    ----------
    gpus : tuple of Gpu
    reason : str
        Why there are none.
    is_trouble : bool
        Whether the reason is a fault; a machine without GPUs, or one that hides them, has none.
    version : int
        The version of CUDA that the driver supports: 12040 for 12.4; 0 where it is not known.
    """

    gpus: tuple[Gpu, ...] = ()
    reason: str = ""
    is_trouble: bool = False
    version: int = 0


def survey(seconds: float = SECONDS) -> Survey:
    """Ask the driver for its GPUs; it is given ``seconds`` to answer."""
    try:
        output, errors, status = _ask(seconds)
    except subprocess.TimeoutExpired:
        return Survey(
            reason=f"the driver did not answer within {seconds:g} s (try nvidia-smi)", is_trouble=True
        )
    except OSError as error:
        return Survey(reason=f"no process to ask the driver in: {error}", is_trouble=True)
    try:
        facts = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        said = f": {errors.strip()[-200:]}" if errors.strip() else ""
        return Survey(reason=f"asking the driver ended with {_cause(status)}{said}", is_trouble=True)
    return judge(facts, os.environ.get("CUDA_VISIBLE_DEVICES"))


def judge(facts: dict[str, Any], visible: str | None) -> Survey:
    """Interpret the answer of `synk.gpu.device.driver.look`, and the value of ``CUDA_VISIBLE_DEVICES``."""
    if "missing" in facts:
        return Survey(reason=f"there is no NVIDIA driver ({facts['missing']})")
    version = facts["version"]
    hidden = "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible!r} hides what it does not name"
    if "error" in facts:
        error = f"{facts['error']} {facts['error_name']}".rstrip()
        return Survey(
            reason=f"the driver fails with error {error}{hidden}",
            is_trouble=facts["error"] != NO_DEVICE,
            version=version,
        )
    gpus = tuple(Gpu(number, **gpu) for number, gpu in enumerate(facts["gpus"]))
    return Survey(gpus, "" if gpus else f"the driver shows no GPU{hidden}", version=version)


def _ask(seconds: float) -> tuple[str, str, int]:
    """Run `driver` as a process; return its standard output, its standard error and its exit status."""
    # -I and -S: no installed package and no PYTHON* variable runs code in it.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(DRIVER)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # a process inside a driver that hangs cannot even be killed
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None, "both were asked for"
            pipe.close()
    return output, errors, process.returncode


def _cause(status: int) -> str:
    return f"exit code {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
