"""Collectives in the middle of a graph: values of all ranks on every rank, with gradients.

    all_reduce      x on every rank -> the sum, product, least, greatest or average of all, on every rank
    all_gather      rows on every rank -> all rows, in rank order, on every rank
    reduce_scatter  x on every rank -> a part of the sum on each rank
    broadcast       x on one rank -> x on every rank

With one rank, and in a plain ``pytensor.function``, each returns ``x``. Gradients are those of the sum of all
ranks' losses; they are collectives too, and so differentiable in turn.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from synk.exact.collectives.reducing import AllReduceOp as AllReduceOp
from synk.exact.collectives.reducing import ReduceScatterOp as ReduceScatterOp
from synk.exact.collectives.sharing import AllGatherOp as AllGatherOp
from synk.exact.collectives.sharing import BroadcastOp as BroadcastOp
from synk.exact.run_values import ranks


def all_reduce(x: Any, op: str = "sum") -> Variable:
    """Return, on every rank, all ranks' values of ``x`` combined element by element.

    Parameters
    ----------
    x : tensor of the same shape on every rank
        In a function that does not scatter it counts once per rank all the same.
    op : {"sum", "prod", "min", "max", "avg"}
        An average is that of the ranks' values, each of which counts once, whatever its rows.

    Returns
    -------
    tensor of the shape and dtype of ``x``
        The same bits on every rank. A rank without rows for a slice counts for nothing.

    Raises
    ------
    ValueError
        If ``op`` is unknown.
    TypeError
        If it has no meaning for the dtype: "avg" of integers, "avg" or "sum" of booleans.

    See Also
    --------
    synk.all_reduce : does it with shared variables, between functions.

    Notes
    -----
    The gradient of "sum" is the sum over ranks of the gradients of the result, that of "avg" their average;
    that of "min" and "max" is their sum on each rank whose element is the result, as of ``pt.max``; that of
    "prod" is their sum times the product of the other ranks' elements, zeros among them or not.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> f = synk.function([x], (x / ops.all_reduce(x.sum(), "sum"), "gather"))
    >>> f([1.0, 2.0, 5.0]).tolist()
    [0.125, 0.25, 0.625]
    """
    made = AllReduceOp(op)(pt.as_tensor_variable(x), ranks)
    made.tag.of_script = True  # and not of a gradient
    return made


def all_sum(x: Any) -> Variable:
    """Return the sum over all ranks of what each has for ``x``: ``all_reduce(x, "sum")``.

    Parameters
    ----------
    x : tensor of the same shape on every rank

    Returns
    -------
    tensor of the shape and dtype of ``x``

    See Also
    --------
    synk.ops.all_reduce : names the operation.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> f = synk.function([x], (x / ops.all_sum(x.sum()), "gather"))
    >>> f([1.0, 2.0, 5.0]).tolist()
    [0.125, 0.25, 0.625]
    """
    return all_reduce(x, "sum")


def all_gather(x: Any, axis: int = 0) -> Variable:
    """Return, on every rank, all ranks' values of ``x`` joined along ``axis`` in rank order.

    Parameters
    ----------
    x : tensor with at least one axis
        Its length along ``axis`` may differ between ranks, and be 0.
    axis : int, default 0

    Returns
    -------
    tensor of the dtype of ``x``
        A rank without rows for a slice adds nothing to it.

    See Also
    --------
    synk.all_gather : does it with shared variables, between functions.

    Notes
    -----
    The gradient is this rank's own part of the sum over ranks of the gradients of the result.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> f = synk.function([x], ((x[:, None] > ops.all_gather(x)).sum(axis=1), "gather"))
    >>> f([3.0, 1.0, 2.0]).tolist()
    [2, 0, 1]
    """
    x = pt.as_tensor_variable(x)
    if not -x.type.ndim <= axis < x.type.ndim:
        raise ValueError(f"axis={axis} is not one of the {x.type.ndim} axes of what is to be gathered")
    return AllGatherOp(axis % x.type.ndim)(x, ranks)


def reduce_scatter(x: Any, op: str = "sum") -> Variable:
    """Return this rank's part of the rows of ``all_reduce(x, op)``.

    The parts are those of ``np.array_split`` along axis 0, one for each rank of the run, whether it has rows
    or not.

    Parameters
    ----------
    x : tensor of the same shape on every rank, with at least one axis
    op : {"sum", "prod", "min", "max", "avg"}

    Returns
    -------
    tensor of the dtype of ``x``

    Raises
    ------
    ValueError, TypeError
        As `all_reduce`.

    See Also
    --------
    synk.reduce_scatter : does it with shared variables, between functions.

    Notes
    -----
    The gradient is that of `all_reduce`, for the gradients of all parts, joined.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> f = synk.function([x], (ops.reduce_scatter(pt.ones(4) * x.sum(), "sum"), "gather"))
    >>> f([1.0, 2.0, 3.0]).tolist()
    [6.0, 6.0, 6.0, 6.0]
    """
    return ReduceScatterOp(op)(pt.as_tensor_variable(x), ranks)


def broadcast(x: Any, root: int = 0) -> Variable:
    """Return, on every rank, the value of ``x`` that rank ``root`` has.

    Parameters
    ----------
    x : tensor
        Its shape may differ between ranks. A root without rows for a slice gives zeros, in
        the shape of what it computes from one row.
    root : int, default 0
        Counts only where there are several ranks.

    Returns
    -------
    tensor of the dtype of ``x``

    See Also
    --------
    synk.broadcast : does it with shared variables, between functions.

    Notes
    -----
    The gradient is the sum over ranks of the gradients of the result on rank ``root``, and 0 on others.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> f = synk.function([x], (x - ops.broadcast(x[0]), "gather"))
    >>> f([3.0, 1.0, 2.0]).tolist()
    [0.0, -2.0, -1.0]
    """
    return BroadcastOp(root)(pt.as_tensor_variable(x), ranks)
