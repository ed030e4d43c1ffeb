"""Cores: a machine with one fault is told it, and what to do."""

from dataclasses import replace

import pytest

from support.cases.machines import CHECKED, check_told, told, v2
from support.cases.sys_tree import make_sys
from synk.tools.doctor import cores
from synk.tools.doctor.finding import NOTE, OK, WARNING, Level


@pytest.mark.parametrize(
    CHECKED,
    [
        told(cores.affinity, WARNING, "1 usable of 4", "taskset -c 0-3", affinity=[2]),
        told(cores.affinity, NOTE, affinity=[0, 2]),
        told(cores.quota, WARNING, None, "synk.fork(1, threads=1)", files=v2(cpu_max="50000 100000")),
        told(cores.quota, WARNING, None, "synk.fork(1, threads=1)", files=v2(cpu_max="150000 100000")),
        told(cores.quota, WARNING, None, "synk.fork(2, threads=1)", files=v2(cpu_max="250000 100000")),
        told(cores.quota, OK, files=v2(cpu_max="400000 100000")),
        told(cores.thread_variables, NOTE, "OMP_NUM_THREADS=8", OMP_NUM_THREADS="8"),
        told(cores.pinning_variables, WARNING, OMP_PROC_BIND="true"),
        told(cores.pinning_variables, OK, OMP_PROC_BIND="FALSE"),
    ],
)
def test_a_machine_with_one_fault_is_told_it_and_what_to_do(machine, check, level, found, remedy, given):
    check_told(check(machine(**given)), level, found, remedy)


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
