"""How kernels come to be: the compiler, the store that processes share, and what happens without either."""

import ctypes
import gc
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from shutil import copytree

import pytest

from support.slow import slow
from synk.compile.native import libraries
from synk.compile.native.compiler import Compiler, find_compiler
from synk.compile.native.libraries import Libraries, SourceText
from synk.compile.native.methods import layout_is_known
from synk.compile.native.store import Store, default_folder
from synk.compile.regions.native_function import NativeCompilation

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


SOURCE = """
void *REGION(void *self, void *const *given, long n_given)
{
    Py_IncRef(given[0]);
    return given[0];
}
"""


def compilation(compiler, folder=None):
    return NativeCompilation(Libraries(compiler, Store(folder)))


def run(made, expected="itself"):
    assert made.function(SOURCE, set()).call("itself") == expected


@pytest.fixture(scope="module")
def store_of_one_kernel(tmp_path_factory):
    """Return a folder where the kernel is kept, compiled once for all tests that damage or read a copy."""
    folder = tmp_path_factory.mktemp("store")
    run(compilation(find_compiler(), folder))
    return folder


@pytest.fixture
def kept(store_of_one_kernel, tmp_path):
    """Return the files in a folder of the test's own: of the kernel, and of what all kernels call."""
    copytree(store_of_one_kernel, tmp_path, dirs_exist_ok=True)
    paths = sorted(tmp_path.glob("*.so"))
    assert len(paths) == 2
    return paths


class Forbidden(Compiler):
    def compile(self, sources):
        raise AssertionError("nothing should be compiled")


@needs_compiler
def test_the_second_process_compiles_nothing(tmp_path):
    command = find_compiler().command
    run(compilation(Compiler(command), tmp_path))
    run(compilation(Forbidden(command), tmp_path))
    assert len(list(tmp_path.glob("*.so"))) == 2


@needs_compiler
def test_what_all_kernels_call_is_compiled_once(tmp_path, kept):
    made = compilation(find_compiler(), tmp_path)
    other = made.function(SOURCE + "/* another */", set())
    assert other.call("itself") == "itself"
    assert len(list(tmp_path.glob("*.so"))) == 3


def link_away(path):
    path.with_name("other").touch()
    path.symlink_to("other")


@needs_compiler
@pytest.mark.parametrize(
    ("put", "which"),
    [
        *(("half of it", 0), (os.mkfifo, 1)),
        *(slow(put, which) for put in (b"", b"no library") for which in (0, 1)),
        *(slow("half of it", 1), slow(os.mkfifo, 0), slow(link_away, 0), slow(link_away, 1)),
    ],
)
def test_what_is_damaged_or_no_file_is_made_anew(tmp_path, kept, put, which):
    path = kept[which]
    whole = path.read_bytes()
    path.unlink()  # the old file is mapped into this process
    if callable(put):
        put(path)
    else:
        path.write_bytes(whole[: len(whole) // 2] if put == "half of it" else put)
    run(compilation(find_compiler(), tmp_path))
    run(compilation(Forbidden(find_compiler().command), tmp_path))
    assert path.is_file()
    assert not path.is_symlink()
    assert len(path.read_bytes()) == len(whole)


@needs_compiler
@pytest.mark.slow
def test_a_folder_in_the_place_of_a_file_does_no_harm(tmp_path, kept):
    path, _ = kept
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match="not kept"):
        run(compilation(find_compiler(), tmp_path))


@needs_compiler
@pytest.mark.parametrize("mode", [0o777, slow(0o722), slow(0o770)])
def test_code_from_a_folder_that_others_may_write_to_is_not_loaded(tmp_path, kept, mode):
    tmp_path.chmod(mode)
    forbidden = compilation(Forbidden(find_compiler().command), tmp_path)
    with pytest.raises(AssertionError, match="nothing should be compiled"):
        run(forbidden)
    with pytest.warns(UserWarning, match="(?s)not kept in .*others may write to .*SYNK_CACHE"):
        run(compilation(find_compiler(), tmp_path))


@needs_compiler
@pytest.mark.parametrize("mask", [slow(0), 0o777])
def test_what_is_kept_is_for_this_user_only(tmp_path, mask):
    before = os.umask(mask)
    try:
        run(compilation(find_compiler(), tmp_path / "cache" / "synk"))
    finally:
        os.umask(before)
    run(compilation(Forbidden(find_compiler().command), tmp_path / "cache" / "synk"))
    paths = list((tmp_path / "cache" / "synk").glob("*.so"))
    folders = [paths[0].parent, paths[0].parent.parent]
    assert [found.stat().st_mode & 0o777 for found in (*paths, *folders)] == [0o600] * 2 + [0o700] * 2


@needs_compiler
def test_kernels_of_one_library_are_loaded_once(tmp_path):
    made = Libraries(find_compiler(), Store(tmp_path)).make([SourceText("int one;", ("k1", "k2"))])
    again = Libraries(Forbidden(("cc",)), Store(tmp_path))
    assert isinstance(made[0], ctypes.CDLL)
    assert again.find("k1") is again.find("k2") is not None


@pytest.mark.slow
@needs_compiler
def test_a_library_is_unloaded_with_the_last_function_of_it(tmp_path, few_objects):
    def n_mapped():
        gc.collect()
        return Path("/proc/self/maps").read_text().count("synk-kernels")

    made = compilation(find_compiler(), tmp_path)
    first = made.function(SOURCE, set())
    first.call("itself")
    before = n_mapped()
    other = made.function(SOURCE + "/* another */", set())
    other.call("itself")
    kept, cycle = other.call, [other]
    cycle.append(cycle)  # of garbage, as graphs are
    assert n_mapped() > before
    del other, cycle
    assert n_mapped() > before
    assert kept("itself") == "itself"
    del kept
    assert n_mapped() == before
    run(made)


@needs_compiler
def test_a_file_of_another_kernel_is_not_taken(tmp_path, kept):
    path, _ = kept
    assert Store(tmp_path).find(path.stem) == path.read_bytes()[:-32]
    path.rename(path.with_stem("kother"))
    assert Store(tmp_path).find("kother") is None


@needs_compiler
@pytest.mark.slow
def test_a_folder_that_cannot_be_made_does_no_harm(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="(?s)folder: Not a directory.*SYNK_CACHE"):
        run(compilation(find_compiler(), tmp_path / "file" / "folder"))
    run(compilation(find_compiler(), tmp_path / "file" / "folder"))  # which is said once


@needs_compiler
def test_other_flags_or_compilers_are_other_kernels(tmp_path):
    command = find_compiler().command
    made = [compilation(Compiler((*command, *more))) for more in ([], ["-DX"])]
    names = {one.function(SOURCE, set()).name for one in made}
    assert len(names) == 2


RACE = """
import sys, numpy as np, pytensor, pytensor.tensor as pt
from synk.compile import array_mode
x = pt.vector("x", dtype="float32")
f = pytensor.function([x], pt.exp(x * 1.25) + 2, mode=array_mode())
print("ready", flush=True)
sys.stdin.readline()
print(f(np.zeros(3, "float32")).tolist(), flush=True)
"""


@needs_compiler
@pytest.mark.slow
def test_two_processes_race_for_one_kernel(tmp_path):
    environment = os.environ | {"SYNK_CACHE": str(tmp_path)}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 2
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        assert [racer.communicate()[0] for racer in racers] == ["[3.0, 3.0, 3.0]\n"] * 2
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert len(list(tmp_path.glob("*.so"))) == 2


@pytest.mark.parametrize(
    ("named", "said"),
    [("no-such-compiler", "is not on PATH"), ("gcc '", "cannot be split into words: No closing quotation")],
)
def test_without_a_compiler_there_is_one_warning(monkeypatch, named, said):
    monkeypatch.setenv("CC", named)
    make = libraries.native_libraries.__wrapped__
    with pytest.warns(UserWarning, match=f"no C compiler .CC={named} {said}.*in Python.*install gcc"):
        assert make() is None
    cached = cache(make)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cached() is cached() is None
    assert len(caught) == 1


NO_COMPILER = """
import warnings, numpy as np, pytensor, pytensor.tensor as pt
from synk.compile import ArrayLinker, array_mode
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = pt.vector("x", dtype="float32")
    for _ in range(2):
        f = pytensor.function([x], pt.exp(x * 1.25) + 2, mode=array_mode(ArrayLinker(host_ops="raise")))
print(f(np.zeros(2, "float32")).tolist(), sum("in Python" in str(w.message) for w in caught))
"""


@pytest.mark.slow
def test_graphs_run_without_a_compiler():
    environment = os.environ | {"CC": "no-such-compiler"}
    result = subprocess.run(
        [sys.executable, "-c", NO_COMPILER], env=environment, text=True, capture_output=True
    )
    assert result.stdout == "[3.0, 3.0] 1\n", result.stderr


def says(tmp_path, script):
    (tmp_path / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "cc").chmod(0o755)
    return Compiler((str(tmp_path / "cc"),))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 1", "exit status 1"),
        ("exit 0", "exit status 0, but no library"),
        ('while [ "$1" != -o ]; do shift; done; echo text > $2', "cannot be loaded"),
        (
            'while [ "$1" != -o ]; do shift; done; echo "int x;" | cc -x c - -shared -o $2',
            "makes something else",
        ),
    ],
    ids=["fails", "nothing", "text", "another"],
)
def test_a_compiler_that_fails_lets_graphs_run_in_python_after_one_warning(tmp_path, script, said):
    made = compilation(says(tmp_path, script), tmp_path / "store")
    with pytest.warns(UserWarning, match=f"(?s){said}.*run in Python.*CC"):
        run(made, None)
    run(made, None)  # which is said once


@needs_compiler
def test_a_temporary_folder_that_cannot_be_used_lets_graphs_run_in_python(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.warns(UserWarning, match="(?s)none.*TMPDIR.*in Python"):
        run(compilation(find_compiler(), tmp_path), None)


@needs_compiler
@pytest.mark.slow
def test_folders_that_nothing_may_run_from_serve_as_well(tmp_path):
    allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
    if not allowed:
        pytest.skip("no user namespaces")
    code = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parents[place]) for place in (0, 2)]}
import test_libraries as t
t.run(t.compilation(t.find_compiler()))
t.run(t.compilation(t.Forbidden(t.find_compiler().command)))
print(sorted(os.listdir(os.environ["TMPDIR"])))
"""
    mount = 'mount -t tmpfs -o noexec,mode=700 none $0 && exec env TMPDIR=$0 SYNK_CACHE=$0/store $1 -c "$2"'
    command = ["unshare", "-rm", "sh", "-c", mount, str(tmp_path), sys.executable, code]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout == "['store']\n", ended.stderr


def test_folder(monkeypatch):
    monkeypatch.setenv("SYNK_CACHE", "/one")
    assert str(default_folder()) == "/one"
    monkeypatch.delenv("SYNK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert str(default_folder()) == "/two/synk"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/three")
    assert str(default_folder()) == "/three/.cache/synk"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert str(default_folder()) == "/three/.cache/synk"
    monkeypatch.setenv("HOME", "relative")
    assert default_folder() is None


@needs_compiler
@pytest.mark.slow
def test_without_a_home_nothing_is_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("SYNK_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "~")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="there is no home folder"):
        run(compilation(find_compiler()))
    assert list(tmp_path.iterdir()) == []


def test_layout():
    assert layout_is_known()


FAULTS = """
import resource
import numpy as np
from synk.compile.native.libraries import keep_freed_memory

def calls(number):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(number):
        arrays = [np.ones(6 << 20, "uint8") for _ in range(8)]
        del arrays
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / number

if {keep}:
    keep_freed_memory()
calls(3)
print(calls(5))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other rules")
def test_memory_of_large_arrays_is_met_again_in_the_next_call():
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    faults = [
        float(
            subprocess.check_output(
                [sys.executable, "-c", FAULTS.format(keep=keep)], text=True, env=environment
            )
        )
        for keep in (False, True)
    ]
    assert faults[1] < 0.1 * faults[0]
