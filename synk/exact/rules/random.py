"""Rules of random draws: each rank draws its own rows, and rank 0 the draws that are for all rows."""

from __future__ import annotations

from pytensor.graph.basic import Apply
from pytensor.tensor.random.op import RandomVariable

from synk.exact.rules.relations import STREAM, Counts, Rows, rows_along
from synk.exact.rules.table import Outcome, Relations, relate


@relate.register(RandomVariable)
def draw(op: RandomVariable, node: Apply, given: Relations) -> Outcome:
    """Let each rank draw its own rows if the size or a parameter has rows; else rank 0's draw counts."""
    stream, size, *parameters = given
    ndim = node.outputs[1].type.ndim
    batch = ndim - op.ndim_supp
    rows = []
    if isinstance(size, Counts):
        rows = [Rows(axis, length) for axis, length in enumerate(size.lengths) if length is not None]
    for variable, one, core in zip(node.inputs[2:], parameters, op.ndims_params, strict=True):
        own_batch = variable.type.ndim - core
        if isinstance(one, Rows) and one.axis < own_batch:
            rows.append(Rows(one.axis + batch - own_batch, one.length))
    if len({one.axis for one in rows}) != 1:
        return None
    drawn = rows[0]
    wanted = [stream, size]
    for variable, core in zip(node.inputs[2:], op.ndims_params, strict=True):
        axis = drawn.axis - (batch - (variable.type.ndim - core))
        wanted.append(rows_along(variable, axis, drawn.length))
    return wanted, [STREAM, drawn]
