import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.elemwise import Elemwise

from support.cases.op_checks import draw, ops_of
from synk.compile import ArrayLinker, array_mode
from synk.ops import batch_norm, conv2d, group_norm, relu
from synk.ops.activation import ReLU
from synk.ops.batch_norm import BatchNorm, BatchNormGradient
from synk.ops.convolve import Conv2d
from synk.ops.group_norm import GroupNorm, GroupNormGradient

SHAPE = (3, 4, 6, 5)
X = pt.tensor4("x", dtype="float64")
W, B = pt.tensor4("w", dtype="float64"), pt.dvector("b")
GAMMA, BETA = pt.dvector("gamma"), pt.dvector("beta")
OLD = pytensor.shared(np.zeros(4)), pytensor.shared(np.ones(4))
INPUTS = [X, W, B, GAMMA, BETA]
VALUES = [draw(SHAPE), draw((4, 4, 3, 3), seed=1), draw(4, seed=2), draw(4, seed=3), draw(4, seed=4)]

PYTHON = array_mode(ArrayLinker(native=False))


def normalised(x=X, gamma=GAMMA):
    return batch_norm(x, gamma, BETA, *OLD, train=True)[0]


def compiled(outputs, updates=()):
    """Return the function with the rewrites, when it has given what the one without them gives."""
    modes = PYTHON, PYTHON.excluding("fuse_relu")
    with pytensor.config.change_flags(on_opt_error="raise"):
        fused, plain = (
            pytensor.function(INPUTS, outputs, updates=list(updates), mode=mode, on_unused_input="ignore")
            for mode in modes
        )
    for result, expected in zip(fused(*VALUES), plain(*VALUES), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)
    rectified = [
        op.relu
        for op in ops_of(plain, BatchNorm | BatchNormGradient | Conv2d | GroupNorm | GroupNormGradient)
        if hasattr(op, "relu")
    ]
    assert not any(rectified)
    return fused


def relus(function):
    """Count the rectifiers that are left, alone or in kernels."""
    scalar_ops = [op.scalar_op for op in ops_of(function, Elemwise)]
    inner = [node.op for op in scalar_ops if hasattr(op, "fgraph") for node in op.fgraph.toposort()]
    return sum(isinstance(op, ReLU) for op in [*scalar_ops, *inner])


def rectifies(function, kind):
    return [op.relu for op in ops_of(function, kind)]


def test_a_rectifier_is_drawn_into_the_batch_norm():
    function = compiled([relu(normalised())])
    assert rectifies(function, BatchNorm) == [True]
    assert relus(function) == 0


def test_and_its_mask_into_the_gradient():
    y = relu(normalised())
    function = compiled([y, *pytensor.grad((y * pt.sin(y)).sum(), [X, GAMMA, BETA])])
    assert rectifies(function, BatchNorm) == [True]
    assert rectifies(function, BatchNormGradient) == [True]
    assert relus(function) == 0


def test_a_rectifier_and_its_mask_are_drawn_into_the_group_norm():
    y = relu(group_norm(X, GAMMA, BETA, 2))
    function = compiled([y, *pytensor.grad((y * pt.sin(y)).sum(), [X, GAMMA, BETA])])
    assert rectifies(function, GroupNorm) == rectifies(function, GroupNormGradient) == [True]
    assert relus(function) == 0


def test_the_gradient_reads_neither_the_output_nor_a_mask():
    y, g = relu(normalised()), X * 2
    gradient = pytensor.grad(None, X, known_grads={y: g})
    function = compiled([gradient])
    (node,) = [n for n in function.maker.fgraph.toposort() if isinstance(n.op, BatchNormGradient)]
    (forward,) = [n for n in function.maker.fgraph.toposort() if isinstance(n.op, BatchNorm)]
    clients = function.maker.fgraph.clients
    assert node.op.relu
    assert not clients[forward.outputs[0]]


def test_running_statistics_come_from_the_same_node():
    y, updates = batch_norm(X, GAMMA, BETA, *OLD, train=True)
    before = [variable.get_value() for variable in OLD]
    function = compiled([relu(y)], updates)
    assert rectifies(function, BatchNorm) == [True]
    for variable, value in zip(OLD, before, strict=True):
        variable.set_value(value)


@pytest.mark.parametrize("reader", [lambda y: y, lambda y: y.sum(), lambda y: y * X])
def test_what_is_read_elsewhere_stays(reader):
    y = normalised()
    function = compiled([relu(y), reader(y)])
    assert rectifies(function, BatchNorm) == [False]
    assert relus(function) == 1


def test_a_gradient_that_is_read_elsewhere_stays_masked():
    inner = normalised()
    function = compiled(pytensor.grad(None, [X, inner], known_grads={relu(inner): pt.sin(X)}))
    assert rectifies(function, BatchNormGradient) == [False]


@pytest.mark.parametrize("reduce", [lambda y: y.sum(), lambda y: (y.mean(axis=(2, 3)) ** 2).sum()])
def test_one_gradient_for_many_pixels_has_its_shape(reduce):
    y = relu(normalised())
    compiled(pytensor.grad(reduce(y), [X, GAMMA, BETA]))


@pytest.mark.parametrize("other", [X, normalised(gamma=GAMMA + 1)], ids=["an input", "another layer"])
def test_a_mask_of_something_else_stays(other):
    y = normalised()
    gradient = pytensor.grad(None, X, known_grads={y: pt.switch(pt.gt(relu(other), 0), X, 0)})
    function = compiled([gradient, relu(y)])
    assert rectifies(function, BatchNormGradient) == [False]


def test_a_residual_sum_is_not_a_batch_norm():
    y = relu(normalised() + X)
    function = compiled([y, pytensor.grad((y**2).sum(), X)])
    assert rectifies(function, BatchNorm) == [False]
    assert rectifies(function, BatchNormGradient) == [False]


def test_two_layers_and_their_gradients():
    first = relu(normalised())
    second = relu(normalised(conv2d(first, W, padding=1), GAMMA + 1))
    function = compiled([second, *pytensor.grad((second**2).sum(), [X, W, GAMMA])])
    assert rectifies(function, BatchNorm) == [True, True]
    assert rectifies(function, BatchNormGradient) == [True, True]
    assert relus(function) == 0


def n_inputs(function, kind):
    return [len(node.inputs) for node in function.maker.fgraph.toposort() if isinstance(node.op, kind)]


def spread(bias):
    return bias.dimshuffle("x", 0, "x", "x")


PLAIN, BIASED = conv2d(X, W), conv2d(X, W) + spread(B)
ONE_CHANNEL = pt.specify_shape(W[:1], (1, 4, 3, 3))
CONVOLUTIONS = {
    "a bias is drawn in": ([BIASED, *pytensor.grad((BIASED**2).sum(), [X, W, B])], 3, False, 0),
    "a rectifier": ([relu(PLAIN), *pytensor.grad((relu(PLAIN) ** 2).sum(), [X, W])], 2, True, 0),
    "both": ([relu(BIASED), *pytensor.grad((relu(BIASED) ** 2).sum(), [X, W])], 3, True, 0),
    "not other terms of a sum": ([relu(X + (conv2d(X, W, padding=1) + spread(B)))], 3, False, 1),
    "nothing where the convolution is read elsewhere": ([relu(BIASED), relu(PLAIN)], 2, False, 2),
    "no second bias": ([conv2d(X, W, B) + spread(GAMMA)], 3, False, 0),
    "not many numbers for one channel": ([conv2d(X, ONE_CHANNEL) + spread(B)], 2, False, 0),
}


@pytest.mark.parametrize(
    ("outputs", "inputs", "rectified", "left"), CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys()
)
def test_what_a_convolution_takes_over(outputs, inputs, rectified, left):
    function = compiled(outputs)
    assert n_inputs(function, Conv2d) == [inputs]
    assert rectifies(function, Conv2d) == [rectified]
    assert relus(function) == left


@pytest.mark.parametrize(
    "other",
    [
        spread(pt.specify_shape(B[:1], (1,))),  # one number for all
        spread(pytensor.shared(np.ones(4, "float32"))),  # another dtype than the images'
        B[:3].dimshuffle("x", "x", 0, "x"),  # one a row
    ],
)
def test_what_is_no_bias_of_each_channel_stays(other):
    function = compiled([conv2d(X, W, stride=2, padding=1) + other])
    assert n_inputs(function, Conv2d) == [2]
