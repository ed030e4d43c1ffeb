"""Random variables on NumPy generators.

Where the Op does not own the generator it draws from a copy, as in PyTensor. Draws equal PyTensor's
for a given state, except float32 uniform and normal, drawn as float32 instead of float64 and rounded,
and Bernoulli, drawn by comparing uniform numbers to ``p`` instead of by SciPy, ten times slower.
"""

from typing import Any

import numpy as np
from pytensor.tensor.random.basic import BernoulliRV, NormalRV, UniformRV
from pytensor.tensor.random.op import RandomVariable

from synk.compile.dispatch.host import HostCall
from synk.compile.dispatch.table import array_funcify


@array_funcify.register(RandomVariable)
def random_variable(op, node, xp):
    """The advanced generator and a draw."""
    if type(op).perform is not RandomVariable.perform:
        return HostCall(node, xp)
    sample, inplace = _sampler(op), op.inplace

    def draw(generator, size, *parameters):
        if not inplace:
            generator = copy_generator(generator)
        value = sample(generator, size, [np.asarray(parameter) for parameter in parameters])
        return generator, xp.asarray(value)

    return draw


def copy_generator(generator: np.random.Generator) -> np.random.Generator:
    """Return a generator in the same state; a tenth of the time of ``deepcopy``."""
    bits: Any = generator.bit_generator
    new_bits = type(bits)(bits.seed_seq)
    new_bits.state = bits.state
    return np.random.Generator(new_bits)


def _sampler(op):
    """Return ``sample(generator, size, parameters)`` with values of the Op's dtype."""
    if isinstance(op, BernoulliRV):
        return _bernoulli(np.dtype(op.dtype))
    if op.dtype == "float32" and type(op) in FLOAT32:
        return FLOAT32[type(op)]

    def sample(generator, size, parameters):
        size = None if size is None else tuple(size.tolist())
        return np.asarray(op.rng_fn(generator, *parameters, size), dtype=op.dtype)

    return sample


def _bernoulli(dtype):
    def sample(generator, size, parameters):
        (p,) = parameters
        # In the precision of p: float32 numbers are multiples of 2**-24, too coarse for a tiny float64 p.
        uniform = np.float32 if p.dtype.itemsize < 8 else np.float64
        return (generator.random(_shape(size, parameters), uniform) < p).astype(dtype)

    return sample


def _uniform(generator, size, parameters):
    low, high = [parameter.astype(np.float32) for parameter in parameters]
    draw = generator.random(_shape(size, parameters), np.float32)
    draw *= high - low
    draw += low
    return draw


def _normal(generator, size, parameters):
    mean, deviation = [parameter.astype(np.float32) for parameter in parameters]
    draw = generator.standard_normal(_shape(size, parameters), np.float32)
    draw *= deviation
    draw += mean
    return draw


FLOAT32 = {UniformRV: _uniform, NormalRV: _normal}


def _shape(size, parameters) -> tuple[int, ...]:
    """Return the shape to draw: ``size``, or what the parameters broadcast to."""
    if size is not None:
        return tuple(size.tolist())
    return np.broadcast_shapes(*[parameter.shape for parameter in parameters])
