"""Counting GPUs in another process, of a driver library made for the test."""

import time
from pathlib import Path

import pytest

from support.cuda import fake_driver
from synk.gpu.device import probe
from synk.gpu.device.probe import Gpu, Survey, judge, survey


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def found(folder, monkeypatch):
    """Return the survey of a machine whose driver answers so."""

    def found(seconds=20.0, **told):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in {"LD_LIBRARY_PATH": str(folder), **told}.items():
            monkeypatch.setenv(name, str(value))
        answer = survey(seconds)
        assert str(folder) not in Path("/proc/self/maps").read_text()
        return answer

    return found


def test_gpus_are_described(found):
    assert found(FAKE_GPUS=2) == Survey(
        gpus=(
            Gpu(0, "NVIDIA H200", "10101010-1010-1010-1010-101010101010", 141 << 30),
            Gpu(1, "NVIDIA H201", "11111111-1111-1111-1111-111111111111", 141 << 30),
        ),
        version=13000,
    )
    assert str(found(FAKE_GPUS=2).gpus[1]) == "GPU 1 (NVIDIA H201, 141 GiB)"


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("GPU-1010,GPU-1111", 2), ("MIG-10", 1)])
def test_the_driver_decides_what_is_visible(found, visible, count):
    answer = found(FAKE_GPUS=4, CUDA_VISIBLE_DEVICES=visible)
    assert [gpu.number for gpu in answer.gpus] == list(range(count))


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_no_trouble(found, visible):
    answer = found(FAKE_GPUS=4, CUDA_VISIBLE_DEVICES=visible)
    assert not answer.gpus
    assert not answer.is_trouble
    assert answer.reason.startswith("the driver fails with error 100 CUDA_ERROR_NO_DEVICE; CUDA_VISIBLE_DEV")
    assert f"{visible!r} hides" in answer.reason


def test_an_error_of_the_driver_has_its_number_and_name(found):
    answer = found(FAKE_ERROR=999)
    assert answer == Survey((), "the driver fails with error 999 CUDA_ERROR_UNKNOWN", True, 13000)
    assert found(FAKE_ERROR=12345).reason == "the driver fails with error 12345"


def test_a_driver_that_hangs_is_given_up(found):
    started = time.monotonic()
    answer = found(seconds=1.0, FAKE_DEED="hang")
    assert time.monotonic() - started < 10
    assert answer.is_trouble
    assert answer.reason == "the driver did not answer within 1 s (try nvidia-smi)"


def test_a_driver_that_crashes_tells_its_last_words(found):
    answer = found(FAKE_DEED="crash")
    assert answer.is_trouble
    assert answer.reason == "asking the driver ended with signal SIGSEGV: bad driver"


def test_no_driver_is_no_trouble(found, tmp_path):
    (tmp_path / "libcuda.so.1").write_text("not a library")  # in front of one that the machine may have
    answer = found(LD_LIBRARY_PATH=tmp_path)
    assert not answer.is_trouble
    assert answer.reason.startswith("there is no NVIDIA driver (")


def test_no_python_to_ask_with_is_told(monkeypatch):
    monkeypatch.setattr(probe.sys, "executable", "/no/such/python")
    answer = survey()
    assert answer.is_trouble
    assert "no process to ask the driver in" in answer.reason


def test_a_driver_without_gpus():
    assert judge({"version": 12040, "gpus": []}, None) == Survey((), "the driver shows no GPU", version=12040)
