"""The doctor finds what is wrong with a machine, and says what to do.

Most machines here are made up: a folder with a few files in the place of ``/``. The last tests run the
command on this machine, and on what `unshare` makes of it.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytensor
import pytest
import threadpoolctl

from support.cuda.fake_driver import build as build_driver
from support.processes.scripts import alive
from synk.__main__ import main
from synk.doctor import (
    cgroups,
    compiling,
    cores,
    gpus,
    memory,
    processes,
    rehearsal,
    report,
    software,
)
from synk.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding, Level, examined, grade
from synk.doctor.machine import GIB, MIB, Machine
from synk.kernels.onednn import find_onednn as onednn
from synk.native import compiler as native

ROOT = Path(__file__).parents[2]
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
SHM = "30 25 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=64m"
MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB"


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
        return Machine(
            tmp_path,
            environ,
            frozenset(affinity),
            uid,
            rlimit=lambda which: rlimit.get(which, UNLIMITED),
            space=lambda path: SimpleNamespace(total=space[0], free=space[1]),
        )

    return make


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


# --- findings ----------------------------------------------------------------------------------------


def test_the_first_complaint_that_applies_counts():
    complaints = (False, Level.PROBLEM, "no"), (True, Level.NOTE, "this"), (True, Level.PROBLEM, "late")
    assert grade("disk", "full", *complaints) == Finding(Level.NOTE, "disk", "full", "this")
    assert grade("disk", "empty") == Finding(Level.OK, "disk", "empty")


def test_a_check_that_fails_is_a_finding():
    def spinning_disk():
        raise ZeroDivisionError("no disk")

    found = examined(spinning_disk)
    assert (found.level, found.subject) == (Level.WARNING, "spinning disk")
    assert "ZeroDivisionError: no disk" in found.found


def test_a_check_that_lacks_a_package_refers_to_it():
    def needy():
        import surely_not_installed  # noqa: F401

    found = examined(needy)
    assert found.level is Level.NOTE
    assert "surely_not_installed" in found.found


def test_a_check_that_hangs_is_a_finding():
    def stuck():
        try:
            time.sleep(60)
        except OSError:  # as a module that mistakes the alarm for an error of a file
            return Finding(Level.OK, "stuck", "fine")

    found = examined(stuck, seconds=0.05)
    assert (found.level, found.found) == (Level.WARNING, "could not be checked within 0.05 s")


# --- the machine -------------------------------------------------------------------------------------


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


# --- control groups ----------------------------------------------------------------------------------


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


# --- memory ------------------------------------------------------------------------------------------


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


# --- cores -------------------------------------------------------------------------------------------


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


def test_the_variables_of_threads_are_those_that_ranks_set():
    from synk.device.cpu import THREAD_VARIABLES

    assert cores.THREAD_VARIABLES == THREAD_VARIABLES


@pytest.mark.parametrize(("text", "numbers"), [("", set()), ("0-2,8", {0, 1, 2, 8}), ("5", {5})])
def test_lists_of_the_kernel(text, numbers):
    assert cores.parse_list(text) == numbers


# --- processes ---------------------------------------------------------------------------------------


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


# --- oneDNN ------------------------------------------------------------------------------------------


def onednn_file():
    return next(onednn.places(), None)


@pytest.mark.skipif(onednn_file() is None, reason="needs the extra onednn")
def test_onednn_is_found_with_version_and_place(machine):
    found = compiling.onednn(machine())
    assert found.level is Level.OK
    assert re.fullmatch(rf"3\.\d+\.\d+ in {re.escape(onednn_file())}", found.found)


@pytest.mark.parametrize(
    ("files", "processor", "openmp", "level", "text", "remedy"),
    [
        ((), "x86_64", onednn.OPENMP, Level.NOTE, "oneDNN is not installed", "install synk[onednn]"),
        (["/dev/null"], "x86_64", "libm.so.6", Level.WARNING, "/dev/null does not", "install synk[onednn]"),
        (["libdnnl.so.3"], "x86_64", "libmissing.so.1", Level.WARNING, "needs libmissing.so.1", "libgomp1"),
        ((), "aarch64", onednn.OPENMP, Level.OK, "linux on aarch64", ""),
    ],
)
def test_onednn_that_does_not_serve(machine, monkeypatch, files, processor, openmp, level, text, remedy):
    monkeypatch.setattr(onednn.platform, "machine", lambda: processor)
    monkeypatch.setattr(onednn, "OPENMP", openmp)
    monkeypatch.setattr(onednn, "places", lambda: iter(files))
    monkeypatch.setattr(onednn, "find", lambda: onednn.search(files))
    found = compiling.onednn(machine())
    assert (found.level, text in found.found) == (level, True)
    assert found.remedy.endswith(remedy)
    assert bool(found.remedy) == (level is not Level.OK)


# --- software ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "numbers"), [("3.0.7", (3, 0, 7)), ("3.1rc2", (3, 1)), ("4.0.dev1+g1", (4, 0)), ("x", ())]
)
def test_releases(version, numbers):
    assert software.release(version) == numbers


@pytest.mark.parametrize(("version", "level"), [("2.38", 3), ("3.0.0", 0), ("3.99", 0), ("4.0.0", 3)])
def test_supported_versions(version, level, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    found = software.package("pytensor", (3, 0), (4,))
    assert found.level == level
    assert ("pip install 'pytensor>=3.0,<4'" in found.remedy) == bool(level)


def test_the_range_is_that_of_setup_cfg(machine):
    found = [check(machine()) for check in (software.numpy, software.pytensor, software.posix_ipc)]
    assert [finding.level for finding in found] == [Level.OK] * 3
    required = re.findall(r"^    (pytensor .*)", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert required == ["pytensor >=3.0,<4"]


def test_a_package_that_is_missing():
    found = software.package("surely-not-installed")
    assert (found.level, found.found) == (Level.PROBLEM, "not installed")
    assert found.remedy.endswith("-m pip install surely-not-installed")


def test_a_package_that_is_broken(monkeypatch):
    def fail(name):
        raise ImportError("libm.so.7: cannot open\nmore")

    monkeypatch.setattr(metadata, "version", lambda name: "2.0")
    monkeypatch.setattr(software, "import_module", fail)
    found = software.package("numpy")
    assert found.found == "2.0, fails to import: ImportError: libm.so.7: cannot open"
    assert found.level is Level.PROBLEM


def test_an_old_python(machine, monkeypatch):
    assert software.python(machine()).level is Level.OK
    monkeypatch.setattr(software, "sys", SimpleNamespace(version_info=(3, 10, 4), platform="linux"))
    assert software.python(machine()).level is Level.PROBLEM


def test_settings_that_slow_pytensor(machine):
    assert software.pytensor_settings(machine()).level is Level.OK
    with pytensor.config.change_flags(optimizer_verbose=True):
        found = software.pytensor_settings(machine())
    assert (found.level, found.found) == (Level.NOTE, "optimizer_verbose=True")


def load_libraries(monkeypatch, user_api, *names):
    """Make threadpoolctl tell that these libraries of a kind are loaded."""
    known = [{"user_api": user_api, "internal_api": name, "prefix": name, "version": "1.0"} for name in names]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: known)


@pytest.mark.parametrize(
    ("runtimes", "level"),
    [((), 0), (("libiomp",), 0), (("libgomp",), 1), (("libgomp", "libgomp"), 1), (("libgomp", "libomp"), 2)],
)
def test_openmp(machine, monkeypatch, runtimes, level):
    load_libraries(monkeypatch, "openmp", *runtimes)
    assert software.openmp(machine()).level == level


def test_blas(machine, monkeypatch):
    assert software.matrix_products(machine()).level is Level.OK
    load_libraries(monkeypatch, "blas", "mkl")
    assert software.matrix_products(machine()).found == "mkl 1.0"
    load_libraries(monkeypatch, "openmp", "libgomp")
    assert software.matrix_products(machine()).level is Level.WARNING


# --- the compiler ------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler"
)


@needs_compiler
def test_a_compiler_that_works(machine):
    assert compiling.compiler(machine()).level is Level.OK


@pytest.mark.parametrize(
    ("environ", "said"),
    [({}, "no cc, gcc or clang"), ({"CC": "tcc"}, "CC=tcc is not"), ({"CC": "cc '"}, "No closing quotation")],
)
def test_no_compiler(machine, monkeypatch, environ, said):
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    found = compiling.compiler(machine(**environ))
    assert found.level is Level.WARNING
    assert said in found.found


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'k.c:1: error: no stdio.h' >&2; echo stopped >&2; exit 1", "k.c:1: error: no stdio.h"),
        ("exit 3", "exit status 3"),
    ],
)
def test_a_compiler_that_fails(machine, tmp_path, monkeypatch, script, said):
    program = tmp_path / "cc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(native, "find_compiler", lambda: native.Compiler((str(program),)))
    found = compiling.compiler(machine())
    assert (found.level, found.found) == (Level.WARNING, f"{program} fails: {said}")


def test_a_compiler_that_makes_no_library(machine, monkeypatch):
    broken = SimpleNamespace(command=("cc",), compile=lambda sources: [b"no library"])
    monkeypatch.setattr(native, "find_compiler", lambda: broken)
    assert "cc compiles, but does not load" in compiling.compiler(machine()).found


@pytest.mark.parametrize(("known", "level"), [(True, Level.OK), (False, Level.WARNING)])
def test_the_layout_of_arrays(machine, monkeypatch, known, level):
    monkeypatch.setattr("synk.native.libraries.layout_is_known", lambda: known)
    assert compiling.array_layout(machine()).level is level


def test_the_kernel_cache(machine, tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "synk"
    monkeypatch.setenv("SYNK_CACHE", str(folder))
    assert compiling.kernel_cache(machine()).found == f"0 kernels in {folder}, 8 GiB free"
    assert not folder.parent.exists()  # it only looked
    assert compiling.kernel_cache(machine(space=(GIB, MIB))).level is Level.WARNING
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert f"is not used: others may write to {folder}" in compiling.kernel_cache(machine()).found


def test_a_kernel_cache_of_another_user(machine, tmp_path, monkeypatch):
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    for folder in (tmp_path, tmp_path / "new"):
        monkeypatch.setenv("SYNK_CACHE", str(folder))
        found = compiling.kernel_cache(machine())
        assert found.level is Level.WARNING
        assert f"{folder} is not used: " in found.found
        assert f"this is user {stranger}" in found.found


def test_files_that_the_kernel_cache_does_not_take(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("SYNK_CACHE", str(tmp_path))
    for name, mode in (("ka.so", 0o600), ("kb.so", 0o666), ("other.so", 0o666)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    os.mkfifo(tmp_path / "kc.so")
    found = compiling.kernel_cache(machine())
    assert found.found.startswith("1 kernels")
    assert found.remedy.startswith("2 files there are not used: others may write to kb.so")
    assert "kc.so is no regular file" in found.remedy


def test_no_kernel_cache_without_a_home(machine, monkeypatch):
    monkeypatch.delenv("SYNK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "~")
    assert compiling.kernel_cache(machine()).found == "a folder is not used: there is no home folder"


def test_a_kernel_cache_that_cannot_be_written_to(machine, tmp_path, monkeypatch):
    file = tmp_path / "file"
    monkeypatch.setenv("SYNK_CACHE", str(file / "synk"))
    file.touch()
    found = compiling.kernel_cache(machine())
    assert found.level is Level.WARNING
    assert "SYNK_CACHE" in found.remedy


# --- GPUs --------------------------------------------------------------------------------------------

NO_GPU = {"driver": {}, "cupy": {}, "nccl": {}, "cudnn": {}}
TWO = {"driver": 12040, "gpus": ["NVIDIA H100", "NVIDIA H100"]}
CUPY = {"version": "13.3.0", "cuda": 12040, "gpus": 2}
OLD_CUDNN = {"error": "cuDNN is 8.9, and synk was written for 9: install it"}
ALL = {"driver": TWO, "cupy": CUPY, "nccl": {"version": 22105}, "cudnn": {"version": 91900}}


@pytest.mark.parametrize(
    ("facts", "levels"),
    [
        (NO_GPU, [0, 0, 0, 0, 0]),
        ({**NO_GPU, "driver": TWO}, [0, 0, 1, 2, 1]),
        (ALL, [0, 0, 0, 0, 0]),
        ({**ALL, "nccl": {"error": "libnccl.so.2: no such file"}}, [0, 0, 0, 2, 0]),
        ({**NO_GPU, "driver": {"driver": 12040, "error": 100}}, [1, 0, 0, 0, 0]),
        ({**NO_GPU, "driver": {"driver": 12040, "error": 804}}, [2, 0, 0, 0, 0]),
        ({**NO_GPU, "driver": {"driver": 12040, "gpus": []}}, [0, 1, 0, 0, 0]),
        ({**ALL, "cupy": {**CUPY, "cuda": 13000}}, [0, 0, 2, 0, 0]),
        ({**ALL, "cupy": {"error": "libcublas"}}, [0, 0, 2, 0, 0]),
        (
            {**ALL, "cudnn": OLD_CUDNN},
            [0, 0, 0, 0, 2],
        ),
        (
            {**NO_GPU, "cudnn": OLD_CUDNN},
            [0, 0, 0, 0, 0],
        ),
    ],
)
def test_gpus(facts, levels):
    assert [check(facts).level for check in gpus.CHECKS] == levels


def test_gpus_are_listed_and_versions_read():
    assert [check(ALL).found for check in gpus.CHECKS] == [
        "speaks CUDA 12.4",
        "2 × NVIDIA H100",
        "13.3.0 for CUDA 12.4",
        "2.21.5",
        "9.19.0",
    ]


def test_what_is_wrong_with_cudnn_is_told_beside_what_to_install():
    found = gpus.cudnn({**ALL, "cudnn": OLD_CUDNN})
    assert found.found == "cuDNN is 8.9, and synk was written for 9"
    assert found.remedy.endswith("-m pip install 'synk[cuda12,cudnn12]'")


def test_the_driver_is_asked_in_another_process(tmp_path, monkeypatch):
    for name, value in {"LD_LIBRARY_PATH": build_driver(tmp_path), "FAKE_GPUS": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    facts = gpus.ask()
    assert facts["driver"] == {"driver": 13000, "gpus": ["NVIDIA H200", "NVIDIA H201"]}
    assert find_spec("cupy") or facts["cupy"] == facts["nccl"] == {}
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_driver_that_hangs_or_crashes(tmp_path, monkeypatch):
    probe = tmp_path / "probe.py"
    monkeypatch.setattr(gpus, "PROBE", probe)
    probe.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(RuntimeError, match="exit code -11"):
        gpus.ask()
    monkeypatch.setattr(gpus, "PROBE_SECONDS", 0.3)
    probe.write_text("import time; time.sleep(60)")
    with pytest.raises(RuntimeError, match=r"did not answer within 0 s"):
        gpus.ask()


# --- the rehearsal -----------------------------------------------------------------------------------


def played(script, seconds=20.0):
    """Return the finding where this script is run for the rehearsal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "COMMAND", [sys.executable, "-I", "-c", script])
        patch.setattr(rehearsal, "DEADLINE", seconds)
        return rehearsal.rehearse(None)


def test_the_rehearsal_tells_where_it_failed():
    found = played("print('import synk', flush=True); raise OSError('no processes left')")
    assert (found.level, found.found) == (Level.PROBLEM, "start two ranks: OSError: no processes left")


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_rehearsal_that_hangs_is_ended_with_all_its_processes(tmp_path, by_itself):
    told = tmp_path / "pids"
    say = "import os, time; print(os.fork(), file=open({!r}, 'a'), flush=True)"
    hang = say + "; os.closerange(1, 3); time.sleep(60)"
    found = examined(played, hang.format(str(told)), 2 if by_itself else 60, seconds=60 if by_itself else 2)
    deadline = time.monotonic() + 5
    while any(map(alive, filter(None, map(int, told.read_text().split())))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert found.found == (
        "import synk: no end after 2 s" if by_itself else "could not be checked within 2 s"
    )


def test_hints_after_an_exception_are_no_reason():
    failing = "import os, sys; print('OSError: full\\nHINT: set it', file=sys.stderr); sys.exit(1)"
    assert played(failing).found == "import synk: OSError: full"


def test_a_rehearsal_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal.tempfile, "tempdir", str(tmp_path))
    leave = "import tempfile; assert tempfile.mkdtemp().startswith({!r})"
    assert played(leave.format(str(tmp_path))).found == "import synk: exit code 0"
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_that_skips_a_stage_is_no_success():
    stages = [stage for stage in rehearsal.REMEDIES if stage != "all-reduce"]
    found = played(f"print(*{stages!r}, sep='\\n')")
    assert (found.level, found.found) == (Level.PROBLEM, "all-reduce: exit code 0")


# --- the report --------------------------------------------------------------------------------------

FINDINGS = [
    Finding(Level.PROBLEM, "disk", "on fire", "pour water over it, but not too much"),
    Finding(Level.OK, "fan", "turns"),
    Finding(Level.NOTE, "lamp", "dim", "change"),
]


def test_the_worst_comes_last_and_remedies_line_up():
    assert report.table(FINDINGS, 40, coloured=False).splitlines() == [
        "ok       fan   turns",
        "note     lamp  dim",
        "               -> change",
        "PROBLEM  disk  on fire",
        "               -> pour water over it,",
        "                  but not too much",
        "",
        "3 checks: 1 ok, 1 note, no warning, 1 problem",
    ]


def test_colours_change_no_text():
    coloured = report.table(FINDINGS, 40, coloured=True)
    assert "\033[1;31mPROBLEM\033[0m" in coloured
    assert re.sub("\033\\[[0-9;]*m", "", coloured) == report.table(FINDINGS, 40, coloured=False)


def test_json_keeps_the_order():
    answer = json.loads(report.as_json(FINDINGS))
    assert answer["worst"] == "problem"
    assert [finding["subject"] for finding in answer["findings"]] == ["disk", "fan", "lamp"]
    assert answer["findings"][1] == {"level": "ok", "subject": "fan", "found": "turns", "remedy": ""}


# --- the command -------------------------------------------------------------------------------------


def doctor(*before, start=("-m", "synk"), after=(), **environ):
    """Run the command with --json; return its exit status and the findings by subject."""
    done = subprocess.run(
        [*before, sys.executable, *start, "doctor", "--json", *after],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, **environ},
    )
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    return done.returncode, {finding["subject"]: finding for finding in answer["findings"]}


def can_unshare():
    program = shutil.which("unshare")
    return program and subprocess.run([program, "-rm", "true"], capture_output=True).returncode == 0


needs_unshare = pytest.mark.skipif(not can_unshare(), reason="needs namespaces without privileges")


def test_this_machine():
    core = str(min(os.sched_getaffinity(0)))
    status, findings = doctor("taskset", "-c", core, OMP_NUM_THREADS="8", SYNK_CACHE="/proc/cache")
    assert status == int(any(finding["level"] == "problem" for finding in findings.values()))
    assert findings["a run of two ranks"]["level"] == "ok"
    assert findings["death with the parent"]["level"] == "ok"
    assert findings["cores"]["level"] == "warning"
    assert findings["thread variables"]["found"] == "OMP_NUM_THREADS=8"
    assert findings["kernel cache"]["level"] == "warning"
    assert all(finding["remedy"] for finding in findings.values() if finding["level"] != "ok")
    assert not any("could not be checked" in finding["found"] for finding in findings.values())


@needs_unshare
def test_shared_memory_as_docker_gives_it():
    mount = 'mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm && exec "$@"'
    status, findings = doctor("unshare", "-rm", "sh", "-c", mount, "sh")
    assert status == 1
    assert findings["shared memory"]["level"] == "problem"
    assert "--shm-size=" in findings["shared memory"]["remedy"]


def test_where_synk_cannot_be_imported(tmp_path):
    (tmp_path / "posix_ipc.py").write_text("raise ImportError('libnothing.so.1: cannot open')\n")
    status, findings = doctor(start=[str(ROOT / "synk")], PYTHONPATH=str(tmp_path))
    assert status == 1
    assert "libnothing.so.1" in findings["posix_ipc"]["found"]
    assert findings["a run of two ranks"]["found"] == "import synk: ImportError: libnothing.so.1: cannot open"
    assert findings["shared memory"]["found"]


def test_commands_are_listed(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert {"doctor", "bench"} <= set(capsys.readouterr().out.split())


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as left:
        main(["surgeon"])
    assert left.value.code == 2
    assert "surgeon" in capsys.readouterr().err
