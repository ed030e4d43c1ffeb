"""Make the definition that ranks compute from the user's, and warn of results that differ from one process's.

    Definition, as written -> definition_for_ranks -> Definition: what ranks compute, and how that is combined

Here a graph of one process becomes one that any number of ranks compute exactly; `results` has the steps.
"""

from __future__ import annotations

from synk.exact.declared import warn_of_declared, warn_of_sums, warn_of_updates
from synk.exact.definition import Definition
from synk.exact.results import exact_definition, resolve_whole


def definition_for_ranks(written: Definition) -> Definition:
    """Return the definition that each rank computes, with the collectives that its results need.

    Raises TypeError or ValueError, naming the result, if a result without an operation has no value of one
    process.
    """
    warn_of_updates(written)
    return exact_definition(resolve_whole(written))


def warn_of_results(written: Definition) -> None:
    """Warn of declared outputs, and of sums over ranks, that are known to differ from one process's."""
    warn_of_declared(written)
    warn_of_sums(written)
