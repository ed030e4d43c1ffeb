"""Forward to `synk.compile.elementwise`, with a warning: this is its former name."""

import warnings
from typing import Any

from synk.compile import elementwise


def __getattr__(name: str) -> Any:
    value = getattr(elementwise, name)
    warnings.warn(
        f"synk.compile.kernels is called synk.compile.elementwise now: use its {name}",
        DeprecationWarning,
        stacklevel=2,
    )
    return value
