"""What only runs on GPUs import, and how it enters itself where other suites look."""

import subprocess
import sys

from pytensor.compile.mode import optdb

import synk.gpu
from synk.compile.array_modules import ARRAY_MODULES
from synk.gpu.dispatch.cupy_arrays import CupyArrays
from synk.gpu.elementwise.cuda_dialect import FUSION
from synk.gpu.setup.gpu_devices import GpuDevices
from synk.ops.kernels.choose import PROVIDERS
from synk.run.rank.connection import decide

SCRIPT = """
import sys, synk, synk.compile, synk.ops
from synk.compile.array_modules import ARRAY_MODULES
from synk.ops.kernels.choose import PROVIDERS
print("synk.gpu" in sys.modules, [*ARRAY_MODULES], [*PROVIDERS])
import synk.gpu
print([*ARRAY_MODULES], [*PROVIDERS], "cupy" in sys.modules)
"""


def test_to_import_it_enters_it_and_nothing_else_does():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert ended.stdout.splitlines() == ["False [] ['numpy']", "['cupy'] ['numpy', 'cupy'] False"], (
        ended.stderr
    )


def test_it_is_entered_once_however_often_it_is_asked_for():
    synk.gpu.register()  # PyTensor refuses a rewrite whose name it has
    assert f"fusion_into_{FUSION}" in optdb
    assert ARRAY_MODULES["cupy"] is CupyArrays
    assert "cupy" in PROVIDERS
    assert decide.dispatch(GpuDevices) is not decide.dispatch(object)
