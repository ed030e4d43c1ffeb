"""Fake machines for the doctor: their files on memory, mounts and control groups; tables of findings."""

import resource

import pytest

from synk.tools.doctor.finding import OK

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
SHM = "30 25 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=64m"
MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB"


def v2(path="/app", **files):
    """Return the files of a control group of version 2, its mount, and its name; ``cpu_max`` is cpu.max."""
    folder = f"/sys/fs/cgroup{path}".rstrip("/")
    named = {f"{folder}/{name.replace('_', '.', 1)}": text for name, text in files.items()}
    mounts = f"{SHM}\n31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    return {"/proc/self/cgroup": f"0::{path}", "/proc/self/mountinfo": mounts, **named}


def v1(controller, **files):
    """Return the files of a control group of version 1, in a container where its path starts at the top."""
    folder = f"/sys/fs/cgroup/{controller}"
    named = {f"{folder}/job/{name.replace('_', '.', 1)}": text for name, text in files.items()}
    mounts = f"{SHM}\n32 31 0:29 /docker/a1 {folder} rw - cgroup cgroup rw,{controller}"
    return {"/proc/self/cgroup": f"4:{controller}:/docker/a1/job", "/proc/self/mountinfo": mounts, **named}


CHECKED = ("check", "level", "found", "remedy", "given")


def told(check, level, found=None, remedy="", **given):
    """Return a row of the table `CHECKED`: the expected finding of a check on a machine."""
    return pytest.param(check, level, found, remedy, given, id=f"{check.__name__}-{level.name}")


def check_told(said, level, found, remedy):
    """Assert that a finding is that of a row, and has a remedy only if there is a fault."""
    assert said.level is level
    assert found is None or said.found == found
    assert remedy in said.remedy
    assert bool(said.remedy) == (level is not OK)
