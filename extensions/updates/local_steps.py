"""Let each rank follow the gradient of its own rows: local steps, between which ranks do not meet.

    rule -> local(rule): loss, params -> Updates, by which a rank reads what it has added up alone

Imported as part of ``synk.extensions.updates``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace

from synk.extensions.gradients import gradients_of, listed, own_sum, reduced
from synk.extensions.updates.parts import Updates, check_common


def local(rule: Callable[..., Updates]) -> Callable[..., Updates]:
    """Return an update rule by which each rank takes the steps of `rule` along the gradient of its own rows.

    No all-reduce belongs between its two functions: parameters and state are per rank afterwards, until the
    script makes them equal, as by ``synk.all_reduce(params, "avg")`` every so many steps. ``g`` is the
    gradient of the loss over the rows that the rank has in the call, as one process would compute it of these
    alone. A rank without rows takes no step: its parameters and its state stay as they are.

    In several slices ``g`` is the mean over slices, weighted by their rows: that of the rank's rows where the
    loss is a mean over rows, with or without a regulariser; not where it is a sum over them.

    Parameters
    ----------
    rule : callable
        As those of this module; `clipped` inside of this one: ``local(clipped(rule, max_norm))``.

    Returns
    -------
    callable
        ``rule(loss, params, **options)``; its ``param_updates`` are (variable, new value, None).

    References
    ----------
    Stich (2019), "Local SGD converges fast and communicates little", arXiv:1805.09767.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> rule = updates.local(updates.sgd)
    >>> grad_updates, param_updates, _ = rule(((w - x) ** 2).mean(), [w], learning_rate=0.5)
    >>> step = synk.sequence(
    ...     synk.function([x], updates=grad_updates),
    ...     synk.function([], updates=param_updates),
    ... )
    >>> step([1.0, 5.0])  # each rank follows the gradient of its own row
    >>> synk.gather(w).tolist()
    [1.0, 5.0]
    >>> synk.all_reduce(w, "avg")
    >>> print(w.get_value())
    3.0
    """

    def by_itself(loss: Any, params: Any, **options: Any) -> Updates:
        params = listed(params)
        made = rule(loss, params, **options)
        check_common(made, "local")
        flat = made.flat_gradient
        variables, values = zip(*made.param_updates, strict=True)
        values = graph_replace(values, {reduced(flat): flat}, strict=False)
        has_rows = flat[-1] > 0
        return Updates(
            [(flat, own_sum(gradients_of(loss, params), params), "sum")],
            [
                (variable, pt.switch(has_rows, value, variable), None)
                for variable, value in zip(variables, values, strict=True)
            ],
            flat,
        )

    return by_itself
