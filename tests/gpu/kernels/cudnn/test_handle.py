"""cuDNN as threads use it: handles, streams, workspaces, and the plans that they share."""

import gc
import threading

import pytest

from synk.gpu.kernels.cudnn import descriptor, handle
from synk.gpu.kernels.cudnn.cudnn_plan import UnsupportedByCudnn
from synk.gpu.kernels.cudnn.handle import handle_of, plan_or_none
from synk.ops.kernels.window import Convolution, Window

ONE = descriptor.forward(Convolution(Window()), (1, 1, 2, 2), (1, 1, 1, 1), dtype="float32")
TWO = descriptor.forward(Convolution(Window()), (2, 1, 2, 2), (1, 1, 1, 1), dtype="float32")


class Bytes:
    """Arrays of the three tensors of a descriptor."""

    def __init__(self, cupy, plan):
        shapes = [plan.descriptor.shape(uid) for uid in (1, 2, 3)]
        self.arrays = [cupy.ones(shape, "float32") for shape in shapes]
        self.pointers = {uid: array.data.ptr for uid, array in enumerate(self.arrays, 1)}


def execute(cupy, stated=ONE):
    plan = handle_of(cupy).plan(stated)
    held = Bytes(cupy, plan)
    handle_of(cupy).execute(plan, held.pointers)
    return held.arrays[2]


def test_each_thread_has_a_handle_and_all_share_plans(cudnn, cupy):
    handle_of(cupy).plan(ONE)
    assert handle_of(cupy) is handle_of(cupy)
    found = []

    def other():
        found.append((handle_of(cupy), handle_of(cupy).plan(ONE)))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found[0][0] is not handle_of(cupy)
    assert found[0][1] is handle_of(cupy).plan(ONE)
    assert [entry[0] for entry in cudnn.log] == ["handle", "plan", "handle"]


def test_each_gpu_has_a_handle_and_plans_of_its_own(cudnn, cupy):
    first = handle_of(cupy)
    first.plan(ONE)
    cupy.cuda.Device(1).use()
    assert handle_of(cupy) is not first
    handle_of(cupy).plan(ONE)
    assert [entry[0] for entry in cudnn.log] == ["handle", "plan", "handle", "plan"]
    cupy.cuda.Device(0).use()
    assert handle_of(cupy) is first


def test_kernels_are_launched_in_the_current_stream(cudnn, cupy):
    null = cupy.cuda.get_current_stream()
    execute(cupy)
    execute(cupy)
    other = cupy.cuda.Stream(non_blocking=True)
    other.use()
    execute(cupy)
    null.use()
    execute(cupy)
    handle = cudnn.log[0][1]
    assert [entry[3] for entry in cudnn.log if entry[0] == "execute"] == [null.ptr] * 2 + [
        other.ptr,
        null.ptr,
    ]
    assert [entry[1:] for entry in cudnn.log if entry[0] == "stream"] == [
        (handle, null.ptr),
        (handle, other.ptr),
        (handle, null.ptr),
    ]


def test_a_workspace_is_kept_grows_and_belongs_to_its_stream(cudnn, cupy):
    def execute_with(size):
        cudnn.pygraph.workspace_size = size
        handle.plans.cache_clear()
        execute(cupy)

    for size in (64, 64, 32, 0, 100, 100, 64):
        execute_with(size)
    assert cupy.allocated == [64, 100]
    stream = cupy.cuda.Stream()
    stream.use()
    execute_with(10)
    assert cupy.allocated == [64, 100, 10]
    kept = handle_of(cupy)._workspaces
    assert len(kept) == 2
    cupy.cuda.Stream(null=True).use()
    cupy.cuda.machine.streams.remove(stream)  # the stand-in holds on to it
    del stream
    gc.collect()
    assert [size for size, _ in kept.values()] == [100]


def test_old_plans_go_when_there_are_too_many(cudnn, cupy, monkeypatch):
    monkeypatch.setattr(handle, "MOST_PLANS", 1)
    made = handle_of(cupy)
    plan = made.plan(ONE)
    assert made.plan(ONE) is plan
    made.plan(TWO)
    assert made.plan(ONE) is not plan
    assert len(handle.plans()[0]) == 1


def test_results_are_those_of_a_matrix_product(cudnn, cupy):
    assert (execute(cupy).get() == 1).all()


def test_convolutions_without_a_plan(cudnn, cupy):
    empty = descriptor.forward(Convolution(Window()), (0, 1, 2, 2), (1, 1, 1, 1), dtype="float32")
    assert plan_or_none(cupy, empty) is None
    assert cudnn.log == []
    cudnn.refuses = lambda graph: True
    with pytest.raises(UnsupportedByCudnn, match="no engine for .*No valid engine configs"):
        handle_of(cupy).plan(ONE)
    assert plan_or_none(cupy, ONE) is None


def test_without_a_gpu_the_other_provider_is_told_of(cudnn, cupy, monkeypatch):
    def fail():
        raise RuntimeError("cudnnHandle Create failed")

    monkeypatch.setattr(cudnn, "create_handle", fail)
    with pytest.warns(RuntimeWarning, match="Create failed"):
        assert plan_or_none(cupy, ONE) is None


def test_a_launch_that_fails_is_told_with_its_convolution(cudnn, cupy):
    execute(cupy)
    cudnn.fails = True
    with pytest.raises(
        RuntimeError, match=r"cuDNN fails in Descriptor\(operation='forward'.*EXECUTION_FAILED"
    ):
        execute(cupy)
    cudnn.fails = False
    with pytest.raises(RuntimeError, match="cuDNN fails in Descriptor.*variant pack"):
        handle_of(cupy).execute(handle_of(cupy).plan(ONE), {})


def test_a_recording_has_a_workspace_that_nothing_else_frees(cudnn, cupy):
    cudnn.pygraph.workspace_size = 64
    execute(cupy)
    stream = cupy.cuda.get_current_stream()
    recorded = cupy.cuda.Stream()
    recorded.use()
    recorded.begin_capture()
    execute(cupy)
    recorded.end_capture()
    stream.use()
    assert cupy.allocated == [64, 64]
    assert list(handle_of(cupy)._workspaces) == [stream]
