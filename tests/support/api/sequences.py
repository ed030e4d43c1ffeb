"""Calls of functions and of sequences for `test_api_model`: what several items in order are to return.

items (Recipe, or collective) -> create: what making a sequence promises
                              -> call: results in order, or `Promised`
"""

import copy

from support.api import functions as api_functions
from support.api.functions import check_options, evaluate
from support.api.model import Contents
from support.api.recipes import INPUTS, Recipe
from support.api.rules import Problems, Promised, check_fits, check_integer

RETURNING = ("gather", "get_value", "get_shapes", "get_lengths")


def listed(names):
    """Return names as a list: a string is one."""
    return list(names) if isinstance(names, tuple) else [names]


def collect(model, collective):
    """Return the result of a collective: a tuple for several variables."""
    verb, names, options = collective
    if options.get("values"):
        # The contents that a Data has now: a sequence may be called long after it was made.
        values = [v.contents.view(Contents) if hasattr(v, "contents") else v for v in options["values"]]
        options = options | {"values": values}
    results = getattr(model, verb)(names=listed(names), **options)
    if results is None:
        return None
    return tuple(results) if isinstance(names, tuple) else results[0]


def returns(item):
    verb, _, options = item
    return verb in RETURNING or (verb == "reduce" and not options.get("in_place", True))


def count_results(items):
    return sum(len(item.outputs) if isinstance(item, Recipe) else returns(item) for item in items)


def used_by(items):
    """Return the names of the shared variables that travel with items."""
    return set().union(*(item.variables if isinstance(item, Recipe) else listed(item[1]) for item in items))


def create(model, items):
    """Raise what making a sequence promises: errors of its collectives that need no answer of the ranks."""
    if not items:
        raise Promised(TypeError)
    for item in items:
        if not isinstance(item, Recipe):
            try:
                collect(copy.deepcopy(model), item)
            except Promised as promised:
                if not promised.late:
                    raise


def call(model, items, given, options, subset):
    """Return the results of a call of a function, or of a sequence of items."""
    recipes = [item for item in items if isinstance(item, Recipe)]
    problems = check_options(**options, recipes=recipes)
    problems.of(check_subset, subset, count_results(items))
    if set(given) != {name for recipe in recipes for name in recipe.inputs}:
        raise Promised(*problems, TypeError)
    lone = items == recipes and len(items) == 1
    after = copy.deepcopy(model)
    values = []
    for item in items:
        try:
            if isinstance(item, Recipe):
                mine = {name: given[name] for name in item.inputs}
                values += api_functions.call(after, item, mine, **usable(options, item))
            else:
                value = collect(after, item)
                values += [value] if returns(item) else []
        except Promised as promised:
            if promised.on_ranks and lone and not problems:
                promised.undefined = items[0].updated  # ranks that fail may have updated some in place
                raise
            problems.extend(promised.kinds)
    if problems:
        promised = Promised(*problems)
        if not lone:  # how far a sequence comes before it fails is not promised
            promised.on_ranks, promised.undefined = None, used_by(items)
        raise promised
    model.values = after.values
    return as_written(recipes, values if subset is None else [values[output] for output in subset])


def call_alone(model, recipe, given):
    """Return the results of one process on all rows of rank 0's values; updates change those only."""
    if set(given) != set(recipe.inputs):
        raise Promised(TypeError)
    problems = Problems()
    for name, (dtype, shape) in INPUTS.items():
        if name in given:
            problems.of(check_fits, given[name].array, dtype, shape)
    problems.settle()
    names = {name: values[0] for name, values in model.values.items()}
    names |= {name: value.array for name, value in given.items()}
    row_wise = [*recipe.scattered, *recipe.sliceable]
    names["n_rows"] = len(names[row_wise[0]]) if row_wise else 1
    try:
        values = [evaluate(text, names) for text in recipe.texts]
    except Exception as error:
        promised = Promised(type(error))
        promised.undefined = recipe.updated
        raise promised from None
    for (name, _, _), value in zip(recipe.updates, values[len(recipe.outputs) :], strict=True):
        model.values[name][0] = value
    return as_written([recipe], values[: len(recipe.outputs)])


def as_written(recipes, values):
    """Return values as the outputs were given: a list for a list."""
    kinds = [recipe.returns for recipe in recipes if recipe.returns != "none"]
    if not kinds:
        return values or None
    return values[0] if kinds == ["single"] and len(values) == 1 else values


def usable(options, recipe):
    """Return the options that mean something to one of several functions."""
    row_wise = recipe.scattered or recipe.sliceable
    return {
        "batch": options["batch"] if recipe.scattered else None,
        "batch_s": options["batch_s"] if recipe.sliceable else None,
        "num_slices": options["num_slices"] if row_wise else 1,
    }


def check_subset(subset, n_results):
    if subset is None:
        return
    if not isinstance(subset, list):
        raise Promised(TypeError)
    problems = Problems()
    for output in subset:
        problems.of(check_integer, output, 0, n_results, ValueError)
    problems.settle()
