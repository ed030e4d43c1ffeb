"""Where CPUs and GPUs are, as made-up folders of /sys tell, and this machine's own."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as some

from support.cases.sys_tree import make_sys, write
from synk.transport.machines.topology import Cpu, GpuOnBus, Topology, parse_list, read_topology, write_list


def test_two_sockets_with_four_cores_of_two_threads(tmp_path):
    found = read_topology(make_sys(tmp_path, sockets=2, cores=4, threads=2))
    assert found.cpus[0] == Cpu(0, core=0, socket=0, node=0)
    assert found.cpus[5] == Cpu(5, core=5, socket=1, node=1)
    assert found.cpus[13] == Cpu(13, core=5, socket=1, node=1)
    assert [cpu.number for cpu in found.cpus] == list(range(16))
    assert len({cpu.core for cpu in found.cpus}) == 8
    assert found.gpus == found.bare_nodes == ()


def test_one_core(tmp_path):
    assert read_topology(make_sys(tmp_path)) == Topology((Cpu(0, 0, 0, 0),))


def test_a_kernel_without_numa_has_one_node(tmp_path):
    found = read_topology(make_sys(tmp_path, sockets=2, cores=2, nodes_per_socket=0))
    assert {cpu.node for cpu in found.cpus} == {0}
    assert {cpu.socket for cpu in found.cpus} == {0, 1}


def test_nodes_without_cpus_are_told_apart(tmp_path):
    found = read_topology(make_sys(tmp_path, sockets=2, cores=2, bare_nodes=[2, 10]))
    assert found.bare_nodes == (2, 10)


def test_gpus_have_the_node_of_their_slot(tmp_path):
    gpus = [("0000:3b:00.0", 1), ("0000:af:00.0", -1)]
    found = read_topology(make_sys(tmp_path, sockets=2, cores=2, gpus=gpus))
    assert found.gpus == (GpuOnBus("0000:3b:00.0", 1), GpuOnBus("0000:af:00.0", None))


def test_what_the_kernel_does_not_tell_is_simple(tmp_path):
    assert read_topology(tmp_path, {3, 1}) == Topology((Cpu(1, 1, 0, 0), Cpu(3, 3, 0, 0)))
    write(tmp_path, "sys/devices/system/cpu/online", "0-1")
    write(tmp_path, "sys/devices/system/cpu/cpu1/topology/physical_package_id", "-1")
    assert read_topology(tmp_path) == Topology((Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0)))


def test_this_machine_has_every_cpu_of_this_process():
    allowed = os.sched_getaffinity(0)
    found = read_topology(allowed=allowed)
    assert allowed <= {cpu.number for cpu in found.cpus}
    assert all(cpu.core <= cpu.number for cpu in found.cpus)


@pytest.mark.parametrize(("text", "numbers"), [("", set()), ("0-2,8", {0, 1, 2, 8}), ("5", {5})])
def test_lists_of_the_kernel(text, numbers):
    assert parse_list(text) == numbers
    assert write_list(numbers) == text


@given(some.sets(some.integers(0, 300)))
def test_a_list_is_read_as_it_was_written(numbers):
    assert parse_list(write_list(numbers)) == numbers
