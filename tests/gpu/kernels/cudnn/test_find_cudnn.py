"""Finding cuDNN, or saying why there is none."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from support.cudnn import fake_cudnn
from synk.gpu.kernels.cudnn import find_cudnn
from synk.ops.kernels.choose import convolution_kernels
from synk.ops.kernels.im2col import Im2col


@pytest.fixture
def front_end(monkeypatch):
    """Return the stand-in for the front end, which ``import cudnn`` finds."""
    module = fake_cudnn.make()
    monkeypatch.setitem(sys.modules, "cudnn", module)
    monkeypatch.setattr(find_cudnn, "find_spec", lambda name: "there")
    monkeypatch.setattr(find_cudnn, "load_cublas_of", lambda major: "")
    return module


@pytest.fixture
def afresh(monkeypatch):
    """Forget all that is looked for once, now and after the test."""
    monkeypatch.setattr(find_cudnn, "find", find_cudnn.search)
    find_cudnn._warn_once.cache_clear()
    yield
    find_cudnn._warn_once.cache_clear()


def test_what_fits_is_found(front_end):
    assert find_cudnn.search() == find_cudnn.FoundCudnn(front_end)


def test_nothing_installed(monkeypatch):
    monkeypatch.setattr(find_cudnn, "find_spec", lambda name: None)
    found = find_cudnn.search()
    assert (found.module, found.installed) == (None, False)
    assert found.reason == (
        "cuDNN's front end is not installed: pip install 'synk-pytensor[cuda13,cudnn13]' "
        "(for drivers that speak CUDA 12 only: 'synk-pytensor[cuda12,cudnn12]')"
    )


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "__version__",
            "1.18.0",
            "nvidia-cudnn-frontend is 1.18.0, and synk was written for 1.22: pip install",
        ),
        (
            "__version__",
            "2.0.1",
            "nvidia-cudnn-frontend is 2.0.1, and synk was written for 1.22: pip install",
        ),
        ("backend_version", lambda: 8907, "cuDNN is 8.9, and synk was written for 9: pip install"),
        ("backend_version", lambda: 100100, "cuDNN is 10.1, and synk was written for 9: pip install"),
    ],
)
def test_versions_that_do_not_fit_are_told(front_end, monkeypatch, name, value, told):
    monkeypatch.setattr(front_end, name, value)
    found = find_cudnn.search()
    assert found.module is None
    assert found.installed
    assert found.reason.startswith(told)


def test_a_front_end_without_the_library(front_end, monkeypatch):
    def missing():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setattr(front_end, "backend_version", missing)
    assert "finds no cuDNN to load (Unable to find symbol" in find_cudnn.search().reason


@pytest.mark.parametrize(("own", "loaded"), [("nvidia/cudnn/lib/libcudnn.so.9", []), ("", ["cudnn"])])
def test_cudnn_of_a_parent_environment_is_loaded_first(monkeypatch, tmp_path, own, loaded):
    asked = []
    pathfinder = SimpleNamespace(load_nvidia_dynamic_lib=asked.append)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    if own:  # the front end loads this one, by its path: another beside it would be a second copy
        (tmp_path / own).parent.mkdir(parents=True)
        (tmp_path / own).touch()
    find_cudnn.load_cudnn(tmp_path)
    assert asked == loaded


def test_cudnn_is_loaded_before_the_front_end_looks_for_it(front_end, monkeypatch):
    seen = []
    monkeypatch.setattr(find_cudnn, "load_cudnn", seen.append)
    monkeypatch.setattr(find_cudnn, "import_module", lambda name: seen.append(name) or front_end)
    find_cudnn.search()
    assert seen == [Path(sysconfig.get_path("purelib")), "cudnn"]


def test_another_module_of_that_name(monkeypatch):
    other = ModuleType("cudnn")
    other.__file__ = "somewhere/cudnn.py"
    monkeypatch.setitem(sys.modules, "cudnn", other)
    monkeypatch.setattr(find_cudnn, "find_spec", lambda name: "there")
    assert find_cudnn.search().reason.startswith(
        "the module cudnn in somewhere/cudnn.py is not nvidia-cudnn-frontend: "
    )


def test_a_front_end_that_does_not_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    monkeypatch.setattr(find_cudnn, "find_spec", lambda name: "there")
    found = find_cudnn.search()
    assert found.installed
    assert found.reason.startswith("nvidia-cudnn-frontend cannot be imported (ModuleNotFoundError: ")


def test_without_cublas_cudnn_is_not_used_because_it_would_abort(front_end, monkeypatch):
    monkeypatch.setattr(find_cudnn, "built_for", lambda: 13)
    said = "cuDNN needs libcublasLt.so.{}, which cannot be loaded"
    monkeypatch.setattr(find_cudnn, "load_cublas_of", said.format)
    found = find_cudnn.search()
    assert found.module is None
    assert found.reason.startswith(
        "cuDNN needs libcublasLt.so.13, which cannot be loaded: pip install 'synk-pytensor[cuda13"
    )


def test_cublas_of_another_cuda_is_told():
    assert find_cudnn.load_cublas_of(0) == ""
    assert "libcublasLt.so.99" in find_cudnn.load_cublas_of(99)


def test_cupy_falls_back_silently_where_nothing_is_installed(monkeypatch, afresh):
    monkeypatch.setattr(find_cudnn, "find_spec", lambda name: None)
    assert isinstance(convolution_kernels(ModuleType("cupy"), "float32"), Im2col)


def test_cupy_falls_back_with_one_warning_where_versions_do_not_fit(front_end, monkeypatch, afresh):
    monkeypatch.setattr(front_end, "__version__", "1.18.0")
    with pytest.warns(RuntimeWarning, match="without cuDNN, slower: .* is 1.18.0"):
        convolution_kernels(ModuleType("cupy"), "float32")
    assert isinstance(convolution_kernels(ModuleType("cupy"), "float32"), Im2col)


def test_other_modules_do_not_look_for_cudnn(monkeypatch):
    def fail():
        raise AssertionError("cuDNN was looked for")

    monkeypatch.setattr(find_cudnn, "find", fail)
    assert not find_cudnn.serves(np)


def test_importing_loads_nothing():
    code = (
        "import sys, synk.ops; from synk.gpu.kernels import cudnn\n"
        "maps = open('/proc/self/maps').read()\n"
        "raise SystemExit('cudnn' in sys.modules or 'libcudnn' in maps or 'libcuda' in maps)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.skipif(not find_cudnn.available(), reason=find_cudnn.reason())
def test_looking_for_the_real_one_starts_no_cuda():
    code = (
        "from synk.gpu.kernels.cudnn import available\n"
        "maps = available() and open('/proc/self/maps').read()\n"
        "raise SystemExit('libcudnn.so' not in maps or 'libcublasLt.so' not in maps or 'libcuda.so' in maps)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
