"""Checks of GPUs: the driver, CuPy, NCCL, cuDNN. A machine without GPUs is no problem: ranks use cores.

gpu_probe in a child process -> facts -> one finding each
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from synk.tools.doctor.finding import NOTE, WARNING, Finding, grade

PROBE = Path(__file__).with_name("gpu_probe.py")
PROBE_SECONDS = 15.0  # CuPy takes seconds to import, and the driver to wake a GPU


def ask() -> dict[str, Any]:
    """Return the facts that `gpu_probe` prints about this machine.

    Raise RuntimeError if it does not end in time, or prints no answer.
    """
    command = [sys.executable, "-P", "-W", "ignore", str(PROBE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"the driver did not answer within {PROBE_SECONDS:.0f} s: try nvidia-smi"
        ) from None
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-200:]}") from None


def cuda_driver(facts: dict[str, Any]) -> Finding:
    """Check NVIDIA's driver, which CUDA needs."""
    known = facts["driver"]
    if not known:
        return grade("CUDA driver", "none: ranks compute on cores")
    found, fails = f"speaks CUDA {cuda_version(known.get('driver', 0))}", "error" in known
    if fails:
        found += f", but fails with error {known['error']} {known.get('error_name', '')}".rstrip()
    return grade(
        "CUDA driver",
        found,
        (known.get("error") == 100, NOTE, "it sees no GPU; in a container: docker run --gpus all"),
        (fails, WARNING, "look at nvidia-smi and dmesg; reload the driver or restart the machine"),
    )


def gpus(facts: dict[str, Any]) -> Finding:
    """Check the GPUs that ranks may use."""
    names = facts["driver"].get("gpus", [])
    listed = ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))
    hidden = "look at CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all"
    nothing = bool(facts["driver"]) and not names and "error" not in facts["driver"]
    return grade("GPUs", listed or "none", (nothing, NOTE, hidden))


def cupy(facts: dict[str, Any]) -> Finding:
    """Check CuPy, through which ranks compute on GPUs."""
    known, names = facts["cupy"], facts["driver"].get("gpus", [])
    if not known:
        return grade("CuPy", "not installed", (bool(names), NOTE, f"to use GPUs: {_install(facts)}"))
    found = f"{known.get('version', '')} for CUDA {cuda_version(known.get('cuda', 0))}".strip()
    if "error" in known:
        level = WARNING if names else NOTE
        remedy = f"to use GPUs: {_install(facts)}" if names else "nothing on a machine without GPUs"
        return Finding(level, "CuPy", f"{found}; {known['error'].partition(chr(10))[0]}", remedy)
    newer = known["cuda"] // 1000 > facts["driver"].get("driver", 0) // 1000
    return grade("CuPy", found, (newer, WARNING, f"newer than the driver: {_install(facts)}"))


def nccl(facts: dict[str, Any]) -> Finding:
    """Check NCCL, through which several GPUs exchange gradients."""
    known, names = facts["nccl"], facts["driver"].get("gpus", [])
    version = known.get("version")
    found = known.get("error", "not installed") if version is None else library_version(version)
    return grade(
        "NCCL",
        found.partition("\n")[0],
        (version is None and len(names) > 1, WARNING, f"to use several GPUs: {_install(facts)}"),
        (version is None and len(names) == 1, NOTE, f"needed for several GPUs only: {_install(facts)}"),
    )


def cudnn(facts: dict[str, Any]) -> Finding:
    """Check cuDNN, which computes convolutions on GPUs; without it, matrix products do."""
    known, names = facts["cudnn"], facts["driver"].get("gpus", [])
    if "error" in known:
        reason, _, _ = known["error"].rpartition(": ")  # what to install follows, for every CUDA
        return grade("cuDNN", reason, (bool(names), WARNING, _install(facts, "cudnn")))
    version = known.get("version")
    found = "not installed" if version is None else library_version(version)
    faster = f"for faster convolutions: {_install(facts, 'cudnn')}"
    return grade("cuDNN", found, (version is None and bool(names), NOTE, faster))


def _install(facts: dict[str, Any], library: str = "") -> str:
    major = 13 if facts["driver"].get("driver", 0) >= 13000 else 12
    extras = ",".join(f"{name}{major}" for name in ("cuda", library) if name)
    return f"{sys.executable} -m pip install 'synk-pytensor[{extras}]'"


def cuda_version(number: int) -> str:
    """Return ``"12.4"`` for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def library_version(number: int) -> str:
    """Return ``"2.21.5"`` for 22105."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


CHECKS = (cuda_driver, gpus, cupy, nccl, cudnn)
