"""Make one training step of a loss, parameters and an update rule.

    step(*data) = gradient(*data) -> all_reduce(flat vectors, "sum") -> update()

They run as one command on every rank: one message, one reply. Where the rule is elementwise, and ranks share
memory, each rank all-reduces and updates its part of the parameters alone (`synk.sharded_update`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import float_dtypes

import synk
from synk.extensions.gradients import flat_sum, listed
from synk.extensions.updates.parts import Updates, check_common

__all__ = ["TrainParts", "make_train_function"]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__


class TrainParts(NamedTuple):
    """The parts of a step: ``synk.sequence(gradient, all_reduce, update)`` is the step without checks.

    Parameters
    ----------
    gradient : Function
        Of the inputs; adds up the gradient, and returns the loss and the outputs.
    all_reduce : callable without arguments
        Of what `gradient` has added up; it stands in a sequence, too.
    update : Function
        Assigns parameters and the state of the rule.
    params : list of shared variable

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.sgd, learning_rate=0.1)
    >>> print(step.parts.gradient([1.0, 3.0]))
    2.0
    >>> step.parts.all_reduce()
    >>> step.parts.update()
    >>> print(w.get_value().round(4))
    0.8
    """

    gradient: Any  # function of the inputs, which adds up the gradient, and returns the loss and outputs
    all_reduce: Callable[[], None]  # of what gradient has added up; it stands in a sequence, too
    update: Any  # function, which assigns parameters and the rule's state
    params: list[Any]  # shared variables


def make_train_function(
    loss: Any,
    params: Any,
    inputs: Sequence[Any],
    update_rule: Callable[..., Any],
    *,
    outputs: Any = None,
    updates: Any = None,
    givens: Any = None,
    bcast_inputs: Sequence[Any] | None = None,
    sliceable_shareds: Sequence[Any] | None = None,
    check_finite: bool = False,
    shard: str | None = "auto",
    **options: Any,
) -> synk.Function:
    """Build a function whose call is one training step on all ranks.

    For any number of ranks a step equals that of one process on the whole batch. With ``num_slices`` above 1
    this holds for losses such as a mean or a sum over rows. If the gradient of a row needs something of all
    rows first, as that of a weighted mean needs the sum of the weights, the call raises ValueError.

    Parameters
    ----------
    loss : 0-d floating-point tensor
        Of the whole batch, as one process would compute it: a mean over rows, a sum, a weighted mean, ...
    params : shared variable, or iterable of them
        What to train.
    inputs : list of variable
        Scattered, as of `synk.function`.
    update_rule : callable
        ``update_rule(loss, params, **options)`` as in `synk.extensions.updates`.
    outputs : variable, (variable, operation), or list of those, optional
        What to return beside the loss, as of `synk.function`.
    updates : list of (shared variable, new value) or (..., operation), or dict, optional
        Floating-point ones, such as the running statistics of batch normalisation, get the value of the
        whole batch, and are assigned after the gradient is computed. Integers,
        booleans, random states, and floats with an operation other than "avg" or None are left to
        each rank, as updates of `synk.function` with that operation.
    givens, sliceable_shareds : optional
        As of `synk.function`.
    bcast_inputs : list of variable, optional
        Given whole to every rank. The options of the rule may depend on them, such as a learning rate.
    check_finite : bool
        Whether each rank looks for NaN and infinities in its gradient, before the ranks add them up: then
        `synk.NonFinite` names the rank, and the parameters are what they were.
    shard : {"auto", "state", None}
        "auto": parameters and the state of the rule live once in the memory of a machine, and each rank
        updates a part of them, where the rule is elementwise and ranks compute on cores of one machine; else
        every rank updates all. ``step.explain()`` says which, and why. "state": raise ValueError if they
        cannot. None: every rank updates all. Numbers are the same, bit by bit if the rule needs arithmetic
        and roots alone; exp, log, tanh and powers of arrays may differ in the last bit, and so may those of
        `updates.clipped`, as a norm is added up in another order.
    **options
        Of the rule.

    Returns
    -------
    synk.Function
        ``step(*data, batch=None, batch_s=None, num_slices=1, next_batch=None)`` returns the loss, or a
        list of the loss and `outputs` where they are given. ``step.state`` are the variables that training
        goes on from: parameters, the state of the rule, and those of `updates`. ``step.parts`` are the
        gradient function, the all-reduce, the update function, and the parameters: for loops of the script's
        own, such as local steps of an object on each rank (`synk.on_ranks`).

    Raises
    ------
    TypeError, ValueError
        As the rule and `synk.function` raise them.

    See Also
    --------
    synk.extensions.fit.fit : has the loop around it.
    synk.extensions.checkpoint.save : saves ``step.state``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> inputs = rng.normal(size=(100, 3))
    >>> targets = inputs @ [1.0, 2.0, 3.0]
    >>> x, y, w = pt.matrix("x"), pt.vector("y"), pytensor.shared(np.zeros(3), name="w")
    >>> loss = ((x @ w - y) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x, y], updates.sgd, learning_rate=0.1)
    >>> x_data, y_data = synk.data(inputs), synk.data(targets)
    >>> for _ in range(100):
    ...     last = step(x_data, y_data)
    >>> print(w.get_value().round(3))
    [1. 2. 3.]
    """
    if not callable(update_rule):
        raise TypeError(f"update_rule={update_rule!r} is no rule; pass one, such as updates.adam")
    if shard not in ("auto", "state", None):
        raise ValueError(f"shard={shard!r} is unknown; choose 'auto', 'state' or None")
    params, bcast_inputs = listed(params), [] if bcast_inputs is None else listed(bcast_inputs)
    warn_of_frozen(loss, updates)
    made = update_rule(loss, params, **options)
    if not isinstance(made, tuple) or len(made) != 3:
        raise TypeError(
            f"update_rule={update_rule!r} returns a {type(made).__name__}, as rules of one process do; pass "
            "synk.extensions.updates.distributed(rule), or its result to synk.function(updates=...)"
        )
    grad_updates, param_updates, flat_gradient = made
    check_common(Updates(grad_updates, param_updates, flat_gradient), "make_train_function")
    common, local = split_updates(updates)
    vector_updates, of_values, vectors = add_up(common)
    assignments = [*param_updates, *of_values]
    of_update = _needed(bcast_inputs, assignments)
    gradient = synk.function(
        inputs,
        loss if outputs is None else [loss, *_listed(outputs)],
        bcast_inputs=bcast_inputs,
        updates=[*grad_updates, *vector_updates, *local],
        givens=givens,
        sliceable_shareds=sliceable_shareds,
        name="gradient",
        # A learning rate is an input of the step, though only its last part reads it.
        on_unused_input="ignore" if of_update else "raise",
    )

    def assigning(pairs: Sequence[tuple[Any, Any]], name: str = "update") -> synk.Function:
        return synk.function(
            [], bcast_inputs=_needed(bcast_inputs, pairs), updates=pairs, givens=givens, name=name
        )

    update = assigning(assignments)
    reduced = [flat_gradient, *vectors]
    look = [partial(synk.check_finite, reduced)] if check_finite else []
    all_reduce = partial(synk.all_reduce, reduced, op="sum")
    if shard is None:
        finish = [all_reduce, update]
    else:
        of_params = assigning(param_updates) if vectors else update
        finish = [synk.sharded_update(of_params, flat_gradient, required=shard == "state")]
        if vectors:
            finish += [partial(synk.all_reduce, vectors, op="sum"), assigning(of_values, "values")]
    step = synk.sequence(gradient, *look, *finish, name="train")
    step.parts = TrainParts(gradient, all_reduce, update, params)
    step.state = tuple(variable for variable, *_ in [*assignments, *local])
    return step


def _needed(inputs: Sequence[Any], pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Return those inputs on which a new value depends."""
    needed = set(ancestors([new for _, new in pairs]))
    return [variable for variable in inputs if variable in needed]


def warn_of_frozen(loss: Any, updates: Any) -> None:
    """Warn of random states that a loss draws from and no update advances: every step would draw the same."""
    advanced = {variable for variable, *_ in _entries(updates)}
    drawn = {one for one in ancestors([loss]) if isinstance(one, SharedVariable) and _is_generator(one)}
    if frozen := sorted(str(one) for one in drawn - advanced):
        warnings.warn(
            f"the loss draws from {', '.join(frozen)}, which no update advances: every step draws the same "
            "numbers; pass updates=, such as those that Sequential.training returns",
            synk.SynkWarning,
            stacklevel=3,
        )


def _is_generator(variable: Any) -> bool:
    return isinstance(variable.type, RandomType)


def _entries(updates: Any) -> list[Any]:
    """Return updates as a list of tuples."""
    return list(updates.items()) if isinstance(updates, Mapping) else list(updates or [])


def split_updates(updates: Any) -> tuple[list[tuple[Any, Any]], list[tuple]]:
    """Split updates into those that get the value of the whole batch and those that each rank applies alone.

    The first are those of floating-point variables without an operation other than "avg" or None; the
    others are returned as they were given.
    """
    common, local = [], []
    for entry in _entries(updates):
        variable, new, *operation = entry
        if getattr(variable, "dtype", None) in float_dtypes and operation in ([], [None], ["avg"]):
            common.append((variable, variable.type.filter_variable(new, allow_convert=True)))
        else:
            local.append(tuple(entry))
    return common, local


def add_up(pairs: Sequence[tuple[Any, Any]]) -> tuple[list[tuple], list[tuple], list[Any]]:
    """Form the new values of the whole batch in one flat vector for each dtype.

    Returns updates of the vectors, by what one slice adds to them; assignments of the values to the
    variables, which read the vectors once they are all-reduced; and the vectors.
    """
    vector_updates: list[tuple] = []
    assignments: list[tuple] = []
    vectors: list[Any] = []
    for dtype in sorted({variable.dtype for variable, _ in pairs}):
        variables, values = zip(*(pair for pair in pairs if pair[0].dtype == dtype), strict=True)
        vector, expression, totals = flat_sum(values, variables, name=f"flat_values_{dtype}")
        vector_updates.append((vector, expression, "sum"))
        assignments += zip(variables, totals, strict=True)
        vectors.append(vector)
    return vector_updates, assignments, vectors


def _listed(outputs: Any) -> list[Any]:
    """Return a list of outputs; a tuple is one output and its operation."""
    return outputs if isinstance(outputs, list) else [outputs]
