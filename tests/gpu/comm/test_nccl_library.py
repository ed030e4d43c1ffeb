"""Questions to NCCL and CuPy: decisions without either, and the names where CuPy is installed."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from synk.gpu.comm import nccl_library
from synk.gpu.comm.carrier import REDUCED
from synk.gpu.comm.nccl_library import (
    Library,
    allow_sharing,
    connect_at_once,
    connection,
    is_on,
    remedy,
)
from synk.values.operations import OPERATIONS

CODES = [f"NCCL_{name.upper()}" for name in (*REDUCED, *OPERATIONS)]


@pytest.mark.parametrize(
    ("devices", "version", "expected"),
    [
        ([0, 1], 22907, "nccl"),
        ([0, 1], None, "staged"),
        ([0, 0], None, "staged"),
        ([0, 0], 22907, "staged"),
        ([0, 0], 23000, "nccl"),
        ([0, 1, 1], 22907, "staged"),
        (["GPU-a", "GPU-a"], 23004, "nccl"),
    ],
)
def test_ranks_that_share_a_gpu_are_staged_where_nccl_refuses(devices, version, expected):
    assert connection(devices, version) == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([0, 1], {}),
        ([0, 0], {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}),
        ([0, 0, 0], {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2"}),
    ],
)
def test_sharing_is_allowed_where_it_happens(devices, expected):
    environ = {}
    assert set(allow_sharing(devices, environ)) == expected.keys()
    assert environ == expected


def test_what_the_user_has_set_stays_and_counts():
    environ = {"NCCL_MULTI_RANK_GPU_ENABLE": "0", "NCCL_MAX_CTAS": "8"}
    assert allow_sharing([0, 0, 0], environ) == ()
    assert environ == {"NCCL_MULTI_RANK_GPU_ENABLE": "0", "NCCL_MAX_CTAS": "8"}
    assert connection([0, 0], 23004, environ) == "staged"
    assert connection([0, 1], 23004, environ) == "nccl"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1", True), ("0", False), ("", False), ("false", False), (" 2x", True), ("-2", True), ("0x0", False)],
)
def test_switches_are_read_as_nccl_reads_them(value, expected):
    assert is_on(value) == expected
    kind = "nccl" if expected else "staged"
    assert connection([0, 0], 23004, {"NCCL_MULTI_RANK_GPU_ENABLE": value}) == kind


def test_where_nccl_fails_host_memory_is_a_way_for_ranks_that_share_a_gpu():
    assert (
        remedy({}) == remedy({"NCCL_MULTI_RANK_GPU_ENABLE": "0"}) == "set NCCL_DEBUG=WARN to have it say more"
    )
    assert "NCCL_MULTI_RANK_GPU_ENABLE=0 to send" in remedy({"NCCL_MULTI_RANK_GPU_ENABLE": "1"})


def test_ranks_are_connected_when_they_are_linked():
    environ = {}
    assert connect_at_once(environ) == ("NCCL_RUNTIME_CONNECT",)
    assert environ == {"NCCL_RUNTIME_CONNECT": "0"}
    assert connect_at_once(environ) == ()


class CudaError(RuntimeError):
    pass


def fake_cupy():
    """Return the part of CuPy that a library calls, which notes what it was asked."""
    calls = []

    class Event:
        ptr = 5

        def __init__(self, disable_timing):
            assert disable_timing

        def record(self, stream=None):
            calls.append(f"record {stream}")

    class Device:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            calls.append(f"device {self.number}")

        def __exit__(self, *_):
            calls.append("device before")

    runtime = SimpleNamespace(getDevice=lambda: 3, eventQuery=lambda ptr: 600, CUDARuntimeError=CudaError)
    cuda = SimpleNamespace(
        runtime=runtime, Event=Event, Device=Device, get_current_stream=lambda: SimpleNamespace(ptr=11)
    )
    return SimpleNamespace(cuda=cuda), calls


def fake_nccl(calls):
    names = CODES
    return SimpleNamespace(
        NcclError=RuntimeError,
        groupStart=lambda: calls.append("start"),
        groupEnd=lambda: calls.append("end"),
        NcclCommunicator=lambda *arguments: arguments,
        get_version=lambda: 23004,
        get_unique_id=lambda: b"\1" * 128,
        **{name: number for number, name in enumerate(names)},
    )


def test_ranks_connect_on_their_own_device():
    cupy, calls = fake_cupy()
    library = Library(cupy, fake_nccl(calls))
    assert library.connect(2, b"id", 1) == (2, b"id", 1)
    assert calls == ["device 3", "device before"]
    assert library.version() == 23004
    assert library.unique_id() == b"\1" * 128


def test_a_mark_is_passed_or_not_or_the_device_has_failed():
    cupy, calls = fake_cupy()
    library = Library(cupy, fake_nccl(calls))
    done = library.mark()
    assert calls == ["record None"]
    assert not done()
    cupy.cuda.runtime.eventQuery = lambda ptr: 700 if ptr == 5 else 0
    with pytest.raises(CudaError, match="700"):
        done()
    cupy.cuda.runtime.eventQuery = lambda ptr: 0
    assert done()


def test_a_group_ends_whatever_happens():
    cupy, calls = fake_cupy()
    library = Library(cupy, fake_nccl(calls))
    with pytest.raises(ZeroDivisionError), library.group():
        1 / 0  # noqa: B018
    assert calls == ["start", "end"]


def test_arrays_and_streams_are_told_by_address():
    cupy, calls = fake_cupy()
    library = Library(cupy, fake_nccl(calls))
    assert library.stream() == 11
    assert library.pointer(SimpleNamespace(data=SimpleNamespace(ptr=64))) == 64
    assert len({library.code(name) for name in (*REDUCED, *OPERATIONS)}) == len(CODES)


def test_without_nccl_there_is_none(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    assert nccl_library.import_nccl() is None


def test_nccl_has_what_is_asked_of_it():
    pytest.importorskip("cupy")
    nccl = nccl_library.import_nccl()
    if nccl is None:
        pytest.skip("CuPy finds no NCCL")
    for name in ("NcclError", "groupStart", "groupEnd", "get_version", "get_unique_id"):
        assert hasattr(nccl, name)
    for name in CODES:
        assert isinstance(getattr(nccl, name), int)
    methods = ["allReduce", "reduce", "broadcast", "allGather", "send", "recv", "abort", "check_async_error"]
    assert all(hasattr(nccl.NcclCommunicator, name) for name in methods)


def test_the_master_may_ask_for_the_version_before_it_forks():
    pytest.importorskip("cupy")
    if nccl_library.import_nccl() is None:
        pytest.skip("CuPy finds no NCCL")
    code = (
        "import os; import cupy; before = len(os.listdir('/proc/self/task'))\n"
        "from synk.gpu.comm.nccl_library import import_nccl; print(import_nccl().get_version() > 22700)\n"
        "print(len(os.listdir('/proc/self/task')) - before, 'libcuda.so' in open('/proc/self/maps').read())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["True", "0", "False"], ended.stderr
