"""The common parts of image Ops: layouts and arguments."""

import pickle
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.cases.images import arrays, normal, perform
from synk.compile import ArrayLinker, array_mode, dumps
from synk.compile.tables import host_inputs
from synk.ops import avg_pool2d, conv2d, global_avg_pool2d, max_pool2d
from synk.ops.conv_transpose import ConvTranspose2d
from synk.ops.convolve import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.edges import Crop2d, Pad2d
from synk.ops.image import length, padding_pairs, pair
from synk.ops.kernels.resampling import Resampling
from synk.ops.kernels.window import Convolution, Pooling, Window
from synk.ops.pool import (
    AvgPool2d,
    AvgPool2dGradient,
    GlobalAvgPool2d,
    MaxPool2d,
    MaxPool2dChosen,
    MaxPool2dGradient,
)
from synk.ops.upsample import Upsample2d, Upsample2dGradient

CONVOLUTION = Convolution(Window(None, (2, 1), ((1, 0), (1, 1))), 2)
POOLING = Pooling(Window((2, 3), (2, 1), ((1, 0), (1, 1))))

X, W = normal((3, 4, 6, 5)), normal((6, 2, 3, 3), 1)
Y = perform(Conv2d(CONVOLUTION), X, W)[0]
P, INDEX = perform(MaxPool2d(POOLING), X)

CASES = [
    (Conv2d(CONVOLUTION), [X, W]),
    (Conv2d(CONVOLUTION, relu=True), [X, W, normal(6)]),
    (ConvTranspose2d(CONVOLUTION, (1, 0)), [Y, W]),
    (Conv2dInputGradient(CONVOLUTION), [Y, W, 6, 5]),
    (Conv2dWeightGradient(CONVOLUTION), [X, Y, 3, 3]),
    (MaxPool2d(POOLING), [X]),
    (MaxPool2dGradient(POOLING), [P, INDEX, 6, 5]),
    (AvgPool2d(POOLING), [X]),
    (AvgPool2d(POOLING, False), [X]),
    (AvgPool2dGradient(POOLING, False), [P, 6, 5]),
    (MaxPool2dChosen(POOLING), [X, INDEX]),
    (GlobalAvgPool2d(), [X]),
    (Upsample2d(Resampling(None, (2.0, 1.5))), [X]),
    (Upsample2dGradient(Resampling((6, 5), None, "bilinear")), [X, 3, 7]),
    (Crop2d(), [X, 1, 0, 4, 3]),
    (Pad2d(1.5), [X, 1, 0, 9, 7]),
]
NAMES = [str(op) for op, _ in CASES]


@pytest.mark.parametrize(("op", "values"), CASES, ids=NAMES)
def test_both_layouts_compute_the_same(op, values):
    last = op.with_layout("NHWC")
    assert (op.layout, last.layout) == ("NCHW", "NHWC")
    moved = [v.transpose(0, 2, 3, 1) if k in op.image_inputs else v for k, v in enumerate(values)]
    results = perform(last, *[v.copy() if isinstance(v, np.ndarray) else v for v in moved])
    for k, (result, expected) in enumerate(zip(results, perform(op, *values), strict=True)):
        result = result.transpose(0, 3, 1, 2) if k in op.image_outputs else result
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("op", "values"), CASES, ids=NAMES)
def test_ops_are_values(op, values):
    again = op.with_layout("NHWC").with_layout("NCHW")
    assert again == op
    assert hash(again) == hash(op)
    assert op != op.with_layout("NHWC")
    assert pickle.loads(pickle.dumps(op)) == op


@pytest.mark.parametrize(("op", "values"), CASES, ids=NAMES)
def test_lengths_stay_on_the_host(op, values):
    node = op.make_node(*arrays(values))
    numbers = [k for k, v in enumerate(values) if isinstance(v, int)]
    assert list(host_inputs(op, node)) == numbers
    assert all(node.inputs[k].type.dtype == "int64" for k in numbers)


@pytest.mark.parametrize(
    "function",
    [lambda x: conv2d(x, W), lambda x: max_pool2d(x, 2), lambda x: avg_pool2d(x, 2), global_avg_pool2d],
)
def test_inputs_of_another_type(function):
    with pytest.raises(
        TypeError, match=r"x must be float32 or float64, not int64: use x.astype\('float32'\)"
    ):
        function(pt.tensor4("x", dtype="int64"))
    with pytest.raises(ValueError, match="x must have 4 axes, not 3"):
        function(pt.tensor3("x", dtype="float32"))


def test_pairs():
    assert pair("stride", 2) == (2, 2)
    assert pair("stride", (np.int64(1), 2)) == (1, 2)
    assert padding_pairs(1) == padding_pairs((1, 1)) == ((1, 1), (1, 1))
    assert padding_pairs([1, 2]) == ((1, 1), (2, 2))
    assert padding_pairs(((0, 1), (2, 3))) == ((0, 1), (2, 3))


@pytest.mark.parametrize("value", [1.0, "1", True, (1, 2, 3), (1, 2.0), (1, (2, 3)), None])
def test_what_is_no_pair(value):
    with pytest.raises(TypeError, match=r"padding=.* must be an int or a pair of ints \(height, width\)"):
        padding_pairs(value)


def test_lengths():
    assert length(3).data.dtype == "int64"
    assert length(pt.iscalar("n")).type.dtype == "int64"
    for wrong in (pt.dscalar("n"), pt.lvector("n")):
        with pytest.raises(TypeError, match="a length is one integer, not a variable of type"):
            length(wrong)


def test_on_a_device_nothing_travels(device):
    x, w = pt.tensor4("x", dtype="float64"), pt.tensor4("w", dtype="float64")
    y = max_pool2d(conv2d(x, w, stride=2, padding=1), 2, stride=1)
    loss = (global_avg_pool2d(avg_pool2d(y, 2, stride=1, padding=1, count_padding=False)) ** 2).sum()
    outputs = [loss, *pytensor.grad(loss, [x, w])]
    on_device = pytensor.function([x, w], outputs, mode=array_mode(ArrayLinker(device)))
    assert not on_device.vm.jit_fn.host_nodes
    values = normal((2, 3, 9, 8)), normal((4, 3, 3, 3), 1)
    expected = pytensor.function([x, w], outputs, mode="FAST_COMPILE")(*values)
    device.counts.reset()
    results = on_device(*values)
    assert (device.counts.uploads, device.counts.downloads) == (len(values), len(outputs))
    for result, reference in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_graphs_travel_between_processes():
    x, w = pt.tensor4("x", dtype="float64"), pt.tensor4("w", dtype="float64")
    y = max_pool2d(conv2d(x, w, stride=2, padding=1), 2)
    program = (
        "import sys, numpy, pytensor; from synk.compile import array_mode, loads;"
        "inputs, outputs = loads(sys.stdin.buffer.read(), {}.get);"
        "f = pytensor.function(inputs, outputs, mode=array_mode());"
        "assert not f.vm.jit_fn.host_nodes;"
        "print(f(numpy.ones((1, 2, 6, 6)), numpy.ones((1, 2, 3, 3)))[0].tolist())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], input=dumps([x, w], [y], hash), capture_output=True
    )
    assert ended.stdout.decode().strip() == "[[[[18.0]]]]", ended.stderr.decode()
