"""Images, windows and arrays for the tests of convolutions and pooling, and ways to run one Op."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import assume
from hypothesis import strategies as st
from pytensor.compile.mode import Mode

from support.cupy import stand_in
from synk.compile.dispatch import array_funcify
from synk.compile.tables import accepts_out
from synk.ops.kernels.window import LAYOUTS, Convolution, Pooling, Window, ordered

small = st.integers(1, 3)
layouts = st.sampled_from(LAYOUTS)
sizes = st.tuples(st.integers(1, 8), st.integers(1, 8))


class Refuses:
    """A provider of convolutions that must not be asked."""

    def __getattr__(self, name):
        return lambda *geometry: self.compute

    def compute(self, *arguments, out=None):
        raise AssertionError("the other provider was asked")


def pairs(values):
    return st.tuples(values, values)


@st.composite
def convolutions(draw):
    """Return a convolution and the shapes of x, w and y: x may have no images."""
    groups = draw(small)
    window = Window(None, draw(pairs(small)), draw(pairs(pairs(st.integers(0, 4)))), draw(pairs(small)))
    convolution = Convolution(window, groups, draw(layouts))
    image = draw(st.sampled_from([0, 1, 2, 5])), groups * draw(small), *draw(sizes)
    weights = groups * draw(small), image[1] // groups, *draw(pairs(st.integers(1, 4)))
    x = ordered(convolution.layout, *image)
    try:
        y = convolution.output_shape(x, weights)
    except ValueError:
        assume(False)
    return convolution, x, weights, y


@st.composite
def poolings(draw):
    """Return a pooling and the shapes of x and y."""
    size = draw(pairs(st.integers(1, 4)))
    padding = tuple(draw(pairs(st.integers(0, k - 1))) for k in size)
    pooling = Pooling(Window(size, draw(pairs(small)), padding), draw(layouts))
    x = ordered(pooling.layout, draw(st.sampled_from([0, 1, 3])), draw(small), *draw(sizes))
    try:
        y = pooling.output_shape(x)
    except ValueError:
        assume(False)
    return pooling, x, y


def normal(shape, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def node_of(op, *values):
    """Return the node of an Op on symbolic inputs of unknown lengths; numbers are passed as they are."""
    inputs = [
        pt.tensor(dtype=v.dtype, shape=(None,) * v.ndim) if isinstance(v, np.ndarray) else v for v in values
    ]
    return op.make_node(*inputs)


def arrays(values):
    """Return values as PyTensor hands them to Ops: all arrays."""
    return [np.asarray(v) for v in values]


def perform(op, *values):
    """Return the outputs of an Op as its ``perform`` computes them."""
    node = node_of(op, *values)
    cells = [[None] for _ in node.outputs]
    op.perform(node, arrays(values), cells)
    for (value,), output in zip(cells, node.outputs, strict=True):
        assert value.dtype == output.type.dtype
        assert value.flags.c_contiguous
    return [cell[0] for cell in cells]


def check_entry(op, *values, rtol=1e-10, atol=1e-12):
    """Hold an entry to the definition: with NumPy, to given arrays, and on the stand-in for a device."""
    node, expected = node_of(op, *values), perform(op, *values)
    implementation = array_funcify(op, node, np)
    assert accepts_out(implementation, np)
    before = [np.array(v) for v in values]
    results = as_list(implementation(*arrays(values)))
    outs = [np.full_like(array, 77) for array in expected]
    written = as_list(implementation(*arrays(values), out=outs[0] if len(outs) == 1 else tuple(outs)))
    for result, out, array, reference in zip(results, outs, written, expected, strict=True):
        assert array is out
        assert result.flags.c_contiguous
        assert not any(np.shares_memory(result, value) for value in arrays(values))
        np.testing.assert_array_equal(out, result, strict=True)
        np.testing.assert_allclose(result, reference, rtol=rtol, atol=atol, strict=True)
    for value, old in zip(arrays(values), before, strict=True):
        np.testing.assert_array_equal(value, old)
    on_device = [stand_in.asarray(v) if np.ndim(v) else np.int64(v) for v in values]
    stand_in.counts.reset()
    device_results = as_list(array_funcify(op, node, stand_in)(*on_device))
    assert stand_in.counts.uploads == stand_in.counts.downloads == 0
    for result, reference in zip(device_results, expected, strict=True):
        np.testing.assert_allclose(result.get(), reference, rtol=rtol, atol=atol, strict=True)


def as_list(results):
    return list(results) if isinstance(results, tuple) else [results]


def check_shapes(op, *values):
    """Assert that an Op's static and symbolic shapes are those of the arrays that it computes."""
    expected = [value.shape for value in perform(op, *values)]
    known = [pt.tensor(dtype=v.dtype, shape=v.shape) if isinstance(v, np.ndarray) else v for v in values]
    assert [output.type.shape for output in op.make_node(*known).outputs] == expected
    unknown = [v.type() for v in node_of(op, *values).inputs]
    node = op.make_node(*unknown)
    assert all(None in output.type.shape for output in node.outputs)
    shapes = op.infer_shape(node, [tuple(v.shape) for v in node.inputs])
    outputs = [pt.stack([pt.as_tensor(n) for n in shape]) for shape in shapes]
    as_written = Mode(linker="py", optimizer=None)
    function = pytensor.function(unknown, outputs, mode=as_written, on_unused_input="ignore")
    assert [tuple(shape.tolist()) for shape in function(*arrays(values))] == expected


def numeric_gradient(function, x, step=1e-6):
    """Return the gradient of a function of one array by central differences."""
    gradient = np.zeros_like(x)
    for k in np.ndindex(*x.shape):
        there, back = x.copy(), x.copy()
        there[k] += step
        back[k] -= step
        gradient[k] = (function(there) - function(back)) / (2 * step)
    return gradient
