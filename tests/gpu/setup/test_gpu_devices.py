"""Which rank computes on which GPU, and what a run on GPUs may become after a restart."""

import pytest

from synk.gpu.device.probe import Gpu
from synk.gpu.setup.gpu_devices import GpuDevices

DEVICES = GpuDevices(3, 1, gpus=(Gpu(0, "H100"), Gpu(1, "H100")))


def test_ranks_that_share_gpus_name_them():
    assert [DEVICES.name(rank) for rank in range(3)] == ["GPU 0 (H100)", "GPU 1 (H100)", "GPU 0 (H100)"]


def test_arrays_of_gpus_are_not_read_in_place():
    assert not DEVICES.on_host


def test_fewer_ranks_leave_gpus_alone():
    assert DEVICES.with_ranks(1).gpus == DEVICES.gpus[:1]
    assert [DEVICES.with_ranks(1).memory_limit, DEVICES.with_ranks(1).make(0).memory] == [0.9, 0.9]


def test_a_restart_has_no_more_ranks_than_the_fork():
    for n_ranks in (1, 3):
        DEVICES.check_ranks(n_ranks)
    with pytest.raises(ValueError, match="n_parallel=4 is more than the 3 ranks on GPUs"):
        DEVICES.check_ranks(4)


def test_a_server_forks_where_there_are_workers():
    assert DEVICES.needs_fork_server
    assert not DEVICES.with_ranks(1).needs_fork_server
