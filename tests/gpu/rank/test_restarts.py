"""Workers of restarts and of later runs on GPUs: forked by the fork server, for rank 0 has used CUDA by then.

The stand-in refuses CUDA to a process that was forked when it was in use, so workers that came from the
master would not get far.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk
from support.processes import leaks
from support.processes.scripts import check_gone
from synk.extensions import train, updates
from synk.gpu.setup.fork_server import ForkServer
from synk.run.launch.fork_source import ForkSource
from synk.run.session.current import _source

TESTS = Path(__file__).parents[2]
VERSIONS = pytest.mark.parametrize("version", [23004, None], ids=["nccl", "staged"])

pytestmark = pytest.mark.filterwarnings("ignore:.*share GPU:synk.SynkWarning")


def shared(value, name):
    return pytensor.shared(np.asarray(value, "float64"), name=name)


def kill(rank, number=signal.SIGKILL):
    process = synk.run.session.current.session("test")._processes.workers.process(rank)
    process.signal(number)
    assert process.wait(5)


def server():
    return _source._server


class Training:
    """A network whose step brings rows, gradients, all-reduces and Adam."""

    def __init__(self):
        rng = np.random.default_rng(2)
        self.inputs, self.targets = synk.data(rng.normal(size=(60, 5))), synk.data(rng.normal(size=60))
        x, y = pt.matrix("x"), pt.vector("y")
        self.weights = shared(rng.normal(size=5), "weights")
        loss = ((pt.tanh(x @ self.weights) - y) ** 2).mean()
        made = updates.adam(loss, [self.weights], learning_rate=0.05)
        self.step = train.make_train_function(loss, [self.weights], [x, y], lambda loss, params: made)

    def one(self, number):
        rows = np.random.default_rng(number).permutation(60)[:23]
        return float(self.step(self.inputs, self.targets, batch=rows))

    def state(self):
        return synk.gather(self.weights, nd_up=1).tobytes()


@pytest.mark.parametrize(("n_ranks", "version"), [(3, 23004), (2, None)], ids=["nccl", "staged"])
def test_training_goes_on_after_a_death_with_the_bits_of_an_undisturbed_one(gpus, n_ranks, version):
    gpus(n_ranks, version=version)
    training = Training()
    losses, state = [training.one(number) for number in range(8)], training.state()
    synk.close()

    gpus(n_ranks, version=version)
    training, again = Training(), []
    for number in range(8):
        if number in (2, 5):
            synk.commit()
            training.one(number)  # which the restart takes back
            kill(n_ranks - 1)
            with pytest.raises(synk.WorkerDied, match=rf"rank {n_ranks - 1} .*SIGKILL"):
                training.one(number)
            before = synk.pids()
            synk.restart()
            assert synk.pids()[0] == before[0]
            assert not {*before[1:]} & {*synk.pids()[1:]}
        again.append(training.one(number))
    assert again == losses
    assert training.state() == state


@VERSIONS
@pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop:DeprecationWarning")
def test_a_restart_brings_back_what_each_rank_had(gpus, version, tmp_path):
    gpus(3, version=version)
    w, ragged = shared(np.arange(4.0), "w"), shared(np.zeros((3, 2)), "ragged")
    synk.broadcast(w)
    synk.set_value(1, w, np.full(4, 7.0))  # not the same on every rank
    synk.scatter(ragged, np.arange(14.0).reshape(7, 2))
    sums = synk.function([], (ragged.sum(axis=0), "sum"), sliceable_shareds=[ragged])
    generator = pytensor.shared(np.random.default_rng(3), name="generator")
    following, numbers = pt.random.uniform(size=(2,), rng=generator).owner.outputs
    draw = synk.function([], (numbers, "gather"), updates=[(generator, following)])
    x = pt.matrix("x")
    summed = synk.function([x], (x.sum(), "sum"))
    data = synk.data(np.arange(24.0).reshape(12, 2), oversize=2)
    np.save(tmp_path / "rows.npy", np.arange(10.0).reshape(5, 2))
    rows = synk.data(tmp_path / "rows.npy")
    assert (summed(data), summed(rows)) == (276, 45)
    draw()
    synk.commit()
    lengths = synk.get_lengths(ragged)
    kept = [[synk.get_value(rank, v) for rank in range(3)] for v in (w, ragged)]
    drawn = [draw(), draw()]
    for _ in range(2):
        synk.all_reduce(w, "sum")
        synk.scatter(ragged, np.ones((3, 2)))
        sums()
        synk.restart()
        for v, values in zip((w, ragged), kept, strict=True):
            for rank, value in enumerate(values):
                np.testing.assert_array_equal(synk.get_value(rank, v), value)
        np.testing.assert_array_equal([draw(), draw()], drawn)
        assert synk.get_lengths(ragged) == lengths
        np.testing.assert_array_equal(sums(), [42, 49])
        assert (summed(data), summed(rows)) == (data.data.sum(), 45)
        data[0] = 3.0  # the same memory here and there
        assert summed(data) == data.data.sum()


@VERSIONS
def test_a_script_may_have_several_runs(gpus, version):
    gpus(3, version=version)
    pid = server().pid
    for number in range(3):
        if number:
            assert synk.fork(3, device="cuda") == 3
        x, v = pt.vector("x"), shared([number], "v")
        f = synk.function([x], (x.sum(), "sum"), updates=[(v, v + 1)])
        assert f(np.arange(12.0)) == 66
        synk.all_reduce(v, "sum")
        assert [synk.get_value(rank, v) for rank in range(3)] == [3 * (number + 1)] * 3
        synk.commit()
        kill(1)
        with pytest.raises(synk.WorkerDied):
            f(np.arange(12.0))
        synk.restart()
        assert f(np.arange(12.0)) == 66
        synk.close()
        assert server().pid == pid


def test_runs_of_other_sizes_and_on_cores_come_between(gpus):
    gpus(2, n_gpus=3, version=None)  # what is staged has no number of ranks from before
    for n_ranks, device in ((3, "cuda"), (2, "cpu"), (1, "cuda"), (2, "cuda")):
        synk.close()
        synk.fork(n_ranks, device=device)
        x = pt.vector("x")
        assert synk.function([x], (x.sum(), "sum"))(np.arange(12.0)) == 66
        synk.commit()
        synk.restart()
        v = shared([1.0], "v")
        synk.all_reduce(v, "sum")
        assert v.get_value() == n_ranks


def test_a_death_in_a_later_generation_is_named_in_time(gpus):
    gpus(3)
    synk.commit()
    synk.restart()
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), name="summing")
    f(np.arange(3.0))
    pid = synk.pids()[2]
    began = time.monotonic()
    kill(2, signal.SIGSEGV)
    with pytest.raises(synk.WorkerDied, match=rf"rank 2 \(pid {pid}\) died of signal SIGSEGV .*summing"):
        f(np.arange(3.0))
    assert time.monotonic() - began < 1


def test_ten_restarts_leave_nothing(gpus):
    nccl = gpus(3)
    x, v = pt.vector("x"), shared(np.ones(5), "v")
    f, data = synk.function([x], (x.sum(), "sum"), updates=[(v, v + 1)]), synk.data(np.arange(12.0))
    counts = []
    for number in range(10):
        assert f(data) == f(np.arange(12.0)) == 66
        synk.all_reduce(v)
        assert nccl.live == 1  # of rank 0's links
        synk.commit()
        kill(1 + number % 2)
        synk.restart()
        assert nccl.live == 0
        found = leaks.take()
        mapped = Path("/proc/self/maps").read_text().count("/dev/shm/")
        counts.append((len(found.descriptors), len(found.children), len(found.threads), mapped))
    assert len(set(counts[2:])) == 1, counts
    held = [os.readlink(path) for path in Path(f"/proc/{server().pid}/fd").iterdir()]
    assert not [target for target in held if "shm" in target or "memfd" in target]
    assert "/dev/shm" not in Path(f"/proc/{server().pid}/maps").read_text()


# --- what workers find -------------------------------------------------------------------------------


class Tell(Op):
    """The input; rank 1 notes on the way where it is."""

    __props__ = ("pid", "file")

    def __init__(self, pid, file):
        self.pid, self.file = pid, file

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        if os.getpid() == self.pid:
            import of_the_script

            found = [os.getcwd(), os.environ.get("SINCE"), os.environ.get("BEFORE"), of_the_script.WORD]
            Path(self.file).write_text(repr(found))
        outputs[0][0] = inputs[0].copy()


@pytest.mark.filterwarnings("ignore:.*runs on the host")
def test_workers_are_where_the_script_is_now(gpus, tmp_path, monkeypatch):
    monkeypatch.setenv("BEFORE", "1")
    gpus(2)
    monkeypatch.delenv("BEFORE")
    monkeypatch.setenv("SINCE", "2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_the_script.py").write_text("WORD = 'found'")
    synk.commit()
    synk.restart()
    x = pt.vector("x")
    f = synk.function([x], (Tell(synk.pids()[1], str(tmp_path / "told"))(x).sum(), "sum"))
    assert f(np.arange(4.0)) == 6
    assert (tmp_path / "told").read_text() == repr([str(tmp_path), "2", None, "found"])


def test_workers_that_fail_at_birth_are_found_dead_with_what_they_said(gpus, monkeypatch):
    gpus(2)
    synk.commit()
    monkeypatch.setenv("CUPY_TF32", "maybe")  # they read it, rank 0 has done so
    synk.restart()
    with pytest.raises(synk.WorkerDied, match="CUPY_TF32='maybe' is not a number"):
        synk.all_reduce(shared([1.0], "v"))


def test_a_restart_may_come_from_a_thread_that_ends(gpus):
    gpus(2)
    synk.commit()
    thread = threading.Thread(target=synk.restart)
    thread.start()
    thread.join()
    time.sleep(0.3)
    v = shared([1.0], "v")
    synk.all_reduce(v, "sum")
    assert synk.get_value(1, v) == 2


# --- without the server ------------------------------------------------------------------------------


def test_workers_that_the_master_forks_have_no_gpu(gpus, monkeypatch):
    """The stand-in would tell if a restart took them."""
    monkeypatch.setattr(ForkSource, "server", lambda source, devices: None)
    gpus(2)
    synk.commit()
    synk.restart()
    with pytest.raises(synk.WorkerDied, match="cannot be used: RuntimeError: cudaErrorInitializationError"):
        synk.all_reduce(shared([1.0], "v"))


def test_a_server_that_died_is_told_of_and_the_run_goes_on(gpus):
    gpus(2)
    v = shared([1.0], "v")
    os.kill(server().pid, signal.SIGKILL)
    os.waitid(os.P_PID, server().pid, os.WEXITED | os.WNOWAIT)
    pids = synk.pids()
    for _ in range(2):
        with pytest.raises(
            synk.SynkStateError, match=r"restart: the fork server \(pid \d+\).* died of signal SIGKILL"
        ):
            synk.restart()
    synk.all_reduce(v, "sum")
    assert synk.get_value(1, v) == 2
    assert synk.pids() == pids
    synk.close()
    with pytest.raises(synk.CudaInitialisedError, match=r"fork: .* fork server .* died of signal SIGKILL"):
        synk.fork(2, device="cuda")
    assert synk.fork(1, device="cuda") == 1


def test_a_server_that_dies_in_a_restart_leaves_the_run_broken(gpus, monkeypatch):
    gpus(3)
    fork = ForkServer.fork

    def die(server, end):
        os.kill(server.pid, signal.SIGKILL)
        return fork(server, end)

    monkeypatch.setattr(ForkServer, "fork", die)
    with pytest.raises(synk.SynkStateError, match="died of signal SIGKILL"):
        synk.restart()
    with pytest.raises(synk.SynkStateError, match="could not be restarted"):
        synk.commit()


def test_several_ranks_after_one_are_refused(gpus):
    gpus(1)
    synk.close()
    with pytest.raises(synk.CudaInitialisedError, match="several ranks"):
        synk.fork(2, device="cuda")


# --- the end -----------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, time
import numpy as np, pytensor, synk
from support.cupy import fake_cupy
from synk.gpu.device import probe
from synk.gpu.setup import choose_gpus
print("once")  # buffered: what is forked must not say so again
fake_cupy.make(n_gpus=2)
choose_gpus.survey = lambda: probe.Survey(tuple(probe.Gpu(number, "a stand-in") for number in range(2)))
synk.fork(2, device="cuda")
synk.commit()
synk.restart()
v = pytensor.shared(np.ones(2), name="v")
synk.all_reduce(v, "sum")
assert synk.get_value(1, v).tolist() == [2, 2]
print(synk.run.session.current._source._server.pid, *synk.pids()[1:], flush=True)
{end}
"""


def run(end):
    """Return a script that has restarted, the pids of its fork server and worker, and what it printed."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT.format(end=end))]
    script = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    said = [script.stdout.readline(), script.stdout.readline()]
    return script, [*map(int, said[1].split())], said[0]


@pytest.mark.parametrize("end", ["time.sleep(60)", "os._exit(0)", "sys.exit()", "synk.close()"])
def test_server_and_workers_end_with_the_master_and_print_nothing_twice(end):
    script, pids, said = run(end)
    with script:
        assert len(pids) == 2
        if "sleep" in end:
            script.kill()
        script.wait(20)
        check_gone(pids, 1)
        assert script.stdout.read() == ""
        assert said == "once\n"
