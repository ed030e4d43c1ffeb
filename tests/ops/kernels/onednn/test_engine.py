"""Threads, forks and the workspace of oneDNN in a process."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from support.cases.images import Refuses
from support.slow import slow
from synk.ops.kernels.onednn import OneDnn, available, convolution_plan, reason
from synk.ops.kernels.onednn.engine import PAGE, Workspace, engine
from synk.ops.kernels.onednn.engine import threads as use
from synk.ops.kernels.window import Convolution, Window

pytestmark = pytest.mark.skipif(not available(), reason=reason())

DEADLINE = 60  # seconds

CONVOLVE = """
import os, sys
import numpy as np
from synk.ops.kernels.im2col import Im2col
from synk.ops.kernels.onednn import OneDnn, threads
from synk.ops.kernels.window import Convolution, Window

convolution = Convolution(Window(None, padding=((1, 1), (1, 1))), 1, "NHWC")
x, w = np.ones((4, 32, 32, 64), "float32"), np.ones((64, 64, 3, 3), "float32")

provider = OneDnn(Im2col(np))

def convolve():
    for width in (31, 32):
        part = np.ascontiguousarray(x[:, :, :width])
        y = provider.forward(convolution)(part, w)
        gx = provider.input_gradient(convolution)(y, w, 32, width)
        gw = provider.weight_gradient(convolution)(part, y, 3, 3)
    assert y.max() == 64 * 9, y.max()

def native_threads():
    return len(os.listdir("/proc/self/task"))
"""


def script(body, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", CONVOLVE + textwrap.dedent(body)],
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("environment", [slow({}), {"OMP_NUM_THREADS": "2"}])
def test_a_child_computes_after_its_parent_did(environment):
    done = script(
        """
        before = native_threads()
        convolve()
        assert native_threads() == before
        child = os.fork()
        convolve()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print("child", status)
        """,
        **environment,
    )
    assert done.stdout.split() == ["child", "0"], done.stdout + done.stderr


@pytest.mark.slow
def test_a_child_computes_while_another_thread_of_its_parent_does():
    done = script(
        """
        import threading
        convolve()
        stop = threading.Event()
        def go():
            while not stop.is_set():
                convolve()
        other = threading.Thread(target=go)
        other.start()
        codes = []
        for _ in range(8):
            child = os.fork()
            if not child:
                convolve()
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        other.join()
        print(*set(codes))
        """
    )
    assert done.stdout.split() == ["0"], done.stdout + done.stderr


@pytest.mark.slow
def test_more_threads_are_used_when_asked_for():
    done = script(
        """
        before = native_threads()
        convolve()
        threads(2)
        convolve()
        print(native_threads() - before)
        """
    )
    assert done.stdout.split() == ["1"], done.stdout + done.stderr


def test_the_setting_of_others_is_restored():
    set_number, get_number = engine().set_threads, engine()._get_threads
    before = get_number()
    try:
        set_number(3)
        compute()
        assert get_number() == 3
    finally:
        set_number(before)
    with pytest.raises(ValueError, match=r"threads\(0\)"):
        use(0)


def compute(x=None):
    x = np.ones((2, 9, 9, 32), "float32") if x is None else x
    convolution = Convolution(Window(None, padding=((1, 1), (1, 1))), 1, "NHWC")
    return OneDnn(Refuses()).forward(convolution)(x, np.ones((32, 32, 3, 3), "float32"))


def test_threads_of_python_take_turns():
    images = [np.full((2, 9, 9, 32), number, "float32") for number in range(4)]
    convolution = Convolution(Window(None, padding=((1, 1), (1, 1))), 1, "NHWC")
    forward = OneDnn(Refuses()).forward(convolution)
    weights = [np.full((32, 32, 3, 3), 1 + number, "float32") for number in range(4)]
    expected = [forward(x, w) for x, w in zip(images, weights, strict=True)]
    wrong = []

    def repeat(number):
        for _ in range(200):
            if not np.array_equal(forward(images[number], weights[number]), expected[number]):
                wrong.append(number)

    workers = [threading.Thread(target=repeat, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_a_workspace_grows_and_starts_on_a_page():
    workspace = Workspace()
    workspace.grow(100)
    assert workspace.address % PAGE == 0
    first = workspace.address
    workspace.grow(50)
    assert (workspace.size, workspace.address) == (100, first)
    workspace.grow(PAGE * 100)
    assert workspace.size == PAGE * 100


@pytest.mark.slow
def test_a_plan_that_goes_is_destroyed(monkeypatch):

    destroyed = []
    real = convolution_plan.destroy_all
    monkeypatch.setattr(
        convolution_plan, "destroy_all", lambda handles: (destroyed.append(len(handles)), real(handles))
    )
    compute()
    gc.collect()
    assert destroyed
    assert destroyed[0] >= 6  # image, weights, weights reordered, result, and two primitives
