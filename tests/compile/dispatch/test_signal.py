import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scalar.basic import bool as bool_type
from pytensor.tensor.signal import convolve1d
from pytensor.tensor.signal.conv import Convolve1d, Convolve2d

from synk.compile import array_mode
from synk.compile.dispatch.signal import convolve_batch, one_mode
from synk.compile.tables import host_inputs

RNG = np.random.default_rng(0)
DTYPES = pytest.mark.parametrize(
    ("dtype", "other"),
    [("float64", "float64"), ("float32", "float32"), ("int16", "float32"), ("int8", "int64")],
)


def number(dtype, *shape):
    return RNG.integers(-5, 6, shape).astype(dtype)


@DTYPES
@pytest.mark.parametrize("lengths", [(5, 3), (3, 5), (4, 4)])
def test_convolution_of_vectors(compare, dtype, other, lengths):
    x, y = pt.vector(dtype=dtype), pt.vector(dtype=other)
    outputs = [Convolve1d()(x, y, np.bool_(full)) for full in (True, False)]
    compare([x, y], outputs, [number(d, n) for d, n in zip((dtype, other), lengths, strict=True)])


def test_the_mode_may_be_computed():
    x, y, full = pt.dvector(), pt.dvector(), bool_type()
    function = pytensor.function([x, y, full], Convolve1d()(x, y, full), mode=array_mode())
    assert function.vm.jit_fn.host_nodes == ()
    assert function(np.arange(3.0), np.ones(2), True).tolist() == [0, 1, 3, 2]
    assert function(np.arange(3.0), np.ones(2), False).tolist() == [1, 3]
    assert list(host_inputs(Convolve1d(), Convolve1d().make_node(x, y, full))) == [2]


def test_an_empty_vector_is_refused():
    x, y = pt.dvector(), pt.dvector()
    function = pytensor.function([x, y], Convolve1d()(x, y, np.bool_(True)), mode=array_mode())
    with pytest.raises(ValueError, match="cannot be empty"):
        function(np.ones(3), np.ones(0))


def test_gradient_of_convolution(compare):
    x, y = pt.dvector(), pt.dvector()
    for full in (True, False):
        loss = (Convolve1d()(x, y, np.bool_(full)) ** 2).sum()
        gradients = pytensor.grad(loss, [x, y])
        # On the host runs what the gradient's mode is computed with, scalar Ops outside Elemwise.
        compare([x, y], gradients, [RNG.normal(size=6), RNG.normal(size=3)], host=True)


@DTYPES
@pytest.mark.parametrize("method", ["direct", "fft", "auto"])
def test_convolution_of_matrices(compare, dtype, other, method):
    x, y = pt.matrix(dtype=dtype), pt.matrix(dtype=other)
    outputs = [Convolve2d(method=method)(x, y, np.bool_(full)) for full in (True, False)]
    # Fourier transforms round what cancels.
    compare([x, y], outputs, [number(dtype, 5, 6), number(other, 3, 2)], atol=1e-5)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("n", "k"), [(6, 3), (3, 6), (4, 4), (1, 5)])
def test_batches_of_convolutions(compare, full, n, k):
    x, y = pt.tensor(shape=(None, 1, None), dtype="float64"), pt.matrix(dtype="float64")
    values = [RNG.normal(size=(4, 1, n)), RNG.normal(size=(2, k))]
    compare([x, y], [convolve1d(x, y, mode="full" if full else "valid")], values)
    rows = [[np.convolve(a, b, "full" if full else "valid") for b in values[1]] for a in values[0][:, 0]]
    np.testing.assert_allclose(convolve_batch(*values, full, np), rows)


def test_a_batch_has_one_mode():
    assert one_mode(np.array([[True]])) is True
    assert one_mode(np.array([False, False])) is False
    with pytest.raises(ValueError, match="one mode"):
        one_mode(np.array([True, False]))
