"""Join arrays along an axis, and split one."""

import numpy as np
from pytensor.tensor.basic import Join, Split

from synk.compile.compat import take_axis
from synk.compile.tables import array_funcify, takes_out


@array_funcify.register(Join)
def join(op, node, xp):
    """Arrays end to end along an axis."""
    return concatenation(op, xp, node.outputs[0].type.dtype)


def concatenation(op, xp, dtype):
    """Return the implementation of a Join with results of ``dtype``; its pieces may be of others."""

    def concatenate(*inputs, out=None):
        axis, arrays = take_axis(op, inputs, 0)
        if out is not None:
            return xp.concatenate(arrays, axis=axis, out=out, casting="unsafe")
        return xp.concatenate(arrays, axis=axis, dtype=dtype, casting="unsafe")

    return takes_out(concatenate)


@array_funcify.register(Split)
def split(op, node, xp):
    """Consecutive parts of an axis."""
    views, single = bool(op.view_map), op.len_splits == 1

    def cut(*inputs):
        axis, (x, lengths) = take_axis(op, inputs, 1)
        check_lengths(lengths, op.len_splits, x.shape[axis])
        parts = xp.split(x, np.cumsum(lengths[:-1]).tolist(), axis=axis)
        if not views:
            parts = [part.copy() for part in parts]
        return parts[0] if single else tuple(parts)

    return cut


def check_lengths(lengths, n_parts: int, total: int) -> None:
    """Raise ValueError unless ``lengths`` cut an axis of length ``total`` into ``n_parts`` parts."""
    if len(lengths) != n_parts:
        raise ValueError(f"{len(lengths)} lengths for {n_parts} parts; give one per part")
    if (lengths < 0).any():
        raise ValueError(f"lengths {lengths.tolist()} must not be negative")
    if lengths.sum() != total:
        raise ValueError(f"lengths {lengths.tolist()} sum to {lengths.sum()}; the axis has {total}")
