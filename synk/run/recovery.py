"""Committed values of shared variables, and what a restart makes of them.

commit: values of all ranks -> Recovery.keep
restart: Recovery.restore (rank 0), Recovery.seed (workers)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from synk.arrays.shared_storage import SharedStorage
from synk.arrays.shared_table import SharedTable
from synk.arrays.variables import RankVariables, copy_of
from synk.memory.segments import SegmentTable
from synk.run.seed import Seed
from synk.values import messages
from synk.values.errors import SynkWarning
from synk.values.script_frames import stacklevel


class Recovery:
    """The last commit of a run.

    Parameters
    ----------
    shared, own, storage, segments
        The master's.
    """

    def __init__(
        self, shared: SharedTable, own: RankVariables, storage: SharedStorage, segments: SegmentTable
    ):
        self._shared = shared
        self._own = own
        self._storage = storage
        self._segments = segments
        self._kept: dict[int, tuple[Any, ...]] = {}  # values by identity, then by rank

    def keep(self, identities: Sequence[int], by_rank: Sequence[Sequence[Any]]) -> None:
        """Take values, per rank, for the commit, in place of the last one."""
        by_variable = zip(*by_rank, strict=True)
        self._kept = {
            identity: _thriftily(values) for identity, values in zip(identities, by_variable, strict=True)
        }

    def restore(self) -> list[str]:
        """Give rank 0 its committed values; return the names of variables that have none."""
        missing = []
        for share in self._shared.shares():
            if share.identity in self._kept:
                self._own.assign(share.identity, copy_of(self._kept[share.identity][0]))
            else:
                missing.append(repr(share.name or share.type))
        return missing

    def seed(self, functions: Sequence[messages.Build]) -> Seed:
        """Return what new workers start from."""
        # Copies, made before they are there: rank 0 may write to its own as soon as it has forked them.
        shares = [share._replace(value=copy_of(share.value)) for share in self._shared.shares()]
        return Seed(self._segments.mapped(), shares, dict(self._kept), self._storage.as_messages(), functions)


def warn_of(missing: Sequence[str]) -> None:
    """Warn of variables that no commit holds, when the run works again."""
    if missing:
        warnings.warn(
            f"restart: no commit holds {', '.join(missing)}: every rank starts from rank 0's present "
            "value, which may be from the middle of a step; synk.commit() keeps the values of all ranks",
            SynkWarning,
            stacklevel=stacklevel(),
        )


def _thriftily(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return one rank's value for all ranks that have the same: parameters are, mostly."""
    first = values[0]
    return tuple(first if _same_bits(first, value) else value for value in values)


def _same_bits(one: Any, other: Any) -> bool:
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    one_bits, other_bits = (np.ascontiguousarray(value).reshape(-1).view("u1") for value in (one, other))
    return np.array_equal(one_bits, other_bits)
