"""Processes and their limits: a machine with one fault is told it, and what to do."""

import os
import resource
import signal
import threading

import pytest

from support.cases.machines import CHECKED, UNLIMITED, check_told, told, v2
from synk.tools.doctor import processes
from synk.tools.doctor.finding import NOTE, OK, WARNING, Level
from synk.tools.doctor.machine import GIB, MIB

FEW_PROCESSES = {resource.RLIMIT_NPROC: (50, 50)}
ANY_DUMP = {resource.RLIMIT_CORE: UNLIMITED}
LITTLE_LOCKED = {resource.RLIMIT_MEMLOCK: (MIB, MIB)}


@pytest.mark.parametrize(
    CHECKED,
    [
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
    check_told(check(machine(**given)), level, found, remedy)


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
