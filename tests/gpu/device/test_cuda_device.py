"""A rank on a GPU: what it asks CuPy for, and whole runs; CuPy is a stand-in that computes with NumPy."""

import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cuda import fake_driver
from support.cupy import fake_cublas, stand_in
from synk import ops
from synk.extensions import updates
from synk.extensions.train import make_train_function
from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.device.probe import Gpu

H200 = Gpu(1, "NVIDIA H200")


# --- the device ------------------------------------------------------------------------------------------


def test_nothing_is_touched_before_activation(cupy):
    CudaDevice(H200)
    assert cupy.calls == []


def test_activation_and_its_way_back(cupy):
    device = CudaDevice(H200, memory=0.25, precision="tf32")
    device.activate()
    assert cupy.calls[:2] == [("device", 1), ("limit", 0.25)]
    assert ("compute type", "float32", 0) in cupy.calls
    assert cupy.calls[-1] == ("stream", "non-blocking")
    assert cupy.cuda.get_current_stream() is device.stream
    assert cupy.cuda.get_allocator().__name__ == "malloc"
    assert os.environ["CUPY_TF32"] == "1"
    cupy.calls.clear()
    device.deactivate()
    assert "CUPY_TF32" not in os.environ
    assert cupy.calls == [
        ("compute type", "float32", 0),
        ("waited for", "non-blocking"),
        ("stream", "null"),
        ("freed",),
        ("device", 0),
    ]
    assert cupy.cuda.get_allocator() == "the default pool"
    cupy.calls.clear()
    device.deactivate()
    assert cupy.calls == []


def test_float32_products_are_float32_unless_asked(cupy, monkeypatch):
    assert CudaDevice(H200).precision == "float32"
    monkeypatch.setenv("CUPY_TF32", "1")
    assert CudaDevice(H200).precision == "tf32"
    device = CudaDevice(H200, precision="float32")
    device.activate()
    assert os.environ["CUPY_TF32"] == "0"
    device.deactivate()
    assert os.environ["CUPY_TF32"] == "1"
    monkeypatch.setenv("CUPY_TF32", "yes")
    with pytest.raises(ValueError, match="CUPY_TF32='yes' is not a number"):
        CudaDevice(H200)


def test_a_refused_gpu_is_named_and_nothing_stays_changed(cupy):
    environment = dict(os.environ)
    device = CudaDevice(Gpu(7, "NVIDIA H200"), threads=1)
    with pytest.raises(synk.CudaUnavailable, match=r"GPU 7 \(NVIDIA H200\) cannot be used: .*cudaError"):
        device.activate()
    assert dict(os.environ) == environment
    assert cupy.calls == [("device", 0)]  # the way back


def test_a_gpu_that_failed_can_be_left(cupy, monkeypatch):
    def fail(stream):
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(cupy.cuda.Stream, "synchronize", fail)
    device = CudaDevice(H200)
    device.activate()
    device.deactivate()
    assert ("freed",) in cupy.calls
    assert cupy.cuda.get_allocator() == "the default pool"


def test_every_thread_gets_the_stream_once(cupy):
    device = CudaDevice(H200)
    device.activate()
    seen = []

    def compute():
        seen.append(cupy.cuda.get_current_stream().name)
        device.bind()
        seen.append(cupy.cuda.get_current_stream() is device.stream)
        count = len(cupy.calls)
        device.bind()
        seen.append(len(cupy.calls) - count)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    device.deactivate()
    assert seen == ["null", True, 0]


def test_an_op_on_the_host_is_told_of_where_asked(cupy):
    matrix = pt.matrix("matrix", dtype="float64")
    values = pt.linalg.eigvalsh(matrix, matrix)  # of two matrices: CuPy has no such routine
    with pytest.warns(UserWarning, match="Eigvalsh.*: runs on the host"):
        pytensor.function([matrix], values, mode=CudaDevice(H200).mode())
    pytensor.function([matrix], values, mode=CudaDevice(H200, host_ops="allow").mode())


# --- whole runs ------------------------------------------------------------------------------------------


def shared(value, name):
    return pytensor.shared(np.asarray(value, dtype="float64"), name=name)


DTYPES = [
    "float16",
    pytest.param("bfloat16", marks=pytest.mark.skipif(find_spec("ml_dtypes") is None, reason="ml_dtypes")),
]


def train_classifier(n_steps=100):
    """Train a small network on the present run; return the losses, and the weights of rank 1."""
    rng = np.random.default_rng(11)
    rows = rng.normal(size=(48, 5)).astype("float32")
    labels = (np.abs(rows[:, :2]).sum(1) > 1.5).astype("int32")
    x, y = pt.fmatrix("x"), pt.ivector("y")
    first, bias, second = (
        pytensor.shared(rng.normal(size=shape, scale=0.5).astype("float32"), name=name)
        for name, shape in (("first", (5, 16)), ("bias", (16,)), ("second", (16, 2)))
    )
    loss = ops.softmax_cross_entropy(ops.relu(x @ first + bias) @ second, y).mean()
    parameters = [first, bias, second]
    train = make_train_function(loss, parameters, [x, y], updates.sgd, learning_rate=0.5)
    losses = [float(train(rows, labels)) for _ in range(n_steps)]
    return losses, [synk.get_value(1, variable) for variable in parameters]


@pytest.mark.parametrize("precision", DTYPES)
def test_training_in_16_bits_converges_as_in_float32(gpus, precision):
    gpus(2)
    plain, _ = train_classifier()
    synk.close()
    gpus(2, precision=precision)
    fake_cublas.computed.clear()
    losses, weights = train_classifier()
    code = fake_cublas.R_16F if precision == "float16" else fake_cublas.R_16BF
    kinds = {(code, code), (code, fake_cublas.R_32F)}
    assert {(factors, result) for _, factors, result, _ in fake_cublas.computed} == kinds
    assert {v.dtype for v in weights} == {np.dtype("float32")}
    np.testing.assert_allclose(losses[:5], plain[:5], rtol=0.02)
    assert losses != plain
    assert losses[-1] < 0.3 * losses[0]
    np.testing.assert_allclose(losses[-1], plain[-1], rtol=0.1)


def test_any_thread_of_the_script_computes_on_the_stream_of_its_rank(cupy, gpus):
    gpus(1)
    function = synk.function([], pt.as_tensor(1.0))
    function()
    cupy.calls.clear()
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
    assert cupy.calls == [("device", 0), ("stream", "non-blocking")]


def test_networks_of_convolutions_compute_on_the_device(gpus):
    """By kernels in array operations, until there are others: nothing runs on the host."""
    gpus(2)
    rng = np.random.default_rng(0)
    w, gamma, beta = (
        shared(rng.normal(size=(4, 2, 3, 3)), "w"),
        shared(np.ones(4), "gamma"),
        shared(np.zeros(4), "beta"),
    )
    x, labels = pt.tensor("x", shape=(None, 2, 8, 8), dtype="float64"), pt.lvector("labels")
    y = ops.conv2d(x, w, padding=1)
    y, _ = ops.batch_norm(y, gamma, beta, np.zeros(4), np.ones(4), train=True, all_ranks=True)
    logits = ops.global_avg_pool2d(ops.max_pool2d(ops.relu(y), 2))
    loss = ops.softmax_cross_entropy(logits, labels).mean()
    outputs = [loss, *((g, "avg") for g in pt.grad(loss * synk.n_rows, [w, gamma, beta]))]
    values = rng.normal(size=(5, 2, 8, 8)), rng.integers(4, size=5)
    results = synk.function([x, labels], outputs)(*values)
    synk.close()
    synk.fork(2, device="cpu")
    for got, expected in zip(results, synk.function([x, labels], outputs)(*values), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_a_worker_whose_gpu_fails_says_so(cupy, gpus):
    gpus(4, n_gpus=4)  # one more than the stand-in has
    f = synk.function([], pt.as_tensor(1.0))
    with pytest.raises(synk.WorkerDied, match=r"GPU \d \(NVIDIA H200\) cannot be used"):
        f()


def test_a_gpu_that_gives_nothing_back_does_not_keep_a_run_open(cupy, gpus, monkeypatch):
    gpus(1)
    v = shared([1.0], "v")
    synk.function([], updates=[(v, v + 1)])()

    def fail(array):
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(stand_in, "asnumpy", fail)
    with pytest.warns(synk.SynkWarning, match="could not be read back: cudaErrorIllegalAddress"):
        synk.close()


# --- the master before the fork ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
if {cupy}:
    from support.cupy import fake_cupy
    fake_cupy.make()
import synk
n = synk.fork(device={device})
mapped = "libcuda" in open("/proc/self/maps").read()
device = synk.run.session.current._session._processes.device
print(n, type(device).__name__, "in the master" if mapped else "elsewhere")
"""


def said(folder, device=None, cupy=True, **told):
    """Run a script that forks, where the driver is told this; return what it prints, or its last error."""
    root = Path(synk.__file__).parents[1]
    text = SCRIPT.format(tests=str(root / "tests"), cupy=cupy, device=repr(device))
    environment = {**os.environ, "PYTHONPATH": str(root), "LD_LIBRARY_PATH": str(folder), **told}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, env=environment
    )
    return (ended.stdout or ended.stderr.strip().splitlines()[-1]).strip()


def test_the_master_loads_no_driver(folder, tmp_path):
    note = tmp_path / "note"
    assert said(folder, FAKE_GPUS="2", FAKE_NOTE=str(note)) == "2 CudaDevice elsewhere"
    assert note.exists()  # of the probe, a process of its own
    assert said(folder, FAKE_GPUS="0") == f"{len(os.sched_getaffinity(0))} CpuDevice elsewhere"


def test_a_run_on_cores_starts_no_probe(folder, tmp_path):
    note = tmp_path / "note"
    told = {"FAKE_GPUS": "2", "FAKE_NOTE": str(note)}
    assert "CpuDevice elsewhere" in said(folder, "cpu", **told)
    assert "CpuDevice elsewhere" in said(folder, None, cupy=False, **told)
    assert not note.exists()


def test_what_is_missing_is_named(folder):
    error = said(folder, "cuda", FAKE_ERROR="999")
    assert error.startswith("synk.CudaUnavailable: device='cuda': the driver fails with error 999")
