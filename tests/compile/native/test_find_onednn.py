"""The search for oneDNN: what is found, and what is said where nothing is."""

import os
import subprocess
import sys

import pytest

from synk.compile.native import find_onednn
from synk.ops.kernels.onednn import available, reason
from synk.ops.kernels.onednn.binding import OneDnnError


def test_a_missing_library_is_told_with_a_remedy():
    found = find_onednn.search([])
    assert found.library is None
    assert found.reason == "oneDNN is not installed: pip install 'synk-pytensor[onednn]'"


def test_a_missing_runtime_of_threads_is_told_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(find_onednn, "OPENMP", "libmissing.so.1")
    found = find_onednn.search(["/none"])
    assert found.library is None
    assert found.reason == (
        "oneDNN needs libmissing.so.1, which is missing: install the system's package libgomp1"
    )


def test_other_systems_are_told(monkeypatch):
    monkeypatch.setattr(find_onednn.platform, "machine", lambda: "aarch64")
    assert (
        find_onednn.search(find_onednn.places()).reason
        == "oneDNN needs x86-64 Linux, and this is linux on aarch64"
    )


def test_files_that_do_not_serve_are_told_one_by_one(monkeypatch, tmp_path):
    broken = tmp_path / find_onednn.FILE
    broken.write_bytes(b"no library")
    monkeypatch.setattr(find_onednn, "OPENMP", "libm.so.6")
    told = find_onednn.search([str(broken), "libm.so.6"]).reason
    assert f"{broken} does not load" in told
    assert "libm.so.6 is not oneDNN: pip install 'synk-pytensor[onednn]'" in told


@pytest.mark.parametrize(
    ("major", "runtime", "told"),
    [(2, find_onednn.OMP, "is oneDNN 2.6, and not 3"), (3, 4, "by something else"), (3, find_onednn.OMP, "")],
)
def test_a_version_or_runtime_that_is_not_known_is_refused(major, runtime, told):
    class Function:
        def __call__(self):
            return type("Pointer", (), {"contents": find_onednn.OnednnVersion(major, 6, 0, b"", runtime, 0)})

    fake = type("Fake", (), {"dnnl_version": Function()})
    complaint = find_onednn.unfit(fake)
    assert told in complaint
    assert bool(told) == bool(complaint)


def test_a_library_in_the_prefix_comes_first(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    file = tmp_path / "lib" / find_onednn.FILE
    file.touch()
    monkeypatch.setattr(find_onednn.sys, "prefix", str(tmp_path))
    assert next(find_onednn.places()) == str(file.resolve())


def test_files_of_the_wheel_are_found_elsewhere(monkeypatch, tmp_path):
    """As after ``pip install --target``."""
    package = tmp_path / "onednn_cpu_gomp-2023.2.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: onednn-cpu-gomp\nVersion: 2023.2.0\n")
    (package / "RECORD").write_text(f"native/{find_onednn.FILE},,\n")
    (tmp_path / "native").mkdir()
    file = tmp_path / "native" / find_onednn.FILE
    file.touch()
    monkeypatch.setattr(find_onednn.sys, "prefix", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    assert next(find_onednn.places()) == str(file.resolve())


def test_where_there_is_none_a_kernel_says_so(monkeypatch):
    from synk.ops.kernels.onednn import engine

    monkeypatch.setattr(find_onednn, "find", lambda: find_onednn.FoundOnednn(None, "oneDNN is not installed"))
    assert not available()
    assert reason() == "oneDNN is not installed"
    with pytest.raises(OneDnnError, match="oneDNN is not installed"):
        engine.engine.__wrapped__()


@pytest.mark.slow
def test_importing_loads_nothing():
    say = "import synk.ops.kernels.onednn; print('libdnnl' in open('/proc/self/maps').read())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", say], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.stdout.strip() == "False", done.stdout + done.stderr
