"""Import what only the demos need, and say what to install where it is missing."""

from importlib import import_module
from types import ModuleType


def need(name: str) -> ModuleType:
    """Return a module of the extra ``demos``.

    Raises
    ------
    SystemExit
        It is not installed; the message names the extra.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        package = (missing.name or name).partition(".")[0]
        raise SystemExit(f"{package} is not installed. Use pip install 'synk-pytensor[demos]'.") from None
