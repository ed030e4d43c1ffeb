"""Packages and libraries of a machine, and whether it can compile."""

import os
import re
import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytensor
import pytest
import threadpoolctl

from synk.compile.native import compiler as native
from synk.compile.native import find_onednn as onednn
from synk.tools.doctor import compiling, software
from synk.tools.doctor.finding import Level
from synk.tools.doctor.machine import GIB, MIB

ROOT = Path(__file__).parents[3]

# --- oneDNN ----------------------------------------------------------------------------------------


def onednn_file():
    return next(onednn.places(), None)


@pytest.mark.skipif(onednn_file() is None, reason="needs the extra onednn")
def test_onednn_is_found_with_version_and_place(machine):
    found = compiling.onednn(machine())
    assert found.level is Level.OK
    assert re.fullmatch(rf"3\.\d+\.\d+ in {re.escape(onednn_file())}", found.found)


@pytest.mark.parametrize(
    ("files", "processor", "openmp", "level", "text", "remedy"),
    [
        (
            (),
            "x86_64",
            onednn.OPENMP,
            Level.NOTE,
            "oneDNN is not installed",
            "pip install 'synk-pytensor[onednn]'",
        ),
        (
            ["/dev/null"],
            "x86_64",
            "libm.so.6",
            Level.WARNING,
            "/dev/null does not",
            "pip install 'synk-pytensor[onednn]'",
        ),
        (["libdnnl.so.3"], "x86_64", "libmissing.so.1", Level.WARNING, "needs libmissing.so.1", "libgomp1"),
        ((), "aarch64", onednn.OPENMP, Level.OK, "linux on aarch64", ""),
    ],
)
def test_onednn_that_does_not_serve(machine, monkeypatch, files, processor, openmp, level, text, remedy):
    monkeypatch.setattr(onednn.platform, "machine", lambda: processor)
    monkeypatch.setattr(onednn, "OPENMP", openmp)
    monkeypatch.setattr(onednn, "places", lambda: iter(files))
    monkeypatch.setattr(onednn, "find", lambda: onednn.search(files))
    found = compiling.onednn(machine())
    assert (found.level, text in found.found) == (level, True)
    assert found.remedy.endswith(remedy)
    assert bool(found.remedy) == (level is not Level.OK)


# --- software --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "numbers"), [("3.0.7", (3, 0, 7)), ("3.1rc2", (3, 1)), ("4.0.dev1+g1", (4, 0)), ("x", ())]
)
def test_releases(version, numbers):
    assert software.release(version) == numbers


@pytest.mark.parametrize(("version", "level"), [("2.38", 3), ("3.0.0", 0), ("3.99", 0), ("4.0.0", 3)])
def test_supported_versions(version, level, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    found = software.package("pytensor", (3, 0), (4,))
    assert found.level == level
    assert ("pip install 'pytensor>=3.0,<4'" in found.remedy) == bool(level)


def test_a_package_without_metadata_is_installed_again(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: None)
    found = software.package("pytensor", (3, 0), (4,))
    assert found.level == Level.PROBLEM
    assert "without metadata" in found.found
    assert "pip install --force-reinstall 'pytensor>=3.0,<4'" in found.remedy


def test_the_range_is_that_of_setup_cfg(machine):
    found = [check(machine()) for check in (software.numpy, software.pytensor, software.posix_ipc)]
    assert [finding.level for finding in found] == [Level.OK] * 3
    required = re.findall(r"^    (pytensor .*)", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert required == ["pytensor >=3.0,<4"]


def test_another_project_called_synk_is_named(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(software, "namesakes", lambda: [])
    found = software.package_synk(machine())
    assert (found.level, found.found) == (Level.OK, str(ROOT / "synk"))
    monkeypatch.setattr(software, "namesakes", lambda: ["/site/synk-0.0.1.dist-info"])
    found = software.package_synk(machine())
    assert (found.level, found.found) == (Level.WARNING, "also another project's: /site/synk-0.0.1.dist-info")
    (tmp_path / "__init__.py").write_text('name = "synk"')
    monkeypatch.setattr(software, "__file__", str(tmp_path / "tools" / "doctor" / "software.py"))
    found = software.package_synk(machine())
    assert (found.level, "__init__.py is another project's: pip uninstall synk; then" in found.remedy) == (
        3,
        True,
    )


def test_a_package_that_is_missing():
    found = software.package("surely-not-installed")
    assert (found.level, found.found) == (Level.PROBLEM, "not installed")
    assert found.remedy.endswith("-m pip install surely-not-installed")


def test_a_package_that_is_broken(monkeypatch):
    def fail(name):
        raise ImportError("libm.so.7: cannot open\nmore")

    monkeypatch.setattr(metadata, "version", lambda name: "2.0")
    monkeypatch.setattr(software, "import_module", fail)
    found = software.package("numpy")
    assert found.found == "2.0, fails to import: ImportError: libm.so.7: cannot open"
    assert found.level is Level.PROBLEM


def test_an_old_python(machine, monkeypatch):
    assert software.python(machine()).level is Level.OK
    monkeypatch.setattr(software, "sys", SimpleNamespace(version_info=(3, 10, 4), platform="linux"))
    assert software.python(machine()).level is Level.PROBLEM


def test_settings_that_slow_pytensor(machine):
    assert software.pytensor_settings(machine()).level is Level.OK
    with pytensor.config.change_flags(optimizer_verbose=True):
        found = software.pytensor_settings(machine())
    assert (found.level, found.found) == (Level.NOTE, "optimizer_verbose=True")


def load_libraries(monkeypatch, user_api, *names):
    """Make threadpoolctl tell that these libraries of a kind are loaded."""
    known = [{"user_api": user_api, "internal_api": name, "prefix": name, "version": "1.0"} for name in names]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: known)


@pytest.mark.parametrize(
    ("runtimes", "level"),
    [((), 0), (("libiomp",), 0), (("libgomp",), 1), (("libgomp", "libgomp"), 1), (("libgomp", "libomp"), 2)],
)
def test_openmp(machine, monkeypatch, runtimes, level):
    load_libraries(monkeypatch, "openmp", *runtimes)
    assert software.openmp(machine()).level == level


def test_blas(machine, monkeypatch):
    assert software.matrix_products(machine()).level is Level.OK
    load_libraries(monkeypatch, "blas", "mkl")
    assert software.matrix_products(machine()).found == "mkl 1.0"
    load_libraries(monkeypatch, "openmp", "libgomp")
    assert software.matrix_products(machine()).level is Level.WARNING


# --- the compiler ----------------------------------------------------------------------------------


needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler"
)


@needs_compiler
def test_a_compiler_that_works(machine):
    assert compiling.compiler(machine()).level is Level.OK


@pytest.mark.parametrize(
    ("environ", "said"),
    [({}, "no cc, gcc or clang"), ({"CC": "tcc"}, "CC=tcc is not"), ({"CC": "cc '"}, "No closing quotation")],
)
def test_no_compiler(machine, monkeypatch, environ, said):
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    found = compiling.compiler(machine(**environ))
    assert found.level is Level.WARNING
    assert said in found.found


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'k.c:1: error: no stdio.h' >&2; echo stopped >&2; exit 1", "k.c:1: error: no stdio.h"),
        ("exit 3", "exit status 3"),
    ],
)
def test_a_compiler_that_fails(machine, tmp_path, monkeypatch, script, said):
    program = tmp_path / "cc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(native, "find_compiler", lambda: native.Compiler((str(program),)))
    found = compiling.compiler(machine())
    assert (found.level, found.found) == (Level.WARNING, f"{program} fails: {said}")


def test_a_compiler_that_makes_no_library(machine, monkeypatch):
    broken = SimpleNamespace(command=("cc",), compile=lambda sources: [b"no library"])
    monkeypatch.setattr(native, "find_compiler", lambda: broken)
    assert "cc compiles, but does not load" in compiling.compiler(machine()).found


@pytest.mark.parametrize(("known", "level"), [(True, Level.OK), (False, Level.WARNING)])
def test_the_layout_of_arrays(machine, monkeypatch, known, level):
    monkeypatch.setattr("synk.compile.native.methods.layout_is_known", lambda: known)
    assert compiling.array_layout(machine()).level is level


def test_the_kernel_cache(machine, tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "synk"
    monkeypatch.setenv("SYNK_CACHE", str(folder))
    assert compiling.kernel_cache(machine()).found == f"0 kernels in {folder}, 8 GiB free"
    assert not folder.parent.exists()  # it only looked
    assert compiling.kernel_cache(machine(space=(GIB, MIB))).level is Level.WARNING
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert f"is not used: others may write to {folder}" in compiling.kernel_cache(machine()).found


def test_a_kernel_cache_of_another_user(machine, tmp_path, monkeypatch):
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    for folder in (tmp_path, tmp_path / "new"):
        monkeypatch.setenv("SYNK_CACHE", str(folder))
        found = compiling.kernel_cache(machine())
        assert found.level is Level.WARNING
        assert f"{folder} is not used: " in found.found
        assert f"this is user {stranger}" in found.found


def test_files_that_the_kernel_cache_does_not_take(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("SYNK_CACHE", str(tmp_path))
    for name, mode in (("ka.so", 0o600), ("kb.so", 0o666), ("other.so", 0o666)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    os.mkfifo(tmp_path / "kc.so")
    found = compiling.kernel_cache(machine())
    assert found.found.startswith("1 kernels")
    assert found.remedy.startswith("2 files there are not used: others may write to kb.so")
    assert "kc.so is no regular file" in found.remedy


def test_no_kernel_cache_without_a_home(machine, monkeypatch):
    monkeypatch.delenv("SYNK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "~")
    assert compiling.kernel_cache(machine()).found == "a folder is not used: there is no home folder"


def test_a_kernel_cache_that_cannot_be_written_to(machine, tmp_path, monkeypatch):
    file = tmp_path / "file"
    monkeypatch.setenv("SYNK_CACHE", str(file / "synk"))
    file.touch()
    found = compiling.kernel_cache(machine())
    assert found.level is Level.WARNING
    assert "SYNK_CACHE" in found.remedy
