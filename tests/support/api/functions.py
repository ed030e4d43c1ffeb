"""The results and effects of a function's call: its text over arrays, slice by slice and rank by rank.

call -> rows of every rank -> of_rank, rowless -> combined, or `Promised`
"""

from dataclasses import dataclass

import numpy as np

from support.api.recipes import EXPRESSIONS, INPUTS
from support.api.rules import (
    Problems,
    Promised,
    check_fits,
    check_integer,
    nothing,
    quiet,
    reduced,
    selected,
    selected_each,
)


@dataclass(frozen=True)
class Given:
    """An input's value, and whether it is a `Data`, and one whose rows pair with those selected."""

    array: np.ndarray
    in_data: bool = False
    minibatch: bool = False


def call(model, recipe, given, batch=None, batch_s=None, num_slices=1):
    """Return the results of a function, output by output, and apply its updates to ``model``."""
    problems = check_options(batch, batch_s, num_slices, [recipe])
    if set(given) != set(recipe.inputs):
        raise Promised(*problems, TypeError)
    for name in recipe.inputs:
        dtype, shape = INPUTS[name]
        problems.of(check_fits, given[name].array, dtype, shape, given[name].in_data)
    problems.settle()
    rows = problems.of(scattered_rows, recipe, given, batch, model.n_ranks) if recipe.scattered else None
    shares = problems.of(sliced_rows, recipe, model, batch_s) if recipe.sliceable else None
    problems.settle()
    if rows and shares and list(map(len, rows["count"])) != list(map(len, shares)):
        raise Promised(ValueError)
    return run(model, recipe, given, rows, shares, num_slices)


def check_options(batch, batch_s, num_slices, recipes):
    """Return the faults of the keywords of a call of these functions, whatever its inputs."""
    problems = Problems()
    can_batch, can_share = any(r.scattered for r in recipes), any(r.sliceable for r in recipes)
    if (batch is not None and not can_batch) or (batch_s is not None and not can_share):
        problems.append(TypeError)
    before = len(problems)
    problems.of(check_integer, num_slices, 1, np.inf, ValueError)
    if len(problems) == before and num_slices > 1 and not (can_batch or can_share):
        problems.append(ValueError)
    return problems


def scattered_rows(recipe, given, batch, n_ranks):
    """Return, by input, the numbers of the rows that each rank reads; as "count", those that are selected."""
    pairs = [name for name in recipe.scattered if given[name].minibatch]
    selecting = [name for name in recipe.scattered if name not in pairs] or pairs
    lengths = {name: len(given[name].array) for name in recipe.scattered}
    problems = Problems()
    if batch is None and len({lengths[name] for name in selecting}) > 1:
        raise Promised(ValueError)
    picked = [problems.of(selected, batch, lengths[name]) for name in selecting]
    problems.settle()
    if any(not np.array_equal(picked[0], other) for other in picked[1:]):
        raise Promised(ValueError)
    n_rows = len(picked[0])
    if any(lengths[name] < n_rows or (batch is None and lengths[name] > n_rows) for name in pairs):
        raise Promised(ValueError)
    rows = {name: np.arange(n_rows) if name in pairs else picked[0] for name in recipe.scattered}
    return {name: np.array_split(of, n_ranks) for name, of in {**rows, "count": picked[0]}.items()}


def sliced_rows(recipe, model, batch_s):
    """Return the numbers of the rows that each rank reads of its sliceable variables."""
    problems = Problems()
    picked = [
        problems.of(selected_each, batch_s, [len(value) for value in model.values[name]])
        for name in recipe.sliceable
    ]
    problems.settle()
    for other in picked[1:]:
        if not all(map(np.array_equal, picked[0], other)):
            raise Promised(ValueError)
    return picked[0]


def run(model, recipe, given, rows, shares, num_slices):
    """Run all ranks, one after the other; those that fail keep their values."""
    counts = [len(of_rank) for of_rank in (rows["count"] if rows else shares or [[0]] * model.n_ranks)]
    has_rows = bool(recipe.scattered or recipe.sliceable)
    total, of_ranks, failures = sum(counts), [], []
    for rank, count in enumerate(counts):
        here = {name: values[rank] for name, values in model.values.items()}
        here |= {name: given[name].array for name in recipe.bcast}
        cut = {name: given[name].array[rows[name][rank]] for name in recipe.scattered}
        cut |= {name: here[name][shares[rank]] for name in recipe.sliceable}
        try:
            if has_rows and total and not count:
                outputs, updates = None, rowless(recipe, here)
            else:
                parts = np.array_split(np.arange(count), num_slices) if has_rows else [None]
                parts = [part for part in parts if part is None or len(part)] or [np.arange(0)]
                outputs, updates = of_rank(recipe, here, cut, parts)
        except Exception as error:
            failures.append(type(error))
            continue
        of_ranks.append(outputs)
        for name, value in updates.items():
            model.values[name][rank] = value
    if failures:
        raise Promised(failures[0], on_ranks=True)
    if has_rows and not total:
        of_ranks = of_ranks[:1]
    present = [(out, max(n, 1)) for out, n in zip(of_ranks, counts, strict=False) if out is not None]
    return [
        combined(mode, [out[at] for out, _ in present], [n for _, n in present], first=True)
        for at, mode in enumerate(recipe.modes)
    ]


def of_rank(recipe, here, cut, parts):
    """Return one rank's outputs and new values, over all its slices."""
    values = []
    for part in parts:
        n_rows = 1 if part is None else len(part)
        names = {**here, **{name: array[part] for name, array in cut.items()}, "n_rows": np.int64(n_rows)}
        values.append([evaluate(text, names) for text in recipe.texts])
    weights = [1 if part is None else max(len(part), 1) for part in parts]
    by_text = list(zip(*values, strict=True)) or []
    split = len(recipe.outputs)
    outputs = [combined(mode, of, weights) for mode, of in zip(recipe.modes, by_text[:split], strict=True)]
    updates = {}
    for (name, text, op), of in zip(recipe.updates, by_text[split:], strict=True):
        mode = recipe.update_mode(op) if recipe.needs_rows(text) else None
        updates[name] = combined(mode, of, weights)
        if mode == "gather" and len(parts) == 1:
            updates[name] = of[0]
    return outputs, updates


def rowless(recipe, here):
    """Return the new values on a rank without rows, while others have some."""
    updates = {}
    for name, text, op in recipe.updates:
        if recipe.needs_rows(text):
            value = nothing(recipe.update_mode(op), here[name])
        else:
            value = evaluate(text, here)
        if value is not None:
            updates[name] = value
    return updates


@quiet
def evaluate(text, names):
    return np.array(eval(text, {}, names), EXPRESSIONS[text][0])


def combined(mode, values, weights, first=False):
    """Combine slices, or ranks: of those None takes the first, of slices the last."""
    if mode is None:
        return values[0 if first else -1]
    if mode == "gather":
        return np.concatenate([np.atleast_1d(value) for value in values])
    return reduced(mode, values, weights)
