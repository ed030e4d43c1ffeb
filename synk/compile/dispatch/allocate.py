"""New arrays: filled, uninitialised, counted, diagonal, triangular, or made of scalars."""

from pytensor.graph.basic import Constant
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Eye, MakeVector
from pytensor.tensor.extra_ops import Bartlett

from synk.compile.dispatch.broadcast import check_fill
from synk.compile.tables import array_funcify, host_inputs


@array_funcify.register(Alloc)
def alloc(op, node, xp):
    """A value broadcast to a new shape."""
    value_type = node.inputs[0].type
    dtype, static = value_type.dtype, value_type.shape
    value = node.inputs[0].data if isinstance(node.inputs[0], Constant) else None
    if value is not None and value.size == 1 and value.item() == 0:
        return lambda value, *shape: xp.zeros([int(n) for n in shape], dtype)

    def fill(value, *shape):
        shape = [int(n) for n in shape]
        check_fill(static, value.shape, shape)
        result = xp.empty(shape, dtype)
        result[...] = value
        return result

    return fill


@array_funcify.register(AllocEmpty)
def alloc_empty(op, node, xp):
    """Uninitialised memory."""
    dtype = op.dtype
    return lambda *shape: xp.empty([int(n) for n in shape], dtype)


@array_funcify.register(MakeVector)
def make_vector(op, node, xp):
    """Scalars side by side."""
    dtype = node.outputs[0].type.dtype
    return lambda *scalars: xp.array(scalars, dtype=dtype)


@array_funcify.register(ARange)
def arange(op, node, xp):
    """``start, start + step, ...`` up to ``stop``, exclusive."""
    dtype = op.dtype
    return lambda start, stop, step: xp.arange(start.item(), stop.item(), step.item(), dtype=dtype)


@array_funcify.register(Eye)
def eye(op, node, xp):
    """Ones on diagonal ``k`` of an n by m matrix."""
    dtype = op.dtype
    return lambda n, m, k: xp.eye(int(n), int(m), int(k), dtype=dtype)


@array_funcify.register(Bartlett)
def bartlett(op, node, xp):
    """The triangular window of ``length`` points."""
    return lambda length: xp.bartlett(int(length))


@host_inputs.register(Bartlett)
def length_of_window(op, node):
    """The length."""
    return (0,)
