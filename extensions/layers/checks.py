"""Check the inputs and numbers of layers, with errors that name the layer.

layer, x -> checked -> x as a tensor, or an error before anything is computed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt

from synk.extensions.layers.base import Layer
from synk.values.checks import checked_count

IMAGES = "images, channels, height, width"


def checked(
    layer: Layer, x: Any, axes: Sequence[str], *, length: int | None = None, dtype: str | None = None
) -> Any:
    """Return an input as a tensor; raise an error that names the layer if the layer cannot take it.

    ``axes`` are the shapes that the input may have, such as ``"rows, units"``, with a comma between two
    axes. Raises ValueError for another ``length`` of axis 1, where that is known before anything is
    computed, and TypeError for another ``dtype``, which would change that of all that follows.
    """
    x = pt.as_tensor_variable(x)
    shape = f"shape {x.type.shape}"
    if x.type.ndim not in [len(these.split(",")) for these in axes]:
        taken = " or ".join(f"({these})" for these in axes)
        raise ValueError(f"{layer!r} takes {taken}, but its input has {x.type.ndim} axes: {shape}")
    if length is not None and x.type.shape[1] not in (None, length):
        what = axes[0].split(", ")[1].removesuffix("s" if length == 1 else "")
        raise ValueError(f"{layer!r} takes {length} {what}, but its input has {x.type.shape[1]}: {shape}")
    if dtype is not None:
        check_dtype(layer, x, dtype)
    return x


def check_dtype(layer: Layer, x: Any, dtype: str) -> None:
    """Raise TypeError if an input has another dtype than the layer, which would change all that follows."""
    if x.type.dtype != dtype:
        raise TypeError(
            f"{layer!r} takes {dtype}, but its input is {x.type.dtype}; cast it, x.astype({dtype!r}), "
            "or make all layers with another dtype="
        )


def checked_last(layer: Layer, x: Any, length: int, dtype: str) -> Any:
    """Return an input as a tensor whose last axis is as long as the layer takes; else raise as `checked`."""
    x = pt.as_tensor_variable(x)
    if x.type.ndim < 2:
        raise ValueError(f"{layer!r} takes (rows, ..., units), but its input has shape {x.type.shape}")
    if x.type.shape[-1] not in (None, length):
        what = "unit" if length == 1 else "units"
        hint = "; put a Flatten() before it" if x.type.ndim > 2 else ""
        raise ValueError(
            f"{layer!r} takes {length} {what}, but its input has {x.type.shape[-1]}: shape {x.type.shape}"
            f"{hint}"
        )
    check_dtype(layer, x, dtype)
    return x


def count(name: str, value: Any) -> int:
    """Return a number of units or channels; TypeError or ValueError if it is no positive integer."""
    return checked_count(name, value, advice="pass a number of units or channels")
