"""Pickle functions and classes of the script by value, for machines on which the script does not run.

Everything else goes by name, and is found where it is imported from.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

SCRIPT = "__main__"


def dumps(value: Any, again: Callable[[], Any] = lambda: None, **options: Any) -> bytes:
    """Pickle a value, by value where that is needed for classes of the script that came here so.

    The options are those of `pickle.dumps`; ``again()`` is called before a second try.
    """
    try:
        return pickle.dumps(value, protocol=5, **options)
    except (pickle.PicklingError, AttributeError, TypeError):
        if "cloudpickle" not in sys.modules:  # nothing has come by value
            raise
        again()
        return sys.modules["cloudpickle"].dumps(value, protocol=5, **options)


def reduced(value: Any) -> Any:
    """Return how a `pickle.Pickler` reduces a value, as its ``reducer_override``.

    Raises TypeError for what the script has defined if cloudpickle is not installed.
    """
    if not isinstance(value, type | FunctionType) or value.__module__ != SCRIPT:
        return NotImplemented
    try:
        import cloudpickle
    except ImportError as error:
        raise TypeError(
            f"{value.__qualname__} is defined in the script, which other machines do not have: define it in "
            "a module, or pip install 'synk-pytensor[mpi]'"
        ) from error
    return cloudpickle.loads, (cloudpickle.dumps(value),)
