"""A dropout mask for a layer's signals: drawn alone, and applied.

    kept ~ Bernoulli(1 - dropped),  y = x kept / (1 - dropped)

The numbers are random, so candidates are held to what all masks have in common.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytensor
from pytensor.tensor.random import shared_rng

DROPPED = 0.5
SCALE = np.float32(1 / (1 - DROPPED))


def candidates(
    shape: tuple[int, int], modes: Mapping[str, Any], torch: Any, applied: bool
) -> dict[str, Callable[[], Any]]:
    """Return for each mode and for torch a function that draws a mask, or one that applies it to ones."""
    made = {name: in_pytensor(shape, mode, applied) for name, mode in modes.items()}
    if torch:
        made["torch"] = in_torch(torch, shape, applied)
    for name, draw in made.items():
        check(name, np.asarray(draw()), shape)
    return made


def in_pytensor(shape: tuple[int, int], mode: Any, applied: bool) -> Callable[[], Any]:
    """Compile a function whose random state goes on from call to call."""
    x = pytensor.shared(np.ones(shape, "float32"), name="x")
    rng = shared_rng(seed=0, name="rng")
    next_rng, kept = rng.bernoulli(1 - DROPPED, size=x.shape)
    mask = kept.astype("float32") * SCALE
    return pytensor.function([], x * mask if applied else mask, updates=[(rng, next_rng)], mode=mode)


def in_torch(torch: Any, shape: tuple[int, int], applied: bool) -> Callable[[], Any]:
    """Write it as torch's own dropout does, or call that."""
    x = torch.ones(shape)
    if applied:
        return lambda: torch.nn.functional.dropout(x, DROPPED)
    return lambda: torch.empty(shape).bernoulli_(1 - DROPPED).mul_(SCALE)


def check(name: str, mask: np.ndarray, shape: tuple[int, int]) -> None:
    """Raise SystemExit if an array is not a mask: two values, in their shares within five deviations."""
    kept = (mask == SCALE).mean()
    deviation = np.sqrt(DROPPED * (1 - DROPPED) / mask.size)
    is_mask = mask.shape == shape and mask.dtype == np.float32 and ((mask == 0) | (mask == SCALE)).all()
    if not is_mask or abs(kept - (1 - DROPPED)) > 5 * deviation:
        raise SystemExit(f"{name} draws no dropout mask: {mask.dtype} {mask.shape}, {kept:.3f} kept")
