"""The devices of runs on cores, which are chosen without a look at anything else."""

import subprocess
import sys

import numpy as np
import pytest

import synk
from synk.run.device import CpuDevice, CpuDevices, choose, choose_devices
from synk.run.launch.fork_arguments import checked_devices, checked_ranks, with_environment
from synk.transport.machines.topology import Cpu, Topology


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    """Let there be no CuPy, and eight cores."""
    monkeypatch.setattr(choose, "find_cupy", lambda: False)
    monkeypatch.setattr(choose, "count_cores", lambda: 8)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_there_is_a_rank_for_each_core(device):
    devices = choose_devices(device, None, None)
    assert devices == CpuDevices(8, 1)
    assert {type(devices.make(rank)) for rank in range(8)} == {CpuDevice}


@pytest.mark.parametrize(
    ("n_parallel", "threads", "each"), [(2, None, 4), (3, None, 2), (16, None, 1), (2, 3, 3)]
)
def test_cores_are_divided_unless_the_script_says_how_many_threads(n_parallel, threads, each):
    devices = choose_devices("cpu", n_parallel, threads)
    assert (devices.n_ranks, devices.threads) == (n_parallel, each)
    assert devices.make(0).threads == each


RUN = """
import sys, numpy as np, pytensor.tensor as pt, synk
synk.fork(2, device="cpu")
x = pt.vector("x")
assert synk.function([x], (x.sum(), "sum"))(np.arange(5.0)) == 10
print([name for name in sys.modules if name.startswith(("synk.gpu", "cupy"))])
"""


def test_a_run_on_cores_imports_nothing_for_others():
    ended = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == ("[]\n", 0), ended.stderr


@pytest.mark.parametrize("number", [np.int64(2), np.uint8(2), np.array(2)])
def test_numbers_of_ranks_and_threads_may_be_numpys(number, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    devices = checked_devices(number, "cpu", number)
    found = (
        devices.n_ranks,
        devices.threads,
        checked_ranks(number, 3, devices),
        *with_environment(number, None, None),
    )
    assert found == (2, 2, 2, 2, None, None)
    assert {type(one) for one in found[:4]} == {int}
    with pytest.raises(TypeError, match="n_parallel=.*True.* is not an integer"):
        checked_devices(np.bool_(True), "cpu", 1)


def test_more_threads_than_cpus_are_told(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 5})
    assert checked_devices(9, "cpu", 4).threads == 4
    with pytest.warns(synk.SynkWarning, match="threads=5 of each rank .* this process may use CPUs 0-2,5"):
        assert checked_devices(1, "cpu", 5).threads == 5


def test_ranks_that_share_the_cores_they_are_bound_to_are_told(monkeypatch):
    cpus = tuple(Cpu(number, number // 2, 0, 0) for number in range(8))  # two threads of each of four cores
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("synk.run.launch.fork_arguments.read_topology", lambda allowed: Topology(cpus))
    assert checked_devices(2, "cpu", None, bind="core").bind == "core"
    with pytest.warns(synk.SynkWarning, match="bind='core' of 3 ranks .* share 2 cores, .* CPUs 0-3: pass"):
        checked_devices(3, "cpu", None, bind="core")
    assert checked_devices(3, "cpu", None, bind="numa").bind == "numa"
