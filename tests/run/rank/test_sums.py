"""Sums on a device beside those of the host: the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cupy import stand_in
from support.cupy.array_modules import PLACES, import_arrays
from synk.run.device.cpu import CpuDevice
from synk.run.rank.program_spec import ProgramSpec, UpdateSpec
from synk.run.rank.sums import DeviceAccumulator, Sums
from synk.values.accumulator import Accumulator
from synk.values.operations import MODES

LEGAL = [
    *[(mode, dtype) for dtype in ("float16", "float32", "float64") for mode in MODES if mode],
    *[(mode, "int32") for mode in ("sum", "prod", "min", "max", "gather")],
    *[(mode, "complex64") for mode in ("avg", "sum", "prod", "gather")],
    *[(mode, "bool") for mode in ("prod", "min", "max", "gather")],
]


def values_of(dtype, weights, shape, seed):
    rng = np.random.default_rng(seed)
    size = (len(weights), *shape)
    if dtype == "bool":
        return rng.random(size) < 0.5
    real = rng.normal(size=size) * 10.0 ** rng.integers(-3, 3, size)
    return (real + 1j * rng.normal(size=size)).astype(dtype) if dtype == "complex64" else real.astype(dtype)


@pytest.fixture(scope="module", params=PLACES)
def xp(request):
    """Return the array module of a device: the stand-in, or CuPy on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        yield import_arrays(request.param, patch)


def both(xp, mode, values, weights):
    """Return the results of host and device for the same values."""
    host, device = Accumulator(mode), DeviceAccumulator(mode, xp, sum(weights))
    for value, weight in zip(values, weights, strict=True):
        host.add(value, weight)
        device.add(xp.asarray(value), weight)
    expected, found = host.partial(), device.partial()
    assert found.weight == expected.weight
    return expected.value, xp.asnumpy(found.value)


@pytest.mark.parametrize(("mode", "dtype"), LEGAL)
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    st.sampled_from([(), (3,), (2, 2)]),
    st.integers(0, 2**32 - 1),
)
def test_the_bits_of_the_host(xp, mode, dtype, weights, shape, seed):
    expected, found = both(xp, mode, values_of(dtype, weights, shape, seed), weights)
    assert found.dtype == expected.dtype
    if dtype == "complex64":  # products of them may be contracted on a GPU
        np.testing.assert_allclose(
            found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(initial=1e-30)
        )
    else:
        assert found.tobytes() == expected.tobytes()


def test_an_average_of_large_values_is_finite_and_of_bad_ones_is_not(xp):
    values = np.array([[3e38, -3e38, 1.0, np.inf], [3e38, -3e38, np.nan, 1.0]], "float32")
    _, found = both(xp, "avg", values, [1000, 3000])
    np.testing.assert_allclose(found, [3e38, -3e38, np.nan, np.inf], rtol=1e-6)


@pytest.mark.parametrize("mode", ["avg", "sum", "max", "gather"])
def test_what_is_added_is_not_written_to_and_one_value_is_not_copied(xp, mode):
    values = [xp.asarray(np.full(3, number)) for number in (1.0, 2.0, 3.0)]
    total = DeviceAccumulator(mode, xp, 6)
    for value in values:
        total.add(value, 2)
        if total.weight == 2 and mode != "gather":
            assert total.partial().value is value
        total.partial()
    assert [value.get()[0] for value in values] == [1, 2, 3]


def test_nothing_crosses_but_what_is_returned():
    class Device(CpuDevice):
        xp = stand_in

        def to_host(self, value):
            return stand_in.asnumpy(value) if isinstance(value, stand_in.ndarray) else value

    updates = tuple(
        UpdateSpec(k, mode, needs_rows=True, advances=False) for k, mode in enumerate(["sum", None])
    )
    spec = ProgramSpec("f", b"", 1, 0, (), ("avg", "gather", None, "sum"), updates)
    sums = Sums(spec, Device(1), n_rows=6)
    stand_in.counts.reset()
    for k in range(3):
        number = stand_in.ndarray(np.float64(k))
        rows = stand_in.ndarray(np.full(2, float(k)))
        sums.add([number, rows, number, np.array(k), number, None], 2)
    assert stand_in.counts.downloads == 3  # rows that are joined
    (one, added), (other, last) = sums.updates()
    assert (one.variable, added.get(), other.variable, last) == (0, 3, 1, None)
    stand_in.counts.reset()
    results = sums.results()
    assert stand_in.counts.downloads == 2
    assert results.weight == 6
    assert [value.tolist() for value in results.values] == [1, [0, 0, 1, 1, 2, 2], 2, 3]
    assert all(isinstance(value, np.ndarray) for value in results.values)


def test_shapes_are_not_broadcast_on_a_device(xp):
    total = DeviceAccumulator("sum", xp, 3)
    total.add(xp.ones(2), 2)
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(1,\)"):
        total.add(xp.ones(1), 1)
