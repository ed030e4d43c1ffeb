"""Layers of matrices: dense ones, and tables of vectors.

rng -> initialiser -> W, b -> x @ W + b, or W[x]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.type import integer_dtypes

from synk.extensions.initialisers import he_normal, standard_normal
from synk.extensions.layers.base import Layer, named_weights, shared
from synk.extensions.layers.checks import checked_last, count


class Dense(Layer):
    """Every output a weighted sum of all inputs along the last axis: ``x @ W + b``.

    Parameters
    ----------
    n_in, n_out : int
        Units.
    bias : bool
        Whether there is a ``b``.
    init : callable
        Of ``W``; see `synk.extensions.initialisers`. Biases begin as zeros.
    rng : numpy.random.Generator
        For the first values.
    dtype : {"float32", "float64"}

    Attributes
    ----------
    params
        ``W``, shape (n_in, n_out), and ``b``, shape (n_out,).

    Raises
    ------
    TypeError, ValueError
        A number is no positive integer, `rng` no generator, or the dtype another.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> layer = layers.Dense(3, 5, rng=np.random.default_rng(0))
    >>> x = pt.fmatrix("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3), "float32")).shape
    (2, 5)
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        bias: bool = True,
        init: Callable[..., Any] = he_normal,
        rng: Any,
        dtype: str = "float32",
    ) -> None:
        self.n_in, self.n_out = count("n_in", n_in), count("n_out", n_out)
        W = shared(init, (self.n_in, self.n_out), rng, dtype)
        super().__init__(named_weights(W, self.n_out, bias, dtype))

    def __call__(self, x: Any) -> Any:
        """Return the outputs, shape (rows, ..., n_out).

        Parameters
        ----------
        x : tensor, shape (rows, ..., n_in)

        Raises
        ------
        TypeError, ValueError
            `x` has another dtype, one axis, or another number of units.
        """
        W = self.params["W"]
        x = checked_last(self, x, self.n_in, W.dtype)
        if x.type.ndim == 2:
            y = x @ W
        else:  # one product of matrices, whatever the axes
            leading = [x.shape[k] if n is None else n for k, n in enumerate(x.type.shape[:-1])]
            y = (x.reshape((-1, self.n_in)) @ W).reshape((*leading, self.n_out))
        return y + self.params["b"] if "b" in self.params else y

    def describe(self) -> str:
        """Tell the units."""
        return f"{self.n_in} -> {self.n_out}"


class Embedding(Layer):
    """A vector for each of so many things, looked up by number: ``W[x]``.

    The gradient of ``W`` adds up what the rows of the batch give to the vectors that they looked up; all
    others have zeros, and the rules of `synk.extensions.updates` treat those as gradients, too.

    Parameters
    ----------
    n : int
        Things, numbered from 0.
    n_out : int
        Length of a vector.
    init : callable
        Of ``W``; by default normal numbers of variance 1.
    rng : numpy.random.Generator
        For the first values.
    dtype : {"float32", "float64"}

    Attributes
    ----------
    params
        ``W``, shape (n, n_out).

    Raises
    ------
    TypeError, ValueError
        A number is no positive integer, `rng` no generator, or the dtype another.

    See Also
    --------
    synk.extensions.layers.Dense : takes the vectors on.

    Examples
    --------
    >>> layer = layers.Embedding(10, 4, rng=np.random.default_rng(0))
    >>> words = pt.lmatrix("words")
    >>> synk.function([words], layer(words))([[3, 1, 3], [0, 9, 1]]).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        n: int,
        n_out: int,
        *,
        init: Callable[..., Any] = standard_normal,
        rng: Any,
        dtype: str = "float32",
    ) -> None:
        self.n, self.n_out = count("n", n), count("n_out", n_out)
        super().__init__({"W": shared(init, (self.n, self.n_out), rng, dtype)})

    def __call__(self, x: Any) -> Any:
        """Return the vectors, shape (rows, ..., n_out).

        Parameters
        ----------
        x : tensor of integers, shape (rows, ...)
            From 0 to n - 1, or from -n to count from the end.

        Raises
        ------
        TypeError
            `x` is no tensor of integers.
        IndexError
            When the function runs: a number is beyond the end.
        """
        x = pt.as_tensor_variable(x)
        if x.type.dtype not in integer_dtypes or x.type.ndim < 1:
            raise TypeError(
                f"{self!r} takes integers, shape (rows, ...), but its input is {x.type.dtype}, shape "
                f"{x.type.shape}; pass the numbers of things to look up"
            )
        return self.params["W"][x]

    def describe(self) -> str:
        """Tell how many vectors of which length."""
        return f"{self.n} x {self.n_out}"
