"""Graphs compute in the dtypes of NumPy, wherever PyTensor declares narrower ones."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph

from synk.compile import array_mode
from synk.compile.linker import ArrayLinker
from synk.compile.programs.graphs.width import as_performed, cumulated
from synk.compile.rewriting.rewrites import AsPerformed

NARROW = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")
PLAIN = Mode(linker="py", optimizer=None)  # the graph as it is written, each Op by its own perform
IN_PYTHON = array_mode(ArrayLinker(native=False))


def large(dtype, shape=(5, 3)):
    """Return numbers whose sums and products do not fit into their dtype."""
    return np.ones(shape, dtype) if dtype == "bool" else np.full(shape, np.iinfo(dtype).max - 7, dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_running_sums_and_products_are_numpys(dtype):
    x = pt.matrix("x", dtype=dtype)
    sums, products = pt.cumsum(x, axis=0), pt.cumprod(x, axis=1)
    outputs = [sums, products, pt.cumsum(x), sums[::-1].T, sums * 1.0, pt.concatenate([sums, x]), sums.sum()]
    outputs.append(sums.astype(dtype))  # PyTensor adds no Op for this
    found = pytensor.function([x], outputs, mode=array_mode())(value := large(dtype))
    a, b, c = np.cumsum(value, axis=0), np.cumprod(value, axis=1), np.cumsum(value)
    product = (a * 1.0).astype(outputs[4].type.dtype)
    expected = [a, b, c, a[::-1].T, product, np.concatenate([a, value]), a.sum(), a]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_what_computes_gives_the_dtype_that_it_declares_from_the_wide_numbers():
    u, i = pt.vector("u", dtype="uint8"), pt.vector("i", dtype="int8")
    outputs = [
        pt.cumsum(u) + u,
        pt.cumsum(u) // 2,
        pt.cumsum(u).max(),
        pt.eq(pt.cumsum(u), 277),
        pt.cumsum(u) + i,
    ]
    given = [np.array([77, 200, 3], "uint8"), np.array([-5, 4, 100], "int8")]
    found, expected = (pytensor.function([u, i], outputs, mode=mode)(*given) for mode in (IN_PYTHON, PLAIN))
    for output, one, other in zip(outputs, found, expected, strict=True):
        assert one.dtype == other.dtype == output.type.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("exponent", [2, 3, 5, 2.0, -2.0])
def test_a_power_of_narrow_integers_is_computed_in_the_dtype_of_the_result(exponent):
    x = pt.vector("x", dtype="uint8")
    power, value = x**exponent, np.array([77, 200, 3], "uint8")
    found = pytensor.function([x], power, mode=IN_PYTHON)(value)
    assert found.dtype == power.type.dtype
    np.testing.assert_allclose(found, value.astype(found.dtype) ** exponent, rtol=1e-6)


def test_an_update_keeps_the_dtype_of_its_variable():
    counts = pytensor.shared(np.array([200, 100, 50], "uint8"))
    pytensor.function([], [], updates=[(counts, pt.cumsum(counts))], mode=IN_PYTHON)()
    np.testing.assert_array_equal(counts.get_value(), np.array([200, 44, 94], "uint8"), strict=True)


def test_a_graph_without_narrow_sums_stays_as_it_is():
    x, n = pt.matrix("x"), pt.vector("n", dtype="int64")
    results = [pt.cumsum(x, axis=0) ** 2, pt.cumsum(n), n**2]
    assert all(one is other for one, other in zip(as_performed(results), results, strict=True))


def test_a_graph_inside_that_declares_narrow_numbers_is_refused():
    u, one = pt.vector("u", dtype="uint8"), pt.vector("one", dtype="uint8")
    over = pytensor.scan(lambda one: one * 2, sequences=pt.cumsum(u), return_updates=False)
    with pytest.raises(TypeError, match=r"test_width.py:\d+.*is one of 64 bits.*convert what is summed"):
        pytensor.function([u], over, mode=IN_PYTHON)
    with pytest.raises(TypeError, match=r"is one of 64 bits.*convert what is summed"):
        pytensor.function([u], OpFromGraph([one], [pt.cumsum(one)])(u), mode=IN_PYTHON)
    within = pytensor.function([u], OpFromGraph([one], [pt.cumsum(one) * 1.0])(u), mode=IN_PYTHON)
    np.testing.assert_array_equal(within(np.array([77, 200, 3], "uint8")), [77, 277, 280])


def test_floating_point_stays():
    assert [cumulated(dtype) for dtype in ("float16", "float32", "complex64")] == [
        "float16",
        "float32",
        "complex64",
    ]


def test_draws_of_a_running_sum_advance_their_generator():
    u, rng = pt.vector("u", dtype="uint8"), pt.random.shared_rng(seed=5)
    new, drawn = rng.poisson(pt.cumsum(u) * 1.0)
    draw = pytensor.function([u], drawn, updates={rng: new}, mode=IN_PYTHON)
    value, alone = np.array([200, 100], "uint8"), np.random.default_rng(5)
    for _ in range(2):
        np.testing.assert_array_equal(draw(value), alone.poisson([200.0, 300.0]))


def test_only_what_is_too_narrow_is_left_to_the_implementations(monkeypatch):
    x = pt.vector("x")

    def broken(results):
        raise TypeError("something else")

    monkeypatch.setattr("synk.compile.rewriting.rewrites.as_performed", broken)
    with pytest.raises(TypeError, match="something else"):
        AsPerformed().apply(FunctionGraph([x], [x + 1]))
