"""Whether CUDA is in use, asked of a driver library made for the test: its cuInit needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import synk
from support.cuda import fake_driver
from synk.run.launch.fork_source import check_cuda, cuda_is_initialised
from synk.values.errors import CudaInitialisedError

ROOT = Path(synk.__file__).parents[1]

NOT_A_DRIVER = "int something_else(void) { return 0; }"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def no_driver(tmp_path_factory):
    return fake_driver.build(tmp_path_factory.mktemp("driver"), NOT_A_DRIVER)


def said(folder, body, **told):
    """Run ``body`` where ``folder`` has the driver, which is told this; return what it prints."""
    text = f"import ctypes, sys\nfrom synk.run.launch.fork_source import *\n{body}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(folder), **told}
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split("\n")[:-1]


WITH_CUDA = "driver = ctypes.CDLL('libcuda.so.1')\n"
TELL = "print(cuda_is_initialised())\n"
LOADED = "print('libcuda' in open('/proc/self/maps').read())\n"


@pytest.mark.parametrize(
    ("library", "error", "body", "told"),
    [
        pytest.param("driver", 0, TELL + LOADED, ["False", "False"], id="not loaded, and not to ask it"),
        pytest.param(
            "driver",
            0,
            f"{WITH_CUDA}{LOADED}{TELL}{TELL}driver.cuInit(0)\n{TELL}",
            ["True", "False", "False", "True"],
            id="asked, and not initialised thereby",
        ),
        # No GPU: nothing that a child could inherit.
        pytest.param(
            "driver", 100, f"{WITH_CUDA}assert driver.cuInit(0) == 100\n{TELL}", ["False"], id="failed"
        ),
        pytest.param("no_driver", 0, WITH_CUDA + TELL, ["False"], id="no driver"),
    ],
)
def test_cuda_is_in_use_where_a_loaded_driver_was_initialised(request, library, error, body, told):
    folder = request.getfixturevalue(library)
    assert said(folder, body, FAKE_GPUS="1", FAKE_ERROR=str(error)) == told


def test_the_error_says_what_to_move_and_who_may_have_done_it(driver):
    body = """
check_cuda("fork")
driver.cuInit(0)
sys.modules["torch"] = sys.modules["cupy"] = sys
try:
    check_cuda("fork")
except RuntimeError as error:
    print(type(error).__name__)
    print(error)
"""
    kind, message = said(driver, WITH_CUDA + body, FAKE_GPUS="1")
    assert kind == "CudaInitialisedError"
    assert message.startswith("fork: this process has initialised CUDA")
    assert "imported here: cupy, torch." in message
    assert "Call synk.fork() before" in message
    assert "synk.fork(device='cpu')" in message


def test_no_module_is_named_where_none_is_imported(monkeypatch):
    monkeypatch.setattr("synk.run.launch.fork_source.cuda_is_initialised", lambda: True)
    for name in ("cupy", "torch", "jax", "tensorflow", "numba.cuda", "pycuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(CudaInitialisedError, match=r"child processes cannot use then\. Call"):
        check_cuda("fork")


def test_without_cuda_nothing_is_raised():
    if "libcuda.so" in Path("/proc/self/maps").read_text():
        pytest.skip("this process has a driver loaded")
    assert not cuda_is_initialised()
    check_cuda("fork")
