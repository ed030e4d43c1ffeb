"""Checkpoints: save shared variables to a file, and load them on every rank.

store         save and load, as scripts call them
contents      what is saved of variables: names, and copies of one moment
file_format   the bytes of a file
entries       what a file has, checked against the variables that it is loaded into
generators    random generators from their saved states
"""

from synk.extensions.checkpoint.file_format import CheckpointCorrupt, CheckpointVersion
from synk.extensions.checkpoint.store import CheckpointNames, load, read_values, save

__all__ = ["CheckpointCorrupt", "CheckpointNames", "CheckpointVersion", "load", "read_values", "save"]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__
