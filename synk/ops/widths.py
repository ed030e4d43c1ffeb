"""Which images and activations may be arrays of 16 bits; statistics and what scales them stay float32.

Convolutions are products: images, weights and biases are rounded, and the gradient of the weights is float32;
a provider that gives 16 bits for 16 bits, such as cuDNN, has it rounded before, as in torch.
Pooling and normalisation read images of either width and give the same. Losses are not listed: they read
float32.

A provider of kernels that compute with such arrays themselves says so by an attribute, ``by_dtype = True``.
"""

from types import ModuleType

from pytensor.graph.basic import Apply

from synk.compile.tables import Width, goes_by_dtype, width
from synk.kernels.choose import convolution_kernels, norm_kernels, pooling_kernels
from synk.ops.batch_norm_ops import BatchNorm, BatchNormGradient
from synk.ops.convolve import Conv2d
from synk.ops.convolve_gradients import Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.layer_norm import LayerNorm, LayerNormGradient
from synk.ops.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from synk.ops.pool_gradients import AvgPool2dGradient, MaxPool2dGradient

CONVOLUTION = Width(wants=(0, 1, 2), gives=(0,))
OF_IMAGES = Width(takes=(0,), leads=(0,), gives=(0,))
OF_TWO_IMAGES = Width(takes=(0, 1), leads=(0, 1), gives=(0,))

WIDTHS: dict[type, Width] = {
    Conv2d: CONVOLUTION,
    Conv2dInputGradient: Width(wants=(0, 1), gives=(0,)),
    Conv2dWeightGradient: Width(wants=(0, 1)),
    **dict.fromkeys([MaxPool2d, AvgPool2d, GlobalAvgPool2d], OF_IMAGES),
    **dict.fromkeys([MaxPool2dGradient, AvgPool2dGradient], OF_IMAGES),
    **dict.fromkeys([BatchNorm, LayerNorm], OF_IMAGES),
    **dict.fromkeys([BatchNormGradient, LayerNormGradient], OF_TWO_IMAGES),
}

KERNELS = {
    convolution_kernels: (Conv2d, Conv2dInputGradient, Conv2dWeightGradient),
    pooling_kernels: (MaxPool2d, AvgPool2d, GlobalAvgPool2d, MaxPool2dGradient, AvgPool2dGradient),
    norm_kernels: (BatchNorm, BatchNormGradient, LayerNorm, LayerNormGradient),
}


def of_op(op: object, node: Apply) -> Width:
    """Return the entry of an Op, as far as the node has such inputs: not every convolution has a bias."""
    rule = WIDTHS[type(op)]
    return rule._replace(wants=[k for k in rule.wants if k < len(node.inputs)])


for choose, classes in KERNELS.items():
    for op_class in classes:
        width.register(op_class)(of_op)

        @goes_by_dtype.register(op_class)
        def by_provider(op: object, node: Apply, xp: ModuleType, choose=choose) -> bool:
            """Ask the provider of the kernel."""
            return getattr(choose(xp, "float32"), "by_dtype", False)
