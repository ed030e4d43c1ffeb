"""Entry for random variables, which return the advanced generator and a draw; `sampler` says how each draws.

    sampler(op) -> sample(generator, size, *parameters) -> array of the Op's dtype

Generators are NumPy's, on the host. If the Op is not in place, it draws from a copy of its generator, as in
PyTensor. An array module on a device may draw there, which gives other numbers of the same distribution; what
it does not draw is drawn on the host and copied.

Most draw as the Op itself defines. Categories are the same numbers as PyTensor's, in less time. These draw
other numbers than PyTensor, of the same distribution, as fast as NumPy draws them or faster:

- uniform and normal ones in float32 and float16 are drawn as float32, not as float64 and rounded;
- integers of 8 and 16 bits are drawn as such, not as 64 bits and cut;
- Bernoulli ones compare 32 random bits to ``p``, where PyTensor asks SciPy, ten times slower.

The same state of a generator gives the same numbers, and the same next state, in all modes on the host.
"""

from collections.abc import Callable
from functools import singledispatch

import numpy as np
from pytensor.tensor.random.basic import (
    BernoulliRV,
    CategoricalRV,
    ChoiceWithoutReplacement,
    IntegersRV,
    NormalRV,
    PermutationRV,
    UniformRV,
)
from pytensor.tensor.random.op import RandomVariable

from synk.compile.array_modules import array_module
from synk.compile.host_call import HostCall
from synk.compile.native.bit_generators import copy_generator
from synk.compile.tables import array_funcify

Sample = Callable[..., np.ndarray]
# Draws of these are whole permutations or choices, of which their parameters tell how many there are.
WHOLE = (ChoiceWithoutReplacement, PermutationRV)
FLOAT32 = (UniformRV, NormalRV)  # drawn in float32 unless they are float64


def same_numbers(op) -> bool:
    """Tell whether ``sampler(op)`` draws the same numbers as PyTensor from the same state."""
    if isinstance(op, IntegersRV):
        return np.dtype(op.dtype).itemsize >= 4
    return not isinstance(op, BernoulliRV) and (op.dtype == "float64" or not isinstance(op, FLOAT32))


def unbatched(op, size: tuple[int, ...] | None, parameters: list[np.ndarray]) -> list[np.ndarray]:
    """Return parameters without batch axes of length 1, if ``size`` gives the shape of the draw.

    PyTensor adds them to every parameter, and NumPy then takes up to five times as long for the same numbers.
    """
    if size is None or isinstance(op, WHOLE):
        return parameters
    shapes = [p.shape[: p.ndim - n] for p, n in zip(parameters, op.ndims_params, strict=True)]
    return [
        p.reshape(p.shape[len(batch) :]) if len(batch) <= len(size) and set(batch) <= {1} else p
        for p, batch in zip(parameters, shapes, strict=True)
    ]


@singledispatch
def sampler(op) -> Sample:
    """Return ``sample(generator, size, *parameters)``, which advances the generator.

    ``size`` will be a tuple of int or None, the parameters arrays with the Op's batch axes.
    """
    return as_defined(op)


def as_defined(op) -> Sample:
    """Return a sampler that draws as the Op itself does."""

    def sample(generator, size, *parameters):
        return np.asarray(op.rng_fn(generator, *parameters, size), dtype=op.dtype)

    return sample


@sampler.register(UniformRV)
def uniform(op):
    """Draw ``low + (high - low) * u`` for u uniform in [0, 1)."""
    if op.dtype == "float64":
        return as_defined(op)

    def sample(generator, size, low, high):
        low, high = low.astype("float32"), high.astype("float32")
        draw = generator.random(_shape(size, low, high), "float32")
        return _scale(draw, high - low, low).astype(op.dtype, copy=False)

    return sample


@sampler.register(NormalRV)
def normal(op):
    """Draw ``mean + deviation * z`` for a standard normal z."""
    if op.dtype == "float64":
        return as_defined(op)

    def sample(generator, size, mean, deviation):
        mean, deviation = mean.astype("float32"), deviation.astype("float32")
        if (deviation < 0).any():
            raise ValueError("the scale of a normal distribution must not be negative")
        draw = generator.standard_normal(_shape(size, mean, deviation), "float32")
        return _scale(draw, deviation, mean).astype(op.dtype, copy=False)

    return sample


def _scale(draw, factor, offset):
    """Compute ``factor * draw + offset`` in place; skip a factor of 1 and an offset of 0."""
    if factor.ndim or factor != 1:
        draw *= factor
    if offset.ndim or offset != 0:
        draw += offset
    return draw


@sampler.register(IntegersRV)
def integers(op):
    """Draw integers from ``low`` up to ``high``, exclusive."""
    return lambda generator, size, low, high: np.asarray(generator.integers(low, high, size, op.dtype))


@sampler.register(BernoulliRV)
def bernoulli(op):
    """Draw one with probability ``p``, else zero."""
    dtype = np.dtype(op.dtype)

    def sample(generator, size, p):
        mask = bernoulli_mask(generator, p, _shape(size, p))
        return mask.view(dtype) if dtype.itemsize == 1 else mask.astype(dtype)

    return sample


def bernoulli_mask(generator: np.random.Generator, p: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of ``shape`` that is True with probability ``p``, exactly, for every value of ``p``.

    32 random bits decide, unless they equal the first 32 bits of ``p``: then 53 more do. The generator is
    advanced by one 64-bit number for two elements.
    """
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("the probability of a Bernoulli variable must lie between 0 and 1")
    size = int(np.prod(shape))
    # Twice as fast as numbers of 32 bits, or as float32.
    pairs = generator.integers(0, 2**64 - 1, (size + 1) // 2, "uint64", endpoint=True)
    words = pairs.view("uint32")[:size].reshape(shape)
    scaled = np.asarray(p, dtype="float64") * 2.0**32
    # Probability 1 is the last word and the whole of its fraction.
    first = np.minimum(scaled, 2.0**32 - 1).astype("uint32")
    mask, ties = words < first, words == first
    if ties.any():
        fraction = np.broadcast_to(scaled - first, shape)[ties]
        mask[ties] = generator.random(fraction.shape) < fraction
    return mask


@sampler.register(CategoricalRV)
def categorical(op):
    """Draw a category: the number of running sums of ``p`` that a uniform number exceeds."""

    def sample(generator, size, p):
        size = p.shape[:-1] if size is None else size
        if np.broadcast_shapes(size, p.shape[:-1]) != size:
            raise ValueError(f"size {size} is too small for probabilities of shape {p.shape}")
        draw, sums = generator.uniform(size=size), p.cumsum(axis=-1)
        if p.ndim == 1 and len(p) > 16:
            return np.asarray(np.searchsorted(sums, draw)).astype(op.dtype)
        category = np.zeros(size, op.dtype)
        for k in range(p.shape[-1]):
            category += sums[..., k] < draw
        return category

    return sample


def _shape(size, *parameters) -> tuple[int, ...]:
    """Return the shape to draw: ``size``, or the shape to which the parameters broadcast."""
    return np.broadcast_shapes(*[parameter.shape for parameter in parameters]) if size is None else size


@array_funcify.register(RandomVariable)
def random_variable(op, node, xp):
    """Return the advanced generator and a draw."""
    if type(op).perform is not RandomVariable.perform:
        return HostCall(node, xp)
    on_device = array_module(xp).sampler(op)
    inplace = op.inplace
    sample = on_host(op, xp) if on_device is None else shaped(on_device, node.outputs[1].type.ndim)

    def draw(generator, size, *parameters):
        if not inplace:
            generator = copy_generator(generator)
        size = None if size is None else tuple(size.tolist())
        return generator, sample(generator, size, *parameters)

    if xp is not np and on_device is None:
        draw.host_nodes = (node,)
    return draw


def on_host(op, xp):
    """Return ``sample(generator, size, *parameters)`` that draws with NumPy."""
    sample = sampler(op)
    to_host = np.asarray if xp is np else xp.asnumpy

    def drawn(generator, size, *parameters):
        parameters = unbatched(op, size, [to_host(parameter) for parameter in parameters])
        return xp.asarray(sample(generator, size, *parameters))

    return drawn


def shaped(sample, ndim):
    """Return ``sample`` with results of ``ndim`` axes: from single numbers, drawn ones may have fewer."""

    def drawn(generator, size, *parameters):
        value = sample(generator, size, *parameters)
        return value if value.ndim == ndim else value.reshape((1,) * (ndim - value.ndim) + value.shape)

    return drawn
