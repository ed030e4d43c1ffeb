"""Runs in a notebook's kernel, which is killed and restarted with one click."""

import os
import sys
from pathlib import Path

import pytest

from support.processes.scripts import alive, check_gone

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

TESTS = Path(__file__).parents[1]
DEADLINE = 60  # seconds for a cell, most of which it takes to import PyTensor
GONE = 2.0  # seconds in which workers of a kernel that was killed end

CELL = """
import warnings
warnings.simplefilter("error")
import numpy as np, pytensor.tensor as pt, synk
synk.fork(3)
x = pt.vector("x")
total = synk.function([x], (x.sum(), "sum"))
data = synk.data(np.arange(12.0))
assert total(data) == 66
print(*synk.pids())
"""


@pytest.fixture
def kernel():
    manager = jupyter_client.KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def run(manager, cell):
    """Run a cell; return what it printed."""
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE)
        said = []
        answer = client.execute_interactive(cell, timeout=DEADLINE, output_hook=said.append)
        text = "".join(message["content"].get("text", "") for message in said)
        assert answer["content"]["status"] == "ok", answer["content"]
        return text
    finally:
        client.stop_channels()


def check_restarts(manager, count):
    for _ in range(count):
        pids = list(map(int, run(manager, CELL).split()))
        assert len(pids) == 3
        assert all(map(alive, pids))
        before = set(os.listdir("/dev/shm"))
        manager.restart_kernel(now=True)
        check_gone(pids, GONE)
        assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("synk-")} == set()


LIBRARY = "jupyter_client and zmq keep descriptors and threads of their own"


@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_workers_go_with_a_kernel_that_is_restarted(kernel):
    check_restarts(kernel, 1)


PRINTING = """
import os, sys, numpy as np, pytensor.tensor as pt, synk
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

class Say(Op):
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs):
        print("rows", *inputs[0])
        print("complaint", len(inputs[0]), file=sys.stderr)
        outputs[0][0] = inputs[0].copy()
        if len(inputs[0]) == 1:
            print(end="no end yet, ", flush=True)
        if inputs[0][0] > 100:
            os._exit(3)

synk.fork(2)
x = pt.vector("x")
f = synk.function([x], (Say()(x).sum(), "sum"))
"""


@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_the_cell_that_ran_last_shows_what_workers_print(kernel):
    assert run(kernel, PRINTING) == ""
    for _ in range(2):
        lines = run(kernel, "f(np.arange(3.0))").splitlines()
        assert "[rank 1] rows 2.0" in lines
        assert "[rank 1] complaint 1" in lines
        died = run(kernel, "try: f(np.arange(99.0, 102))\nexcept synk.WorkerDied as error: print(error)")
        assert "[rank 1] no end yet, rows 101.0" in died.splitlines()
        assert "its last words on standard error:\ncomplaint 1\ncomplaint 1" in died
        assert "[rank 1]" not in run(kernel, "synk.restart()")
    run(kernel, "f(np.arange(3.0))")
    assert "[rank 1] no end yet, " in run(kernel, "synk.close()").splitlines()


ON_GPUS = f"""
import sys; sys.path.append({str(TESTS)!r})
import os, signal, numpy as np, pytensor, pytensor.tensor as pt, synk
from support.cupy import fake_cupy
from synk.device import choose, probe

fake_cupy.make(n_gpus=2)
choose.survey = lambda: probe.Survey(tuple(probe.Gpu(number, "a stand-in") for number in range(2)))

def make():
    global f, v
    synk.fork(2, device="cuda")
    x, v = pt.vector("x"), pytensor.shared(np.ones(2), name="v")
    f = synk.function([x], (x.sum(), "sum"), updates=[(v, v + 1)])
    assert f(np.arange(5.0)) == 10
    synk.commit()

make()
"""


@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_cells_are_run_again_on_gpus_without_a_new_kernel(kernel):
    """By the stand-in, which refuses CUDA to forks of the kernel once that has used it."""
    run(kernel, ON_GPUS)
    run(kernel, "os.kill(synk.pids()[1], signal.SIGKILL)")
    assert "rank 1" in run(kernel, "try: f(np.arange(5.0))\nexcept synk.WorkerDied as error: print(error)")
    run(kernel, "synk.restart()")
    run(kernel, "assert f(np.arange(5.0)) == 10")
    assert "[3. 3.]" in run(kernel, "print(synk.get_value(1, v))")
    run(kernel, "synk.close()")
    run(kernel, "make()")
    assert "[2. 2.]" in run(kernel, "print(synk.get_value(1, v))")
    pids = run(kernel, "print(synk.run.current._source._server.pid, synk.pids()[1])").split()
    kernel.restart_kernel(now=True)
    check_gone(pids, GONE)


@pytest.mark.slow
@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_workers_go_with_every_kernel_that_is_restarted(kernel):
    check_restarts(kernel, 20)
