"""Where ranks are, as the kernel has it."""

import io
import os
import socket
import subprocess

import synk
from synk.run.device import CpuDevices
from synk.run.launch.placement import move_to, placement
from synk.transport.machines.topology import write_list


def printed():
    file = io.StringIO()
    synk.topology(file)
    return file.getvalue()


def test_a_run_prints_every_rank_with_its_cpus(ranks, capsys):
    ranks(2)
    synk.topology()
    shown = capsys.readouterr().out
    assert shown == printed()
    assert shown.startswith(f"{socket.gethostname()}: ")
    assert f"ranks 0-1: CPUs {write_list(os.sched_getaffinity(0))}\n" in shown


def test_a_rank_that_somebody_binds_is_seen_there(ranks):
    ranks(2)
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(synk.pids()[1], {cpu})
    assert f"rank 1: CPUs {cpu}\n" in printed()


def test_a_process_that_has_ended_is_nowhere():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    own, ended = placement([os.getpid(), process.pid], CpuDevices(2, 1)).ranks
    assert (own.cpus, ended.cpus) == (os.sched_getaffinity(0), frozenset())


class NamedDevices(CpuDevices):
    def name(self, rank):
        return f"card {rank % 2}"


def test_devices_that_have_names_are_shown_with_their_ranks():
    shown = placement([os.getpid()] * 3, NamedDevices(3, 1))
    assert [rank.device for rank in shown.ranks] == ["card 0", "card 1", "card 0"]


def test_a_process_is_moved_where_the_kernel_lists_no_threads(monkeypatch):
    before = os.sched_getaffinity(0)

    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", missing)
    one = {min(before)}
    try:
        move_to(one)
        assert os.sched_getaffinity(0) == one
    finally:
        os.sched_setaffinity(0, before)
