"""Decide what ranks compute for results without an operation, and warn of those unlike one process's.

Definition, as written -> computed -> Definition: what ranks compute, and how it combines
"""

from __future__ import annotations

from synk.exact.declared import warn_of_declared, warn_of_sums, warn_of_updates
from synk.exact.definition import Definition
from synk.exact.each_rank import of_each_rank, warn_of_undeclared
from synk.exact.results import exact_definition, stated


def computed(written: Definition, undeclared: str) -> Definition:
    """Return the definition that each rank computes; ``undeclared`` is that of `synk.fork`.

    Raises TypeError or ValueError, naming the result, if it has no value without an operation.
    """
    warn_of_updates(written)
    said = stated(written)
    return exact_definition(said) if undeclared == "exact" else of_each_rank(said)


def warn_of_results(written: Definition, undeclared: str) -> None:
    """Warn of results that several ranks are known to have otherwise than one process."""
    (warn_of_declared if undeclared == "exact" else warn_of_undeclared)(written)
    warn_of_sums(written)
