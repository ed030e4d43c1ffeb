"""Activation, normalisation, cross-entropy and their gradients, against torch's."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

torch = pytest.importorskip("torch", reason="make torch-suite has it")

from support.cases.op_checks import draw  # noqa: E402
from synk.compile import array_mode  # noqa: E402
from synk.ops import batch_norm, layer_norm, relu, softmax_cross_entropy  # noqa: E402

functional = torch.nn.functional


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Case:
    """A function in both: ours of variables, torch's of tensors, on the same values.

    Differentiable values come first; gradients are those of ``sum(y * weights)``.
    """

    def __init__(self, ours, theirs, values, others=()):
        self.ours, self.theirs, self.values, self.others = ours, theirs, values, others

    def synk(self, dtype):
        variables = [pt.tensor(shape=(None,) * value.ndim, dtype=dtype) for value in self.values]
        others = [pt.tensor(shape=(None,) * value.ndim, dtype=value.dtype) for value in self.others]
        y = self.ours(*variables, *others)
        weights = pt.tensor(shape=(None,) * y.type.ndim, dtype=dtype)
        outputs = [y, *pytensor.grad((y * weights).sum(), variables)]
        inputs = [*variables, *others, weights]
        function = pytensor.function(inputs, outputs, mode=array_mode())
        arrays = [value.astype(dtype) for value in self.values]
        return function(*arrays, *self.others, self.weights(dtype))

    def torch(self, dtype):
        # The numbers that float32 has, also where float64 computes with them.
        tensors = [torch.tensor(value.astype(dtype), requires_grad=True) for value in self.values]
        y = self.theirs(*tensors, *map(torch.tensor, self.others))
        (y * torch.tensor(self.weights(dtype))).sum().backward()
        return [y.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)]

    def weights(self, dtype):
        return draw(self.theirs(*map(torch.tensor, [*self.values, *self.others])).shape, seed=9).astype(dtype)


IMAGES = draw((8, 5, 9, 7)) * 3 + 1
ROWS = draw((40, 12)) * 2 - 1
LABELS = np.random.default_rng(1).integers(0, 12, 40)
OLD = np.zeros(5), np.ones(5)


def normalised(x, gamma, beta, *old, train=True):
    old = [pt.as_tensor_variable(value.astype(x.type.dtype)) for value in OLD]
    return batch_norm(x, gamma, beta, *old, train=train)[0]


def theirs(x, gamma, beta, train=True):
    old = [torch.tensor(value).to(x.dtype) for value in OLD]
    return functional.batch_norm(x, *old, gamma, beta, train)


CHANNELS, FEATURES = [draw(5, seed=2), draw(5, seed=3)], [draw(12, seed=2), draw(12, seed=3)]
CASES = {
    "relu": Case(relu, torch.relu, [IMAGES]),
    "batch norm of images": Case(normalised, theirs, [IMAGES, *CHANNELS]),
    "batch norm of rows": Case(normalised, theirs, [ROWS[:, :5], *CHANNELS]),
    "batch norm and relu": Case(
        lambda *v: relu(normalised(*v)), lambda *v: torch.relu(theirs(*v)), [IMAGES, *CHANNELS]
    ),
    "batch norm in use": Case(
        lambda *v: normalised(*v, train=False), lambda *v: theirs(*v, train=False), [IMAGES, *CHANNELS]
    ),
    "layer norm": Case(
        layer_norm, lambda x, g, b: functional.layer_norm(x, g.shape, g, b), [ROWS, *FEATURES]
    ),
    "layer norm of two axes": Case(
        layer_norm,
        lambda x, g, b: functional.layer_norm(x, g.shape, g, b),
        [IMAGES, draw((9, 7), seed=2), draw((9, 7), seed=3)],
    ),
    "cross-entropy": Case(
        softmax_cross_entropy,
        lambda x, labels: functional.cross_entropy(x, labels, reduction="none"),
        [ROWS],
        [LABELS],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_float64_is_torchs(name):
    case = CASES[name]
    for ours, reference in zip(case.synk("float64"), case.torch("float64"), strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_float32_is_as_accurate_as_torchs(name):
    case = CASES[name]
    rounded = Case(
        case.ours, case.theirs, [v.astype("float32").astype("float64") for v in case.values], case.others
    )
    rounded.weights = lambda dtype: case.weights("float32").astype(dtype)
    exact = rounded.torch("float64")
    for ours, reference, right in zip(rounded.synk("float32"), rounded.torch("float32"), exact, strict=True):
        scale = np.abs(right).max()
        own, its = (np.abs(result - right).max() / scale for result in (ours, reference))
        # Largest of many errors: luck is a factor of a few, and one rounding of the result is free.
        assert own <= 3 * its + 2.0**-23


@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_running_statistics_are_torchs(momentum):
    old = [draw(5, seed=4), 1 + draw(5, seed=5) ** 2]
    shared = [pytensor.shared(value.copy()) for value in old]
    x = pt.tensor4("x", dtype="float64")
    y, updates = batch_norm(x, *CHANNELS, *shared, train=True, momentum=momentum)
    pytensor.function([x], y, updates=updates, mode=array_mode())(IMAGES)
    expected = [torch.tensor(value) for value in old]
    images = torch.tensor(IMAGES)
    functional.batch_norm(images, *expected, *map(torch.tensor, CHANNELS), training=True, momentum=momentum)
    for variable, tensor in zip(shared, expected, strict=True):
        np.testing.assert_allclose(variable.get_value(), tensor.numpy(), rtol=1e-10)
