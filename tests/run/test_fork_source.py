"""Whether CUDA is in use, asked of a driver library made for the test: its cuInit needs no GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import synk
from synk.run.fork_source import check_cuda, cuda_is_initialised
from synk.values.errors import CudaInitialisedError

ROOT = Path(synk.__file__).parents[1]

# As the driver's reference has it: CUDA_ERROR_NOT_INITIALIZED is 3, CUDA_ERROR_NO_DEVICE 100.
DRIVER = """
static int state = 3;
int cuInit(unsigned flags) { return state = CUINIT_RESULT ? 3 : 0, CUINIT_RESULT; }
int cuDeviceGetCount(int *count) { if (!state) *count = 1; return state; }
"""

NOT_A_DRIVER = "int something_else(void) { return 0; }"


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Return a function that compiles a library of the driver's name and gives its folder."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to make a driver library")

    def build(source, *options):
        folder = tmp_path_factory.mktemp("driver")
        (folder / "driver.c").write_text(source)
        library = ["-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
        command = [compiler, "-shared", "-fPIC", *options, *library, str(folder / "driver.c")]
        subprocess.run(command, check=True, timeout=60)
        return folder

    return build


def said(folder, body):
    """Run ``body`` where ``folder`` has the driver; return what it prints."""
    text = f"import ctypes, sys\nfrom synk.run.fork_source import *\n{body}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(folder)}
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split("\n")[:-1]


WITH_CUDA = "driver = ctypes.CDLL('libcuda.so.1')\n"
TELL = "print(cuda_is_initialised())\n"
LOADED = "print('libcuda' in open('/proc/self/maps').read())\n"


@pytest.mark.parametrize(
    ("source", "result", "body", "told"),
    [
        pytest.param(DRIVER, 0, TELL + LOADED, ["False", "False"], id="not loaded, and not to ask it"),
        pytest.param(
            DRIVER,
            0,
            f"{WITH_CUDA}{LOADED}{TELL}{TELL}driver.cuInit(0)\n{TELL}",
            ["True", "False", "False", "True"],
            id="asked, and not initialised thereby",
        ),
        # No GPU: nothing that a child could inherit.
        pytest.param(
            DRIVER, 100, f"{WITH_CUDA}assert driver.cuInit(0) == 100\n{TELL}", ["False"], id="failed"
        ),
        pytest.param(NOT_A_DRIVER, 0, WITH_CUDA + TELL, ["False"], id="no driver"),
    ],
)
def test_cuda_is_in_use_where_a_loaded_driver_was_initialised(build, source, result, body, told):
    assert said(build(source, f"-DCUINIT_RESULT={result}"), body) == told


def test_the_error_says_what_to_move_and_who_may_have_done_it(build):
    folder = build(DRIVER, "-DCUINIT_RESULT=0")
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
    kind, message = said(folder, WITH_CUDA + body)
    assert kind == "CudaInitialisedError"
    assert message.startswith("fork: this process has initialised CUDA")
    assert "imported here: cupy, torch." in message
    assert "Call synk.fork() before" in message
    assert "synk.fork(device='cpu')" in message


def test_no_module_is_named_where_none_is_imported(monkeypatch):
    monkeypatch.setattr("synk.run.fork_source.cuda_is_initialised", lambda: True)
    for name in ("cupy", "torch", "jax", "tensorflow", "numba.cuda", "pycuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(CudaInitialisedError, match=r"child processes cannot use then\. Call"):
        check_cuda("fork")


def test_without_cuda_nothing_is_raised():
    if "libcuda.so" in Path("/proc/self/maps").read_text():
        pytest.skip("this process has a driver loaded")
    assert not cuda_is_initialised()
    check_cuda("fork")


GPU = """
import cupy, synk
from synk.run.fork_source import cuda_is_initialised
print(cuda_is_initialised())
cupy.zeros(3)
print(cuda_is_initialised())
"""


@pytest.mark.gpu
def test_the_real_driver():
    pytest.importorskip("cupy", reason="needs CuPy")
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU")
    ended = subprocess.run([sys.executable, "-c", GPU], capture_output=True, text=True, timeout=120)
    assert ended.stdout.split() == ["False", "True"], ended.stderr
