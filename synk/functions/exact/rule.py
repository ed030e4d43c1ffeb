"""Decide what ranks compute for results without an operation, and warn of those unlike one process's.

Definition, as written -> computed -> Definition: what ranks compute, and how it combines
"""

from __future__ import annotations

from synk.functions.exact.declared import warn_of_declared, warn_of_sums
from synk.functions.exact.each_rank import of_each_rank, warn_of_undeclared
from synk.functions.exact.results import exact_definition
from synk.functions.symbolic import Definition


def computed(written: Definition, undeclared: str, n_ranks: int) -> Definition:
    """Return the definition that each of ``n_ranks`` ranks computes; ``undeclared`` is that of `synk.fork`.

    Raises TypeError or ValueError, naming the result, if it has no value without an operation.
    """
    exact = undeclared == "exact"
    definition = exact_definition(written) if exact else of_each_rank(written)
    if n_ranks > 1:
        (warn_of_declared if exact else warn_of_undeclared)(written)
        warn_of_sums(written)
    return definition
