"""GPUs, their driver and libraries: the doctor asks in a process of its own."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from support.cuda.fake_driver import build as build_driver
from synk.tools.doctor import gpus

NO_GPU = {"driver": {}, "cupy": {}, "nccl": {}, "cudnn": {}}
TWO = {"driver": 12040, "gpus": ["NVIDIA H100", "NVIDIA H100"]}
CUPY = {"version": "13.3.0", "cuda": 12040, "gpus": 2}
OLD_CUDNN = {"error": "cuDNN is 8.9, and synk was written for 9: install it"}
ALL = {"driver": TWO, "cupy": CUPY, "nccl": {"version": 22105}, "cudnn": {"version": 91900}}


@pytest.mark.parametrize(
    ("facts", "levels"),
    [
        (NO_GPU, [0, 0, 0, 0, 0]),
        ({**NO_GPU, "driver": TWO}, [0, 0, 1, 2, 1]),
        (ALL, [0, 0, 0, 0, 0]),
        ({**ALL, "nccl": {"error": "libnccl.so.2: no such file"}}, [0, 0, 0, 2, 0]),
        ({**NO_GPU, "driver": {"driver": 12040, "error": 100}}, [1, 0, 0, 0, 0]),
        ({**NO_GPU, "driver": {"driver": 12040, "error": 804}}, [2, 0, 0, 0, 0]),
        ({**NO_GPU, "driver": {"driver": 12040, "gpus": []}}, [0, 1, 0, 0, 0]),
        ({**ALL, "cupy": {**CUPY, "cuda": 13000}}, [0, 0, 2, 0, 0]),
        ({**ALL, "cupy": {"error": "libcublas"}}, [0, 0, 2, 0, 0]),
        (
            {**ALL, "cudnn": OLD_CUDNN},
            [0, 0, 0, 0, 2],
        ),
        (
            {**NO_GPU, "cudnn": OLD_CUDNN},
            [0, 0, 0, 0, 0],
        ),
    ],
)
def test_gpus(facts, levels):
    assert [check(facts).level for check in gpus.CHECKS] == levels


def test_gpus_are_listed_and_versions_read():
    assert [check(ALL).found for check in gpus.CHECKS] == [
        "speaks CUDA 12.4",
        "2 × NVIDIA H100",
        "13.3.0 for CUDA 12.4",
        "2.21.5",
        "9.19.0",
    ]


def test_what_is_wrong_with_cudnn_is_told_beside_what_to_install():
    found = gpus.cudnn({**ALL, "cudnn": OLD_CUDNN})
    assert found.found == "cuDNN is 8.9, and synk was written for 9"
    assert found.remedy.endswith("-m pip install 'synk-pytensor[cuda12,cudnn12]'")


def test_the_driver_is_asked_in_another_process(tmp_path, monkeypatch):
    for name, value in {"LD_LIBRARY_PATH": build_driver(tmp_path), "FAKE_GPUS": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    facts = gpus.ask()
    assert facts["driver"] == {"driver": 13000, "gpus": ["NVIDIA H200", "NVIDIA H201"]}
    assert find_spec("cupy") or facts["cupy"] == facts["nccl"] == {}
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_driver_that_hangs_or_crashes(tmp_path, monkeypatch):
    probe = tmp_path / "probe.py"
    monkeypatch.setattr(gpus, "PROBE", probe)
    probe.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(RuntimeError, match="exit code -11"):
        gpus.ask()
    monkeypatch.setattr(gpus, "PROBE_SECONDS", 0.3)
    probe.write_text("import time; time.sleep(60)")
    with pytest.raises(RuntimeError, match=r"did not answer within 0 s"):
        gpus.ask()
