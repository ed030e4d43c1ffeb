"""Draw the first values of weights.

    shape, random generator -> initialiser -> array -> a shared variable of `synk.extensions.layers`

Every initialiser is called as ``initialiser(shape, rng, dtype)``; other options are chosen by
`functools.partial`. Numbers are drawn in float64 and rounded: one seed gives the same weights in any dtype.

How large the values should be depends on the *fans*, how many products go into one sum: ``fan_in`` for an
output of the layer, ``fan_out`` for the gradient of an input. Of weights (inputs, outputs) these are the two
lengths; of filters (outputs, inputs / groups, height, width) they are ``inputs / groups * height * width``
and ``outputs * height * width``.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import numpy as np

__all__ = [
    "fans",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "ones",
    "orthogonal",
    "standard_normal",
    "zeros",
]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__


def he_normal(shape: tuple[int, ...], rng: Any, dtype: str = "float32", *, fan: str = "in") -> np.ndarray:
    """Draw normal numbers of variance ``2 / fan``, which rectified layers neither grow nor shrink.

    Parameters
    ----------
    shape : tuple of int
        Of weights, (inputs, outputs), or of filters, (outputs, inputs / groups, height, width).
    rng : numpy.random.Generator
    dtype : str
    fan : {"in", "out"}
        Whether signals going forward keep their size or gradients going back. "in" is He's choice;
        residual networks are often begun with "out".

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `rng` is no generator.
    ValueError
        A shape without fans, or another `fan`.

    References
    ----------
    He, Zhang, Ren and Sun (2015), arXiv:1502.01852, equations 10 and 14.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> w = initialisers.he_normal((100, 50), rng)
    >>> w.shape, w.dtype
    ((100, 50), dtype('float32'))
    """
    return _normal(shape, rng, dtype, variance=2 / _fan(shape, fan))


def he_uniform(shape: tuple[int, ...], rng: Any, dtype: str = "float32", *, fan: str = "in") -> np.ndarray:
    """Draw uniform numbers in ``±sqrt(6 / fan)``, of the variance of `he_normal`.

    Parameters
    ----------
    shape : tuple of int
        Of weights, (inputs, outputs), or of filters, (outputs, inputs / groups, height, width).
    rng : numpy.random.Generator
    dtype : str
    fan : {"in", "out"}
        Whether signals going forward keep their size or gradients going back.

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `rng` is no generator.
    ValueError
        A shape without fans, or another `fan`.

    See Also
    --------
    synk.extensions.initialisers.he_normal : names the source.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> w = initialisers.he_uniform((100, 50), rng)
    >>> w.shape, w.dtype
    ((100, 50), dtype('float32'))
    >>> bool(abs(w).max() < np.sqrt(6 / 100))
    True
    """
    return _uniform(shape, rng, dtype, variance=2 / _fan(shape, fan))


def glorot_normal(shape: tuple[int, ...], rng: Any, dtype: str = "float32") -> np.ndarray:
    """Draw normal numbers of variance ``2 / (fan_in + fan_out)``.

    The compromise between signals and gradients, for layers that are linear about zero, such as tanh.

    Parameters
    ----------
    shape : tuple of int
        Of weights, (inputs, outputs), or of filters, (outputs, inputs / groups, height, width).
    rng : numpy.random.Generator
    dtype : str

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `rng` is no generator.
    ValueError
        A shape without fans.

    References
    ----------
    Glorot and Bengio (2010), "Understanding the difficulty of training deep feedforward neural networks",
    AISTATS, equation 12.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> w = initialisers.glorot_normal((100, 50), rng)
    >>> w.shape, w.dtype
    ((100, 50), dtype('float32'))
    """
    return _normal(shape, rng, dtype, variance=2 / sum(fans(shape)))


def glorot_uniform(shape: tuple[int, ...], rng: Any, dtype: str = "float32") -> np.ndarray:
    """Draw uniform numbers in ``±sqrt(6 / (fan_in + fan_out))``, of the variance of `glorot_normal`.

    The source's equation 16.

    Parameters
    ----------
    shape : tuple of int
        Of weights, (inputs, outputs), or of filters, (outputs, inputs / groups, height, width).
    rng : numpy.random.Generator
    dtype : str

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `rng` is no generator.
    ValueError
        A shape without fans.

    See Also
    --------
    synk.extensions.initialisers.glorot_normal : names the source.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> w = initialisers.glorot_uniform((100, 50), rng)
    >>> w.shape, w.dtype
    ((100, 50), dtype('float32'))
    >>> bool(abs(w).max() < np.sqrt(6 / 150))
    True
    """
    return _uniform(shape, rng, dtype, variance=2 / sum(fans(shape)))


def orthogonal(shape: tuple[int, ...], rng: Any, dtype: str = "float32", *, gain: float = 1.0) -> np.ndarray:
    """Draw a matrix whose rows or columns, whichever are fewer, are orthogonal and of length `gain`.

    Filters are a matrix of one row for each output. The draw is uniform over such matrices: Q of the QR
    decomposition of normal numbers, with the signs of R's diagonal taken out.

    Parameters
    ----------
    shape : tuple of int
        Of weights, (inputs, outputs), or of filters, (outputs, inputs / groups, height, width).
    rng : numpy.random.Generator
    dtype : str
    gain : float

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `rng` is no generator.
    ValueError
        A shape without fans.

    References
    ----------
    Saxe, McClelland and Ganguli (2013), arXiv:1312.6120; the signs: Mezzadri (2006), arXiv:math-ph/0609050.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> w = initialisers.orthogonal((100, 50), rng)
    >>> w.shape, w.dtype
    ((100, 50), dtype('float32'))
    >>> bool(np.allclose(w.T @ w, np.eye(50), atol=1e-5))
    True
    """
    fans(shape)
    n_rows, n_columns = shape[0], prod(shape[1:])
    draw = _generator(rng).standard_normal((max(n_rows, n_columns), min(n_rows, n_columns)))
    q, r = np.linalg.qr(draw)
    q *= np.where(np.diagonal(r) < 0, -gain, gain)
    return (q if n_rows >= n_columns else q.T).reshape(shape).astype(dtype)


def standard_normal(shape: tuple[int, ...], rng: Any, dtype: str = "float32") -> np.ndarray:
    """Draw normal numbers of variance 1, for vectors that are looked up: no products are added up.

    Parameters
    ----------
    shape : tuple of int
    rng : numpy.random.Generator
    dtype : str

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `rng` is no generator.

    Examples
    --------
    >>> w = initialisers.standard_normal((100, 50), np.random.default_rng(0))
    >>> w.shape, w.dtype
    ((100, 50), dtype('float32'))
    """
    return _normal(shape, rng, dtype, variance=1)


def zeros(shape: tuple[int, ...], rng: Any = None, dtype: str = "float32") -> np.ndarray:
    """Return zeros; nothing is drawn.

    Parameters
    ----------
    shape : tuple of int
    rng : any, optional
        Not used: it stands here so that all initialisers are called alike.
    dtype : str

    Returns
    -------
    ndarray

    Examples
    --------
    >>> initialisers.zeros((2,)).tolist()
    [0.0, 0.0]
    """
    return np.zeros(shape, dtype)


def ones(shape: tuple[int, ...], rng: Any = None, dtype: str = "float32") -> np.ndarray:
    """Return ones; nothing is drawn.

    Parameters
    ----------
    shape : tuple of int
    rng : any, optional
        Not used: it stands here so that all initialisers are called alike.
    dtype : str

    Returns
    -------
    ndarray

    Examples
    --------
    >>> initialisers.ones((2,)).tolist()
    [1.0, 1.0]
    """
    return np.ones(shape, dtype)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return ``fan_in`` and ``fan_out`` of weights or filters.

    Parameters
    ----------
    shape : tuple of int
        Of weights, (inputs, outputs), or of filters, (outputs, inputs / groups, height, width, ...).

    Returns
    -------
    fan_in, fan_out : int

    Raises
    ------
    ValueError
        Fewer than two axes, or an empty one.

    Examples
    --------
    >>> initialisers.fans((784, 10)), initialisers.fans((8, 3, 5, 5))
    ((784, 10), (75, 200))
    """
    if len(shape) < 2 or min(shape) < 1:
        raise ValueError(
            f"shape {tuple(shape)} has no fans; pass that of weights (inputs, outputs) or of filters "
            "(outputs, inputs / groups, height, width), or use zeros or ones"
        )
    if len(shape) == 2:
        return shape[0], shape[1]
    places = prod(shape[2:])
    return shape[1] * places, shape[0] * places


def _fan(shape: tuple[int, ...], which: str) -> int:
    if which not in ("in", "out"):
        raise ValueError(f'fan={which!r} is neither "in" nor "out"')
    return dict(zip(("in", "out"), fans(shape), strict=True))[which]


def _normal(shape: tuple[int, ...], rng: Any, dtype: str, variance: float) -> np.ndarray:
    values = _generator(rng).standard_normal(shape)
    values *= sqrt(variance)
    return values.astype(dtype)


def _uniform(shape: tuple[int, ...], rng: Any, dtype: str, variance: float) -> np.ndarray:
    bound = sqrt(3 * variance)
    return _generator(rng).uniform(-bound, bound, shape).astype(dtype)


def _generator(rng: Any) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng={rng!r} is no random generator; pass rng=numpy.random.default_rng(seed)")
    return rng
