"""Check the arguments of `synk.fork` and `synk.restart` before anything is started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from synk.run.device import Devices, GpuOptions, choose_devices
from synk.run.device.choose import KINDS
from synk.transport.machines.binding import BIND
from synk.transport.machines.hosts import under_mpi
from synk.transport.machines.topology import read_topology, write_list
from synk.values.checks import checked_count
from synk.values.errors import SynkStateError
from synk.values.script_frames import warn_the_script

# Environment variables for arguments that the script does not give; `python -m synk run` sets them.
HOSTS, INTERFACE, RANKS = "SYNK_HOSTS", "SYNK_INTERFACE", "SYNK_RANKS"


def with_environment(
    n_parallel: Any, hosts: Any, interface: Any, environ: Mapping[str, str] = os.environ
) -> tuple[Any, Any, Any]:
    """Return ranks, hosts and interface; those that are None are taken from the environment.

    Raises TypeError or ValueError if ``n_parallel``, or its environment variable, is no number of ranks, and
    ValueError if ``interface`` is given for a run on one machine.
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
    return None if n_parallel is None else checked_count("n_parallel", n_parallel), hosts, interface


def checked_devices(
    n_parallel: Any,
    device: Any,
    threads: Any,
    memory_limit: Any = None,
    precision: Any = None,
    cuda_graphs: Any = False,
    bind: Any = "none",
) -> Devices:
    """Return the number of ranks and their devices, from the arguments of `synk.fork`.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong; the message names it.
    CudaUnavailable
        If GPUs are asked for and cannot be used.

    Warns
    -----
    SynkWarning
        If ranks share GPUs, or share cores with ``bind="core"``, or have more threads than there are CPUs.
    """
    if device is not None and device not in KINDS:
        raise ValueError(
            f"device={device!r} is unknown; choose one of {', '.join(KINDS)} (GPUs by CUDA_VISIBLE_DEVICES)"
        )
    if n_parallel is not None:
        n_parallel = checked_count("n_parallel", n_parallel)
    if threads is not None:
        threads = checked_count("threads", threads)
    if bind not in BIND:
        raise ValueError(f"bind={bind!r} is unknown; choose one of {', '.join(BIND)}")
    options = GpuOptions.checked(memory_limit, precision, cuda_graphs)
    devices = replace(
        choose_devices(device, n_parallel, threads, options), bind=bind, asks_threads=threads is not None
    )
    _warn_of_few_cores(devices)
    return devices


def _warn_of_few_cores(devices: Devices) -> None:
    """Warn if a rank has more threads than there are CPUs, or if ranks share cores with ``bind="core"``."""
    usable = os.sched_getaffinity(0)
    said = f"this process may use CPUs {write_list(usable)}"
    if devices.asks_threads and devices.threads > len(usable):
        warn_the_script(
            f"fork: threads={devices.threads} of each rank take turns, as {said}: products of matrices take "
            "longer than by fewer; leave threads out for cores // ranks"
        )
    if devices.bind == "core":
        cores = len({cpu.core for cpu in read_topology(allowed=usable).cpus if cpu.number in usable})
        if devices.n_ranks > cores:
            warn_the_script(
                f"fork: bind='core' of {devices.n_ranks} ranks has them share {cores} cores, as {said}: pass "
                f"n_parallel={cores}, or leave bind out"
            )


def checked_ranks(n_parallel: Any, present: int, devices: Devices) -> int:
    """Return the number of ranks after a restart; ``present`` is the number before.

    ``devices`` are those of `fork`. Raises TypeError or ValueError if the number is wrong, or too large for
    them.
    """
    if n_parallel is None:
        return present
    number = checked_count("n_parallel", n_parallel)
    devices.check_ranks(number)
    return number


def refuse_hosts(hosts: Any) -> None:
    """Raise SynkStateError if a run of one machine is to restart on several."""
    if hosts is not None:
        raise SynkStateError(
            f"restart: hosts={hosts!r}, but this run has one machine: close() it, and fork(hosts={hosts!r})"
        )


def checked_timeout(seconds: Any) -> float | None:
    """Return the number of seconds as a float, or None for no deadline.

    Raises
    ------
    TypeError, ValueError
        If ``seconds`` is no number, or not positive.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise TypeError(f"timeout={seconds!r} is not a number of seconds")
    if not seconds > 0:
        raise ValueError(f"timeout={seconds} is not positive; pass None for no deadline")
    return float(seconds)
