"""Places of an array counted along all its axes at once, and back."""

from pytensor.tensor.extra_ops import RavelMultiIndex, UnravelIndex

from synk.compile.dispatch.table import array_funcify, host_inputs


@array_funcify.register(RavelMultiIndex)
def ravel_index(op, node, xp):
    """One number for the indices along each axis."""
    mode, order = op.mode, op.order

    def ravel(*inputs):
        *indices, shape = inputs
        places = xp.ravel_multi_index(tuple(indices), tuple(shape.tolist()), mode=mode, order=order)
        return places.astype("int64", copy=False)

    return ravel


@array_funcify.register(UnravelIndex)
def unravel_index(op, node, xp):
    """The indices along each axis for one number."""
    order, n_axes = op.order, len(node.outputs)

    def unravel(places, shape):
        # The parts may be views of one array, or of the places.
        parts = [
            part.astype("int64") for part in xp.unravel_index(places, tuple(shape.tolist()), order=order)
        ]
        return parts[0] if n_axes == 1 else tuple(parts)

    return unravel


@host_inputs.register(RavelMultiIndex)
@host_inputs.register(UnravelIndex)
def lengths_of_axes(op, node):
    """The shape that is counted along."""
    return (len(node.inputs) - 1,)
