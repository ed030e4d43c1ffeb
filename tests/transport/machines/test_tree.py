"""The text that shows where ranks are."""

from support.cases.sys_tree import make_sys
from synk.transport.machines.binding import plan_binding
from synk.transport.machines.topology import read_topology
from synk.transport.machines.tree import PlacedMachine, PlacedRank, tree


def placed(bound, first=0, device=""):
    return [PlacedRank(rank, cpus, device) for rank, cpus in enumerate(bound, first)]


def test_ranks_stand_under_the_smallest_that_has_their_cpus(tmp_path):
    topology = read_topology(make_sys(tmp_path, sockets=2, cores=4, threads=2, gpus=[("0000:3b:00.0", 1)]))
    allowed = range(16)
    two = [*plan_binding(2, "numa", topology, allowed), *plan_binding(1, "none", topology, allowed)]
    assert tree([PlacedMachine("h1", topology, placed(two))]).splitlines() == [
        "h1: 2 sockets, 8 cores, 16 threads",
        "  rank 2: CPUs 0-15",
        "  socket 0",
        "    NUMA node 0: 4 cores, 8 threads, CPUs 0-3,8-11",
        "      rank 0: CPUs 0-3,8-11",
        "  socket 1",
        "    NUMA node 1: 4 cores, 8 threads, CPUs 4-7,12-15",
        "      GPU 0000:3b:00.0",
        "      rank 1: CPUs 4-7,12-15",
    ]


def test_a_socket_of_two_nodes_has_ranks_of_its_own(tmp_path):
    topology = read_topology(make_sys(tmp_path, sockets=1, cores=4, nodes_per_socket=2, bare_nodes=[7]))
    both = placed([frozenset(range(4))])
    assert tree([PlacedMachine("h1", topology, both)]).splitlines() == [
        "h1: 1 socket, 4 cores",
        "  socket 0",
        "    rank 0: CPUs 0-3",
        "    NUMA node 0: 2 cores, CPUs 0-1",
        "    NUMA node 1: 2 cores, CPUs 2-3",
        "  NUMA node 7: memory only",
    ]


def test_ranks_with_the_same_cpus_share_a_line_and_ranks_count_over_machines(tmp_path):
    topology = read_topology(make_sys(tmp_path))
    machines = [
        PlacedMachine("h1", topology, placed([frozenset({0})] * 3)),
        PlacedMachine("h2", topology, placed([frozenset({0}), frozenset()], first=3, device="GPU 0 (H100)")),
    ]
    assert tree(machines).splitlines() == [
        "h1: 1 socket, 1 core",
        "  socket 0",
        "    NUMA node 0: 1 core, CPUs 0",
        "      ranks 0-2: CPUs 0",
        "h2: 1 socket, 1 core",
        "  rank 4: ended, GPU 0 (H100)",
        "  socket 0",
        "    NUMA node 0: 1 core, CPUs 0",
        "      rank 3: CPUs 0, GPU 0 (H100)",
    ]


def test_a_node_of_two_sockets_shows_its_gpus_once(tmp_path):
    gpus = [("0000:3b:00.0", 0), ("0000:af:00.0", -1), ("0000:d8:00.0", 5)]
    topology = read_topology(make_sys(tmp_path, sockets=2, cores=1, nodes_per_socket=0, gpus=gpus))
    shown = tree([PlacedMachine("h1", topology, [])]).splitlines()
    assert [line.strip() for line in shown if "GPU" in line] == [
        "GPU 0000:3b:00.0",
        "GPU 0000:af:00.0, NUMA node not known",
        "GPU 0000:d8:00.0, NUMA node 5",
    ]
