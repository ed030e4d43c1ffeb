"""Products by cuBLAS, on one that reads the memory it is told of (`fake_cublas`)."""

import ctypes
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.tensor.blas import BatchedDot

from support.cupy import fake_cublas, stand_in
from synk.compile import ArrayLinker, array_mode
from synk.gpu.dispatch.cublas import (
    DATA_TYPES,
    RESULTS,
    WHOLE_SUMS,
    CublasBatch,
    MatrixLayout,
    _of_cupy,
    element_strides,
    matrix_layout,
    multiplied_by,
    plan_batch,
)
from synk.gpu.dispatch.products import product
from synk.gpu.speedups import graphs

load = graphs.load  # stand-ins put another in its place
TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}


def whole(shape, dtype, seed=0):
    """Return small whole numbers, which add up exactly in every dtype."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def check(cupy, left, right, dtype=None):
    result = product(cupy, stand_in.ndarray(left), stand_in.ndarray(right), dtype)
    wide = np.matmul(left.astype("float64"), right.astype("float64"))
    assert result.dtype == (dtype or np.promote_types(left.dtype, right.dtype))
    assert result.shape == wide.shape
    np.testing.assert_array_equal(result.get(), wide)
    return result


# --- layouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides", "layout"),
    [
        ((3, 4), (4, 1), MatrixLayout(False, 4)),
        ((3, 4), (9, 1), MatrixLayout(False, 9)),  # the left part of wider rows
        ((3, 4), (1, 3), MatrixLayout(True, 3)),
        ((3, 4), (1, 7), MatrixLayout(True, 7)),
        ((1, 4), (77, 1), MatrixLayout(False, 4)),
        ((1, 4), (0, 5), MatrixLayout(True, 5)),  # one row with gaps is one column of a higher matrix
        ((3, 1), (5, 0), MatrixLayout(False, 5)),
        ((3, 1), (1, 0), MatrixLayout(False, 1)),
        ((1, 1), (0, 0), MatrixLayout(False, 1)),
        ((3, 4), (8, 2), None),
        ((3, 4), (0, 1), None),  # every row the same one
        ((3, 4), (2, 1), None),  # rows that overlap
    ],
)
def test_layouts_of_matrices(shape, strides, layout):
    assert matrix_layout(shape, strides) == layout


def test_strides_that_no_blas_can_walk():
    assert element_strides((2, 3), (24, 8), 8) == (3, 1)
    assert element_strides((2, 3), (-24, 8), 8) is None
    assert element_strides((2, 3), (20, 8), 8) is None
    assert element_strides((1, 3), (-24, 8), 8) == (0, 1)


@pytest.mark.parametrize(
    ("shape", "strides", "plan"),
    [
        ((), [(), ()], CublasBatch(1, (0, 0), [(0, 0)])),
        ((1,), [(5,), (0,)], CublasBatch(1, (0, 0), [(0, 0)])),
        ((4,), [(5,), (0,)], CublasBatch(4, (5, 0), [(0, 0)])),
        ((2, 3), [(15, 5), (0, 0)], CublasBatch(6, (5, 0), [(0, 0)])),
        ((2, 3), [(15, 5), (0, 7)], CublasBatch(3, (5, 7), [(0, 0), (15, 0)])),
        ((3, 2), [(10, 5), (7, 0)], CublasBatch(3, (10, 7), [(0, 0), (5, 0)])),
        ((2, 1, 3), [(15, 99, 5), (21, 99, 7)], CublasBatch(6, (5, 7), [(0, 0)])),
    ],
)
def test_batches_take_few_calls(shape, strides, plan):
    assert plan_batch(shape, strides) == plan


# --- numbers ---------------------------------------------------------------------------------------------


@st.composite
def factors(draw):
    """Two factors that can be multiplied, views of larger arrays: cut, stepped, transposed, broadcast."""
    m, k, n = (draw(st.integers(0, 4)) for _ in range(3))
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    pair = []
    for seed, shape in enumerate([(m, k), (k, n)]):
        axes = [length if draw(st.integers(0, 3)) else 1 for length in batch]
        axes = axes[draw(st.integers(0, len(axes))) :] if seed else axes
        pair.append(draw(views((*axes, *shape), dtype, seed)))
    return pair


@st.composite
def views(draw, shape, dtype, seed):
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    margins = [draw(st.sampled_from([0, 0, 1])) for _ in shape]
    lengths = [
        max(1, length) * abs(step) + margin
        for length, step, margin in zip(shape, steps, margins, strict=True)
    ]
    base = whole([lengths[axis] for axis in order], dtype, seed)
    array = base.transpose(np.argsort(order))
    cut = tuple(
        slice(None, None, step) if length else slice(0, 0) for length, step in zip(shape, steps, strict=True)
    )
    array = array[cut][tuple(slice(0, length) for length in shape)]
    assert array.shape == shape
    repeated = draw(st.sampled_from([None, *range(len(shape))]))
    if repeated is not None and shape[repeated] > 1:
        array = np.broadcast_to(array.take([0], repeated), shape)
    return array


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pair=factors(), wide=st.booleans())
def test_any_view_is_multiplied(cupy, pair, wide):
    left, right = pair
    check(cupy, left, right, np.dtype("float32") if wide and left.dtype == "float16" else None)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_views_that_a_blas_reads_are_not_copied(cupy, dtype):
    x, y = whole((6, 5, 4), dtype), whole((6, 4, 3), dtype, 1)
    pairs = [
        (x, y),
        (np.ascontiguousarray(x.mT).mT, y),
        (x, np.ascontiguousarray(y.mT).mT),
        (x[:, :3, :2], y[:, :2]),
        (x[::2], y[::2]),
        (x[:1], y),
        (np.broadcast_to(x[:1], x.shape), y),
        (x[0], y),
        (x, y[0]),
        (x[0], y[0]),
        (x[0].T, x[1]),
        (x[0, :1], y[0]),
        (x[0], y[0, :, 1:2]),
    ]
    for left, right in pairs:
        stand_in.counts.reset()
        check(cupy, left, right)
        assert stand_in.counts.launches == 1
        assert (stand_in.counts.uploads, stand_in.counts.downloads) == (0, 1)


def test_heads_of_attention_are_not_copied(cupy):
    queries = whole((3, 7, 2, 4), "float32").transpose(0, 2, 1, 3)  # batch, head, time, feature
    keys = whole((3, 7, 2, 4), "float32", 1).transpose(0, 2, 3, 1)
    stand_in.counts.reset()
    check(cupy, queries, keys)
    assert stand_in.counts.launches == 2  # the shorter of the two axes of the batch
    assert {count for *_, count in fake_cublas.computed} == {3}


def test_results_go_where_they_are_told(cupy):
    left, right = whole((2, 3, 4), "float32"), whole((2, 4, 5), "float32", 1)
    expected = left @ right
    wide = np.full((2, 3, 9), np.nan, "float32")
    for target in (np.full((2, 3, 5), np.nan, "float32"), wide[..., :5], np.full((2, 3, 5), np.nan)):
        out = stand_in.ndarray(target)
        dtype = target.dtype if target.dtype == "float32" else None
        assert product(cupy, stand_in.ndarray(left), stand_in.ndarray(right), dtype, out=out) is out
        np.testing.assert_array_equal(target, expected)
    assert np.isnan(wide[..., 5:]).all()
    empty = stand_in.ndarray(np.full((3, 5), np.nan, "float32"))
    product(cupy, stand_in.ndarray(left[0, :, :0]), stand_in.ndarray(right[0, :0]), out=empty)
    np.testing.assert_array_equal(empty.get(), 0)


def test_sums_of_16_bits_are_wide(cupy):
    left, right = np.full((1, 3000), 1, "float16"), np.full((3000, 2), 1, "float16")
    wide = check(cupy, left, right, np.dtype("float32"))
    assert wide.dtype == "float32"
    np.testing.assert_array_equal(wide.get(), 3000)
    assert fake_cublas.computed == [(68, 2, 0, 1)]
    big = np.full((3000, 2), 200, "float16")
    np.testing.assert_array_equal(
        product(cupy, stand_in.ndarray(left), stand_in.ndarray(big), "float32").get(), 600000
    )


def test_parts_of_a_sum_are_as_wide_as_the_sum(cupy):
    left, right = np.array([[2048, 1, 1, 0]], "float16"), np.ones((4, 1), "float16")
    for _ in range(2):
        np.testing.assert_array_equal(check(cupy, left, right).get(), 2050)
        fake_cublas.setMathMode(fake_cublas.HANDLE, 0)  # others use the handle too


def test_products_that_are_recorded_are_added_up_alike(cupy):
    handle = graphs.CublasHandle(cupy)
    handle.begin()
    with multiplied_by(handle):
        check(cupy, np.array([[2048, 1, 1, 0]], "float16"), np.ones((4, 1), "float16"))


def test_bfloat16(cupy):
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    left, right = whole((2, 3, 4), bfloat16), whole((4, 5), bfloat16, 1)
    check(cupy, left, right)
    check(cupy, left, right, np.dtype("float32"))
    assert [kinds for _, *kinds, _ in fake_cublas.computed] == [[14, 14], [14, 0]]


def test_the_switch_for_tf32_is_that_of_cupy(cupy, monkeypatch):
    left, right = np.full((2, 1, 1), 1 + 2.0**-12, "float32"), np.ones((2, 1, 1), "float32")
    arrays = [stand_in.ndarray(left), stand_in.ndarray(right)]
    np.testing.assert_array_equal(product(cupy, *arrays).get(), left)
    monkeypatch.setenv("CUPY_TF32", "1")
    np.testing.assert_array_equal(product(cupy, *arrays).get(), 1)
    product(cupy, *[array.astype("float64") for array in arrays])
    product(cupy, *[array.astype("float16") for array in arrays])
    assert [kind for kind, *_ in fake_cublas.computed] == [68, 77, 70, 68]


def test_dtypes_without_cublas_are_multiplied_by_the_module(cupy):
    for dtype in ("int32", "complex64", "complex128"):
        check_module(cupy, whole((2, 3, 4), dtype), whole((2, 4, 5), dtype, 1))
    assert fake_cublas.computed == []
    check(cupy, whole((2, 3, 4), "float16"), whole((2, 4, 5), "float32", 1))
    assert len(fake_cublas.computed) == 1


def check_module(cupy, left, right):
    result = product(cupy, stand_in.ndarray(left), stand_in.ndarray(right))
    np.testing.assert_array_equal(result.get(), left @ right)


def test_lengths_must_agree(cupy):
    x, y = stand_in.ndarray(whole((2, 3, 4), "float32")), stand_in.ndarray(whole((2, 3, 4), "float32"))
    with pytest.raises(ValueError, match=r"shapes \(2, 3, 4\) and \(2, 3, 4\)"):
        product(cupy, x, y)
    with pytest.raises(ValueError, match="broadcast"):
        product(cupy, x, stand_in.ndarray(whole((3, 4, 5), "float32")))


def test_programs_multiply_by_cublas(cupy):
    x, y = pt.tensor3("x", dtype="float32"), pt.tensor3("y", dtype="float32")
    heads, keys = pt.tensor4("heads", dtype="float32"), pt.tensor4("keys", dtype="float32")
    outputs = [x @ y, BatchedDot()(x, y), pt.grad(((x @ y) ** 2).sum(), x), heads @ keys.mT]
    values = [whole((2, 3, 4), "float32"), whole((2, 4, 5), "float32", 1)]
    values += [whole((2, 3, 5, 4), "float32", seed) for seed in (2, 3)]
    function = pytensor.function([x, y, heads, keys], outputs, mode=array_mode(ArrayLinker(cupy)))
    reference = pytensor.function([x, y, heads, keys], outputs, mode=array_mode())
    for result, expected in zip(function(*values), reference(*values), strict=True):
        np.testing.assert_array_equal(result, expected)
    assert sorted(count for *_, count in fake_cublas.computed) == [2, 2, 6]


# --- CuPy itself -----------------------------------------------------------------------------------------


def test_names_and_arguments_are_those_of_cupy():
    pytest.importorskip("cupy")
    try:
        library = _of_cupy()
    except ImportError as error:
        pytest.skip(f"cuBLAS is not installed: {error}")
    called = ("gemmEx", "gemmStridedBatchedEx", "setMathMode")
    fake = {name: getattr(fake_cublas, name) for name in called}
    for name, function in fake.items():
        said = getattr(library, name).__doc__.partition("(")[2].rstrip(")")
        names = [argument.split()[-1] for argument in said.split(",")]
        assert names == list(function.__code__.co_varnames[: function.__code__.co_argcount])
    runtime = import_module("cupy_backends.cuda.api.runtime")
    types = {"float32": "R_32F", "float64": "R_64F", "float16": "R_16F", "bfloat16": "R_16BF"}
    assert {dtype: getattr(runtime, f"CUDA_{name}") for dtype, name in types.items()} == DATA_TYPES
    assert {*RESULTS} == {*DATA_TYPES}
    numbers = ("COMPUTE_32F", "COMPUTE_64F", "COMPUTE_32F_FAST_TF32", "OP_N", "OP_T", "GEMM_DEFAULT")
    assert [getattr(library, f"CUBLAS_{name}") for name in numbers] == [68, 70, 77, 0, 1, -1]
    assert import_module("cupy._core._routines_linalg").COMPUTE_TYPE_TF32 == 7
    assert hasattr(import_module("cupy.cuda.device"), "get_cublas_handle")


def test_signatures_are_those_of_cublas():
    pytest.importorskip("cuda.pathfinder")
    try:
        library = load()
    except Exception as error:
        pytest.skip(f"cuBLAS is not installed: {error}")
    header = Path(library._name).parent.parent / "include" / "cublas_api.h"
    if not header.exists():
        pytest.skip(f"{header} is not here")
    declared = header.read_text()
    for name, types in graphs.SIGNATURES.items():
        assert hasattr(library, name)
        said = re.search(rf"cublasStatus_t CUBLASWINAPI {name}\((.*?)\);", declared, re.DOTALL)[1]
        arguments = [re.sub(r"\w+$", "", argument.strip()).strip() for argument in said.split(",")]
        assert [ctype_of(argument) for argument in arguments] == list(types), name
    numbers = re.findall(r"CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = (\d+)", declared)
    assert numbers == [str(WHOLE_SUMS)]


def ctype_of(said):
    """Return the name in ctypes of a type of C."""
    if said == "cublasHandle_t*":
        return ctypes.POINTER(ctypes.c_void_p)
    if said.endswith("*") or said in ("cublasHandle_t", "cudaStream_t"):
        return ctypes.c_void_p
    # The rest are enumerations.
    return {"long long int": ctypes.c_longlong, "size_t": ctypes.c_size_t}.get(said, ctypes.c_int)


GPU = """
import itertools
import cupy, numpy as np
from synk.gpu.dispatch.products import product
from synk.gpu.speedups import graphs

draw = np.random.default_rng(0).normal
x, y = draw(size=(6, 70, 50)), draw(size=(6, 50, 30))
for dtype, wide in [("float16", "float32"), ("float16", None), ("float32", None), ("float64", None)]:
    a, b = cupy.asarray(x.astype(dtype)), cupy.asarray(y.astype(dtype))
    lefts = a, cupy.ascontiguousarray(a.mT).mT, a[:1], a[0], cupy.broadcast_to(a[:1], a.shape), a[:, ::2]
    rights = b, cupy.ascontiguousarray(b.mT).mT, b[:1], b[0], b[..., 1::2]
    for left, right in itertools.product(lefts, rights):
        result = product(cupy, left, right, wide)
        assert result.dtype == (wide or dtype)
        expected = left.get().astype("float64") @ right.get().astype("float64")
        rtol = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[wide or dtype]
        np.testing.assert_allclose(result.get(), expected, rtol=rtol, atol=20 * rtol)
    heads = a.reshape(3, 2, 70, 50).transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
    np.testing.assert_allclose(
        product(cupy, heads, heads.mT, "float32" if wide else None).get(),
        heads.get().astype("float64") @ heads.mT.get().astype("float64"),
        rtol=2e-3, atol=0.1,
    )
print("equal")
"""


@pytest.mark.gpu
def test_a_real_gpu_multiplies():
    environment = {name: value for name, value in os.environ.items() if name != "CUPY_TF32"}
    ended = subprocess.run(
        [sys.executable, "-c", GPU], env=environment, capture_output=True, text=True, timeout=110
    )
    assert ended.stdout.split() == ["equal"], ended.stderr


@pytest.mark.parametrize(("left", "right"), [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((5, 3, 4), (4,))])
def test_vectors_are_multiplied_as_matrices(cupy, left, right):
    check(cupy, whole(left, "float32"), whole(right, "float32", 1))
    assert len(fake_cublas.computed) == 1
    out = stand_in.ndarray(np.empty(np.matmul(np.empty(left), np.empty(right)).shape, "float32"))
    factors = [stand_in.ndarray(whole(shape, "float32", 2)) for shape in (left, right)]
    assert product(cupy, *factors, out=out) is out
    np.testing.assert_array_equal(out.get(), np.matmul(*[factor.get() for factor in factors]))
