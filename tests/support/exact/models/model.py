"""The loss, parameters and data that a script trains a model with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor


@dataclass
class Model:
    """A loss of rows and the parameters that follow its gradient, written as for one process."""

    inputs: list[Any]  # with rows along axis 0
    loss: Any  # 0-d
    parameters: list[Any]  # shared variables, in the order of `updates` if those are given
    data: Callable[[int, Any], list[Any]]  # rows, random numbers -> values of inputs, then of broadcast ones
    bcast_inputs: list[Any] = field(default_factory=list)
    updates: list[tuple[Any, Any]] | None = None  # of the parameters; by default steps along the gradient

    def __post_init__(self):
        if self.updates is None:
            gradients = pytensor.grad(self.loss, self.parameters)
            self.updates = [(p, p - 0.1 * g) for p, g in zip(self.parameters, gradients, strict=True)]


def parameter(name: str, *shape: int, scale: float = 0.5) -> Any:
    """Return a shared variable with normal draws, always the same for a name."""
    rng = np.random.default_rng(sum(map(ord, name)))
    return pytensor.shared(scale * rng.standard_normal(shape), name=name)
