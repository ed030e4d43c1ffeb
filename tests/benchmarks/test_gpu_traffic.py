"""A training step's launches, counted on a CuPy that computes nothing, and waste that must not return."""

from collections import Counter
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from support.cupy import stand_in

needs_ml_dtypes = pytest.mark.skipif(find_spec("ml_dtypes") is None, reason="bfloat16 needs ml_dtypes")


@pytest.fixture(scope="module")
def traffic(module):
    return module("gpu_traffic")


@pytest.fixture(scope="module")
def resnet(traffic):
    return traffic.of_resnet(SimpleNamespace(depth=18, size=64, batch=4))


def images(launches):
    """Return those that read or write an image."""
    return [
        launch for launch in launches if any(len(shape) == 4 and shape[0] == 4 for _, shape in launch.arrays)
    ]


@needs_ml_dtypes
def test_images_are_turned_and_cast_where_they_enter_only(traffic, resnet):
    kinds = Counter(traffic.kind_of(launch) for launch in images(resnet))
    assert kinds["copy"] == kinds["cast"] == 1
    # Where gradients meet that no block's end takes: at the mean over pixels, and before the first block.
    assert kinds["elementwise"] == 3


@needs_ml_dtypes
def test_each_weight_is_cast_once_and_so_is_its_gradient(traffic, resnet):
    casts = [launch.arrays for launch in resnet if traffic.kind_of(launch) == "cast"]
    weights = Counter(shape for (dtype, shape), _ in casts if dtype == "float32")
    gradients = Counter(shape for (dtype, shape), _ in casts if dtype == "bfloat16")
    assert weights.total() == 1 + 20 + 1 + 1  # images, convolutions, the dense layer, the gradient of logits
    assert gradients.total() == 20
    assert gradients <= weights


@needs_ml_dtypes
def test_blocks_end_in_kernels_of_their_own(resnet):
    names = Counter(launch.name for launch in resnet)
    # The last block's gradient is one number for many pixels, spread before.
    assert (names["normalise_and_add"], names["masked_products"]) == (8, 8 - 1)
    assert names["forward"] == names["moments"] == names["weight gradient"] == 20
    assert names["input gradient"] == 19


@needs_ml_dtypes
def test_bytes_and_flops_are_those_of_shapes(traffic, resnet):
    first = next(launch for launch in resnet if launch.name == "forward")
    image, weights, result = 4 * 3 * 64 * 64, 64 * 3 * 7 * 7, 4 * 64 * 32 * 32
    assert first.n_bytes == 2 * (image + weights + result)
    assert first.flops == 2 * result * 3 * 7 * 7
    rows = traffic.summed(resnet, efficiency=0.5)
    assert sum(row.launches for row in rows) == len(resnet)
    assert sum(row.n_bytes for row in rows) == sum(launch.n_bytes for launch in resnet)
    here, there = (
        sum(row.n_bytes for row in made if row.kind not in ("update", "cast", "copy"))
        for made in (rows, traffic.of_torch(resnet, efficiency=0.5))
    )
    assert here < there


def test_a_step_of_the_perceptron_is_29_launches(traffic):
    launches = traffic.of_mlp(SimpleNamespace(batch=250))
    assert len(launches) <= 29
    assert [launch.name for launch in launches].count("product") == 8
    loss = [launch.name for launch in launches if traffic.kind_of(launch) == "loss"]
    assert loss == ["losses_of", "differentiate"]


def test_large_arrays_are_not_computed_with(module):
    with module("hollow_cupy").installed() as log:
        import cupy

        x = cupy.empty((1 << 20, 3), "float32")
        y = (x + np.float32(1)).astype("float16")
        z = x.astype("float32", copy=False)
        x[:5] = x[5:10]
    assert (y.shape, y.dtype) == (x.shape, "float16")
    assert z._value is x._value
    assert isinstance(y, stand_in.ndarray)
    assert [launch.name for launch in log.launches] == ["add", "astype", "setitem"]
    assert [launch.n_bytes for launch in log.launches] == [24 << 20, 18 << 20, 120]
