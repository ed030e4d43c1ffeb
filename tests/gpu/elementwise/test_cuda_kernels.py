"""Kernels of CuPy's arrays, where an emulator runs CUDA: numbers, launches, what travels, fallbacks.

Broadcasting, ``out=`` and work in place are in ``test_fusion.py``, for kernels in C too.
"""

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.scalar import basic, math
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from support.cuda import emulator as cuda_emulator
from support.cupy import stand_in
from synk.compile import ArrayLinker, array_funcify, array_mode
from synk.compile.array_modules import array_module
from synk.extensions import updates
from synk.gpu.elementwise import cuda_kernels, cuda_layout
from synk.gpu.elementwise.cuda_dialect import FUSION
from synk.gpu.elementwise.cuda_kernels import CupyKernels

pytestmark = pytest.mark.skipif(not cuda_emulator.available(), reason="there is no g++ to emulate a GPU")

a, b = basic.float64("a"), basic.float64("b")
TWO = Composite([a, b], [a * b + 2.0, a - b])  # two outputs


@pytest.fixture
def kernel_of(cupy):
    def make(scalar_op, shapes, inplace=None, dtype="float64"):
        inputs = [TensorType(dtype, shape)() for shape in shapes]
        node = Elemwise(scalar_op, inplace or {}).make_node(*inputs)
        return array_funcify(node.op, node, cupy)

    return make


@pytest.fixture
def build(cupy):
    """Return a way to build a function on the stand-in, or with ``fused=False`` without Composites."""

    def function(inputs, outputs=(), fused=True, updates=(), **keywords):
        mode = array_mode(ArrayLinker(cupy, **keywords))
        mode = mode if fused else mode.excluding(FUSION)
        return pytensor.function(inputs, outputs, updates=list(updates), mode=mode, on_unused_input="ignore")

    return function


def put(array):
    """Return an array of the device with the strides of one of NumPy's."""
    return stand_in.ndarray(array)


def counted(function, *arguments):
    """Return results, and what the second call did."""
    function(*arguments)
    stand_in.counts.reset()
    return function(*arguments), stand_in.counts


def composites(function):
    nodes = function.maker.fgraph.apply_nodes
    return [n for n in nodes if isinstance(getattr(n.op, "scalar_op", None), Composite)]


def of(*shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


# --- launches --------------------------------------------------------------------------------------------


def test_cupy_has_kernels_where_it_compiles(cupy, device):
    assert array_module(cupy).fusion == FUSION
    assert not array_module(device).fusion


def test_a_bias_and_a_tanh_are_one_launch(build):
    x, bias = pt.fmatrix("x"), pt.fvector("bias")
    f = build([x, bias], pt.tanh(x + bias))
    values = of((5, 7), (7,))
    result, counts = counted(f, *values)
    assert counts.launches == 1
    np.testing.assert_allclose(result, np.tanh(values[0] + values[1]), rtol=1e-6)


def test_an_update_of_adam_is_one_launch_for_each_weight(build):
    weights = [pytensor.shared(w, f"w{k}") for k, w in enumerate(of((6, 4), (4,)))]
    x = pt.fmatrix("x")
    loss = pt.sqr(x @ weights[0] + weights[1]).sum()
    _, pairs, _ = updates.adam(loss, weights, learning_rate=0.1)
    f = build([x], updates=[pair[:2] for pair in pairs])
    _, counts = counted(f, *of((3, 6)))
    assert len(composites(f)) == 3  # one of the step number, from which factors of all weights come
    assert len([n for n in f.maker.fgraph.apply_nodes if isinstance(n.op, Elemwise)]) == 3
    assert (counts.launches, counts.uploads) == (3 + 1, 0)  # the number goes to its place


def test_bits_are_those_of_the_unfused_graph(build):
    p, m, v, g = pt.fvectors("p", "m", "v", "g")
    first, second = np.float32(0.9) * m + np.float32(0.1) * g, np.float32(0.99) * v + np.float32(0.01) * g * g
    outputs = [p - np.float32(1e-3) * first / (pt.sqrt(second) + np.float32(1e-8)), first, second]
    values = of(*[(1000,)] * 4)
    values[2] = np.abs(values[2])
    fused, counts = counted(build([p, m, v, g], outputs), *values)
    assert counts.launches == 1
    plain, counts = counted(build([p, m, v, g], outputs, fused=False), *values)
    assert counts.launches > 8
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_numbers_travel_with_the_launch(build):
    x, rate, flag = pt.fmatrix("x"), pt.fscalar("rate"), pt.scalar("flag", dtype="bool")
    f = build([x, rate, flag], pt.switch(flag, x * rate + 1, x - rate))
    (value,) = of((3, 4))
    for yes in (True, False):
        expected = value * np.float32(0.5) + 1 if yes else value - np.float32(0.5)
        result, counts = counted(f, value, 0.5, yes)
        np.testing.assert_array_equal(result, expected)
        assert (counts.launches, counts.uploads, counts.downloads) == (1, 1, 1)  # x, and the result


def test_kernels_of_one_program_are_one_module_and_of_equal_text_one_kernel(build, cupy, monkeypatch):
    made, module = [], cupy.RawModule
    monkeypatch.setattr(cupy, "RawModule", lambda **keywords: made.append(keywords) or module(**keywords))
    x, y = pt.fmatrix("x"), pt.fvector("y")
    outputs = [pt.exp(x) * 2 + 1, pt.exp(x.sum(axis=0)) * 3, pt.exp(y) * 3]
    f = build([x, y], outputs)
    for _ in range(2):
        f(*of((2, 3), (3,)))
    assert len(made) == 1
    assert made[0]["code"].count("_flat(long long n") == 2
    build([y], [pt.exp(y) * 3])(*of((3,)))
    assert len(made) == 1


def test_nothing_is_launched_for_arrays_without_elements(build):
    x = pt.fmatrix("x")
    result, counts = counted(build([x], pt.exp(x) * 2), np.empty((0, 3), "float32"))
    assert result.shape == (0, 3)
    assert counts.launches == 0


def test_lengths_stay_on_the_host(build):
    x, n = pt.fvector("x"), pt.lscalar("n")
    half = n // 2 + 1
    total = x.sum().astype("int64")
    f = build([x, n], [x[:half] * 2 + 1, half * total + 1])
    (value,) = of((10,))
    (part, number), counts = counted(f, value, 6)
    np.testing.assert_array_equal(part, value[:4] * 2 + 1)
    assert number == 4 * int(value.sum()) + 1
    assert (counts.uploads, counts.downloads) == (1, 2)  # x; both results


# --- numbers ---------------------------------------------------------------------------------------------


def test_arrays_of_another_dtype_are_converted(kernel_of):
    call = kernel_of(Composite([a, b], [a * b + a]), [(None,)] * 2)
    x, target = np.arange(5.0), np.empty(5, "float32")
    np.testing.assert_array_equal(call(put(x.astype("float32")), put(x)).get(), x * x + x)
    call(put(x), put(x), out=put(target))
    np.testing.assert_array_equal(target, x * x + x)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint16", "float32", "float64"])
def test_single_numbers_of_all_kinds(kernel_of, dtype):
    scalars = [basic.get_scalar_type(dtype)() for _ in range(2)]
    call = kernel_of(Composite(scalars, [basic.switch(scalars[0], *scalars)]), [(None,), (1,)], dtype=dtype)
    x = np.array([0, 1, 1], dtype)
    for number in (np.dtype(dtype).type(1), put(np.ones(1, dtype))):
        stand_in.counts.reset()
        np.testing.assert_array_equal(call(put(x), number).get(), np.where(x != 0, x, 1).astype(dtype))
        assert (stand_in.counts.launches, stand_in.counts.uploads) == (1, 0)


def test_a_number_that_fits_says_nothing_of_an_array_of_its_dtype(kernel_of):
    scalars = [basic.float32(), basic.float32()]
    call = kernel_of(Composite(scalars, [basic.add(*scalars)]), [(), ()], dtype="float32")
    for value in (np.float64(3), put(np.array(3.0)), np.float64(3)):
        assert call(np.float32(2), value).get() == 5


def test_scalar_ops_without_a_ufunc_are_kernels_of_their_own(kernel_of):
    x = np.linspace(-3, 3, 50)
    stand_in.counts.reset()
    result = kernel_of(math.sigmoid, [(None,)])(put(x))
    assert stand_in.counts.launches == 1
    np.testing.assert_allclose(result.get(), 1 / (1 + np.exp(-x)), rtol=1e-14)


# --- 16 bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_arrays_of_16_bits_are_read_and_written_by_the_kernel(build, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    x, w, v, bias = pt.fmatrix("x"), pt.fmatrix("w"), pt.fmatrix("v"), pt.fvector("bias")
    outputs = pt.maximum(x @ w + bias, 0) * 2 @ v
    values = of((4, 8), (8, 8), (8, 8), (8,))
    result, counts = counted(build([x, w, v, bias], outputs, narrow=dtype), *values)
    assert counts.launches == 3 + 2 + 1  # factors are converted, two products, one kernel
    left, right, last, added = values
    np.testing.assert_allclose(result, np.maximum(left @ right + added, 0) * 2 @ last, rtol=0.1, atol=0.5)
    # The same numbers as from array operations that compute in float32.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("synk.gpu.dispatch.cupy_arrays.fused", lambda *arguments: None)
        plain, counts = counted(build([x, w, v, bias], outputs, fused=False, narrow=dtype), *values)
    assert counts.launches > 6
    np.testing.assert_allclose(result, plain, rtol=0.02, atol=0.05)


# --- packs -----------------------------------------------------------------------------------------------

STORED = [("", ""), ("float16", "float16"), ("float16", ""), ("", "float16")]


@pytest.mark.parametrize("n", [0, 1, 255, 257, 1031, 4096])
@pytest.mark.parametrize("skipped", [0, 1])  # elements: the second array starts at 16 bytes, or does not
@pytest.mark.parametrize("stored", STORED)
def test_elements_are_the_same_in_packs_and_one_by_one(cupy, monkeypatch, n, skipped, stored):
    monkeypatch.setattr(cuda_layout, "AT_ONCE", 0)  # few elements are enough
    read, given = stored
    x, y, flag = basic.float32("x"), basic.float32("y"), basic.bool("flag")
    both = Composite([x, y, flag], [basic.switch(flag, x * y, x), x > y])
    kinds = [TensorType(dtype, (None,))() for dtype in ("float32", "float32", "bool")]
    node = Elemwise(both)(*kinds, return_list=True)[0].owner
    kernel = CupyKernels(cupy).kernel(node, None, ["", read, ""], [given, ""])
    rng = np.random.default_rng(n)
    first = rng.normal(size=n).astype("float32")
    second = rng.normal(size=n + skipped).astype(read or "float32")[skipped:]
    third = rng.integers(0, 2, n).astype("bool")
    product, larger = np.zeros(n + 1, given or "float32")[:n], np.zeros(n, "bool")
    assert kernel.function(*map(put, (first, second, third, product, larger))) == 0
    wide = second.astype("float32")
    np.testing.assert_array_equal(product, np.where(third, first * wide, first).astype(product.dtype))
    np.testing.assert_array_equal(larger, first > wide)


def test_packs_over_their_own_inputs(kernel_of, monkeypatch):
    monkeypatch.setattr(cuda_layout, "AT_ONCE", 0)
    call = kernel_of(TWO, [(None, None), (None, None)], {0: 1, 1: 0})
    x, y = np.random.default_rng(3).standard_normal((2, 3, 501))
    before = x.copy(), y.copy()
    call(put(x), put(y))
    np.testing.assert_array_equal(y, before[0] * before[1] + 2.0)
    np.testing.assert_array_equal(x, before[0] - before[1])


@st.composite
def rows(draw):
    """Return arrays and a result of one shape, but where they broadcast; not all rows start at packs."""
    full = (draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.sampled_from([7, 8, 12, 41])))
    room = draw(st.sampled_from([0, 1, 8]))  # elements between rows
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    arrays, patterns = [], []
    for _ in range(3):
        last = len(arrays) == 2
        pattern = (False,) * 3 if last else draw(st.tuples(*[st.booleans()] * 3))
        shape = tuple(1 if one else n for n, one in zip(full, pattern, strict=True))
        start = draw(st.sampled_from([0, 0, 0, 1]))
        array = rng.normal(size=(*shape[:-1], start + shape[-1] + room))[..., start : start + shape[-1]]
        order = draw(st.sampled_from(["as it is", "backwards", "transposed", "every other"]))
        if order == "backwards":
            array = array[:, ::-1]
        if order == "transposed":
            array = np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1)
        if order == "every other":
            array = np.repeat(array, 2, axis=2)[:, :, ::2]
        arrays.append(array)
        patterns.append(pattern)
    return arrays, patterns


@pytest.fixture
def in_packs(kernel_of, monkeypatch):
    """Return a check of ``x * y + 2`` in packs, of few elements."""
    monkeypatch.setattr(cuda_layout, "AT_ONCE", 0)
    monkeypatch.setattr(cuda_layout, "THREADS", 16)  # of which there are fewer than elements
    monkeypatch.setattr(cuda_kernels, "BLOCK", (16,))

    def check(x, y, result, patterns):
        call = kernel_of(Composite([a, b], [a * b + 2.0]), patterns)
        call(put(x), put(y), out=put(result))
        np.testing.assert_array_equal(result, x * y + 2.0)

    return check


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=rows())
def test_rows_are_the_same_in_packs_and_one_by_one(in_packs, case):
    arrays, patterns = case
    if not any(map(all, zip(*patterns[:2], strict=True))):  # else the result has another shape
        in_packs(*arrays, [tuple(1 if one else None for one in pattern) for pattern in patterns[:2]])


def test_rows_that_end_within_a_pack_are_read_one_by_one(in_packs):
    x, y, result = np.random.default_rng(0).normal(size=(3, 9, 8))[:, :, :7]
    in_packs(x, y, result, [(None, None)] * 2)


# --- fallbacks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", [None, "float16"])
def test_what_does_not_compile_runs_unfused_with_one_warning(build, cupy, monkeypatch, narrow):
    def refuse(**keywords):
        raise RuntimeError("NVRTC_ERROR_INVALID_OPTION")

    monkeypatch.setattr(cupy, "RawModule", refuse)
    x, w, rate = pt.fmatrix("x"), pt.fmatrix("w"), pt.fscalar("rate")
    hidden = pt.maximum(x @ w * rate + 1, 0)
    f = build([x, w, rate], [hidden @ w, pt.exp(x) * rate + 1], narrow=narrow)
    left, right = of((4, 4), (4, 4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            result, curve = f(left, right, 0.5)
    assert [str(w.message).splitlines()[0] for w in caught] == ["RuntimeError: NVRTC_ERROR_INVALID_OPTION"]
    expected = np.maximum(left @ right * 0.5 + 1, 0) @ right
    np.testing.assert_allclose(result, expected, rtol=2e-2 if narrow else 1e-5, atol=2e-2 if narrow else 1e-6)
    np.testing.assert_allclose(curve, np.exp(left) * 0.5 + 1, rtol=1e-6)
