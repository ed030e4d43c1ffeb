"""Keep the values of the last `synk.commit`, and make the state from which workers start after a restart.

    commit: values of all ranks -> Recovery.keep
    restart: Recovery.restore (rank 0), Recovery.state -> RunState -> segments and messages of each new worker

A worker that the master forks inherits this state in its memory, so nothing is sent to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synk.exact.run_values import copy_of, describe
from synk.run.arrays.per_rank import LEFT, ROWS, SPENT, State
from synk.run.arrays.run_memory import RunMemory
from synk.run.arrays.variables import stream
from synk.transport.memory.shm import Segment
from synk.values import messages
from synk.values.errors import SynkStateError
from synk.values.script_frames import warn_the_script


@dataclass(frozen=True)
class RunState:
    """The state from which new workers start; at the start of a run it is empty.

    Parameters
    ----------
    segments : mapping of int to Segment
        The segments of shared memory, by number, as the master has mapped them.
    shares : sequence of Share
        The shared variables, with copies of rank 0's values.
    values : mapping of int to sequence
        Committed values by identity, one per rank. A variable without an entry starts from rank 0's value.
    storage : sequence of UseStorage
        Which variables are stored in shared memory, and where.
    functions : sequence of Build
        The functions that the ranks have.
    """

    segments: Mapping[int, Segment] = field(default_factory=dict)
    shares: Sequence[messages.Share] = ()
    values: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    storage: Sequence[messages.UseStorage] = ()
    functions: Sequence[messages.Build] = ()

    def messages(self, rank: int) -> Iterator[Any]:
        """Yield the messages of a worker's state: variables with the rank's own values, then functions."""
        for share in self.shares:
            of_ranks = self.values.get(share.identity)
            value = share.value if of_ranks is None else of_ranks[rank]
            # Copied, because ranks with equal values share one committed array, which may be read-only.
            yield share._replace(value=copy_of(value), own=of_ranks is not None)
        yield from self.storage
        yield from self.functions


class Recovery:
    """The last commit of a run, from which a restart restores the shared variables of all ranks."""

    def __init__(self, memory: RunMemory):
        self._memory = memory
        self._committed: dict[int, tuple[Any, ...]] = {}  # values by identity, then by rank
        self._committed_per_rank: State = {}  # which variables were per rank at the commit
        self._script_values: Any = None  # the values that the script has passed to the commit

    @property
    def script_values(self) -> Any:
        """A copy of the values that the script has passed to the last commit."""
        return copy.deepcopy(self._script_values)

    def keep(
        self, identities: Sequence[int], by_rank: Sequence[Sequence[Any]], script_values: Any = None
    ) -> None:
        """Replace the commit: ``by_rank`` are the values of shared variables, by rank, then by variable.

        None stands for a value that equals rank 0's, which is kept once. ``script_values`` are the script's
        own.
        """
        self._committed = {
            identity: (first, *(first if value is None else value for value in others))
            for identity, first, *others in zip(identities, *by_rank, strict=True)
        }
        self._committed_per_rank, self._script_values = self._memory.per_rank.now, script_values

    def check_shareable(self) -> None:
        """Raise SynkStateError if the commit cannot be divided among another number of ranks.

        It cannot if ranks have different values of a variable that are not their parts of the rows of one
        array.
        """
        own = [
            describe(self._memory.variables[identity])
            for identity, (first, *others) in self._committed.items()
            if isinstance(first, np.ndarray)
            and any(other is not first for other in others)
            and not self._are_rows(identity)
        ]
        if own:
            raise SynkStateError(
                f"restart: each rank has its own {', '.join(own)}, for which another number of ranks has "
                "no place; restart with as many, or close() and fork() anew"
            )

    def redistribute(self, n_ranks: int) -> None:
        """Convert the commit to one of ``n_ranks`` ranks.

        Rows are split anew. For any other variable each rank gets rank 0's value, or a stream of its own if
        that is a random generator.
        """
        self._committed = {
            identity: tuple(np.array_split(np.concatenate(values), n_ranks))
            if self._are_rows(identity)
            else (values[0], *(_value_for_rank(values[0], rank) for rank in range(1, n_ranks)))
            for identity, values in self._committed.items()
        }
        kept = self._committed_per_rank
        self._committed_per_rank = {one: since for one, since in kept.items() if since.kind in (ROWS, LEFT)}

    def _are_rows(self, identity: int) -> bool:
        """Tell whether each rank's committed value of a variable is its part of the rows of one array."""
        since = self._committed_per_rank.get(identity)
        return since is not None and since.kind == ROWS

    def restore(self) -> list[str]:
        """Set rank 0's variables to their committed values; return the names of variables that have none."""
        per_rank = self._memory.per_rank
        before = per_rank.now
        spent = {one: since for one, since in before.items() if since.kind == SPENT}
        per_rank.now = {**spent, **self._committed_per_rank}  # other variables start equal
        missing = []
        for share in self._memory.shared.shares():
            if share.identity in self._committed:
                self._memory.variables.assign(share.identity, copy_of(self._committed[share.identity][0]))
            else:
                since = before.get(share.identity)
                if since is not None and since.kind == SPENT:
                    continue
                own = f" (per rank since {since.what})" if since is not None else ""
                missing.append(repr(share.name or share.type) + own)
        return missing

    def state(self, functions: Sequence[messages.Build]) -> RunState:
        """Return the state that new workers start from."""
        memory = self._memory
        # Copied before the workers start: rank 0 may write to its own values as soon as they are forked.
        shares = [share._replace(value=copy_of(share.value)) for share in memory.shared.shares()]
        storage = memory.shared_storage.as_messages()
        return RunState(memory.segments.mapped(), shares, dict(self._committed), storage, functions)


def warn_of(missing: Sequence[str]) -> None:
    """Warn that the commit does not have the variables ``missing``; call it once the run works again."""
    if missing:
        warn_the_script(
            f"restart: no commit holds {', '.join(missing)}: every rank starts from rank 0's present "
            "value, which may be from the middle of a step; synk.commit() keeps the values of all ranks"
        )


def _value_for_rank(value: Any, rank: int) -> Any:
    """Return the value that another rank gets: rank 0's, or a stream of its own from rank 0's generator."""
    return stream(copy_of(value), rank) if isinstance(value, np.random.Generator) else value
