"""Differentiate an Op by a formula for its outputs, made of other Ops.

A kernel has no derivatives of its own; where the graph of its definition is known, that graph has. It is
built only where a derivative of the Op is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytensor
from pytensor.gradient import DisconnectedType
from pytensor.graph.replace import graph_replace


def partial_derivatives(
    formula: Callable[..., Sequence[Any]], inputs: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """Return the gradients for ``inputs`` of the outputs of ``formula``, each weighed by its cotangent.

    The inputs count as independent of each other, though one may be computed from another: the formula is
    differentiated on variables of its own, which are then replaced.
    """
    apart = [variable.type() for variable in inputs]
    given = {
        output: (output.type(), cotangent)
        for output, cotangent in zip(formula(*apart), cotangents, strict=True)
        if not isinstance(cotangent.type, DisconnectedType)
    }
    weights = {output: weight for output, (weight, _) in given.items()}
    gradients = pytensor.grad(None, apart, known_grads=weights, disconnected_inputs="ignore")
    values = dict(zip(apart, inputs, strict=True)) | dict(given.values())
    return graph_replace(gradients, values, strict=False)
