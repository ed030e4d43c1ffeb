"""For Ops of networks: how a rank's outputs, from its rows alone, relate to those of one process.

inputs with rows along axis 0 -> outputs: rows, parts of a sum over rows, or statistics of the rank's rows
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pytensor.graph.basic import Apply

from synk.exact.collectives.collective_op import CollectiveOp
from synk.exact.collectives.collectives import AllGatherOp, AllReduceOp
from synk.exact.rules.relations import SAME, SUM, Own, Partial, Relation, Rows
from synk.exact.rules.table import Instead, Outcome, Relations, relate
from synk.ops.batch_norm import OF_ONE_RANK, BatchNorm, BatchNormGradient
from synk.ops.conv_transpose import ConvTranspose2d
from synk.ops.convolve import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.cross_entropy import SoftmaxCrossEntropy, SoftmaxCrossEntropyGradient
from synk.ops.edges import Crop2d, Pad2d
from synk.ops.group_norm import GroupNorm, GroupNormGradient
from synk.ops.kernel_op import KernelOp
from synk.ops.layer_norm import LayerNorm, LayerNormGradient
from synk.ops.pool import (
    AvgPool2d,
    AvgPool2dGradient,
    GlobalAvgPool2d,
    MaxPool2d,
    MaxPool2dChosen,
    MaxPool2dGradient,
)
from synk.ops.upsample import Upsample2d, Upsample2dGradient

ROWS = Rows(0)
STATISTIC = Own(OF_ONE_RANK)


class RowByRow(NamedTuple):
    """The positions of an Op's inputs that have rows, and the relations of its outputs to one process's."""

    rows: tuple[int, ...]
    outputs: tuple[Relation, ...]


OPS: dict[type, RowByRow] = {
    Conv2d: RowByRow((0,), (ROWS,)),
    ConvTranspose2d: RowByRow((0,), (ROWS,)),
    Conv2dInputGradient: RowByRow((0,), (ROWS,)),
    Conv2dWeightGradient: RowByRow((0, 1), (SUM,)),
    MaxPool2d: RowByRow((0,), (ROWS, ROWS)),
    MaxPool2dGradient: RowByRow((0, 1), (ROWS,)),
    MaxPool2dChosen: RowByRow((0, 1), (ROWS,)),
    AvgPool2d: RowByRow((0,), (ROWS,)),
    AvgPool2dGradient: RowByRow((0,), (ROWS,)),
    GlobalAvgPool2d: RowByRow((0,), (ROWS,)),
    Upsample2d: RowByRow((0,), (ROWS,)),
    Upsample2dGradient: RowByRow((0,), (ROWS,)),
    Crop2d: RowByRow((0,), (ROWS,)),
    Pad2d: RowByRow((0,), (ROWS,)),
    GroupNorm: RowByRow((0,), (ROWS, ROWS, ROWS)),
    GroupNormGradient: RowByRow((0, 1, 4, 5), (ROWS, SUM, SUM)),
    LayerNorm: RowByRow((0,), (ROWS, ROWS, ROWS)),
    LayerNormGradient: RowByRow((0, 1, 3, 4), (ROWS, SUM, SUM)),
    BatchNorm: RowByRow((0,), (ROWS, STATISTIC, STATISTIC)),
    BatchNormGradient: RowByRow((0, 1), (ROWS, SUM, SUM)),
    SoftmaxCrossEntropy: RowByRow((0, 1), (ROWS, ROWS)),
    SoftmaxCrossEntropyGradient: RowByRow((0, 1, 2, 3), (ROWS,)),
}


@relate.register(KernelOp)
def relate_network_op(op: KernelOp, node: Apply, given: Relations) -> Outcome:
    """Return the relations that `OPS` lists for an Op, if its inputs have their rows along the first axis."""
    rule = OPS.get(type(op))
    found = [given[k] for k in rule.rows if isinstance(given[k], Rows)] if rule is not None else []
    if rule is None or not found or any(one.axis for one in found):
        return None
    rows = ROWS if ROWS in found else found[0]
    wanted: list[Any] = [
        rows if k in rule.rows else one if isinstance(one, Own) else SAME for k, one in enumerate(given)
    ]
    return wanted, [rows if one == ROWS else one for one in rule.outputs]


@relate.register(CollectiveOp)
def relate_collective(op: CollectiveOp, node: Apply, given: Relations) -> Outcome:
    """Keep a collective that turns parts into the value of one process; replace any other by its input.

    An all-reduce adds up parts of a sum, and an all-gather joins rows. One process's collective returns its
    input, and ranks are to have the value of one process: so an all-reduce of a value that is equal on all
    ranks must not add it up, but return it.
    """
    *values, _ = given
    if isinstance(op, AllReduceOp) and all(value == Partial(op.op) for value in values):
        return given, [SAME] * len(node.outputs)
    if isinstance(op, AllGatherOp) and isinstance(values[0], Rows) and values[0].axis == op.axis:
        return given, [SAME]
    pairs = zip(node.inputs, node.outputs, strict=False)
    return Instead([as_in_one_process(value, result) for value, result in pairs])


def as_in_one_process(value: Any, result: Any) -> Any:
    """Return the result that a collective has in one process: its input, converted to the result's type."""
    return value if value.type == result.type else result.type.filter_variable(value, allow_convert=True)
