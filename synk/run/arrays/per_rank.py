"""The master's record of which shared variables are per rank: those whose values differ between ranks.

    effects of a command's steps -> PerRank.after -> ValueError, before anything runs
                                                  -> the state that the command leaves

All other shared variables are equal on all ranks, as every variable is at first. Random states are not
recorded: each rank always has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.random.type import RandomType

from synk.exact.run_values import describe
from synk.run.arrays.containers import left_of
from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.arrays.variables import RankVariables
from synk.values.script_frames import warn_the_script

OWN, ROWS, FIRST, LEFT, SPENT = "own", "rows", "first", "left", "spent"


class Cause(NamedTuple):
    """The cause that has made a variable per rank, and how the values of the ranks are related.

    Attributes
    ----------
    what : str
        The cause as errors name it: ``"synk.scatter"``.
    kind : {"rows", "first", "left", "spent", "own"}
        "rows": each rank has its part of the rows of one array, in rank order. "first": only rank 0's value
        was changed. "left": the variable was per rank in a run that is closed; only rank 0's value is left,
        and all ranks of the present run have that. "spent": each rank has its part of a sum that was used;
        nothing needs the parts any more. "own": any other difference.
    """

    what: str
    kind: str = OWN


State = Mapping[int, Cause]
"""The cause for each variable that is per rank, by identity. A State is never changed after it is made."""


class Effect(NamedTuple):
    """The effect of a step on shared variables: those it needs equal on all ranks, and how it leaves others.

    Variables are given by identity.
    """

    leaves_equal: tuple[int, ...] = ()  # equal on all ranks after the step
    leaves_per_rank: tuple[int, ...] = ()  # different on each rank after the step
    since: str = ""  # the cause of the difference, for errors of later calls
    takes_equal: tuple[int, ...] = ()  # the step is refused if one of these is per rank
    name: str = ""  # the name of the function that the step calls
    kind: str = OWN  # the `Cause.kind` of ``leaves_per_rank``
    remedies: Mapping[int, str] = {}  # by variable in ``takes_equal``: an advice for the error message
    # Updated variables, each with the variables from which its value is computed, itself perhaps: it is per
    # rank after the step if one of those was before.
    computed_from: tuple[tuple[int, tuple[int, ...]], ...] = ()
    takes_parts: tuple[int, ...] = ()  # the step adds these up: it is refused if one is equal on all ranks
    leaves_parts: tuple[int, ...] = ()  # variables in which each rank has its part of a sum after the step
    replaces: str = ""  # the name of a collective that replaces such parts by something other than their sum


class PerRank:
    """The record of which shared variables are per rank, and why.

    ``variables`` are rank 0's; variables that Python has deleted are dropped from the record.
    """

    def __init__(self, variables: RankVariables, ranks: RanksByMachine):
        self._variables = variables
        self._ranks = ranks
        self.now: State = {}

    def after(self, effects: Iterable[Effect | None]) -> State:
        """Return the state after steps with these effects, in this order; `now` itself if nothing changes.

        Raises ValueError if a step needs a variable equal on all ranks that is per rank by then. A run of one
        rank raises nothing, but records what would be per rank on several ranks, as its commit or checkpoint
        may be loaded by several.
        """
        state, lost = dict(self.now), LostParts()
        for effect in effects:
            if effect is None:
                continue
            if self._ranks.n_ranks > 1 and (found := lost.read_by(effect)) is not None:
                variable, collective = found
                remedy = effect.remedies[variable]
                raise ValueError(_replaced(effect.name, self._variables[variable], collective, remedy))
            for variable in effect.takes_parts if self._ranks.n_ranks > 1 else ():
                if variable not in state and not lost.has(variable):
                    raise ValueError(_already_added(effect.name, self._variables[variable]))
            lost.note(effect)
            for variable in effect.takes_equal:
                if variable in state and state[variable].kind != LEFT and self._ranks.n_ranks > 1:
                    remedy = effect.remedies.get(variable, DECLARE)
                    raise ValueError(
                        _refusal(effect.name, self._variables[variable], state[variable], remedy)
                    )
            # Updated variables inherit "per rank" from what they are computed from, by the state before the
            # step.
            spread = [(made, one) for made, of in effect.computed_from for one in of if one in state]
            inherited = {
                made: self._inherited_cause(effect, one, state[one]) for made, one in reversed(spread)
            }
            for variable in effect.leaves_equal:
                state.pop(variable, None)
            state |= {made: since for made, since in inherited.items() if made not in state}
            if effect.kind == FIRST and self._ranks.n_ranks == 1:
                continue
            for variable in effect.leaves_per_rank:
                before = state.get(variable)
                part = effect.kind == FIRST and before is not None and before.kind == ROWS
                state[variable] = Cause(effect.since, OWN if part else effect.kind)
        if state == self.now:
            return self.now
        return {variable: since for variable, since in state.items() if variable in self._variables}

    def _inherited_cause(self, effect: Effect, source: int, since: Cause) -> Cause:
        """Return why a variable becomes per rank that is computed from the per-rank variable ``source``."""
        if since.kind == LEFT:
            return since
        made = f"function {effect.name!r} made it of {describe(self._variables[source])}, which differed"
        return Cause(made)

    def of(self, identity: int | None) -> Cause | None:
        """Return why a variable is per rank; None if it is equal on all ranks, or not sent to them yet."""
        return None if identity is None else self.now.get(identity)

    def spent(self) -> set[int]:
        """Return the identities of variables whose values nothing needs any more."""
        return {variable for variable, since in self.now.items() if since.kind == SPENT}

    def note_set(self, variable: int) -> None:
        """Note that the script has set a variable on rank 0 only."""
        if is_tracked(self._variables[variable]):
            since = "set_value in the script, which changed rank 0 only"
            self.now = self.after([Effect((), (variable,), since, kind=FIRST)])

    def note_left(self, variable: int, since: Cause) -> None:
        """Note that a variable was per rank in a closed run; in this run, all ranks have rank 0's value."""
        if is_tracked(self._variables[variable]):
            self.now = {**self.now, variable: since}

    def note_failed(self, effects: Iterable[Effect | None]) -> None:
        """Note that a command failed, so that its steps may have run in part.

        Variables that the steps would have left equal stay as they were recorded; variables that they would
        have left per rank are per rank.
        """
        self.now = self.after(
            [effect._replace(leaves_equal=(), takes_equal=()) for effect in effects if effect is not None]
        )


class LostParts:
    """The variables of one command that hold parts of a sum, and those whose parts a collective has replaced.

    A function that reads such a variable as the sum of all ranks' parts would get a wrong value, if a
    collective of the same command has put something else than the sum there.
    """

    def __init__(self) -> None:
        self._parts: set[int] = set()
        self._by: dict[int, str] = {}

    def has(self, variable: int) -> bool:
        """Tell whether a variable holds parts of a sum that no collective has replaced."""
        return variable in self._parts

    def note(self, effect: Effect) -> None:
        """Note the effect of the next step of the command."""
        replaced = self._parts.intersection(effect.leaves_equal) if effect.replaces else ()
        self._by |= dict.fromkeys(replaced, effect.replaces)
        self._parts.difference_update(effect.leaves_equal)
        self._parts.update(effect.leaves_parts)
        for variable in effect.leaves_parts:
            self._by.pop(variable, None)

    def read_by(self, effect: Effect) -> tuple[int, str] | None:
        """Return a variable whose sum the step reads, and the collective that has replaced it; or None."""
        return next(((one, self._by[one]) for one in effect.remedies if one in self._by), None)


def left_cause(variable: Any) -> Cause | None:
    """Return why a variable was per rank in a closed run, if it still has the value from then; else None."""
    what = left_of(variable.container)
    return None if what is None else Cause(what, LEFT)


def warn_of_left(variables: Iterable[Any]) -> None:
    """Warn of variables that were per rank in a closed run, and of whose values only rank 0's is left."""
    for variable in variables:
        since = left_cause(variable) if isinstance(variable, SharedVariable) else None
        if since is not None:
            warn_the_script(
                f"{describe(variable)} was per rank since {since.what} in the run before, and synk.close() "
                "has left rank 0's value, with which all ranks begin here; make it equal before "
                "synk.close(), rows by synk.all_gather, or give it a value by synk.broadcast or synk.scatter"
            )


def is_tracked(variable: Any) -> bool:
    """Return whether the record covers a shared variable; it does not cover random states."""
    return not isinstance(variable.type, RandomType)


DECLARE = "declare the operation of the results that need it, as in (output, 'avg')"


def _replaced(function: str, variable: Any, collective: str, remedy: str) -> str:
    """Return the message of the error for a variable whose sum a collective has replaced."""
    called = variable.name or "variable"
    return (
        f"function {function!r} takes {describe(variable)} as the sum of all ranks' parts, but {collective} "
        f"has put something else in their place; call synk.all_reduce({called}, 'sum') there, or {remedy}"
    )


def _already_added(function: str, variable: Any) -> str:
    """Return the message of the error for a variable that has no parts of a sum for a step that adds them."""
    called = variable.name or "variable"
    return (
        f"function {function!r} adds up the ranks' parts of {describe(variable)} by itself, but its values "
        f"are equal on all ranks: leave synk.all_reduce({called}) out, and call what makes the parts before"
    )


def _refusal(function: str, variable: Any, since: Cause, remedy: str) -> str:
    """Return the message of the error for a variable that is per rank, but needed equal on all ranks."""
    called = variable.name or "variable"
    # A broadcast is no remedy for parts of a sum: it would give all ranks the part of rank 0.
    broadcast = f"or synk.broadcast({called}) " if remedy == DECLARE or since.kind != OWN else ""
    if since.kind == SPENT:
        return (
            f"function {function!r} takes {describe(variable)} as equal on all ranks, but each rank has its "
            f"part of the sum since {since.what}; call synk.all_reduce({called}, 'sum') first, or make the "
            "step with shard=None, which leaves the sum on every rank"
        )
    return (
        f"function {function!r} takes {describe(variable)} as equal on all ranks, but its values differ "
        f"between ranks since {since.what}; call synk.all_reduce({called}) {broadcast}first, or {remedy}"
    )
