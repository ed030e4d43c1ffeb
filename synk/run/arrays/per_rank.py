"""The master's record of which shared variables are per rank: those whose values differ between ranks.

    effects of a command's steps -> PerRank.after -> ValueError, before anything runs
                                                  -> the state that the command leaves

All others are equal on all ranks, as every variable is at first. Random states are in neither set: each rank
has its own stream of them, always.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.random.type import RandomType

from synk.exact.run_values import describe
from synk.run.arrays.containers import left_of
from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.arrays.variables import RankVariables
from synk.values.errors import SynkWarning
from synk.values.script_frames import stacklevel

OWN, ROWS, FIRST, LEFT = "own", "rows", "first", "left"


class Since(NamedTuple):
    """The cause that has made a variable per rank, and what its values are to each other.

    Attributes
    ----------
    what : str
        As errors say it: ``"synk.scatter"``.
    kind : {"rows", "first", "left", "own"}
        Each rank has its part of the rows of one array, in rank order; rank 0's value was changed alone; it
        was so in a run that is closed, of which rank 0's value is left, and all ranks of a later run have
        that; or anything else.
    """

    what: str
    kind: str = OWN


State = Mapping[int, Since]
"""By identity, of what is per rank. One is never changed, so it can be kept and compared."""


class Effect(NamedTuple):
    """The variables that a step takes as equal, and those it leaves equal or per rank, by identity."""

    leaves_equal: tuple[int, ...] = ()
    leaves_per_rank: tuple[int, ...] = ()
    since: str = ""  # what has made those per rank, for errors of later calls
    takes_equal: tuple[int, ...] = ()
    name: str = ""  # of the function that takes them
    kind: str = OWN  # of those per rank, as of `Since`
    remedies: Mapping[int, str] = {}  # for some of these: what else to do than to make them equal
    # Variables that are made of others, or of themselves: per rank if one of those was.
    made_of: tuple[tuple[int, tuple[int, ...]], ...] = ()
    # Variables in which it leaves each rank's part of a sum; and the name of a collective that does not add
    # such parts up, but leaves one value of another kind.
    leaves_parts: tuple[int, ...] = ()
    replaces: str = ""


class PerRank:
    """A record of the shared variables that are per rank, and since when.

    ``variables`` are rank 0's; of those that are gone nothing is kept.
    """

    def __init__(self, variables: RankVariables, ranks: RanksByMachine):
        self._variables = variables
        self._ranks = ranks
        self.now: State = {}

    def after(self, effects: Iterable[Effect | None]) -> State:
        """Return the state after steps in this order; `now` itself if it is the same.

        Raises ValueError if a step takes a variable as equal that is per rank by then. On one rank a variable
        is per rank that would be so on several: what is saved there may be loaded on several.
        """
        state, lost = dict(self.now), LostParts()
        for effect in effects:
            if effect is None:
                continue
            if self._ranks.n_ranks > 1 and (found := lost.read_by(effect)) is not None:
                variable, collective = found
                remedy = effect.remedies[variable]
                raise ValueError(_replaced(effect.name, self._variables[variable], collective, remedy))
            lost.note(effect)
            for variable in effect.takes_equal:
                if variable in state and state[variable].kind != LEFT and self._ranks.n_ranks > 1:
                    remedy = effect.remedies.get(variable, DECLARE)
                    raise ValueError(
                        _refusal(effect.name, self._variables[variable], state[variable], remedy)
                    )
            spread = [(made, one) for made, of in effect.made_of for one in of if one in state]
            made_of = {made: self._spread(effect, one, state[one]) for made, one in reversed(spread)}
            for variable in effect.leaves_equal:
                state.pop(variable, None)
            state |= {made: since for made, since in made_of.items() if made not in state}
            if effect.kind == FIRST and self._ranks.n_ranks == 1:
                continue
            for variable in effect.leaves_per_rank:
                before = state.get(variable)
                part = effect.kind == FIRST and before is not None and before.kind == ROWS
                state[variable] = Since(effect.since, OWN if part else effect.kind)
        if state == self.now:
            return self.now
        return {variable: since for variable, since in state.items() if variable in self._variables}

    def _spread(self, effect: Effect, source: int, since: Since) -> Since:
        """Return the cause that makes a variable per rank which is made of one that is."""
        if since.kind == LEFT:
            return since
        made = f"function {effect.name!r} made it of {describe(self._variables[source])}, which differed"
        return Since(made)

    def of(self, identity: int | None) -> Since | None:
        """Return the cause that has made a variable per rank; None if it is equal, or has not travelled."""
        return None if identity is None else self.now.get(identity)

    def note_set(self, variable: int) -> None:
        """Note that the script has set a variable on rank 0 only."""
        if is_tracked(self._variables[variable]):
            since = "set_value in the script, which changed rank 0 only"
            self.now = self.after([Effect((), (variable,), since, kind=FIRST)])

    def note_left(self, variable: int, since: Since) -> None:
        """Note that a variable was per rank in a run that is closed: all ranks have rank 0's value."""
        if is_tracked(self._variables[variable]):
            self.now = {**self.now, variable: since}

    def note_failed(self, effects: Iterable[Effect | None]) -> None:
        """Note that steps may have run in part: what they leave equal is as it was, the rest is per rank."""
        self.now = self.after(
            [effect._replace(leaves_equal=(), takes_equal=()) for effect in effects if effect is not None]
        )


class LostParts:
    """Variables of one command that hold parts of a sum, and those that a collective replaced by no sum."""

    def __init__(self) -> None:
        self._parts: set[int] = set()
        self._by: dict[int, str] = {}

    def note(self, effect: Effect) -> None:
        """Note a step."""
        replaced = self._parts.intersection(effect.leaves_equal) if effect.replaces else ()
        self._by |= dict.fromkeys(replaced, effect.replaces)
        self._parts.difference_update(effect.leaves_equal)
        self._parts.update(effect.leaves_parts)
        for variable in effect.leaves_parts:
            self._by.pop(variable, None)

    def read_by(self, effect: Effect) -> tuple[int, str] | None:
        """Return a variable that a step reads as the sum of all parts, and what has replaced it; or None."""
        return next(((one, self._by[one]) for one in effect.remedies if one in self._by), None)


def left_since(variable: Any) -> Since | None:
    """Return the cause that had made a variable per rank in a run that is closed, if its value is of then."""
    what = left_of(variable.container)
    return None if what is None else Since(what, LEFT)


def warn_of_left(variables: Iterable[Any]) -> None:
    """Warn of variables that were per rank in a run that is closed: of their values rank 0's is left."""
    for variable in variables:
        since = left_since(variable) if isinstance(variable, SharedVariable) else None
        if since is not None:
            warnings.warn(
                f"{describe(variable)} was per rank since {since.what} in the run before, and synk.close() "
                "has left rank 0's value, with which all ranks begin here; make it equal before "
                "synk.close(), rows by synk.all_gather, or give it a value by synk.broadcast or synk.scatter",
                SynkWarning,
                stacklevel=stacklevel(),
            )


def is_tracked(variable: Any) -> bool:
    """Return whether a shared variable is equal or per rank: random states are neither."""
    return not isinstance(variable.type, RandomType)


DECLARE = "declare the operation of the results that need it, as in (output, 'avg')"


def _replaced(function: str, variable: Any, collective: str, remedy: str) -> str:
    called = variable.name or "variable"
    return (
        f"function {function!r} takes {describe(variable)} as the sum of all ranks' parts, but {collective} "
        f"has put something else in their place; call synk.all_reduce({called}, 'sum') there, or {remedy}"
    )


def _refusal(function: str, variable: Any, since: Since, remedy: str) -> str:
    called = variable.name or "variable"
    # What is to be the sum of all parts is not one rank's.
    broadcast = f"or synk.broadcast({called}) " if remedy == DECLARE or since.kind != OWN else ""
    return (
        f"function {function!r} takes {describe(variable)} as equal on all ranks, but its values differ "
        f"between ranks since {since.what}; call synk.all_reduce({called}) {broadcast}first, or {remedy}"
    )
