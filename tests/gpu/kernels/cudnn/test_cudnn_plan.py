"""Plans of the real cuDNN for an H200 that need not be there: all convolutions of ResNet-50, and others.

Nothing is computed; that heuristics name engines, and that these can be built, needs no driver.
"""

import json
import re
from functools import cache

import pytest

from synk.gpu.kernels.cudnn import descriptor, find_cudnn
from synk.gpu.kernels.cudnn.cudnn_plan import DTYPES, MOST_WORKSPACE, UnsupportedByCudnn, make_plan
from synk.ops.kernels.window import LAYOUTS, Convolution, Window, ordered

pytestmark = pytest.mark.skipif(not find_cudnn.available(), reason=find_cudnn.reason())

# Of such a GPU, by the names under which cuDNN 9.19 reads properties. *Unrun*: that one gives the same.
H200 = {
    "deviceName": "NVIDIA H200",
    "deviceVer": 900,
    "driverVer": 13000,
    "cudaDeviceId": 0,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "multiProcessorCount": 132,
    "warpSize": 32,
    "maxCtasPerSM": 32,
    "maxThreadsPerSM": 2048,
    "maxRegistersPerSM": 65536,
    "maxThreadsPerBlock": 1024,
    "maxBlockSize": [1024, 1024, 64],
    "maxGridSize": [2147483647, 65535, 65535],
    "regsPerBlock": 65536,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024,
    "l2CacheSize": 62914560,
    "totalGlobalMem": 150754820096,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000,
}
SM_90 = 90

# Channels, outputs, places, stride, pixels of a side: each that ResNet-50 has for images of 224 x 224.
RESNET_50 = [
    (3, 64, 7, 2, 224),
    (64, 64, 1, 1, 56),
    (64, 64, 3, 1, 56),
    (64, 256, 1, 1, 56),
    (256, 64, 1, 1, 56),
    (256, 128, 1, 1, 56),
    (128, 128, 3, 2, 56),
    (128, 512, 1, 1, 28),
    (256, 512, 1, 2, 56),
    (512, 128, 1, 1, 28),
    (128, 128, 3, 1, 28),
    (512, 256, 1, 1, 28),
    (256, 256, 3, 2, 28),
    (256, 1024, 1, 1, 14),
    (512, 1024, 1, 2, 28),
    (1024, 256, 1, 1, 14),
    (256, 256, 3, 1, 14),
    (1024, 512, 1, 1, 14),
    (512, 512, 3, 2, 14),
    (512, 2048, 1, 1, 7),
    (1024, 2048, 1, 2, 14),
    (2048, 512, 1, 1, 7),
    (512, 512, 3, 1, 7),
]
OPERATIONS = (descriptor.FORWARD, descriptor.INPUT_GRADIENT, descriptor.WEIGHT_GRADIENT)


@cache
def h200():
    return find_cudnn.find().module.create_device_properties(json.dumps(H200))


def plan_for(operation, convolution, image, weights, dtype, **rest):
    stated = descriptor.Descriptor(operation, convolution, image, weights, dtype, **rest)
    return make_plan(find_cudnn.find().module, stated, device_property=h200(), sm_version=SM_90)


def resnet(layout, n_images=64):
    """Yield the convolution, the image and the weights of each."""
    for channels, outputs, places, stride, side in RESNET_50:
        window = Window(None, (stride, stride), ((places // 2,) * 2,) * 2)
        image = ordered(layout, n_images, channels, side, side)
        yield Convolution(window, 1, layout), image, (outputs, channels, places, places)


def engine_of(plan):
    """Return which engine was chosen, as cuDNN numbers them for each operation, and its settings."""
    return re.search(rb'"engineId":(\d+).*?"knobChoices":({.*?})', bytes(plan.graph.serialize())).groups()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_resnet_50(dtype, layout, operation):
    for convolution, image, weights in resnet(layout):
        plan = plan_for(operation, convolution, image, weights, dtype)
        assert 0 <= plan.workspace <= MOST_WORKSPACE


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_is_added_by_the_same_engine(dtype, layout):
    for convolution, image, weights in resnet(layout):
        plan_for(descriptor.FORWARD, convolution, image, weights, dtype, has_bias=True)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("window", "groups", "outputs"),
    [
        (Window(None, padding=((1, 1), (1, 1))), 4, 64),
        (Window(None, padding=((1, 1), (1, 1))), 32, 32),  # each channel apart
        (Window(None, (2, 1), ((2, 2), (2, 2)), (2, 2)), 1, 48),
        (Window(None, padding=((0, 1), (2, 0))), 1, 7),
        (Window(None, (3, 2), ((3, 0), (1, 2)), (1, 2)), 2, 10),
    ],
    ids=["groups", "depthwise", "dilation", "padding", "all"],
)
def test_other_geometries(window, groups, outputs, dtype, operation):
    for layout in LAYOUTS:
        image = ordered(layout, 3, 32, 29, 30)
        convolution = Convolution(window, groups, layout)
        plan_for(operation, convolution, image, (outputs, 32 // groups, 3, 3), dtype)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_tf32_brings_other_engines(operation):
    convolution, image, weights = list(resnet("NHWC"))[2]
    exact, cut = (
        plan_for(operation, convolution, image, weights, "float32", tf32=tf32) for tf32 in (False, True)
    )
    assert engine_of(exact) != engine_of(cut)


def test_16_bits_of_resnet_50_need_little_workspace():
    # Tensor cores read NHWC in place; an image that has to be turned would show here.
    for convolution, image, weights in list(resnet("NHWC"))[1:]:
        for operation in OPERATIONS:
            plan = plan_for(operation, convolution, image, weights, "bfloat16")
            assert plan.workspace < 64 << 20


def test_what_no_engine_computes_is_told(monkeypatch):
    monkeypatch.setitem(DTYPES, "float16", "INT8")
    convolution, image, weights = next(resnet("NHWC"))
    with pytest.raises(
        UnsupportedByCudnn, match="cuDNN has no engine for Descriptor.operation='weight gradient'"
    ):
        plan_for(descriptor.WEIGHT_GRADIENT, convolution, image, weights, "float16")


def test_lengths_that_do_not_fit_are_refused_by_cudnn_too(monkeypatch):
    convolution, image, weights = next(resnet("NHWC"))
    monkeypatch.setattr(descriptor.Descriptor, "result", (64, 5, 5, 64))
    with pytest.raises(RuntimeError, match="spatial"):
        plan_for(descriptor.FORWARD, convolution, image, weights, "float16")
