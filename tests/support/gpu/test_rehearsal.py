"""A rehearsal of ``make gpu-test``: tests that wait for a GPU, with the stand-in where CuPy would be.

What looks at CUDA itself cannot pass here and is left out; everything else of the way there is gone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cuda import fake_driver

TESTS = Path(__file__).parents[2]
COMMAND = [sys.executable, str(TESTS / "support" / "gpu" / "run_tests.py"), "--jobs", "2", "--seconds", "400"]

# Imported as ``cupy``, it puts the stand-in for CuPy in its own place, with the little more that is asked.
CUPY = """
import sys
from types import SimpleNamespace

sys.path.append({tests!r})
from support.cupy import fake_cupy

cupy = fake_cupy.make(n_gpus=1)
properties = dict(name=b"A rehearsal", totalGlobalMem=2**37, major=9, minor=0)
cupy.cuda.runtime = SimpleNamespace(
    getDeviceProperties=lambda number: properties,
    getDeviceCount=lambda: 1,
    driverGetVersion=lambda: 13000,
    runtimeGetVersion=lambda: 13000,
)

class Stream(cupy.cuda.Stream):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

cupy.cuda.Stream = Stream
"""


@pytest.mark.soak
def test_tests_that_wait_for_a_gpu_run(tmp_path):
    driver = tmp_path / "driver"
    driver.mkdir()
    fake_driver.build(driver)
    package = tmp_path / "packages" / "cupy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CUPY.format(tests=str(TESTS)))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(package.parent), str(TESTS.parent)]),
        "LD_LIBRARY_PATH": str(driver),
        "FAKE_GPUS": "1",
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    files = ["gpu/test_networks.py", "gpu/test_collectives.py", "compile/dispatch/test_reduce.py"]
    places = ["--notes", str(tmp_path), "--report", str(tmp_path / "page.rst")]
    ended = subprocess.run(
        [*COMMAND, *places, "--only", *(str(TESTS / file) for file in files)],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "tests.json").read_text())
    assert found["facts"]["device"] == "A rehearsal, 128 GiB"
    assert found["ended"]
    assert (tmp_path / "page.rst").read_text().startswith("Seen on A rehearsal, 128 GiB\n====")
    assert (tmp_path / "failures.txt").read_text() == ""
    counts = {part["name"]: part["counts"] for part in found["parts"].values()}
    assert next(iter(counts)) == "networks"
    assert sorted(counts) == ["collectives", "networks", "reduce"]
    assert all(count["passed"] > 10 for count in counts.values())
    assert counts["collectives"]["skipped"] > 10  # NCCL is not there
