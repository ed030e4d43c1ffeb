"""Decide what ranks compute for results without an operation, and warn of those unlike one process's.

Definition, as written -> computed -> Definition: what ranks compute, and how it combines
"""

from __future__ import annotations

from synk.exact.declared import warn_of_declared, warn_of_sums, warn_of_updates
from synk.exact.definition import Definition
from synk.exact.results import exact_definition, resolve_whole


def computed(written: Definition) -> Definition:
    """Return the definition that each rank computes.

    Raises TypeError or ValueError, naming the result, if it has no value without an operation.
    """
    warn_of_updates(written)
    return exact_definition(resolve_whole(written))


def warn_of_results(written: Definition) -> None:
    """Warn of results that several ranks are known to have otherwise than one process."""
    warn_of_declared(written)
    warn_of_sums(written)
