"""Numbers of a training: which outputs they are, their averages over an epoch, and those of validation.

step -> positions -> {"loss": 0, "accuracy": 1} -> Averages.add, each step -> Averages.means
Validation(function, data)() -> {"val_loss": 0.1, ...}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import synk
from synk.extensions.fit.feeds import common_rows, inputs_of
from synk.values.checks import checked_count


def positions(
    function: synk.Function, names: Sequence[str] | None = None, prefix: str = ""
) -> dict[str, int]:
    """Return the positions of the numbers among a function's outputs, by name.

    They are called as ``names`` says, of which there may be more. By default the first is ``"loss"``, as
    PyTensor calls every mean a "mean", and others have the names of their variables, or ``"output_1"`` and so
    on. Arrays are left out. Raises ValueError if there are fewer names than numbers, or two are the same.
    """
    modes = iter(function.output_modes)
    found = []
    for position, variable in enumerate(function.outputs):
        mode = None if variable is None else next(modes)
        if variable is not None and variable.ndim == 0 and mode != "gather":
            found.append((position, variable.name))
    if isinstance(names, str):
        raise TypeError(f"metrics={names!r} is one string; pass a list of names")
    if names is None:
        names = [(name or f"output_{position}") if position else "loss" for position, name in found]
    if len(names) < len(found):
        raise ValueError(f"{function!r} returns {len(found)} numbers, but metrics={list(names)} names fewer")
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise ValueError(f"two outputs of {function!r} are called {twice}; name them, or pass metrics=[...]")
    return {prefix + name: position for name, (position, _) in zip(names, found, strict=False)}


class Averages:
    """Averages of outputs over the rows of several batches.

    Parameters
    ----------
    function : synk.Function
        Whose outputs they are.
    names : list of str, optional
        Of all outputs that are numbers.
    """

    def __init__(self, function: synk.Function, names: Sequence[str] | None = None):
        at = positions(function, names)
        self.names = list(at)
        self._at = list(at.values())
        self._single = function.returns == "single"
        self.reset()

    def reset(self) -> None:
        """Forget all outputs added so far."""
        self.rows = 0
        self.sums = [0.0] * len(self.names)

    def add(self, outputs: Any, n_rows: int) -> None:
        """Add the outputs of one call, of a batch of so many rows."""
        if not n_rows:
            return  # the mean of no rows is NaN
        self.rows += n_rows
        values = (outputs,) if self._single else outputs
        for position, at in enumerate(self._at):
            self.sums[position] += float(values[at]) * n_rows

    def of(self, outputs: Any) -> dict[str, float]:
        """Return the numbers among the outputs of one call, by name."""
        values = (outputs,) if self._single else outputs
        return {name: float(values[at]) for name, at in zip(self.names, self._at, strict=True)}

    def means(self) -> dict[str, float]:
        """Return the averages by name; none before the first batch."""
        if not self.rows:
            return {}
        return {name: total / self.rows for name, total in zip(self.names, self.sums, strict=True)}


class Validation:
    """The numbers that a function returns for a whole data set, called ``"val_loss"`` and so on.

    Parameters
    ----------
    function : synk.Function
    data : as of `synk.extensions.fit.fit`: arrays
        Put into shared memory once.
    num_slices : int
        As of calls of the function.
    names : list of str, optional
        Of its outputs that are numbers, without ``"val_"``.
    """

    def __init__(
        self,
        function: synk.Function,
        data: Any = (),
        num_slices: int = 1,
        names: Sequence[str] | None = None,
    ):
        if not isinstance(function, synk.Function):
            raise TypeError(
                f"validation begins with a {type(function).__name__}, not with a synk.Function; "
                "pass (function, data)"
            )
        self._function = function
        self._num_slices = checked_count("validation_slices", num_slices, 1)
        self._at = positions(function, names, prefix="val_")
        self._inputs = inputs_of(function, data)
        self.names = list(self._at)
        if function.scattered:
            common_rows(function, self._inputs)

    def __call__(self) -> dict[str, float]:
        outputs = self._function(*self._inputs, num_slices=self._num_slices)
        if self._function.returns == "single":
            outputs = [outputs]
        return {name: float(outputs[position]) for name, position in self._at.items()}


def validation_of(pair: Any, num_slices: int = 1, names: Sequence[str] | None = None) -> Validation | None:
    """Return the validation for a tuple of function, data and, optionally, names of its outputs.

    None for None; TypeError if it is neither.
    """
    if pair is None:
        return None
    if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
        raise TypeError(
            f"validation is a {type(pair).__name__}, not a pair; pass (function, data), or "
            "(function, data, names)"
        )
    function, data, *own = pair
    return Validation(function, data, num_slices, own[0] if own else names)
