"""Adam on a flat vector of parameters: bound by memory, so it shows whether the update is one pass.

    m := b1 m + (1 - b1) g
    v := b2 v + (1 - b2) g²
    p := p - rate / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)

Kingma and Ba (2015), arXiv:1412.6980.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from rivals import Candidate

RATE, B1, B2, EPS = 1e-3, 0.9, 0.999, 1e-8
FORMS = {"torch": {}, "torch foreach": {"foreach": True}, "torch fused": {"fused": True}}


def candidates(size: int, modes: Mapping[str, Any], torch: Any) -> dict[str, Candidate]:
    """Return one candidate for each mode, and the forms that torch has.

    Parameters
    ----------
    size : int
        Number of parameters, float32.
    modes : mapping of str to Mode
    torch : module or None
    """
    rng = np.random.default_rng(0)
    p, g = (rng.normal(size=size).astype("float32") for _ in range(2))
    made = {name: in_pytensor(p, g, mode) for name, mode in modes.items()}
    if torch:
        made |= {name: in_torch(torch, p, g, options) for name, options in FORMS.items()}
    return made


def in_pytensor(start: np.ndarray, gradient: np.ndarray, mode: Any) -> Candidate:
    """Compile the update of shared variables."""
    p, g = pytensor.shared(start, "p"), pytensor.shared(gradient, "g")
    m, v = (pytensor.shared(np.zeros_like(start), name) for name in "mv")
    t = pytensor.shared(np.float64(0), "t")
    step = pytensor.function([], updates=updates(p, m, v, g, t), mode=mode)
    return Candidate(step, lambda: [p.get_value(borrow=True)])


def updates(p: Any, m: Any, v: Any, g: Any, t: Any) -> list[tuple[Any, Any]]:
    """Return ``(variable, new value)`` for parameters, both moments and the count of steps."""
    b1, b2, of_g, of_square, eps = map(np.float32, (B1, B2, 1 - B1, 1 - B2, EPS))
    new_t = t + 1
    # 1 - b2^t is a thousandth at first: in float32 it would be wrong in the fifth digit.
    rate = (RATE / (1 - B1**new_t)).astype("float32")
    root = pt.sqrt(1 - B2**new_t).astype("float32")
    new_m = b1 * m + of_g * g
    new_v = b2 * v + of_square * g * g
    new_p = p - rate * new_m / (pt.sqrt(new_v) / root + eps)
    return [(p, new_p), (m, new_m), (v, new_v), (t, new_t)]


def in_torch(torch: Any, start: np.ndarray, gradient: np.ndarray, options: dict[str, bool]) -> Candidate:
    """Make torch's optimizer with a parameter that has its gradient."""
    p = torch.nn.Parameter(torch.tensor(start))
    p.grad = torch.tensor(gradient)
    optimizer = torch.optim.Adam([p], lr=RATE, betas=(B1, B2), eps=EPS, **options)
    return Candidate(optimizer.step, lambda: [p.detach().numpy()])
