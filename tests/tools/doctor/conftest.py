"""Machines that are made up: a folder with a few files in the place of ``/``."""

import resource
from types import SimpleNamespace

import pytest

from support.cases.machines import MEMINFO, SHM, UNLIMITED
from synk.tools.doctor.machine import GIB, MachineFacts


@pytest.fixture
def machine(tmp_path):
    """Make up a machine: of sixteen GiB, four cores and nothing to complain about, but for what is given."""

    def make(files=(), affinity=range(4), uid=1000, limits=(), space=(8 * GIB, 8 * GIB), **environ):
        usual = {
            "/proc/meminfo": MEMINFO,
            "/proc/self/mountinfo": SHM,
            "/proc/self/coredump_filter": "00000033",
            "/proc/sys/vm/overcommit_memory": "0",
            "/sys/devices/system/cpu/online": "0-3",
        }
        for name, text in {**usual, **dict(files)}.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        (tmp_path / "dev/shm").mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev/shm").chmod(0o1777)
        rlimit = {resource.RLIMIT_CORE: (0, 0), **dict(limits)}
        return MachineFacts(
            tmp_path,
            environ,
            frozenset(affinity),
            uid,
            rlimit=lambda which: rlimit.get(which, UNLIMITED),
            space=lambda path: SimpleNamespace(total=space[0], free=space[1]),
        )

    return make
