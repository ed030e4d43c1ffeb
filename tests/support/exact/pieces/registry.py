"""The table of pieces, in which each registers itself with a weight."""

from collections.abc import Callable
from typing import Any

from support.cases.choices import weighted

PIECES: dict[Callable[..., Any], int] = {}
piece = weighted(PIECES)
