"""Which CPUs each rank has: whole cores next to each other, threads where cores are few, nodes, or all."""

import os

import pytest
from hypothesis import strategies as some

from support.slow import examples
from synk.transport.machines.binding import plan_binding
from synk.transport.machines.topology import Cpu, Topology


def machine(sockets=2, cores=4, threads=2, nodes=2, gpus=()):
    """Return a topology as Linux numbers it on x86: second threads come after all first ones."""
    total = sockets * cores
    return Topology(
        tuple(
            Cpu(cpu, cpu % total, cpu % total // cores, cpu % total * nodes // total)
            for cpu in range(total * threads)
        ),
        gpus,
    )


def plan(n_ranks, bind, topology=None, allowed=None):
    topology = topology or machine()
    allowed = [cpu.number for cpu in topology.cpus] if allowed is None else allowed
    return [sorted(cpus) for cpus in plan_binding(n_ranks, bind, topology, allowed)]


def test_ranks_have_whole_cores_next_to_each_other():
    assert plan(4, "core") == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    assert plan(8, "core") == [[core, core + 8] for core in range(8)]
    assert plan(3, "core") == [[0, 1, 8, 9], [2, 3, 4, 10, 11, 12], [5, 6, 7, 13, 14, 15]]


def test_ranks_that_are_more_than_cores_have_threads_of_their_own():
    assert plan(16, "core") == [[core + thread] for core in range(8) for thread in (0, 8)]
    assert plan(3, "core", machine(1, 2, 2, 1)) == [[0, 2], [1], [3]]


def test_ranks_that_are_more_than_threads_share_cores():
    assert plan(5, "core", machine(1, 2, 1, 1)) == [[0], [0], [1], [1], [1]]
    assert plan(3, "core", machine(1, 1, 1, 1)) == [[0]] * 3


def test_ranks_have_a_node_or_several():
    node = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    assert plan(1, "numa") == [list(range(16))]
    assert plan(2, "numa") == node
    assert plan(4, "numa") == [node[0], node[0], node[1], node[1]]
    assert plan(3, "numa") == [node[0], node[1], node[1]]


def test_a_node_has_ranks_as_it_has_cpus():
    # Of the second node two CPUs are allowed.
    first, second = [0, 1, 2, 3, 8, 9, 10, 11], [4, 12]
    assert plan(5, "numa", allowed=[*first, *second]) == [first] * 4 + [second]


def test_a_limited_process_binds_within_its_limits():
    # As a control group, taskset or Slurm grants.
    assert plan(2, "core", allowed=[5, 6, 13]) == [[5, 13], [6]]
    assert plan(2, "none", allowed=[5, 6]) == [[5, 6]] * 2
    assert plan(2, "numa", allowed=[5, 6]) == [[5, 6]] * 2


binds = some.sampled_from(["core", "numa", "none"])
machines = some.builds(
    machine, some.integers(1, 3), some.integers(1, 5), some.integers(1, 3), some.integers(1, 4)
)


@examples(20, 100, some.integers(1, 40), binds, machines, some.data())
def test_every_rank_has_cpus_and_only_allowed_ones(n_ranks, bind, topology, data):
    numbers = [cpu.number for cpu in topology.cpus]
    allowed = data.draw(some.sets(some.sampled_from(numbers), min_size=1))
    bound = plan_binding(n_ranks, bind, topology, allowed)
    assert len(bound) == n_ranks
    assert all(cpus and cpus <= allowed for cpus in bound)


@examples(20, 100, some.integers(1, 40), machines)
def test_cores_are_shared_evenly_and_none_is_idle(n_ranks, topology):
    core_of = {cpu.number: cpu.core for cpu in topology.cpus}
    bound = plan_binding(n_ranks, "core", topology, core_of)
    assert set().union(*bound) == set(core_of)
    ranks_of = {
        core: [cpus for cpus in bound if core in {core_of[cpu] for cpu in cpus}] for core in core_of.values()
    }
    counts = {len(ranks) for ranks in ranks_of.values()}
    assert max(counts) - min(counts) <= 1
    if n_ranks <= len(ranks_of):
        assert counts == {1}  # and so no core is anybody else's


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="bind='socket' is none of 'core', 'numa' and 'none'"):
        plan(1, "socket")
    with pytest.raises(ValueError, match=r"none of the CPUs \[99\] is in the topology"):
        plan(1, "core", allowed=[99])


def test_a_plan_is_what_the_kernel_takes():
    from synk.transport.machines.topology import read_topology

    allowed = os.sched_getaffinity(0)
    (cpus,) = plan_binding(1, "core", read_topology(allowed=allowed), allowed)
    os.sched_setaffinity(0, cpus)
    assert os.sched_getaffinity(0) == allowed
