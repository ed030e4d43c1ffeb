"""Files of made-up machines, which tell of memory, mounts and control groups; and tables of findings."""

import resource

import pytest

from synk.tools.doctor.finding import OK

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
SHM = "30 25 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=64m"
MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB"


def v2(path="/app", **files):
    """Files of a control group of version 2, and what mounts and names it; ``cpu_max`` is cpu.max."""
    folder = f"/sys/fs/cgroup{path}".rstrip("/")
    named = {f"{folder}/{name.replace('_', '.', 1)}": text for name, text in files.items()}
    mounts = f"{SHM}\n31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    return {"/proc/self/cgroup": f"0::{path}", "/proc/self/mountinfo": mounts, **named}


def v1(controller, **files):
    """The same of version 1, for a job in a container that is told its path from the top."""
    folder = f"/sys/fs/cgroup/{controller}"
    named = {f"{folder}/job/{name.replace('_', '.', 1)}": text for name, text in files.items()}
    mounts = f"{SHM}\n32 31 0:29 /docker/a1 {folder} rw - cgroup cgroup rw,{controller}"
    return {"/proc/self/cgroup": f"4:{controller}:/docker/a1/job", "/proc/self/mountinfo": mounts, **named}


CHECKED = ("check", "level", "found", "remedy", "given")


def told(check, level, found=None, remedy="", **given):
    """Return a row of a table of `CHECKED`: what a check says of a machine with what is given."""
    return pytest.param(check, level, found, remedy, given, id=f"{check.__name__}-{level.name}")


def check_told(said, level, found, remedy):
    """Hold a finding to a row: who has no fault needs no remedy."""
    assert said.level is level
    assert found is None or said.found == found
    assert remedy in said.remedy
    assert bool(said.remedy) == (level is not OK)
