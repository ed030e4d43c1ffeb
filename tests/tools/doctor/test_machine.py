"""The files of a machine, and the limits that control groups set."""

import pytest

from support.cases.machines import SHM, v1, v2
from synk.tools.doctor import cgroups
from synk.tools.doctor.machine import GIB

# --- the machine -----------------------------------------------------------------------------------


def test_files_that_are_missing_or_no_numbers_are_none(machine):
    here = machine({"/proc/max": "max", "/proc/minus": "-1"})
    assert (here.text("/proc/none"), here.number("/proc/none"), here.number("/proc/max")) == (
        None,
        None,
        None,
    )
    assert here.number("/proc/minus") == -1


def test_the_innermost_and_last_mount_counts(machine):
    mounts = [
        "1 0 0:1 / / rw - ext4 disk rw",
        SHM,
        "9 1 0:9 / /dev/shm rw - ramfs r rw",
        "8 1 0:8 / /dev/shmoo rw - xfs x rw",
    ]
    here = machine({"/proc/self/mountinfo": "\n".join(mounts)})
    assert here.mount_of("/dev/shm").kind == "ramfs"
    assert here.mount_of("/dev/shmoop").kind == "ext4"


# --- control groups --------------------------------------------------------------------------------


NESTED = {
    **v2("/a/b", memory_max=GIB, memory_current=0),
    "/sys/fs/cgroup/a/memory.max": 2 * GIB,
    "/sys/fs/cgroup/a/memory.current": 2 * GIB - 10,
}
CACHED = "anon 5\ninactive_file 300\nactive_file 700"


@pytest.mark.parametrize(
    ("files", "room"),
    [
        (v2(memory_max=GIB, memory_current=5000, memory_stat=CACHED), (GIB, GIB - 4000)),
        (v1("memory", memory_limit_in_bytes=GIB, memory_usage_in_bytes=5000), (GIB, GIB - 5000)),
        (NESTED, (2 * GIB, 10)),  # the tightest counts
        (v2(memory_max="max", memory_high=GIB, memory_current=0), (GIB, GIB)),  # the throttle
    ],
)
def test_room_of_memory(machine, files, room):
    assert cgroups.memory_room(machine(files)) == room


@pytest.mark.parametrize(
    "files",
    [
        {},
        v2(memory_max="max", memory_current=5, cpu_max="max 100000", pids_max="max", pids_current=3),
        v1("memory", memory_limit_in_bytes=9223372036854771712, memory_usage_in_bytes=5),
        v1("cpu", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000),
    ],
)
def test_no_limit_is_none(machine, files):
    here = machine(files)
    answers = [limit(here) for limit in (cgroups.memory_room, cgroups.core_quota, cgroups.process_room)]
    assert answers == [None, None, None]


@pytest.mark.parametrize(
    "files", [v2(cpu_max="150000 100000"), v1("cpu", cpu_cfs_quota_us=150000, cpu_cfs_period_us=100000)]
)
def test_a_quota_of_cores(machine, files):
    assert cgroups.core_quota(machine(files)) == 1.5


def test_both_versions_on_one_machine(machine):
    one, two = (
        v1("memory", memory_limit_in_bytes=GIB, memory_usage_in_bytes=0),
        v2("/", cpu_max="200000 100000"),
    )
    joined = {
        name: "\n".join(str(some[name]) for some in (one, two) if name in some) for name in {**one, **two}
    }
    here = machine(joined)
    assert (cgroups.memory_room(here), cgroups.core_quota(here)) == ((GIB, GIB), 2)
