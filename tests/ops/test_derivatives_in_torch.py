"""Ops on images against torch: values, first derivatives and second ones, in float32 and float64."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

torch = pytest.importorskip("torch", reason="make torch-suite has it")

from support.cases.op_checks import draw  # noqa: E402
from synk import ops  # noqa: E402
from synk.compile import array_mode  # noqa: E402

functional = torch.nn.functional

# Of the largest number of a result; torch's own errors in float32 are of this size.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Case:
    """A function in both: ours of variables, torch's of tensors, on the same values."""

    def __init__(self, ours, theirs, *values):
        self.ours, self.theirs, self.values = ours, theirs, values

    def synk(self, dtype, mode):
        """Return the value, the derivatives of a loss, and those of the sum of their squares."""
        inputs = [pt.tensor(shape=(None,) * value.ndim, dtype=dtype) for value in self.values]
        y = self.ours(*inputs)
        first = pytensor.grad((y * pt.tanh(y)).sum(), inputs)
        penalty = sum((gradient**2).sum() for gradient in first)
        function = pytensor.function(inputs, [y, *first, *pytensor.grad(penalty, inputs)], mode=mode)
        return function(*[value.astype(dtype) for value in self.values])

    def torch(self, dtype):
        tensors = [torch.tensor(value.astype(dtype), requires_grad=True) for value in self.values]
        y = self.theirs(*tensors)
        first = torch.autograd.grad((y * torch.tanh(y)).sum(), tensors, create_graph=True)
        penalty = sum((gradient**2).sum() for gradient in first)
        return [each.detach().numpy() for each in [y, *first, *torch.autograd.grad(penalty, tensors)]]


def held_to_torch(case, dtype, mode):
    for ours, theirs in zip(case.synk(dtype, mode), case.torch(dtype), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE[dtype] * np.abs(theirs).max())


def transposed(size=(3, 5, 6), outputs=4, kernel=(3, 3), groups=1, **geometry):
    """A transposed convolution with bias, of two images of ``size``: channels, height, width."""
    values = draw((2, *size)), draw((size[0], outputs // groups, *kernel), seed=1), draw(outputs, seed=2)
    geometry["groups"] = groups
    return Case(
        lambda x, w, b: ops.conv_transpose2d(x, w, b, **geometry),
        lambda x, w, b: functional.conv_transpose2d(x, w, b, **geometry),
        *values,
    )


def convolved(size=(4, 7, 8), outputs=6, kernel=(3, 3), groups=1, **geometry):
    """A convolution with bias, of two images of ``size``: channels, height, width."""
    values = draw((2, *size)), draw((outputs, size[0] // groups, *kernel), seed=1), draw(outputs, seed=2)
    geometry["groups"] = groups
    return Case(
        lambda x, w, b: ops.conv2d(x, w, b, **geometry),
        lambda x, w, b: functional.conv2d(x, w, b, **geometry),
        *values,
    )


def normalised(shape, groups):
    """Group norm of images, or of what has fewer axes."""
    return Case(
        lambda x, g, b: ops.group_norm(x, g, b, groups),
        lambda x, g, b: functional.group_norm(x, groups, g, b),
        *(draw(shape) * 2 + 1, draw(shape[1], seed=1), draw(shape[1], seed=2)),
    )


def resized(shape, scale=None, size=None, mode="nearest", corners=False):
    """A change of size; torch knows corners of "bilinear" only."""
    asked = {} if mode == "nearest" else {"align_corners": corners}
    return Case(
        lambda x: ops.upsample2d(x, scale, size=size, mode=mode, align_corners=corners),
        lambda x: functional.interpolate(x, size, scale, mode, **asked),
        draw(shape),
    )


def pooled(ours, theirs, size, **geometry):
    return Case(
        lambda x: ours(x, size, **geometry), lambda x: theirs(x, size, **geometry), draw((3, 4, 9, 8))
    )


def lines(ours, theirs, w, **geometry):
    values = draw((2, 4, 11)), draw(w, seed=1), draw(6, seed=2)
    return Case(lambda *v: ours(*v, **geometry), lambda *v: theirs(*v, **geometry), *values)


SIZE = (2, 3, 5, 7)

CASES = {
    "transposed": transposed(),
    "transposed, twice as large": transposed(kernel=(2, 2), stride=2),
    "transposed, one of its sizes": transposed(stride=2, padding=1, output_padding=1),
    "transposed, another of them": transposed(stride=2, padding=1),
    "transposed, even windows": transposed(kernel=(4, 4), stride=2, padding=1),
    "transposed, by three and two": transposed(kernel=(5, 3), stride=(3, 2), output_padding=(2, 0)),
    "transposed, dilated": transposed(padding=(2, 1), dilation=2),
    "transposed, dilated and strided": transposed(stride=3, output_padding=2, dilation=(2, 1)),
    "transposed, in groups": transposed((4, 5, 6), 6, groups=2, padding=1),
    "transposed, each channel apart": transposed((4, 5, 6), 4, (4, 4), groups=4, stride=2, padding=1),
    "transposed, one to three": transposed((2, 4, 4), 6, groups=2, stride=2, output_padding=1),
    "transposed, windows of a pixel": transposed(kernel=(1, 1)),
    "transposed, with holes": transposed(kernel=(1, 2), stride=(2, 3), output_padding=(1, 1)),
    "transposed, one pixel": transposed((5, 1, 1), 3, (4, 4)),
    "transposed, much padding": transposed(padding=2, stride=1),
    "transposed, many channels": transposed((32, 6, 6), 16, (2, 2), stride=2),
    "convolution": convolved(padding=1),
    "convolution, strided": convolved(stride=(2, 3), padding=(1, 2)),
    "convolution, dilated, in groups": convolved(stride=2, dilation=2, padding=2, groups=2),
    "convolution, each channel apart": convolved(outputs=4, groups=4),
    "convolution, windows of a pixel": convolved(kernel=(1, 1)),
    "convolution, pixels passed over": convolved(kernel=(1, 1), stride=2),
    "group norm": normalised((3, 6, 5, 4), 2),
    "group norm, one group": normalised((3, 6, 5, 4), 1),
    "group norm, of instances": normalised((3, 4, 9, 7), 4),
    "group norm, many channels": normalised((2, 64, 6, 5), 8),
    "group norm, many pixels": normalised((2, 4, 40, 50), 2),
    "group norm of lines": normalised((3, 6, 11), 3),
    "group norm of rows": normalised((5, 12), 3),
    "nearest, twice": resized(SIZE, 2),
    "nearest, three and two": resized(SIZE, (3.0, 2.0)),
    "nearest, a fraction": resized(SIZE, 1.7),
    "nearest, a size": resized(SIZE, size=(9, 4)),
    "nearest, smaller": resized(SIZE, size=(3, 3)),
    "nearest, almost twice": resized(SIZE, (2.1, 1.1)),
    "bilinear, twice": resized(SIZE, 2, mode="bilinear"),
    "bilinear, twice, by corners": resized(SIZE, 2, mode="bilinear", corners=True),
    "bilinear, a fraction": resized(SIZE, 1.7, mode="bilinear"),
    "bilinear, a fraction, by corners": resized(SIZE, (1.3, 2.6), mode="bilinear", corners=True),
    "bilinear, a size": resized(SIZE, size=(9, 4), mode="bilinear"),
    "bilinear, a size, by corners": resized(SIZE, size=(9, 4), mode="bilinear", corners=True),
    "bilinear, smaller": resized(SIZE, size=(2, 3), mode="bilinear"),
    "bilinear, to a pixel": resized(SIZE, size=(1, 1), mode="bilinear", corners=True),
    "bilinear, from a pixel": resized((2, 3, 1, 1), size=(3, 4), mode="bilinear"),
    "padded": Case(
        lambda x: ops.pad(x, ((1, 0), (2, 3)), value=0.5),
        lambda x: functional.pad(x, (2, 3, 1, 0), value=0.5),
        draw(SIZE),
    ),
    "cropped": Case(
        lambda x: ops.crop(x, ((1, 0), (2, 3))), lambda x: functional.pad(x, (-2, -3, -1, 0)), draw(SIZE)
    ),
    "maxima": pooled(ops.max_pool2d, functional.max_pool2d, 2),
    "maxima that overlap": pooled(ops.max_pool2d, functional.max_pool2d, 3, stride=2, padding=1),
    "means": pooled(ops.avg_pool2d, functional.avg_pool2d, (2, 3)),
    "means that overlap": pooled(ops.avg_pool2d, functional.avg_pool2d, 3, stride=2, padding=1),
    "convolution of lines": lines(ops.conv1d, functional.conv1d, (6, 2, 3), stride=2, padding=1, groups=2),
    "transposed, of lines": lines(
        ops.conv_transpose1d, functional.conv_transpose1d, (4, 6, 3), stride=3, padding=1, output_padding=2
    ),
    "layer norm": Case(
        ops.layer_norm,
        lambda x, g, b: functional.layer_norm(x, g.shape, g, b),
        *(draw((4, 5, 7)) * 2 + 1, draw((5, 7), seed=1), draw((5, 7), seed=2)),
    ),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_torchs(name, dtype):
    held_to_torch(CASES[name], dtype, array_mode())


@pytest.mark.parametrize("name", CASES)
def test_the_definition_and_its_layout_are_torchs(name):
    """The results of ``perform``, with channels first; the mode above has them last."""
    held_to_torch(CASES[name], "float64", "FAST_COMPILE")
