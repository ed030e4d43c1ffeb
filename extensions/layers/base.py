"""The base of all layers: parameters and state by name, a graph for testing, one for training.

    layer(x)           -> y             as for testing
    layer.training(x)  -> y, updates    as for training: statistics of the batch, dropped units

A layer owns its shared variables. Calling it builds a graph of them and of the input; nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytensor

from synk.extensions.initialisers import zeros

Pair = tuple[Any, Any]  # (shared variable, new value)


class Layer:
    """A part of a network.

    A subclass of one's own says what it does to its input in ``__call__``, puts what it trains into `params`
    and what it keeps beside into `state`, and overrides `training` where that differs from testing.

    Parameters
    ----------
    params, state : dict of str to shared variable, optional
        As below.

    Attributes
    ----------
    params : dict of str to shared variable
        What is trained, in order.
    state : dict of str to shared variable
        What is kept and not trained: running statistics, random states. `training` gives their updates.
    n_parameters : int
        Elements of all `params` together.
    name : str
        Its path in the network that it was last put into, such as ``"stage1.0.conv2"``; empty before.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> class Scale(layers.Layer):
    ...     def __init__(self):
    ...         super().__init__(params={"factor": pytensor.shared(np.float32(2))})
    ...
    ...     def __call__(self, x):
    ...         return x * self.params["factor"]
    >>> x = pt.fvector("x")
    >>> synk.function([x], Scale()(x))([1.0, 2.0]).tolist()
    [2.0, 4.0]
    """

    name: str = ""

    def __init__(
        self, params: Mapping[str, Any] | None = None, state: Mapping[str, Any] | None = None
    ) -> None:
        self.params: dict[str, Any] = dict(params or {})
        self.state: dict[str, Any] = dict(state or {})
        self._name_variables()

    def __call__(self, x: Any) -> Any:
        """Return the output for the input `x`, as for testing."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it does; define __call__")

    def training(self, x: Any) -> tuple[Any, list[Pair]]:
        """Return the output as for training, and updates.

        Parameters
        ----------
        x : PyTensor tensor

        Returns
        -------
        y : PyTensor tensor
        updates : list of (shared variable, new value)
            Of `state`: the `updates` of `synk.extensions.train.make_train_function`.
        """
        return self(x), []

    @property
    def n_parameters(self) -> int:
        """The elements of all parameters together."""
        return sum(param.get_value(borrow=True).size for param in self.params.values())

    def rename(self, name: str) -> None:
        """Take a name, and give the variables theirs: ``"stem.W"`` for ``W`` of the layer ``"stem"``.

        Parameters
        ----------
        name : str
        """
        self.name = name
        self._name_variables()

    def _name_variables(self) -> None:
        for key, variable in {**self.params, **self.state}.items():
            variable.name = path(self.name, key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{f' {self.name!r}' if self.name else ''}({self.describe()})"

    def describe(self) -> str:
        """Return the text in parentheses where the layer is printed."""
        return ""


class Each(Layer):
    """A layer that applies a function of one tensor, such as ``pytensor.tensor.tanh``, without parameters."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def __call__(self, x: Any) -> Any:
        """Return ``function(x)``."""
        return self.function(x)

    def describe(self) -> str:
        """Name the function."""
        return getattr(self.function, "__name__", str(self.function))


def as_layer(what: Any) -> Layer:
    """Return a layer as it is, and a function of one tensor as a layer; TypeError if it is neither."""
    if isinstance(what, Layer):
        return what
    if isinstance(what, type):
        raise TypeError(f"{what.__name__} is a class, not a layer; call it first: {what.__name__}(...)")
    if not callable(what):
        raise TypeError(f"{what!r} is no layer; pass a layer or a function of one tensor")
    return Each(what)


def path(*names: str) -> str:
    """Join names, leaving out empty ones."""
    return ".".join(name for name in names if name)


def shared(init: Callable[..., np.ndarray], shape: tuple[int, ...], rng: Any, dtype: str) -> Any:
    """Make a shared variable with first values and a static shape.

    TypeError if `dtype` is neither float32 nor float64, ValueError if the initialiser gives another shape.
    """
    if dtype not in ("float32", "float64"):
        raise TypeError(f'dtype={dtype!r} is not trained in; pass "float32" or "float64"')
    values = np.asarray(init(shape, rng, dtype), dtype)
    if values.shape != shape:
        raise ValueError(f"{init} returned shape {values.shape} for {shape}; return what it is asked for")
    return pytensor.shared(values, shape=shape)


def named_weights(W: Any, n_out: int, bias: bool, dtype: str) -> dict[str, Any]:
    """Return weights and, where there are to be some, zero biases by their names."""
    if not bias:
        return {"W": W}
    return {"W": W, "b": shared(zeros, (n_out,), None, dtype)}
