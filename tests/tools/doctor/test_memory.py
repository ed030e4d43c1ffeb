"""Memory: a machine with one fault is told it, and what to do."""

import os
import time

import pytest

from support.cases.machines import CHECKED, MEMINFO, SHM, check_told, told, v2
from synk.tools.doctor import memory
from synk.tools.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding, Level
from synk.tools.doctor.machine import GIB, MIB


def huge_pages(system, mount=""):
    switch = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    return {switch: system, "/proc/self/mountinfo": SHM + mount}


def memory_facts(*change, more=""):
    return {"/proc/meminfo": MEMINFO.replace(*change) + more}


DOCKER = {**v2(memory_max=4 * GIB, memory_current=0), "/.dockerenv": ""}
STRICT = memory_facts("", "", more="\nCommitLimit: 2097152 kB\nCommitted_AS: 1048576 kB")
STRICT["/proc/sys/vm/overcommit_memory"] = "2"


@pytest.mark.parametrize(
    CHECKED,
    [
        # half of the memory is what shared memory should have, and of a container's limit
        told(memory.shared_memory, PROBLEM, None, "--shm-size=8g", space=(64 * MIB, 64 * MIB)),
        told(memory.shared_memory, PROBLEM, None, "--shm-size=8g", space=(8 * GIB, 3 * MIB)),
        told(memory.shared_memory, WARNING, None, "--shm-size=8g", space=(512 * MIB, 512 * MIB)),
        told(memory.shared_memory, OK, space=(8 * GIB, GIB)),
        told(
            memory.shared_memory,
            PROBLEM,
            "64 MiB free of 64 MiB in /dev/shm, docker's default",
            "start the container by docker run --shm-size=2g",
            files=DOCKER,
            space=(64 * MIB, 64 * MIB),
        ),
        told(memory.shared_memory, WARNING, files={"/proc/self/mountinfo": "1 0 0:1 / / rw - ext4 disk rw"}),
        told(memory.huge_pages, OK, "never in /dev/shm", files=huge_pages("always [never] force")),
        told(
            memory.huge_pages,
            NOTE,
            "within_size in /dev/shm",
            files=huge_pages("always [never] force", ",huge=within_size"),
        ),
        told(
            memory.huge_pages,
            OK,
            "deny in /dev/shm",
            files=huge_pages("always [deny] force", ",huge=always"),
        ),
        told(memory.huge_pages, NOTE, "force in /dev/shm", files=huge_pages("always never [force]")),
        told(
            memory.memory_limit,
            WARNING,
            "512 MiB left of 1 GiB by a control group",
            files=v2(memory_max=GIB, memory_current=GIB // 2),
        ),
        told(memory.memory_limit, NOTE, None, "keep Data under the limit", files=DOCKER),
        told(memory.memory, WARNING, files=memory_facts("MemAvailable: 8388608", "MemAvailable: 1000")),
        told(memory.memory, NOTE, files=memory_facts("SwapTotal: 0", "SwapTotal: 8388608")),
        told(memory.overcommit, WARNING, "vm.overcommit_memory=2, 1 GiB left to promise", files=STRICT),
    ],
)
def test_a_machine_with_one_fault_is_told_it_and_what_to_do(machine, check, level, found, remedy, given):
    check_told(check(machine(**given)), level, found, remedy)


def test_no_shared_memory(machine):
    here = machine()
    here.path("/dev/shm").rmdir()
    assert "mount -t tmpfs" in memory.shared_memory(here).remedy
    assert memory.shared_memory_mode(here).level is Level.NOTE


def test_shared_memory_that_others_can_delete_from(machine):
    here = machine()
    here.path("/dev/shm").chmod(0o777)
    assert memory.shared_memory_mode(here) == Finding(
        Level.NOTE,
        "mode of /dev/shm",
        "777, writable by this user",
        "other users may delete files here; as root: chmod 1777 /dev/shm",
    )


def test_segments_that_a_killed_process_left(machine):
    here = machine()
    for name, age in (("synk-new", 0), ("synk-old", 60), ("other", 60)):
        path = here.path(f"/dev/shm/{name}")
        path.write_bytes(b"")
        os.utime(path, (time.time() - age, time.time() - age))
    found = memory.left_segments(here)
    assert (found.level, found.found) == (Level.NOTE, "1 in /dev/shm, 0 bytes")
    assert "rm /dev/shm/synk-*" in found.remedy
