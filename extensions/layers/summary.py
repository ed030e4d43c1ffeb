"""Tell of a network what each layer makes of its input, and what it keeps.

layer, x -> the graph, built once with layers that note what comes out of them -> rows -> text
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytensor.tensor as pt

from synk.extensions.layers.base import Layer, as_layer
from synk.extensions.layers.networks import Network


class Row(NamedTuple):
    """A layer of a summary."""

    name: str  # its path
    kind: str
    shape: str  # of its output; ? is a length that is not known before a call
    n_parameters: int
    n_bytes: int


def summary(layer: Layer, x: Any) -> str:
    """Return a table of a network's layers: what comes out of each, its parameters, and their bytes.

    Parameters
    ----------
    layer : Layer
    x : PyTensor tensor
        The input, with the shape that is known: ``pt.tensor("x", shape=(None, 3, 32, 32))``.

    Returns
    -------
    str
        A line a layer, in the order in which they are called, and one for all parameters. A length that is
        known in a call only is ``?``. A layer in two places has two lines, and its parameters in the first.

    Raises
    ------
    TypeError, ValueError
        `x` is a shape; or as the layers raise them, of an input that does not fit.

    See Also
    --------
    synk.extensions.layers.Layer : has ``n_parameters``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> model = layers.Sequential(hidden=layers.Dense(8, 16, rng=rng), head=layers.Dense(16, 3, rng=rng))
    >>> print(layers.summary(model, pt.matrix("x", shape=(None, 8), dtype="float32")))
    layer                   output   parameters  bytes
    --------------------------------------------------
    hidden  Dense(8 -> 16)  (?, 16)         144    576
    head    Dense(16 -> 3)  (?, 3)           51    204
    --------------------------------------------------
                                            195    780
    """
    layer = as_layer(layer)
    if isinstance(x, list | tuple) and None in x:
        raise TypeError(f"summary takes a tensor, not a shape: pass pytensor.tensor.tensor(shape={tuple(x)})")
    x = pt.as_tensor_variable(x)
    rows: list[Row] = []
    with noted(layer, rows):
        y = layer(x)
    if not rows:
        rows.append(_row("", layer, y, set()))
    lines = [("layer", "", "output", "parameters", "bytes")]
    lines += [(one.name, one.kind, one.shape, f"{one.n_parameters:,}", f"{one.n_bytes:,}") for one in rows]
    n_bytes = sum(param.get_value(borrow=True).nbytes for param in layer.params.values())
    lines.append(("", "", "", f"{layer.n_parameters:,}", f"{n_bytes:,}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    text = [
        "  ".join([*map(str.ljust, line[:3], widths), *map(str.rjust, line[3:], widths[3:])])
        for line in lines
    ]
    return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])


@contextmanager
def noted(layer: Layer, rows: list[Row]) -> Iterator[None]:
    """Let the innermost layers of a network note their outputs, while graphs are built."""
    counted: set[Any] = set()
    before: dict[Network, dict[str, Layer]] = {}

    def enter(network: Network) -> None:
        if network in before:
            return  # it stands in two places
        before[network] = dict(network.layers)
        for key, inner in before[network].items():
            if isinstance(inner, Network):
                enter(inner)
            else:
                network.layers[key] = _Noting(inner, rows, counted)

    if isinstance(layer, Network):
        enter(layer)
    try:
        yield
    finally:
        for network, layers in before.items():
            network.layers.update(layers)


class _Noting(Layer):
    """A layer in the place of another, which it calls."""

    def __init__(self, inner: Layer, rows: list[Row], counted: set[Any]) -> None:
        self.inner, self.rows, self.counted = inner, rows, counted

    def __call__(self, x: Any) -> Any:
        y = self.inner(x)
        self.rows.append(_row(self.inner.name, self.inner, y, self.counted))
        return y

    def __repr__(self) -> str:
        return repr(self.inner)


def _row(name: str, layer: Layer, y: Any, counted: set[Any]) -> Row:
    """Return the row of a layer; parameters that stand in a row before are not counted again."""
    shape = ", ".join("?" if length is None else str(length) for length in y.type.shape)
    fresh = [param for param in layer.params.values() if param not in counted]
    counted.update(fresh)
    values = [param.get_value(borrow=True) for param in fresh]
    n_bytes = sum(value.nbytes for value in values)
    kind = f"{type(layer).__name__}({layer.describe()})"
    return Row(name, kind, f"({shape})", sum(value.size for value in values), n_bytes)
