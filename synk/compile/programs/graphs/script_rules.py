"""Send the rules that the script has registered for Ops to other processes.

rules_of_script -> travels with a graph -> learn

A rule is an entry in a table of `functools.singledispatch`, of this package or of PyTensor: ranks that lack
it would compute by another implementation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from types import FunctionType
from typing import Any

from synk.values.by_value import Code, dumps, is_of_script

Rule = tuple[Any, type, Any]  # table, class, implementation
PACKAGES = "synk.", "pytensor."
OTHERS = *PACKAGES, "builtins", "abc", "typing"  # where bases of the author's Ops are


def rules_of_script(kinds: Iterable[type], code: Code) -> list[Rule]:
    """Return the rules that the script has registered, or that are registered for its classes.

    Rules for the script's own classes are returned only for ``kinds``, the classes of a graph's Ops, and
    their bases; rules for Ops of libraries always, as rewrites may bring these into the graph. ``code`` notes
    which rules there are, and which tables have none for the script's Ops.
    """
    tables = _tables(len(sys.modules))
    own = {one for kind in kinds for one in kind.__mro__ if not one.__module__.startswith(OTHERS)}
    rules = [rule for rule in _rules_of_script(tables) if rule[1] in own or not is_of_script(rule[1])]
    for table, kind in [*((table, kind) for table, kind, _ in rules), *product(tables, own)]:
        code.note(table.registry, kind)
    return rules


def unsendable(rules: Iterable[Rule], error: Exception) -> str:
    """Return the message that says which rule cannot be pickled."""
    for table, kind, implementation in rules:
        try:
            dumps(implementation)
        except Exception as reason:
            return (
                f"the rule {table.__name__}.register({kind.__name__}) of this script cannot be pickled: "
                f"{reason}. Rules go to the ranks with what they read: make that inside of the rule, or "
                "define it in a module"
            )
    return f"the rules that this script has registered cannot be pickled: {error}"


def learn(rules: Iterable[Rule]) -> None:
    """Register the rules that came with a graph in this process."""
    for table, kind, implementation in rules:
        if table.registry.get(kind) is not implementation:
            table.register(kind, implementation)


def _rules_of_script(tables: Iterable[Any]) -> Iterator[Rule]:
    for table in tables:
        for kind, implementation in table.registry.items():
            if is_of_script(implementation) or is_of_script(kind):
                yield table, kind, implementation


@lru_cache(maxsize=1)
def _tables(n_modules: int) -> tuple[Any, ...]:
    """Return all tables of PyTensor and synk in imported modules.

    ``n_modules`` is the number of imported modules: the cache holds the answer until it changes. Tables of
    other libraries that such a module imports, as Numba's, are left out.
    """
    modules = [module for name, module in sys.modules.copy().items() if name.startswith(PACKAGES)]
    found = {
        id(value): value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, FunctionType) and hasattr(value, "registry") and hasattr(value, "dispatch")
        if value.__module__.startswith(PACKAGES)
    }
    return tuple(found.values())
