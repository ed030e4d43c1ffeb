"""The rectifier as one scalar Op, which is fused with its neighbours; its gradient reads only its output.

    relu(x) -> Elemwise{ReLU} -> one kernel together with the elementwise Ops around it

The gradient of ``maximum(x, 0)`` would read x, so x, an array as large as the images, would have to be kept.
"""

from functools import partial
from typing import Any

import numpy as np
from pytensor.scalar import basic
from pytensor.tensor.elemwise import Elemwise

from synk.compile.dispatch import array_scalar
from synk.compile.programs.elementwise import template
from synk.ops.checks import float_tensor


class ReLU(basic.UnaryScalarOp):
    """``max(0, x)`` of a floating-point number; NaN stays NaN."""

    preserves_zero = True

    def impl(self, x):
        # NaN is not less than zero.
        return type(x)(0) if x < 0 else x

    def pullback(self, inputs, outputs, cotangents):
        # A product of gz with 0 or 1 would be NaN where gz is infinite; a choice between gz and 0 is not.
        (y,), (gz,) = outputs, cotangents
        zero = basic.constant(0, dtype=y.type.dtype)
        return [basic.switch(basic.gt(y, zero), gz, zero)]

    def c_code(self, node, name, inputs, outputs, sub):
        return f"{outputs[0]} = {inputs[0]} < 0 ? 0 : {inputs[0]};"

    def c_code_cache_version(self):
        return (1,)


rectify = Elemwise(ReLU(basic.same_out, name="relu"))


def relu(x: Any) -> Any:
    """Return ``max(0, x)``, element by element.

    The gradient is that of the output where x > 0, else 0; 0 at x = 0, as in torch.

    Parameters
    ----------
    x : tensor of float32 or float64

    Returns
    -------
    tensor
        Shape and dtype of ``x``.

    See Also
    --------
    synk.extensions.layers.ReLU : the layer.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> synk.function([x], ops.relu(x))([-1.0, 0.0, 2.0]).tolist()
    [0.0, 0.0, 2.0]
    """
    return rectify(float_tensor("x", x))


@template.register(ReLU)
def relu_text(scalar_op, write, inputs, dtype):
    """Return the rectifier as text of a kernel: one comparison, which compilers turn into a maximum."""
    (x,) = inputs
    return f"{x} < {write.literal(0, dtype)} ? {write.literal(0, dtype)} : {x}"


@array_scalar.register(ReLU)
def relu_of_arrays(scalar_op, node, xp):
    """Return a function of arrays, for a rectifier that is fused with no other Op: a ufunc of ``xp``."""
    return partial(xp.maximum, np.zeros((), node.outputs[0].type.dtype)[()])
