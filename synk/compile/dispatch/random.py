"""Random variables: the advanced generator and a draw.

Where the Op does not own the generator it draws from a copy, as in PyTensor. Generators are NumPy's, on the
host; how each Op draws from one is in `sampler`.

With an array module that compiles CUDA, what `device_random` knows is drawn on the device, other numbers of
the same distribution. The rest is drawn on the host and copied.
"""

from copy import deepcopy
from typing import Any

import numpy as np
from pytensor.tensor.random.op import RandomVariable

from synk.compile.dispatch.device_random import device_sampler
from synk.compile.dispatch.sampler import sampler, unbatched
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify


@array_funcify.register(RandomVariable)
def random_variable(op, node, xp):
    """The advanced generator and a draw."""
    if type(op).perform is not RandomVariable.perform:
        return HostCall(node, xp)
    on_device = None if xp is np else device_sampler(op, xp)
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


def copy_generator(generator: Any) -> Any:
    """Return a generator in the same state; of NumPy's, in a tenth of the time of ``deepcopy``."""
    if not isinstance(generator, np.random.Generator):
        return deepcopy(generator)
    bits: Any = generator.bit_generator
    new_bits = type(bits)(bits.seed_seq)
    new_bits.state = bits.state
    return np.random.Generator(new_bits)


def on_host(op, xp):
    """Return ``sample(generator, size, *parameters)`` that draws with NumPy."""
    sample = sampler(op)
    to_host = np.asarray if xp is np else xp.asnumpy

    def drawn(generator, size, *parameters):
        parameters = unbatched(op, size, [to_host(parameter) for parameter in parameters])
        return xp.asarray(sample(generator, size, *parameters))

    return drawn


def shaped(sample, ndim):
    """Return ``sample`` with ``ndim`` axes: numbers that came in place of single elements have none."""

    def drawn(generator, size, *parameters):
        value = sample(generator, size, *parameters)
        return value if value.ndim == ndim else value.reshape((1,) * (ndim - value.ndim) + value.shape)

    return drawn
