"""How kernels come to be: the compiler, the store that processes share, and what happens without either."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from pytensor.scalar import basic
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

import synk.compile.kernels as package
from synk.compile.kernels import CKernels, numpy_kernels
from synk.compile.kernels.compiler import Compiler, find_compiler
from synk.compile.kernels.library import layout_is_known
from synk.compile.kernels.store import Store, default_folder

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


def node():
    x = basic.float32("x")
    return Elemwise(Composite([x], [x * 3.0 + 1.0])).make_node(TensorType("float32", (None,))())


def run(kernels, instead=None):
    kernel = kernels.kernel(node(), instead)
    x, result = np.arange(5, dtype="float32"), np.empty(5, "float32")
    assert kernel.function(x, result) == 0
    np.testing.assert_array_equal(result, 3 * x + 1)


class Forbidden(Compiler):
    def compile(self, source, folder):
        raise AssertionError("nothing should be compiled")


@needs_compiler
def test_the_second_process_compiles_nothing(tmp_path):
    command = find_compiler().command
    run(CKernels(Compiler(command), Store(tmp_path)))
    run(CKernels(Forbidden(command), Store(tmp_path)))
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


@needs_compiler
@pytest.mark.parametrize("damage", [b"", b"no library", None], ids=["empty", "text", "cut"])
def test_a_damaged_file_is_made_anew(tmp_path, damage):
    run(CKernels(find_compiler(), Store(tmp_path)))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.unlink()  # the old file is mapped into this process
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    run(CKernels(find_compiler(), Store(tmp_path)))
    assert len(path.read_bytes()) == len(whole)


@needs_compiler
def test_a_file_of_another_kernel_is_not_taken(tmp_path):
    run(CKernels(find_compiler(), Store(tmp_path)))
    (path,) = tmp_path.iterdir()
    assert Store(tmp_path).find(path.stem) == path
    path.rename(path.with_stem("kother"))
    assert Store(tmp_path).find("kother") is None


@needs_compiler
def test_a_folder_that_cannot_be_made_does_no_harm(tmp_path):
    (tmp_path / "file").write_text("in the way")
    run(CKernels(find_compiler(), Store(tmp_path / "file" / "folder")))


@needs_compiler
def test_other_flags_or_compilers_are_other_kernels(tmp_path):
    command = find_compiler().command
    source = CKernels(Compiler(command)).kernel(node(), None).source
    names = {CKernels(Compiler((*command, *more))).name(source) for more in ([], ["-DX"])}
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
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


def test_without_a_compiler_there_is_one_warning(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    make = numpy_kernels.__wrapped__
    with pytest.warns(UserWarning, match="no C compiler.*unfused.*install gcc"):
        assert make() is None
    cached = package.cache(make)
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
print(f(np.zeros(2, "float32")).tolist(), sum("unfused" in str(w.message) for w in caught))
"""


def test_graphs_run_without_a_compiler():
    environment = os.environ | {"CC": "no-such-compiler"}
    result = subprocess.run(
        [sys.executable, "-c", NO_COMPILER], env=environment, text=True, capture_output=True
    )
    assert result.stdout == "[3.0, 3.0] 1\n", result.stderr


def test_a_compiler_that_fails_leaves_the_graph_unfused(tmp_path):
    def instead(x, out):
        out[...] = 3 * x + 1
        return 0

    with pytest.warns(UserWarning, match="(?s)false.*unfused.*CC"):
        run(CKernels(Compiler(("false",)), Store(tmp_path)), instead)


def test_folder(monkeypatch):
    monkeypatch.setenv("SYNK_CACHE", "/one")
    assert str(default_folder()) == "/one"
    monkeypatch.delenv("SYNK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert str(default_folder()) == "/two/synk"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/three")
    assert str(default_folder()) == "/three/.cache/synk"


def test_layout():
    assert layout_is_known()
