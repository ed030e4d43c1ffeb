"""Functions whose updates are marked as exact by hand: one process's values, the same on all ranks."""

from dataclasses import replace

import synk


def with_exact_updates(inputs, outputs=None, exact=(), updates=(), **keywords):
    """Return a function with the updates ``exact`` marked, followed by other ``updates``."""
    # Declared, so that nothing is done to their graphs.
    declared = [(variable, value, None) for variable, value in exact]
    function = synk.function(inputs, outputs, updates=[*declared, *updates], **keywords)
    definition = function._definition
    marked = [replace(update, exact=True) for update in definition.updates[: len(exact)]]
    function._definition = replace(definition, updates=(*marked, *definition.updates[len(exact) :]))
    return function
