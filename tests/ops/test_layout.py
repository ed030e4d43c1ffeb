"""Channels last from the first image Op to the last: nothing is moved in between, and the numbers stay."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CpuContiguous

from support.slow import slow
from synk import ops
from synk.compile import ArrayLinker, array_mode
from synk.compile.programs.elementwise.fusion import TAG
from synk.ops.image import ImageOp

RNG = np.random.default_rng(5)
LAST_FIRST = {(0, 2, 3, 1), (0, 3, 1, 2)}


def weights(*shape):
    return pt.as_tensor(RNG.normal(size=shape) / 4)


def images(*shape):
    return np.random.default_rng(6).normal(size=shape)


def compiled(inputs, outputs):
    mode = array_mode(ArrayLinker(native=False)).including(TAG)
    return pytensor.function(inputs, outputs, mode=mode)


def as_written(inputs, outputs):
    """The oracle: every Op by its definition, in the layout in which it was written."""
    mode = array_mode().excluding("channels_last", "fuse_relu")
    return pytensor.function(inputs, outputs, mode=mode)


def count(function, kind):
    return sum(isinstance(node.op, kind) for node in function.maker.fgraph.apply_nodes)


def moved_images(function):
    """Nodes that move the channels of an image of more than a pixel."""
    return [
        node
        for node in function.maker.fgraph.apply_nodes
        if isinstance(node.op, DimShuffle)
        and tuple(node.op.new_order) in LAST_FIRST
        and 1 not in node.inputs[0].type.shape
    ]


def residual_net(x, w1, w2, gamma, bias):
    """Convolution, batch norm, rectifier, a shortcut, pooling: what networks are made of."""
    y = ops.conv2d(x, w1, padding=1)
    y, _ = ops.batch_norm(y, gamma, bias, pt.zeros_like(gamma), pt.ones_like(gamma), train=True)
    y = ops.relu(y)
    z = ops.relu(ops.conv2d(y, w2, padding=1) + bias.dimshuffle("x", 0, "x", "x") + y)
    return ops.max_pool2d(z, 2)


@pytest.fixture(scope="module")
def net():
    x = pt.tensor4("x", shape=(None, 3, 8, 8))
    filters = [pt.tensor4("w1", shape=(4, 3, 3, 3)), pt.tensor4("w2", shape=(4, 4, 3, 3))]
    params = [*filters, pt.vector("gamma"), pt.vector("bias")]
    y = residual_net(x, *params)
    loss = (ops.global_avg_pool2d(y) ** 2).sum()
    values = [images(2, 3, 8, 8), images(4, 3, 3, 3), images(4, 4, 3, 3), images(4) + 2, images(4)]
    return [x, *params], [loss, *pt.grad(loss, params)], values


def test_a_network_and_its_gradient_move_the_input_once(net):
    inputs, outputs, _ = net
    f = compiled(inputs, outputs)
    layouts = [node.op.layout for node in f.maker.fgraph.apply_nodes if isinstance(node.op, ImageOp)]
    assert set(layouts) == {"NHWC"}
    assert count(f, CpuContiguous) == 1
    (moved,) = moved_images(f)
    assert moved.inputs[0].name == "x"


def test_the_numbers_are_those_of_the_layout_in_which_it_was_written(net):
    inputs, outputs, values = net
    expected = as_written(inputs, outputs)(*values)
    for got, right in zip(compiled(inputs, outputs)(*values), expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-9)


def test_readers_of_an_image_see_channels_first():
    x = pt.tensor4("x")
    y = ops.conv2d(x, weights(4, 3, 3, 3))
    outputs = [y, y.shape, y[:, 1], y.flatten(2), pt.exp(y).max(axis=(1, 2))]
    values = images(2, 3, 5, 6)
    for got, right in zip(compiled([x], outputs)(values), as_written([x], outputs)(values), strict=True):
        assert got.shape == right.shape
        np.testing.assert_allclose(got, right, rtol=1e-9)


@pytest.mark.parametrize("axes", [None, 0, 1, (2, 3), (0, 2, 3), (1, 2), (3,), (0, 1)])
@pytest.mark.parametrize("reduce", [pt.sum, pt.max, slow(pt.prod)], ids=["sum", "max", "prod"])
def test_reductions_keep_their_axes(axes, reduce):
    x = pt.tensor4("x")
    y = reduce(ops.conv2d(x, weights(4, 3, 2, 2)), axis=axes)
    values = images(2, 3, 4, 5)
    np.testing.assert_allclose(compiled([x], y)(values), as_written([x], y)(values), rtol=1e-9)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_joins_keep_their_axis(axis):
    x = pt.tensor4("x")
    a, b = (ops.conv2d(x, weights(3, 3, 3, 3), padding=1) for _ in range(2))
    y = pt.concatenate([a, x, b], axis=axis)
    values = images(3, 3, 3, 3)
    f = compiled([x], y)
    np.testing.assert_allclose(f(values), as_written([x], y)(values), rtol=1e-9)
    assert count(f, CpuContiguous) == 1


def test_what_spreads_over_an_image_follows_it():
    x, row, scale = pt.tensor4("x"), pt.vector("row"), pt.scalar("scale")
    y = ops.conv2d(x, weights(4, 3, 1, 1))
    z = scale * y + row.dimshuffle("x", "x", "x", 0) + np.arange(4.0).reshape(1, 4, 1, 1)
    values = images(2, 3, 5, 6), images(6), 3.0
    f = compiled([x, row, scale], z)
    np.testing.assert_allclose(f(*values), as_written([x, row, scale], z)(*values), rtol=1e-9)
    (fused,) = [node for node in f.maker.fgraph.apply_nodes if isinstance(node.op, Elemwise)]
    assert fused.outputs[0].type.shape[3] == 4


def test_a_graph_without_image_ops_stays_as_it_is():
    x = pt.tensor4("x")
    f = compiled([x], pt.exp(x.dimshuffle(0, 2, 3, 1)).sum(axis=(1, 2)))
    assert count(f, CpuContiguous) == 0
    assert len(moved_images(f)) <= 1


def normalised(y):
    statistics = np.zeros(3), np.ones(3)
    return ops.batch_norm(y, weights(3) + 2, weights(3), *statistics, train=True)[0]


STEPS = {
    "convolve": lambda x, y: ops.conv2d(y, weights(3, 3, 3, 3), padding=1),
    "relu": lambda x, y: ops.relu(y),
    "tanh": lambda x, y: pt.tanh(y),
    "shortcut": lambda x, y: x + y,
    "scale": lambda x, y: y * np.array([1.0, -2.0, 0.5]).reshape(1, 3, 1, 1),
    "norm": lambda x, y: normalised(y),
    "pool": lambda x, y: ops.max_pool2d(y, 3, stride=1, padding=1),
    "mean": lambda x, y: ops.avg_pool2d(y, 3, stride=1, padding=1),
    "transposed": lambda x, y: ops.conv_transpose2d(y, weights(3, 3, 3, 3), padding=1),
    "groups": lambda x, y: ops.group_norm(y, weights(3) + 2, weights(3), 3, eps=0.1),
    "edges": lambda x, y: ops.pad(ops.crop(y, ((1, 0), (0, 2))), ((0, 1), (1, 1)), value=0.5),
    "resize": lambda x, y: ops.upsample2d(ops.crop(y, 1), size=(6, 6), mode="bilinear"),
    "join": lambda x, y: pt.concatenate([y[:, :1], x[:, 1:2], y[:, 2:]], axis=1),
    "centre": lambda x, y: y - y.mean(axis=(2, 3), keepdims=True),
    "turn": lambda x, y: y.transpose(0, 1, 3, 2),
    "reshape": lambda x, y: y.reshape((y.shape[0], 9, -1)).reshape(x.shape),
}


def test_a_decoder_moves_the_input_once():
    x = pt.tensor4("x", shape=(None, 3, 6, 6))
    y = ops.conv2d(x, weights(3, 3, 3, 3), padding=1)
    for name in ("groups", "pool", "transposed", "edges", "resize", "join"):
        y = STEPS[name](x, y)
    f = compiled([x], y)
    layouts = [node.op.layout for node in f.maker.fgraph.apply_nodes if isinstance(node.op, ImageOp)]
    assert layouts == ["NHWC"] * 8
    assert count(f, CpuContiguous) == 1
    values = images(2, 3, 6, 6)
    np.testing.assert_allclose(f(values), as_written([x], y)(values), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6))
def test_any_network_gives_the_numbers_it_gave(names):
    x = pt.tensor4("x", shape=(None, 3, 6, 6))
    y = x
    for name in ["convolve", *names]:
        y = STEPS[name](x, y)
    loss = (y**2).mean()
    outputs = [y, loss, pt.grad(loss, x)]
    values = images(2, 3, 6, 6)
    for got, right in zip(compiled([x], outputs)(values), as_written([x], outputs)(values), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-7, atol=1e-9)
