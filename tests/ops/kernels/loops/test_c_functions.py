"""How the loops come to be: compiled at the first call, kept for the next process, or replaced."""

import ctypes
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from synk.compile.native.building import CompileError
from synk.compile.native.compiler import Compiler, find_compiler
from synk.compile.native.libraries import Libraries
from synk.compile.native.store import Store
from synk.ops.kernels.loops import available, c_functions

needs_compiler = pytest.mark.skipif(not available(), reason="there is no C compiler")

FALL_BACK = """
import warnings
import numpy as np
from synk.ops.kernels.loops import LoopKernels, available
from synk.ops.kernels.plain_norm import PlainNorm
from synk.ops.kernels.plain_pool import PlainPool
from synk.ops.kernels.resampling import Resampling
from synk.ops.kernels.window import Pooling, Window

x = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype("float32")
one, labels = np.ones(3, "float32"), np.array([0, 2])
pooling = Pooling(Window((2, 2), (2, 2)), "NHWC")
smooth = Resampling((4, 4), None, "bilinear", layout="NHWC")
plain, pool, loops = PlainNorm(np), PlainPool(np), LoopKernels(np)
_, mean, inv_std = plain.batch_norm(0.1, True, "NHWC")(x, one, one)
_, *of_groups = plain.group_norm(0.1, 3, True, "NHWC")(x, one, one)
y, index = pool.max_pool(pooling, "uint8")(x)
rows = x[0, 0, :2]
CASES = [
    (plain, "batch_norm", (0.1, True, "NHWC"), (x, one, one)),
    (plain, "batch_norm_gradient", (True, "NHWC"), (x, x, one, one, mean, inv_std)),
    (plain, "group_norm", (0.1, 3, True, "NHWC"), (x, one, one)),
    (plain, "group_norm_gradient", (3, True, "NHWC"), (x, x, one, one, *of_groups)),
    (plain, "layer_norm", (0.1, 1), (rows, one, one)),
    (plain, "layer_norm_gradient", (1,), (rows, rows, one, one[:2], one[:2])),
    (plain, "softmax_cross_entropy", (), (rows, labels)),
    (plain, "softmax_cross_entropy_gradient", (), (one[:2], rows, labels, one[:2])),
    (pool, "max_pool", (pooling, "uint8"), (x,)),
    (pool, "max_pool_gradient", (pooling,), (y, index, 4, 4)),
    (pool, "avg_pool", (pooling, True), (x,)),
    (pool, "avg_pool_gradient", (pooling, True), (y, 4, 4)),
    (pool, "global_avg_pool", ("NHWC",), (x,)),
    (pool, "resample", (smooth,), (x,)),
    (pool, "resample_gradient", (smooth,), (x, 2, 3)),
]
kinds = [kind for kind in LoopKernels.__mro__ if kind.__name__.startswith("Loop")]
assert {case[1] for case in CASES} == {name for kind in kinds for name in vars(kind) if name[0] != "_"}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for instead, name, settings, inputs in CASES:
        for _ in range(2):
            results = getattr(loops, name)(*settings)(*inputs)
        expected = getattr(instead, name)(*settings)(*inputs)
        if not isinstance(expected, tuple):
            results, expected = [results], [expected]
        for value, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
print(available(), len(caught), "run in NumPy" in str(caught[0].message), caught[0].message)
"""


def fall_back(**environment):
    """Run all functions in a process of this environment, and return what it says."""
    command = [sys.executable, "-c", FALL_BACK]
    ended = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_without_a_compiler_numpy_computes_after_one_warning(tmp_path):
    said = fall_back(CC=str(tmp_path / "none"), SYNK_CACHE=str(tmp_path))
    assert said.startswith("False 1 True there is no C compiler")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_compiler_that_fails_is_said_once(tmp_path):
    said = fall_back(CC="false", SYNK_CACHE=str(tmp_path))
    assert said.startswith("True 1 True false ")
    assert "set CC to a C compiler that works" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"CC": "true"}, "exit status 0, but no library"),
        ({"CC": "cc '"}, "there is no C compiler (CC=cc ' cannot be split"),
    ],
    ids=["nothing", "quote"],
)
def test_what_is_no_compiler_is_said_once(tmp_path, environment, said):
    answer = fall_back(SYNK_CACHE=str(tmp_path), **environment)
    assert answer.split()[1:3] == ["1", "True"]
    assert said in answer


class Forbidden(Compiler):
    def compile(self, sources):
        raise AssertionError("nothing should be compiled")


def load(compiler, folder, text):
    (library,) = c_functions.load_all(Libraries(compiler, Store(folder)), [text])
    return library


TEXT = "int answer_of_the_test(void) { return 42; }"


@needs_compiler
def test_the_second_process_compiles_nothing(tmp_path):
    command = find_compiler().command
    assert load(Compiler(command), tmp_path, TEXT).answer_of_the_test() == 42
    (path,) = tmp_path.glob("*.so")
    assert load(Forbidden(command), tmp_path, TEXT).answer_of_the_test() == 42
    path.unlink()  # the old file is mapped into this process
    path.write_bytes(b"damaged")
    assert load(Compiler(command), tmp_path, TEXT).answer_of_the_test() == 42
    assert len(path.read_bytes()) > 1000


@needs_compiler
def test_a_text_that_does_not_compile_is_an_error(tmp_path):
    failed = load(find_compiler(), tmp_path, "no C")
    assert isinstance(failed, CompileError)
    assert "failed: exit status 1" in str(failed)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "file", ["batch_norm", "group_norm", "pool", "layer_norm", "cross_entropy", "resampling"]
)
def test_other_instruction_sets_are_served(tmp_path, file, dtype):
    """Without the vectors of this machine: the plain branches of common.c compile, and are loaded."""
    baseline = Compiler((*find_compiler().command, "-DTEST_OF_BASELINE"))
    text = "#undef __AVX512F__\n#undef __AVX__\n#undef __SSE2__\n" + c_functions.source(file, dtype)
    compiled = load(baseline, tmp_path, text)
    assert isinstance(compiled, ctypes.CDLL)
    name = {"pool": "max_pool", "resampling": "resample"}.get(file, file)
    assert compiled[f"{name}_{dtype}"]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("first", "files"), [("resampling", 1), ("cross_entropy", 4)])
def test_what_few_networks_need_is_compiled_by_itself(tmp_path, first, files):
    code = (
        "import numpy as np; from synk.ops.kernels.loops.c_functions import CFunction;"
        f"names = {{'resampling': 'resample', 'cross_entropy': 'cross_entropy'}}; first = {first!r};"
        "assert CFunction(first, names[first], 'a').form(np.dtype('float32'))"
    )
    environment = {**os.environ, "SYNK_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=200)
    assert len(list(tmp_path.rglob("*.so"))) == files


@pytest.mark.slow
def test_nothing_is_compiled_by_an_import(tmp_path):
    code = "from synk.ops.kernels.loops import LoopKernels; LoopKernels(None).batch_norm(0.1, True, 'NHWC')"
    environment = {**os.environ, "SYNK_CACHE": str(tmp_path), "CC": "false"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True, timeout=60)


def test_a_loop_asks_for_the_dtypes_it_has():
    with pytest.raises(TypeError, match="batch_norm takes float32 and float64, not int64; cast its input"):
        c_functions.CFunction("batch_norm", "batch_norm", "a").form(np.dtype("int64"))


class Interrupted(np.ndarray):
    """An array whose address is being looked up when ^C comes."""

    @property
    def ctypes(self):
        signal.raise_signal(signal.SIGINT)
        return super().ctypes


@needs_compiler
def test_an_interrupt_on_the_way_to_a_loop_stays_one():
    array = np.zeros((2, 3), "float32")
    loop = c_functions.CFunction("cross_entropy", "cross_entropy", "aaaann", ctypes.c_long).form(array.dtype)
    with pytest.raises(KeyboardInterrupt):
        loop(array.view(Interrupted), *[array] * 3, 0, 0)
