"""Averages of the parameters over the steps of a rule, to evaluate with.

    averaged(rule) -> Averaged, a rule -> averages, evaluated(graph)

Imported as part of ``synk.extensions.updates``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from synk.extensions.gradients import listed
from synk.extensions.updates.parts import Updates, check_common, check_decays, check_last, mark_done, scalars


class Averaged:
    """A rule that keeps a decaying average of the parameters beside them; `averaged` makes it.

    Attributes
    ----------
    averages : dict of shared variable to shared variable
        Of each parameter that the rule was called with, its average.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> rule = updates.averaged(updates.sgd, decay=0.5)
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=0.1)
    >>> loss = step([1.0, 3.0])  # from 1 to 0.8, by a gradient of 2
    >>> print(rule.averages[w].get_value().round(4))
    0.9
    """

    def __init__(self, rule: Callable[..., Updates], decay: Any) -> None:
        self.rule, self.decay = rule, decay
        self.averages: dict[Any, Any] = {}

    def __call__(self, loss: Any, params: Any, **options: Any) -> Updates:
        """Return the updates of the rule, and those of the averages."""
        params = listed(params)
        made = self.rule(loss, params, **options)
        check_common(made, "averaged")
        check_last(made, "averaged", "accumulated")
        mark_done(made, "averaged")
        new: dict[Any, Any] = dict(made.param_updates)
        pairs = []
        for param in params:
            average = pytensor.shared(
                param.get_value(), shape=param.type.shape, name=f"{param.name or 'param'}_average"
            )
            keep, take = scalars(param.dtype, self.decay, 1 - self.decay)
            pairs.append((average, keep * average + take * new.get(param, param)))
            self.averages[param] = average
        return made._replace(param_updates=[*made.param_updates, *pairs])

    def evaluated(self, outputs: Any) -> Any:
        """Return a graph, or a list of them, with the averages in the place of the parameters.

        Parameters
        ----------
        outputs : PyTensor tensor, or list of them

        Returns
        -------
        PyTensor tensor, or list of them

        Raises
        ------
        ValueError
            None of the outputs depends on a parameter that the rule was called with.
        """
        several = isinstance(outputs, list | tuple)
        graphs = list(outputs) if several else [outputs]
        read = set(ancestors(graphs))
        present = {param: average for param, average in self.averages.items() if param in read}
        if not present:
            raise ValueError(
                f"{[str(one) for one in graphs]} depend on none of the averaged parameters "
                f"{[str(one) for one in self.averages]}; make the step first, of the same network"
            )
        graphs = graph_replace(graphs, present, strict=False)
        return graphs if several else graphs[0]


def averaged(rule: Callable[..., Updates], decay: Any = 0.999) -> Averaged:
    """Return an update rule that does what `rule` does, and averages the parameters over its steps.

    Each step does ``a := decay * a + (1 - decay) * p`` with the new ``p``; the averages begin as the
    parameters are when the step is made. A network with the averages for parameters often does better than
    with the last ones: ``evaluated`` puts them into graphs. They are in ``step.state``, so checkpoints have
    them. Running statistics of batch normalisation are those of the parameters, and are not averaged again.

    Parameters
    ----------
    rule : callable
        As those of this module.
    decay : scalar
        In ``[0, 1)``: about the last ``1 / (1 - decay)`` steps count.

    Returns
    -------
    Averaged
        ``rule(loss, params, **options)``; its ``averages`` are a dict, ``evaluated(outputs)`` returns graphs.

    Raises
    ------
    ValueError
        `decay` is no scalar, or outside of ``[0, 1)``; when the rule is called, `accumulated` is within.

    References
    ----------
    Polyak and Juditsky (1992), doi:10.1137/0330046; with a decaying mean, as in Kingma and Ba (2014),
    arXiv:1412.6980, section 7.2.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> rule = updates.averaged(updates.sgd, decay=0.5)
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=0.1)
    >>> test = synk.function([x], rule.evaluated((w * x).mean()))
    >>> loss = step([1.0, 3.0])  # from 1 to 0.8, by a gradient of 2
    >>> print(test([1.0, 3.0]).round(4))  # of the mean of both
    1.8
    """
    check_decays(decay=decay)
    return Averaged(rule, decay)
