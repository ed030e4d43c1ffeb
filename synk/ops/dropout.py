"""Dropout, as a graph of two Ops for which the compiler has fast code: a Bernoulli draw and a choice.

    kept ~ Bernoulli(1 - rate),  y = x / (1 - rate) where kept, else 0

The gradient reads only the draw, of one byte an element. Choice and product are fused with the elementwise
Ops around them, forward and backward.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.type import RandomGeneratorType

from synk.ops.checks import float_tensor


def dropout(x: Any, rate: float, rng: Any) -> tuple[Any, tuple[Any, Any]]:
    """Set each element to 0 with probability ``rate``, and scale the others to keep the mean.

    Parameters
    ----------
    x : tensor of float32 or float64
    rate : float
        At least 0, less than 1.
    rng : random state
        A shared one: ``pytensor.tensor.random.shared_rng(seed=...)``; each call needs one of its own.

    Returns
    -------
    y : tensor
        Shape and dtype of ``x``. What is dropped is 0 even where x is NaN or infinite.
    update : (rng, next_rng)
        Advances the state from call to call; without it, every call drops the same elements. With
        ``rate=0`` nothing is drawn: y is ``x`` itself and the new state is the old one.

    See Also
    --------
    synk.extensions.layers.Dropout : the layer.

    References
    ----------
    Srivastava et al. (2014), http://jmlr.org/papers/v15/srivastava14a.html.

    Examples
    --------
    >>> from pytensor.tensor.random import shared_rng
    >>> x, rng = pt.matrix("x"), shared_rng(seed=1)
    >>> y, update = ops.dropout(x, 0.5, rng)
    >>> f = synk.function([x], y, updates=[update])
    >>> sorted(set(f(np.ones((40, 3))).ravel().tolist()))
    [0.0, 2.0]
    """
    x = float_tensor("x", x)
    if not (isinstance(rate, int | float | np.number) and 0 <= rate < 1):
        raise ValueError(f"rate={rate!r} must be at least 0 and less than 1: it is the share that is dropped")
    if not isinstance(getattr(rng, "type", None), RandomGeneratorType):
        remedy = "use pytensor.tensor.random.shared_rng(seed=0)"
        raise TypeError(f"rng must be a random state, not {rng!r}: {remedy}")
    if rate == 0:
        return x, (rng, rng)
    next_rng, kept = rng.bernoulli(1 - rate, size=x.shape, dtype="bool")
    dtype = x.type.dtype
    scale, zero = (pt.constant(np.asarray(value, dtype)) for value in (1 / (1 - rate), 0))
    # A product with a mask would keep NaN in dropped elements, and need a mask in the dtype of x.
    return pt.switch(kept, x * scale, zero), (rng, next_rng)
