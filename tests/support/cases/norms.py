"""Definitions of normalisation and cross-entropy in float64, and data to hold kernels to them.

Statistics that a kernel rounded to its dtype are taken as it returned them: with a mean of 1e4 in float32
their rounding alone moves every result by 5e-4.
"""

import numpy as np
import pytest
from hypothesis import strategies as st

from support.cuda.provider import OnHost, needs_emulator
from synk.ops.kernels.loops import LoopKernels, available
from synk.ops.kernels.plain_norm import PlainNorm

EPS = 1e-5

PROVIDERS = [
    pytest.param(PlainNorm(np), id="numpy"),
    pytest.param(
        LoopKernels(np),
        id="loops",
        marks=pytest.mark.skipif(not available(), reason="there is no C compiler"),
    ),
]
# These, and the kernels in CUDA on an emulator.
EVERY = [*PROVIDERS, pytest.param(OnHost(), id="cuda", marks=needs_emulator)]
TOLERANCE = {"float32": 3e-6, "float64": 1e-13}

dtypes = st.sampled_from(["float32", "float64"])
layouts = st.sampled_from(["NCHW", "NHWC"])
# Lengths on both sides of the lanes and blocks of the loops.
lengths = st.one_of(st.integers(1, 5), st.sampled_from([15, 16, 33, 65]))
shapes = st.one_of(st.tuples(st.integers(1, 300), lengths), st.tuples(st.integers(1, 4), *[lengths] * 3))


def spread(ndim, layout):
    """Return the axes that a channel is summed over, and the index that spreads (C,) over all."""
    channel = 1 if ndim == 4 and layout == "NCHW" else ndim - 1
    axes = tuple(axis for axis in range(ndim) if axis != channel)
    return axes, tuple(None if axis in axes else slice(None) for axis in range(ndim))


def close(value, expected, scale=1.0):
    """Compare with a float64 array, by the error that is usual for the dtype of ``value``.

    ``scale`` is how large the numbers are of which the expected one is a sum or a difference.
    """
    limit = TOLERANCE[value.dtype.name] * max(1.0, scale, float(np.abs(expected).max(initial=0)))
    assert value.shape == expected.shape
    assert value.flags.c_contiguous
    np.testing.assert_allclose(value, expected, rtol=0, atol=limit)


def batch(seed, shape, layout, dtype, offset=0.0):
    """Return gy, x, gamma and beta."""
    random = np.random.default_rng(seed)
    n_channels = shape[1 if len(shape) == 4 and layout == "NCHW" else -1]
    arrays = [random.normal(size=n) for n in (shape, shape, n_channels, n_channels)]
    arrays[1] += offset
    return [array.astype(dtype) for array in arrays]


def batch_norm(x, gamma, beta, relu, layout):
    """Return y, mean and inv_std."""
    axes, over = spread(x.ndim, layout)
    wide = x.astype("float64")
    mean, inv_std = wide.mean(axes), 1 / np.sqrt(wide.var(axes) + EPS)
    y = (wide - mean[over]) * inv_std[over] * gamma[over] + beta[over]
    return np.maximum(y, 0) if relu else y, mean, inv_std


def batch_norm_gradient(gy, x, gamma, beta, mean, inv_std, relu, layout):
    """Return gx, ggamma and gbeta, of rounded statistics; relu passes where forward's result is positive."""
    axes, over = spread(x.ndim, layout)
    passes = (x - mean[over]) * (gamma * inv_std)[over] + beta[over] > 0 if relu else np.ones(x.shape, bool)
    gy, x, gamma, mean, inv_std = (array.astype("float64") for array in (gy, x, gamma, mean, inv_std))
    g = np.where(passes, gy, 0)
    h = (x - mean[over]) * inv_std[over]
    rest = g - g.mean(axes, keepdims=True) - h * (g * h).mean(axes, keepdims=True)
    return (gamma * inv_std)[over] * rest, (g * h).sum(axes), g.sum(axes)


def by_group(groups, layout, shape):
    """Return a function that makes images (images, groups, channels of one, pixels), and its inverse."""
    order = (0, 1, 2, 3) if layout == "NCHW" else (0, 3, 1, 2)
    first = [shape[k] for k in order]

    def split(x):
        return x.transpose(order).reshape(first[0], groups, first[1] // groups, first[2] * first[3])

    def joined(parts):
        return np.ascontiguousarray(parts.reshape(first).transpose(np.argsort(order)))

    return split, joined


def group_norm(x, gamma, beta, groups, relu, layout):
    """Return y, mean and inv_std."""
    split, joined = by_group(groups, layout, x.shape)
    parts = split(x.astype("float64"))
    mean, inv_std = parts.mean((2, 3)), 1 / np.sqrt(parts.var((2, 3)) + EPS)
    h = (parts - mean[:, :, None, None]) * inv_std[:, :, None, None]
    gamma, beta = (v.reshape(groups, -1, 1) for v in (gamma, beta))
    y = h * gamma + beta
    return joined(np.maximum(y, 0) if relu else y), mean, inv_std


def group_norm_gradient(gy, x, gamma, beta, mean, inv_std, groups, relu, layout):
    """Return gx, ggamma and gbeta, of rounded statistics; relu passes where forward's result is positive."""
    split, joined = by_group(groups, layout, x.shape)
    gamma, beta = (v.reshape(groups, -1, 1) for v in (gamma, beta))
    over = (slice(None), slice(None), None, None)
    passes = (split(x) - mean[over]) * (gamma * inv_std[over]) + beta > 0 if relu else True
    x, g, gamma, mean, inv_std = (v.astype("float64") for v in (split(x), split(gy), gamma, mean, inv_std))
    g, h = np.where(passes, g, 0), (x - mean[over]) * inv_std[over]
    slopes = g * gamma
    rest = slopes - slopes.mean((2, 3), keepdims=True) - h * (slopes * h).mean((2, 3), keepdims=True)
    return joined(inv_std[over] * rest), (g * h).sum((0, 3)).ravel(), g.sum((0, 3)).ravel()


def layer_norm(x, gamma, beta):
    """Return y, mean and inv_std."""
    axes, over = tuple(range(-gamma.ndim, 0)), (...,) + (None,) * gamma.ndim
    wide = x.astype("float64")
    mean, inv_std = wide.mean(axes), 1 / np.sqrt(wide.var(axes) + EPS)
    return (wide - mean[over]) * inv_std[over] * gamma + beta, mean, inv_std


def layer_norm_gradient(gy, x, gamma, mean, inv_std):
    """Return gx, ggamma and gbeta."""
    axes, over = tuple(range(-gamma.ndim, 0)), (...,) + (None,) * gamma.ndim
    lead = tuple(range(x.ndim - gamma.ndim))
    gy, x, gamma, mean, inv_std = (array.astype("float64") for array in (gy, x, gamma, mean, inv_std))
    h, g = (x - mean[over]) * inv_std[over], gy * gamma
    rest = g - g.mean(axes, keepdims=True) - h * (g * h).mean(axes, keepdims=True)
    return inv_std[over] * rest, (gy * h).sum(lead), gy.sum(lead)


def cross_entropy(logits, labels):
    """Return losses and log_sum."""
    wide, highest = logits.astype("float64"), logits.max(1).astype("float64")
    log_total = np.log(np.exp(wide - highest[:, None]).sum(1))
    return log_total - (wide[np.arange(len(labels)), labels] - highest), highest + log_total


def cross_entropy_gradient(g, logits, labels):
    """Return the gradient of logits."""
    soft = np.exp(logits.astype("float64") - logits.max(1, keepdims=True))
    soft /= soft.sum(1, keepdims=True)
    soft[np.arange(len(labels)), labels] -= 1
    return g.astype("float64")[:, None] * soft


def of_batch_norm(shape, layout, dtype, relu=True):
    def inputs(provider):
        gy, x, gamma, beta = batch(5, shape, layout, dtype)
        forward = provider.batch_norm(EPS, relu, layout)
        _, mean, inv_std = forward(x, gamma, beta)
        yield forward, (x, gamma, beta)
        yield provider.batch_norm_gradient(relu, layout), (gy, x, gamma, beta, mean, inv_std)

    return inputs


def of_group_norm(shape, groups, layout, dtype, relu):
    def inputs(provider):
        gy, x, gamma, beta = batch(5, shape, layout, dtype)
        forward = provider.group_norm(EPS, groups, relu, layout)
        _, mean, inv_std = forward(x, gamma, beta)
        yield forward, (x, gamma, beta)
        yield provider.group_norm_gradient(groups, relu, layout), (gy, x, gamma, beta, mean, inv_std)

    return inputs


def of_layer_norm(provider):
    gy, x, _, _ = batch(3, (40, 3, 5), "NHWC", "float64")
    yield provider.layer_norm(EPS, 2), (x, gy[0], gy[1])
    yield provider.layer_norm_gradient(2), (gy, x, gy[0], x[:, 0, 0], x[:, 0, 1])


def of_cross_entropy(provider):
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(50, 30)) * 5, random.integers(0, 30, 50)
    forward = provider.softmax_cross_entropy()
    yield forward, (logits, labels)
    log_sum = forward(logits, labels)[1]
    yield provider.softmax_cross_entropy_gradient(), (random.normal(size=50), logits, labels, log_sum)


# Of a provider: an implementation and inputs for it, forward and backward.
KERNELS = {
    "batch norm of rows": of_batch_norm((6, 3), "NCHW", "float32", relu=False),
    "batch norm of channels first": of_batch_norm((2, 4, 5, 4), "NCHW", "float32"),
    "batch norm of channels last": of_batch_norm((6, 4, 3, 8), "NHWC", "float64"),
    "group norm of channels first": of_group_norm((2, 4, 5, 4), 2, "NCHW", "float32", True),
    "group norm of channels last": of_group_norm((3, 4, 3, 8), 4, "NHWC", "float64", False),
    "layer norm": of_layer_norm,
    "cross-entropy": of_cross_entropy,
}


def listed(results):
    return list(results) if isinstance(results, tuple | list) else [results]
