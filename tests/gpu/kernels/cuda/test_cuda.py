"""Whole networks with kernels in CUDA, on an emulator: the numbers of the processor."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.cuda.provider import needs_emulator
from support.cupy import stand_in
from synk.compile import ArrayLinker, array_mode
from synk.gpu.kernels import cuda
from synk.ops import (
    avg_pool2d,
    batch_norm,
    conv2d,
    global_avg_pool2d,
    layer_norm,
    max_pool2d,
    relu,
    softmax_cross_entropy,
)

pytestmark = needs_emulator

NAMES = {
    "batch_norm": "moments statistics normalise products totals differentiate",
    "layer_norm": "normalise products totals differentiate",
    "cross_entropy": "losses_of differentiate",
    "pool": "max_pool max_pool_gradient avg_pool avg_pool_gradient column_means",
}
KERNELS = {f"{file}.{name}" for file, names in NAMES.items() for name in names.split()}


@pytest.fixture
def asked(cupy, monkeypatch):
    """Return the names of kernels that are launched."""
    names = set()
    for module in (cuda.norm, cuda.pool):
        get = module.kernel
        monkeypatch.setattr(
            module,
            "kernel",
            lambda xp, file, name, dtype, get=get, **macros: (
                names.add(f"{file}.{name}") or get(xp, file, name, dtype, **macros)
            ),
        )
    return names


def network(dtype, train):
    """Return inputs, shared variables and the loss of a small one that has every Op."""
    random = np.random.default_rng(1)

    def shared(name, *shape, offset=0.0):
        return pytensor.shared((random.normal(size=shape) * 0.3 + offset).astype(dtype), name=name)

    x, labels = pt.tensor4("x", dtype=dtype), pt.lvector("labels")
    w, gamma, beta = shared("w", 8, 3, 3, 3), shared("gamma", 8, offset=1), shared("beta", 8)
    running = shared("mean", 8), pytensor.shared(np.ones(8, dtype), name="variance")
    y, updates = batch_norm(conv2d(x, w, padding=1), gamma, beta, *running, train=train)
    y = max_pool2d(relu(y), 3, stride=2, padding=1)
    y = avg_pool2d(y, 2, padding=1, count_padding=False)
    scale, shift, out = shared("scale", 8, offset=1), shared("shift", 8), shared("out", 8, 5)
    logits = layer_norm(global_avg_pool2d(y), scale, shift) @ out
    loss = softmax_cross_entropy(logits, labels).mean()
    return (x, labels), [w, gamma, beta, scale, shift, out], updates, loss


def steps(dtype, train, linker, n=2):
    """Return losses, parameters and statistics after each of n steps of gradient descent."""
    inputs, parameters, updates, loss = network(dtype, train)
    rate, gradients = np.asarray(0.1, dtype), pt.grad(loss, parameters)
    moves = [(p, p - rate * g) for p, g in zip(parameters, gradients, strict=True)]
    step = pytensor.function(inputs, loss, updates=[*moves, *updates], mode=array_mode(linker))
    random = np.random.default_rng(2)
    values = []
    for _ in range(n):
        values.append(step(random.normal(size=(4, 3, 9, 7)).astype(dtype), random.integers(0, 5, 4)))
        changed = [*parameters, *(variable for variable, _ in updates)]
        values += [np.array(stand_in.asnumpy(v.container.storage[0])) for v in changed]
    return values


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training(cupy, asked, dtype):
    expected = steps(dtype, True, ArrayLinker())
    assert asked == set()
    found = steps(dtype, True, ArrayLinker(cupy))
    assert asked == KERNELS
    limit = {"float32": 2e-5, "float64": 1e-12}[dtype]
    for value, reference in zip(found, expected, strict=True):
        assert value.dtype == reference.dtype
        np.testing.assert_allclose(value, reference, rtol=limit, atol=limit)


def test_the_same_run_gives_the_same_bits(cupy, asked):
    first, second = (steps("float32", True, ArrayLinker(cupy)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_inference(cupy, asked):
    expected, found = (steps("float32", False, linker) for linker in (ArrayLinker(), ArrayLinker(cupy)))
    assert not any(name.startswith("batch_norm") for name in asked)  # it is arithmetic with constants then
    for value, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=2e-5, atol=2e-5)


def test_nothing_travels_between_host_and_device(cupy, asked):
    inputs, _, _, loss = network("float32", True)
    function = pytensor.function(inputs, loss, mode=array_mode(ArrayLinker(cupy)))
    values = np.ones((2, 3, 9, 7), "float32"), np.array([1, 2])
    function(*values)
    stand_in.counts.reset()
    function(*values)
    assert (stand_in.counts.uploads, stand_in.counts.downloads) == (2, 1)
