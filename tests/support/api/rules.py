"""The promises of synk about reductions, selections of rows and arguments, said in plain NumPy.

    arguments -> selected, reduced, check_... -> rows and values, or `Promised` with the errors it may end in

No process, and none of synk's own arithmetic: this is the other opinion of `test_api_model`. All that is
wrong with a call is collected, since which of two wrong arguments is told first is not promised.
"""

import operator
import warnings

import numpy as np

OPERATIONS = {
    "avg": np.add.reduce,
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
}


class Promised(Exception):
    """The error that synk is to raise: one of ``kinds``.

    ``on_ranks``: a rank raises it, so it is a `RemoteError` too; None where that is not promised.
    ``late``: it is seen in what the ranks answer.
    ``undefined``: shared variables that may hold anything after it.
    """

    def __init__(self, *kinds, on_ranks=False, late=False):
        super().__init__(f"one of {kinds}{' on ranks' if on_ranks else ''}")
        self.kinds = kinds
        self.on_ranks = on_ranks
        self.late = late or bool(on_ranks)
        self.undefined = ()


class Mismatch(ValueError):
    """Stands for `synk.CollectiveMismatch`."""


class Problems(list):
    """Kinds of error that checks found; `settle` raises them."""

    def of(self, check, *args):
        """Return the result of a check, or note the error that it promises and return None."""
        try:
            return check(*args)
        except Promised as promised:
            self.extend(promised.kinds)

    def settle(self):
        if self:
            raise Promised(*self)


def quiet(function):
    """Let a function compute with infinities and nothing at all without warnings."""

    def silent(*args, **kwargs):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return function(*args, **kwargs)

    return silent


# --- arithmetic ----------------------------------------------------------------------------------------


def check_operation(op, dtype):
    if op not in OPERATIONS:
        raise Promised(ValueError)
    kind = np.dtype(dtype).kind
    if (kind == "b" and op in ("avg", "sum")) or (kind == "i" and op == "avg"):
        raise Promised(TypeError)


@quiet
def reduced(op, values, weights=None):
    """Return values combined by ``op``, averages by weight; float16 by way of float32."""
    dtype = values[0].dtype
    wide = np.stack([value.astype("float32" if dtype == "float16" else dtype) for value in values])
    if op == "avg" and weights is not None:
        weights = np.asarray(weights, wide.dtype)
        total = sum(value * weight for value, weight in zip(wide, weights, strict=True)) / weights.sum()
    else:
        total = OPERATIONS[op](wide, axis=0, **({} if op in ("min", "max") else {"dtype": wide.dtype}))
        total = total / wide.dtype.type(len(values)) if op == "avg" else total
    return np.asarray(total, dtype)


def nothing(op, like):
    """Return the result of ``op`` over no rows, or None where the old value stays."""
    if op == "gather":
        return like[:0]
    if op in ("sum", "prod"):
        return np.full_like(like, op == "prod")
    if op not in ("min", "max"):
        return None
    limits = (np.inf, -np.inf) if like.dtype.kind == "f" else (True, False)
    if like.dtype.kind == "i":
        limits = np.iinfo(like.dtype).max, np.iinfo(like.dtype).min
    return np.full_like(like, limits[op == "max"])


# --- selections ------------------------------------------------------------------------------------------


def selected(batch, n_rows):
    """Return the numbers of the rows that ``batch`` selects of ``n_rows``."""
    rows = np.arange(n_rows)
    if batch is None:
        return rows
    if isinstance(batch, bool | np.bool_):
        raise Promised(TypeError)
    if isinstance(batch, int | np.integer):
        if not 0 <= batch <= n_rows:
            raise Promised(IndexError)
        return rows[:batch]
    if isinstance(batch, slice):
        if batch.step not in (None, 1):
            raise Promised(ValueError)
        try:
            return rows[batch]
        except TypeError:
            raise Promised(TypeError) from None
    indices = np.asarray(batch)
    if indices.dtype.kind not in "iu" and not (indices.shape == (0,) and indices.dtype == float):
        raise Promised(TypeError)
    if indices.ndim != 1:
        raise Promised(ValueError)
    try:
        return rows[indices.astype(int)]
    except IndexError:
        raise Promised(IndexError) from None


def selected_of(array, batch):
    if array.ndim == 0:
        raise Promised(ValueError)
    return selected(batch, len(array))


def selected_each(batch_s, lengths):
    """Return the numbers of the rows that ``batch_s`` selects on each rank."""
    each = (
        isinstance(batch_s, list)
        and batch_s
        and all(isinstance(one, slice | list | tuple) for one in batch_s)
    )
    if each and len(batch_s) != len(lengths):
        raise Promised(ValueError)
    problems = Problems()
    choices = batch_s if each else [batch_s] * len(lengths)
    rows = [problems.of(selected, choice, length) for choice, length in zip(choices, lengths, strict=True)]
    problems.settle()
    return rows


def check_integer(number, low, high, below):
    """Promise TypeError of what is no integer, ``below`` of one that is out of range."""
    try:
        inside = not isinstance(number, bool) and low <= operator.index(number) < high
    except TypeError:
        raise Promised(TypeError) from None
    if isinstance(number, bool):
        raise Promised(TypeError)
    if not inside:
        raise Promised(below)


def check_fits(value, dtype, shape, exact=False):
    """Promise TypeError of an array that is not of a type; a `Data` must be ``exact``."""
    right = value.dtype == dtype if exact else np.promote_types(value.dtype, dtype) == dtype
    if not right or value.ndim != len(shape):
        raise Promised(TypeError)
    if any(known not in (None, length) for known, length in zip(shape, value.shape, strict=True)):
        raise Promised(TypeError)
