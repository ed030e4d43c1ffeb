"""The state of all ranks that new workers start from, and the committed values in it.

    commit: values of all ranks -> Recovery.keep
    restart: Recovery.restore (rank 0), Recovery.state -> RunState -> segments and messages of each new worker

Nothing is sent where a new worker is a fork of the master: it finds all of this in its memory.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synk.exact.run_values import copy_of, describe
from synk.run.arrays.per_rank import LEFT, ROWS, State
from synk.run.arrays.run_memory import RunMemory
from synk.run.arrays.variables import stream
from synk.transport.memory.shm import Segment
from synk.values import messages
from synk.values.errors import SynkStateError, SynkWarning
from synk.values.script_frames import stacklevel


@dataclass(frozen=True)
class RunState:
    """The state of all ranks that new workers start from; it is empty where a run starts.

    Parameters
    ----------
    segments : mapping of int to Segment
        By number, mapped in the master.
    shares : sequence of Share
        The shared variables, with copies of rank 0's values.
    values : mapping of int to sequence
        Committed values by identity, one per rank; variables without one start from rank 0's.
    storage : sequence of UseStorage
        Which variables are in shared memory.
    functions : sequence of Build
    """

    segments: Mapping[int, Segment] = field(default_factory=dict)
    shares: Sequence[messages.Share] = ()
    values: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    storage: Sequence[messages.UseStorage] = ()
    functions: Sequence[messages.Build] = ()

    def messages(self, rank: int) -> Iterator[Any]:
        """Yield the messages a worker would have been sent: variables with its own values, then functions."""
        for share in self.shares:
            of_ranks = self.values.get(share.identity)
            value = share.value if of_ranks is None else of_ranks[rank]
            # A copy: ranks that have the same share one array, and the kept one may be read-only.
            yield share._replace(value=copy_of(value), own=of_ranks is not None)
        yield from self.storage
        yield from self.functions


class Recovery:
    """The last commit of a run, and the master's variables and shared memory that go with it."""

    def __init__(self, memory: RunMemory):
        self._memory = memory
        self._kept: dict[int, tuple[Any, ...]] = {}  # values by identity, then by rank
        self._kept_per_rank: State = {}
        self._beside: Any = None  # what the script keeps itself

    @property
    def beside(self) -> Any:
        """A copy of what the script has given to the last commit."""
        return copy.deepcopy(self._beside)

    def keep(self, identities: Sequence[int], by_rank: Sequence[Sequence[Any]], beside: Any = None) -> None:
        """Keep the values of all ranks as the commit, in place of the last one, and what the script adds.

        A value of None means that a rank has the same value as rank 0, which is kept once.
        """
        self._kept = {
            identity: (first, *(first if value is None else value for value in others))
            for identity, first, *others in zip(identities, *by_rank, strict=True)
        }
        self._kept_per_rank, self._beside = self._memory.per_rank.now, beside

    def check_shareable(self) -> None:
        """Raise SynkStateError if the commit cannot be given to another number of ranks.

        That is so where each rank has a value of its own, other than its part of the rows of one array.
        """
        own = [
            describe(self._memory.variables[identity])
            for identity, (first, *others) in self._kept.items()
            if isinstance(first, np.ndarray)
            and any(other is not first for other in others)
            and not self._are_rows(identity)
        ]
        if own:
            raise SynkStateError(
                f"restart: each rank has its own {', '.join(own)}, for which another number of ranks has "
                "no place; restart with as many, or close() and fork() anew"
            )

    def deal(self, n_ranks: int) -> None:
        """Convert the commit to one of ``n_ranks`` ranks.

        Rows are split anew. Of any other variable each rank gets rank 0's value; of a random generator each
        gets a stream of its own.
        """
        self._kept = {
            identity: tuple(np.array_split(np.concatenate(values), n_ranks))
            if self._are_rows(identity)
            else (values[0], *(_dealt(values[0], rank) for rank in range(1, n_ranks)))
            for identity, values in self._kept.items()
        }
        kept = self._kept_per_rank
        self._kept_per_rank = {one: since for one, since in kept.items() if since.kind in (ROWS, LEFT)}

    def _are_rows(self, identity: int) -> bool:
        """Tell whether ranks had parts of the rows of one array."""
        since = self._kept_per_rank.get(identity)
        return since is not None and since.kind == ROWS

    def restore(self) -> list[str]:
        """Give rank 0 its committed values back; return the names of variables that no commit holds."""
        per_rank = self._memory.per_rank
        before, per_rank.now = per_rank.now, self._kept_per_rank  # the rest starts equal
        missing = []
        for share in self._memory.shared.shares():
            if share.identity in self._kept:
                self._memory.variables.assign(share.identity, copy_of(self._kept[share.identity][0]))
            else:
                since = before.get(share.identity)
                own = f" (per rank since {since.what})" if since is not None else ""
                missing.append(repr(share.name or share.type) + own)
        return missing

    def state(self, functions: Sequence[messages.Build]) -> RunState:
        """Return the state that new workers start from."""
        memory = self._memory
        # Copies, made before they are there: rank 0 may write to its own as soon as it has forked them.
        shares = [share._replace(value=copy_of(share.value)) for share in memory.shared.shares()]
        storage = memory.shared_storage.as_messages()
        return RunState(memory.segments.mapped(), shares, dict(self._kept), storage, functions)


def warn_of(missing: Sequence[str]) -> None:
    """Warn that the variables ``missing`` are in no commit; called once the run works again."""
    if missing:
        warnings.warn(
            f"restart: no commit holds {', '.join(missing)}: every rank starts from rank 0's present "
            "value, which may be from the middle of a step; synk.commit() keeps the values of all ranks",
            SynkWarning,
            stacklevel=stacklevel(),
        )


def _dealt(value: Any, rank: int) -> Any:
    """Return rank 0's value as another rank gets it: of a random generator, a stream of the rank's own."""
    return stream(copy_of(value), rank) if isinstance(value, np.random.Generator) else value
