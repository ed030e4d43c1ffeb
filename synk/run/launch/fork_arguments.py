"""Check the arguments of `fork` before anything is started."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

from synk.gpu.device.cuda_device import PRECISIONS
from synk.run.device import MEMORY_LIMIT, Devices, choose_devices
from synk.run.device.choose import KINDS
from synk.transport.machines.binding import BIND
from synk.transport.machines.hosts import under_mpi
from synk.transport.machines.topology import read_topology, write_list
from synk.values.errors import SynkStateError, SynkWarning
from synk.values.script_frames import stacklevel

CORES_HAVE = "float32"  # the precision in which they multiply matrices of that dtype

# Of the environment, where the script does not say it: see `synk.run.session.run_command`.
HOSTS, INTERFACE, RANKS = "SYNK_HOSTS", "SYNK_INTERFACE", "SYNK_RANKS"


def completed(
    n_parallel: Any, hosts: Any, interface: Any, environ: Mapping[str, str] = os.environ
) -> tuple[Any, Any, Any]:
    """Return ranks, hosts and interface, those that are None as the environment says.

    Raises ValueError if that is no number, or the script names a network where there is one machine, and
    TypeError or ValueError for what is no number of ranks.
    """
    alone = hosts is None and not environ.get(HOSTS) and not under_mpi(environ)
    if interface is not None and alone:
        raise ValueError(
            f"interface={interface!r} is the network between several machines: pass hosts, or leave it out"
        )
    if hosts is None:
        hosts, interface = environ.get(HOSTS) or None, interface or environ.get(INTERFACE)
    if n_parallel is None and hosts is None and environ.get(RANKS):
        if not environ[RANKS].isdecimal():
            raise ValueError(f"{RANKS}={environ[RANKS]!r} of the environment is no number of ranks")
        n_parallel = int(environ[RANKS])
    return None if n_parallel is None else _checked_count("n_parallel", n_parallel), hosts, interface


def checked_devices(
    n_parallel: Any,
    device: Any,
    threads: Any,
    memory_limit: Any = None,
    precision: Any = None,
    cuda_graphs: Any = False,
    bind: Any = "none",
) -> Devices:
    """Return how many ranks there will be, and what they compute on.

    Raises
    ------
    TypeError, ValueError
        Naming the argument.
    CudaUnavailable
        If GPUs are asked for and cannot be had.

    Warns
    -----
    SynkWarning
        If ranks share GPUs, or cores where each was to have one, or have more threads than there are CPUs.
    """
    if device is not None and device not in KINDS:
        raise ValueError(
            f"device={device!r} is unknown; choose one of {', '.join(KINDS)} (GPUs by CUDA_VISIBLE_DEVICES)"
        )
    if n_parallel is not None:
        n_parallel = _checked_count("n_parallel", n_parallel)
    if threads is not None:
        threads = _checked_count("threads", threads)
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
    if bind not in BIND:
        raise ValueError(f"bind={bind!r} is unknown; choose one of {', '.join(BIND)}")
    if not isinstance(cuda_graphs, bool):
        raise TypeError(f"cuda_graphs={cuda_graphs!r} is neither True nor False")
    fraction = _checked_fraction(memory_limit)
    of_gpus = {
        "memory_limit": memory_limit,
        "precision": None if precision == CORES_HAVE else precision,
        "cuda_graphs": cuda_graphs or None,
    }
    devices = replace(
        choose_devices(device, n_parallel, threads, fraction, precision),
        bind=bind,
        asks_threads=threads is not None,
    )
    if not devices.gpus:
        _refuse_on_cores(of_gpus)
    _warn_of_few_cores(devices)
    if cuda_graphs:
        # Here and nowhere else: what else there is does not read this folder, and works without it.
        from synk.gpu.speedups.linker import RecordingDevice

        devices = replace(devices, gpu_device=RecordingDevice)
    return devices


def _refuse_on_cores(of_gpus: Mapping[str, Any]) -> None:
    """Raise ValueError if an option of GPUs is given, in words for a run on cores."""
    for name, value in of_gpus.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r} is for GPUs, and this run computes on cores: leave {name} out, or pass "
                "device='cuda', which insists on GPUs"
            )


def _warn_of_few_cores(devices: Devices) -> None:
    """Warn if a rank has more threads than there are CPUs, or shares the core that it was to have."""
    usable = os.sched_getaffinity(0)
    said = f"this process may use CPUs {write_list(usable)}"
    if devices.asks_threads and devices.threads > len(usable):
        _warn(
            f"fork: threads={devices.threads} of each rank take turns, as {said}: products of matrices take "
            "longer than by fewer; leave threads out for cores // ranks"
        )
    if devices.bind == "core":
        cores = len({cpu.core for cpu in read_topology(allowed=usable).cpus if cpu.number in usable})
        if devices.n_ranks > cores:
            _warn(
                f"fork: bind='core' of {devices.n_ranks} ranks has them share {cores} cores, as {said}: pass "
                f"n_parallel={cores}, or leave bind out"
            )


def _warn(message: str) -> None:
    warnings.warn(message, SynkWarning, stacklevel=stacklevel())


def _checked_fraction(limit: Any) -> float:
    if limit is None:
        return MEMORY_LIMIT
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.number):
        raise TypeError(f"memory_limit={limit!r} is not a fraction of a GPU's memory")
    if not 0 < limit <= 1:
        raise ValueError(f"memory_limit={limit} is not a fraction of a GPU's memory, above 0 and at most 1")
    return float(limit)


def checked_ranks(n_parallel: Any, present: int, devices: Devices) -> int:
    """Return how many ranks there will be after the ``present`` ones.

    ``devices`` are those of `fork`, which has decided how ranks on GPUs meet: they never become more.
    Raises TypeError or ValueError if the number is wrong.
    """
    if n_parallel is None:
        return present
    number = _checked_count("n_parallel", n_parallel)
    if devices.gpus and n_parallel > devices.n_ranks:
        raise ValueError(
            f"n_parallel={n_parallel} is more than the {devices.n_ranks} ranks on GPUs with which this run "
            "was forked: close() it, and fork() more"
        )
    return number


def refuse_hosts(hosts: Any) -> None:
    """Raise SynkStateError if a run of one machine is to restart on several."""
    if hosts is not None:
        raise SynkStateError(
            f"restart: hosts={hosts!r}, but this run has one machine: close() it, and fork(hosts={hosts!r})"
        )


def _checked_count(name: str, value: Any) -> int:
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name}={value!r} is not an integer")
    if number < 1:
        raise ValueError(f"{name}={value} is less than 1")
    return number


def checked_timeout(seconds: Any) -> float | None:
    """Return a number of seconds, or None for no deadline.

    Raises
    ------
    TypeError, ValueError
        If it is no number, or not positive.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise TypeError(f"timeout={seconds!r} is not a number of seconds")
    if not seconds > 0:
        raise ValueError(f"timeout={seconds} is not positive; pass None for no deadline")
    return float(seconds)
