"""The course of a training, epoch by epoch."""

from __future__ import annotations

import io
import os
from html import escape
from typing import Any

from synk.extensions.fit.curves import draw
from synk.values.notebooks import Area, in_notebook

COLUMNS = ("epoch", "seconds", "rows_per_second")  # of an epoch, beside its metrics


class History:
    """The epochs of a training, and why it ended.

    Attributes
    ----------
    epochs : list of dict
        One for each epoch: ``"epoch"``, counted from 0, the metrics, the ``"seconds"`` that its steps took,
        and ``"rows_per_second"``.
    steps : int
        Steps done, of all epochs.
    stopped : str or None
        Why the training ended before its last epoch.
    interrupted : bool
        Whether a signal, such as ^C, has stopped it.
    recoveries : list of dict
        One for each time that this process went on with new workers: the ``"step"`` until which it had come,
        ``"from_step"``, after which it went on, the ``"ranks"`` since then, and the ``"cause"``.

    See Also
    --------
    synk.extensions.fit.fit : returns it.

    Examples
    --------
    >>> from synk.extensions.fit import fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> history = fit(step, (np.ones(8),), epochs=2, batch_size=8, progress=False)
    >>> print(np.round(history["loss"], 3), history.metrics, history.stopped)
    [1.   0.64] ['loss'] None
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self.steps = 0
        self.stopped: str | None = None
        self.interrupted = False
        self.recoveries: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that some epoch has."""
        return [
            name
            for name in dict.fromkeys(key for epoch in self.epochs for key in epoch)
            if name not in COLUMNS
        ]

    def __getitem__(self, name: str) -> list[Any]:
        """Return a metric of every epoch; KeyError, with the names that there are, if there is none."""
        if name not in (*COLUMNS, *self.metrics):
            raise KeyError(f"the history has no {name!r}; it has {[*self.metrics, *COLUMNS]}")
        return [epoch.get(name) for epoch in self.epochs]

    def plot(self, path: str | os.PathLike[str] | None = None, title: str | None = None) -> None:
        """Draw the metrics of all epochs, a panel each.

        Parameters
        ----------
        path : path-like, optional
            The file: PNG, SVG, PDF, by the suffix. In a notebook it may be left out: the figure is shown in
            the cell.
        title : str, optional

        Raises
        ------
        ImportError
            matplotlib is not installed.
        TypeError
            There is no path, and this is no notebook.
        ValueError
            No epoch has ended.
        """
        if path is None and not in_notebook():
            raise TypeError("this is no notebook, in which plot() shows its figure: pass the path of a file")
        image = io.BytesIO()
        draw(self.epochs, self.metrics, image if path is None else path, title)
        if path is None:
            Area(repr(self), png=image.getvalue())

    def _repr_html_(self) -> str:
        """Return a table of all epochs for a notebook."""
        names = [COLUMNS[0], *self.metrics, *COLUMNS[1:]]
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{_cell(epoch.get(name))}</td>" for name in names) + "</tr>"
            for epoch in self.epochs
        )
        why = f"; stopped: {escape(self.stopped)}" if self.stopped else ""
        caption = f"{len(self)} epochs, {self.steps} steps{why}"
        return (
            f'<div style="overflow-x: auto"><table><caption>{caption}</caption>'
            f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def __repr__(self) -> str:
        why = f", stopped: {self.stopped}" if self.stopped else ""
        return f"<History of {len(self)} epochs, {self.steps} steps{why}: {self.epochs[-1:]}>"


def _cell(value: Any) -> str:
    """Return a number as a table shows it; what an epoch has not is empty."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else escape(str(value))
