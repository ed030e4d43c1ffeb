"""Memory, cores and processes: a machine with one fault is told it, and what to do."""

import os
import resource
import signal
import threading
import time
from dataclasses import replace

import pytest

from support.cases.machines import MEMINFO, SHM, UNLIMITED, v2
from support.cases.sys_tree import make_sys
from synk.tools.doctor import cores, memory, processes
from synk.tools.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding, Level
from synk.tools.doctor.machine import GIB, MIB

# --- memory ----------------------------------------------------------------------------------------


def test_nothing_to_say_of_a_good_machine(machine):
    here = machine()
    families = (memory, cores, processes)
    findings = [check(here) for family in families for check in family.CHECKS]
    assert [finding for finding in findings if finding.level is not Level.OK] == []


def told(check, level, found=None, remedy="", **given):
    """Return a row: what a check says of a machine with what is given."""
    return pytest.param(check, level, found, remedy, given, id=f"{check.__name__}-{level.name}")


def huge_pages(system, mount=""):
    switch = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    return {switch: system, "/proc/self/mountinfo": SHM + mount}


def memory_facts(*change, more=""):
    return {"/proc/meminfo": MEMINFO.replace(*change) + more}


FEW_PROCESSES = {resource.RLIMIT_NPROC: (50, 50)}
ANY_DUMP = {resource.RLIMIT_CORE: UNLIMITED}
LITTLE_LOCKED = {resource.RLIMIT_MEMLOCK: (MIB, MIB)}
DOCKER = {**v2(memory_max=4 * GIB, memory_current=0), "/.dockerenv": ""}
STRICT = memory_facts("", "", more="\nCommitLimit: 2097152 kB\nCommitted_AS: 1048576 kB")
STRICT["/proc/sys/vm/overcommit_memory"] = "2"


@pytest.mark.parametrize(
    ("check", "level", "found", "remedy", "given"),
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
        told(cores.affinity, WARNING, "1 usable of 4", "taskset -c 0-3", affinity=[2]),
        told(cores.affinity, NOTE, affinity=[0, 2]),
        told(cores.quota, WARNING, None, "synk.fork(1, threads=1)", files=v2(cpu_max="50000 100000")),
        told(cores.quota, WARNING, None, "synk.fork(1, threads=1)", files=v2(cpu_max="150000 100000")),
        told(cores.quota, WARNING, None, "synk.fork(2, threads=1)", files=v2(cpu_max="250000 100000")),
        told(cores.quota, OK, files=v2(cpu_max="400000 100000")),
        told(cores.thread_variables, NOTE, "OMP_NUM_THREADS=8", OMP_NUM_THREADS="8"),
        told(cores.pinning_variables, WARNING, OMP_PROC_BIND="true"),
        told(cores.pinning_variables, OK, OMP_PROC_BIND="FALSE"),
        told(
            processes.open_files,
            WARNING,
            None,
            "ulimit -n 1024",
            limits={resource.RLIMIT_NOFILE: (100, 4096)},
        ),
        told(
            processes.open_files,
            WARNING,
            None,
            "hard nofile 1024",
            limits={resource.RLIMIT_NOFILE: (100, 100)},
        ),
        told(processes.open_files, OK, limits={resource.RLIMIT_NOFILE: UNLIMITED}),
        told(processes.process_limit, WARNING, None, "ulimit -u 1024", limits=FEW_PROCESSES),
        told(processes.process_limit, OK, limits=FEW_PROCESSES, uid=0),
        told(
            processes.process_limit,
            WARNING,
            "unlimited per user, 10 left of 40 by a control group",
            "--pids-limit=1024",
            files=v2(pids_max=40, pids_current=30),
        ),
        told(
            processes.size_limits,
            WARNING,
            "ulimit -f: 1 GiB",
            "ulimit -f unlimited",
            limits={resource.RLIMIT_FSIZE: (GIB, GIB)},
        ),
        told(processes.core_dumps, NOTE, limits=ANY_DUMP),
        told(processes.core_dumps, OK, files={"/proc/self/coredump_filter": "00000031"}, limits=ANY_DUMP),
        told(processes.locked_memory, OK, limits=LITTLE_LOCKED),  # it matters with InfiniBand only
        told(
            processes.locked_memory,
            NOTE,
            "1 MiB, InfiniBand: mlx5_0",
            files={"/sys/class/infiniband/mlx5_0/node_type": "1"},
            limits=LITTLE_LOCKED,
        ),
        *(
            told(processes.debuggers, level, files={"/proc/sys/kernel/yama/ptrace_scope": scope}, uid=uid)
            for scope, uid, level in ((0, 1, OK), (1, 1, NOTE), (1, 0, OK), (3, 0, NOTE))
        ),
    ],
)
def test_a_machine_with_one_fault_is_told_it_and_what_to_do(machine, check, level, found, remedy, given):
    said = check(machine(**given))
    assert said.level is level
    assert found is None or said.found == found
    assert remedy in said.remedy
    assert bool(said.remedy) == (level is not OK)


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


# --- cores -----------------------------------------------------------------------------------------


def test_a_machine_of_one_core(machine):
    found = cores.affinity(machine({"/sys/devices/system/cpu/online": "0"}, affinity=[0]))
    assert found.level is Level.WARNING
    assert "taskset" not in found.remedy


@pytest.mark.parametrize(("affinity", "physical"), [(range(4), 2), ((0, 1), None)])
def test_hardware_threads_of_one_core(machine, affinity, physical):
    files = {
        f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list": f"{core % 2},{core % 2 + 2}"
        for core in range(4)
    }
    found = cores.core_sharing(machine(files, affinity=affinity))
    assert (found.level is Level.NOTE) == (physical is not None)
    assert physical is None or f"synk.fork({physical}, threads=1)" in found.remedy


def test_cores_of_several_numa_nodes(machine):
    here = machine(affinity=range(4))
    make_sys(here.root, sockets=2, cores=4)
    assert cores.numa_nodes(here).level is Level.OK
    found = cores.numa_nodes(replace(here, affinity=frozenset({3, 4})))
    assert (found.level, found.found) == (Level.NOTE, "usable cores are on nodes 0-1")
    assert "numactl --cpunodebind=0 --membind=0" in found.remedy


def test_a_gpu_without_a_usable_core_near_it(machine):
    here = machine(affinity=range(4))
    make_sys(
        here.root, sockets=2, cores=4, gpus=[("0000:3b:00.0", 0), ("0000:af:00.0", 1), ("0000:d8:00.0", -1)]
    )
    found = cores.numa_nodes(here)
    assert found.level is Level.WARNING
    assert "near GPU 0000:af:00.0 (node 1): start" in found.remedy
    assert cores.numa_nodes(replace(here, affinity=frozenset(range(8)))).level is Level.NOTE


def test_the_variables_of_threads_are_those_that_ranks_set():
    from synk.run.device.cpu import THREAD_VARIABLES

    assert cores.THREAD_VARIABLES == THREAD_VARIABLES


# --- processes -------------------------------------------------------------------------------------


def test_a_kernel_without_pidfd(machine, monkeypatch):
    def pidfd_open(pid):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    found = processes.death_watch(machine())
    assert (found.level, found.found) == (Level.PROBLEM, "pidfd_open: Function not implemented")


def test_a_child_that_outlives_its_parent_is_found(machine, monkeypatch):
    deaf = processes.PARENT_DEATH_PROBE.replace("prctl(1,", "prctl(0,")
    monkeypatch.setattr(processes, "PARENT_DEATH_PROBE", deaf)
    monkeypatch.setattr(processes, "PROBE_SECONDS", 1)
    found = processes.parent_death(machine())
    assert (found.level, found.found) == (Level.WARNING, "outlived its parent")


def test_threads_are_named(machine, monkeypatch):
    other = threading.Thread(name="tracer")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), other])
    found = processes.threads_at_start(machine())
    assert (found.level, found.found) == (Level.WARNING, "tracer")


def test_an_ignored_sigchld(machine, monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    assert processes.signals_at_start(machine()).level is Level.WARNING
