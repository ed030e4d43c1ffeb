"""Updates of which each rank computes a part, on variables that live once in the memory of the machine.

    gradient function: each rank has its part of the sum in its own flat vector
    -> barrier -> my part of all ranks' vectors -> rule -> my part of the variables -> barrier

An update function that is elementwise along a flat vector becomes a rule for vectors (`along`), in which its
variables lie one behind the other. Each rank runs it on the same elements of every vector. If the rule needs
sums over all elements, such as the norm of the gradient, each rank adds up its part of them before.

Where the ranks do not share memory, the step is an all-reduce and the update function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synk.exact.elementwise_updates import VectorUpdates, along
from synk.exact.rule_graphs import NotElementwise
from synk.exact.run_values import describe
from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import SPENT, Effect
from synk.run.arrays.shared_storage import VectorOnce, VectorsOnce
from synk.run.collectives.sharded_call import ShardedCall, SummedCall
from synk.run.functions.announced_rows import AnnouncedRows
from synk.run.functions.graph_function import GraphFunction
from synk.run.functions.prepared import PreparedStep
from synk.run.functions.selections import CallOptions
from synk.run.functions.step_function import StepFunction
from synk.values import messages

ATTEMPTS = 3  # layouts that others may undo at first, before the variables stay where they are
CALLS_A_LAYOUT = 20  # after so many calls, one more: laying out costs about as much as a few calls
NO_ROOM = "there is no room for them in shared memory"


class ShardedUpdate(StepFunction):
    """An all-reduce and an update function as one step, in which each rank updates a part if it can.

    ``make`` is `Session.function`; other parameters and errors are those of `synk.sharded_update`.
    """

    def __init__(
        self, owner: Owner, update: Any, flat: Any, required: bool, name: str | None, make: Callable[..., Any]
    ):
        _check(update, flat)
        super().__init__(owner, name or update.name, update.inputs, "none")
        self._update, self._flat, self._make = update, flat, make
        self._rule, self._declined = _rule(update, flat)
        self._required = required
        self._check_required()
        places = () if self._rule is None else self._rule.places
        self._variables = [place.variable for of_vector in places for place in of_vector]
        vectors = () if self._rule is None else self._rule.vectors
        self._parts = [pytensor.shared(np.zeros(0, one.type.dtype), name=one.name) for one in vectors]
        self._of_ranks: tuple[int, Any] = 0, None  # a number of ranks, and `_of_vectors` for so many
        self._layout: VectorsOnce | None = None
        self._n_layouts = self._n_calls = 0  # with the present number of ranks

    def _check_required(self) -> None:
        """Raise ValueError if the update must be divided among the ranks, but cannot."""
        if self._required and (reason := self._reason()) and self._owner.n_ranks > 1:
            raise ValueError(f"{self.name!r} cannot be divided among the ranks: {reason}")

    def updated_variables(self) -> tuple[Any, ...]:
        return self._update.updated_variables()

    def join(self, others: Collection[Any]) -> None:
        # All parts of a command are prepared before the first one runs, so another part would find the
        # variables where this one needs them, or this one where the other needs them.
        moved = [one for one in self._variables if one in others]
        if moved:
            self._declined = f"another part of its sequence changes or collects {describe(moved[0])}"
            self._check_required()

    @property
    def scattered(self) -> tuple[Any, ...]:
        return ()

    @property
    def outputs(self) -> tuple[Any, ...]:
        return ()

    @property
    def output_modes(self) -> list[str | None]:
        return []

    @property
    def update_modes(self) -> list[str | None]:
        return self._update.update_modes

    def check_open(self) -> None:
        self._update.check_open()

    def check_compared(self) -> None:
        self._update.check_compared()

    def sliced_variables(self) -> tuple[int, ...]:
        return ()

    def can_batch_s(self) -> bool:
        return False

    def gathers(self) -> list[str]:
        return self._update.gathers()

    def graph_text(self) -> list[str]:
        return self._update.graph_text()

    def explanation(self) -> list[str]:
        first, *others = self._update.explanation()
        reason = self._reason()
        names = ", ".join(describe(one) for one in self._variables[:3])
        if len(self._variables) > 3:
            names += f" and {len(self._variables) - 3} more"
        said = f"all-reduce of {describe(self._flat)}, then every rank updates all variables: {reason}"
        if self._rule is not None and not reason:
            said = (
                f"each rank adds up and updates its part of {len(self._parts)} vectors of "
                f"{self._rule.length} elements, in which live once: {names}"
            )
        return [first, f"  {said}", *others]

    def check_alone(self, made: set[Any]) -> None:
        self._update.check_alone(made)

    def run_alone(self, arrays: Sequence[Any]) -> list[Any]:
        return self._update.run_alone(arrays)

    # --- how it runs -------------------------------------------------------------------------------

    def _reason(self) -> str:
        """Return why every rank updates all variables; nothing if each updates a part."""
        owner = self._owner
        if not owner.on_host:
            return "ranks compute on devices with memory of their own"
        if owner.on_machines:
            return "ranks on several machines share no memory"
        return self._declined

    def effects(self) -> list[Effect | None]:
        identify, effect = self._owner.memory.shared.identify, self._update.effect()
        flat = identify(self._flat)
        effect = effect._replace(
            name=self.name,
            takes_equal=tuple([one for one in effect.takes_equal if one != flat]),
            remedies={one: text for one, text in effect.remedies.items() if one != flat},
            takes_parts=(flat,),
        )
        if self._rule is None or self._reason():
            return [effect._replace(leaves_equal=(*effect.leaves_equal, flat))]
        since = f"{self.name!r}, which has added up the parts"
        spent = flat, *self._owner.memory.shared.identify_all(self._parts)
        return [effect._replace(leaves_per_rank=spent, since=since, kind=SPENT)]

    def prepare_step(self, values: Sequence[Any], options: CallOptions) -> PreparedStep:
        memory = self._owner.memory
        flat = memory.shared.identify(self._flat)
        memory.shared_storage.ensure([flat])
        if memory.shared_storage.stored_arrays([flat]) is None:
            self._declined = NO_ROOM
        once = None if self._reason() else self._place_once()
        call: messages.Call
        watched: tuple[int, ...]
        if once is None:
            prepared = self._update.prepare_step(values, options)
            call = SummedCall(**_fields(prepared.step), flat=flat)
            watched, reuse, failed = (flat,), prepared.reuse, None
        else:
            variables = memory.shared.identify_all(self._variables)
            plan = self._update.plan(values, options)
            function, sums = self._of_vectors()
            self._owner.functions.compile([(one.ready(), 1) for one in (sums,) if one is not None])
            call = ShardedCall(
                **_fields(plan.step(function.ready(), memory.staging, AnnouncedRows())),
                flat=flat,
                sums=0 if sums is None else sums.ready(),
                vectors=once.vectors,
                progress=once.progress,
                cells=memory.shared.identify_all(self._parts),
                variables=variables,
            )
            watched, reuse, failed = (flat, *variables), plan.reuse(call), self._failed
            memory.segments.array(once.progress)[...] = 0
        reuse = reuse and reuse._replace(variables=watched)
        return PreparedStep(call, self._note_call, reuse=reuse, failed=failed)

    def _failed(self) -> Effect:
        """Return which variables are between two steps, since some ranks have updated their part alone."""
        memory = self._owner.memory
        if self._layout is None or self._layout.progress.segment not in memory.segments.mapped():
            return Effect()
        counts = memory.segments.array(self._layout.progress)[:, 0].tolist()
        if len(set(counts)) == 1 and counts[0] % 2 == 0:
            return Effect()
        since = f"a call of {self.name!r} was cut short; synk.restart() goes back to the last commit"
        return Effect(leaves_per_rank=self._update.updated(), since=since)

    def _note_call(self, of_ranks: Sequence[Any]) -> list[Any]:
        self._n_calls += 1
        return []

    def _place_once(self) -> VectorsOnce | None:
        """Lay the variables out; None if every rank is to update all of them."""
        assert self._rule is not None
        identify = self._owner.memory.shared.identify
        self._owner.memory.shared.identify_all(self._variables)
        vectors = [
            VectorOnce(
                np.dtype(vector.type.dtype).str,
                self._rule.length,
                tuple([(identify(one.variable), one.start, one.shape) for one in places]),
            )
            for vector, places in zip(self._rule.vectors, self._rule.places, strict=True)
        ]
        layout = self._owner.memory.shared_storage.place_once(vectors)
        self._n_layouts += layout != self._layout
        if layout is None:
            self._declined = NO_ROOM
        elif self._n_layouts > ATTEMPTS + self._n_calls // CALLS_A_LAYOUT:
            self._declined = "others change them between its calls"
        self._layout = layout
        return None if self._declined else layout

    def _of_vectors(self) -> tuple[Any, Any]:
        """Return the functions that a rank runs on its parts of all vectors, those of ``flat`` included.

        They are the update, and that of the part's sums, or None.
        """
        assert self._rule is not None
        n_ranks, functions = self._of_ranks
        if n_ranks != self._owner.n_ranks:
            n_ranks = self._owner.n_ranks
            self._n_layouts = self._n_calls = 0
            functions = _functions_of_vectors(
                self._rule, self._parts, n_ranks, self.inputs, self.name, self._make
            )
            self._of_ranks = n_ranks, functions
        return functions


def _check(update: Any, flat: Any) -> None:
    """Raise TypeError unless ``update`` is an update function of a graph, and ``flat`` a shared vector."""
    if not isinstance(update, GraphFunction) or update.scattered or update.outputs:
        raise TypeError(
            "sharded_update takes a function of broadcast inputs and updates alone, made by synk.function, "
            f"got {update!r}"
        )
    if not isinstance(flat, SharedVariable) or getattr(flat.type, "ndim", None) != 1:
        raise TypeError(f"sharded_update needs a shared vector, got {flat!r}")


def _rule(update: GraphFunction, flat: SharedVariable) -> tuple[VectorUpdates | None, str]:
    """Return the update function as a rule for vectors; or None, and why every rank updates all variables."""
    written = update.written
    if flat.type.dtype not in ("float32", "float64"):
        return None, f"{describe(flat)} has dtype {flat.type.dtype}"
    if written.mode is not None:
        return None, "the update has a mode of its own"
    if update.effect().leaves_per_rank:
        return None, "each rank updates some of its variables by itself"
    try:
        return along([(one.variable, one.value) for one in written.updates], flat), ""
    except NotElementwise as error:
        return None, str(error)


def _functions_of_vectors(
    rule: VectorUpdates,
    parts: Sequence[SharedVariable],
    n_ranks: int,
    inputs: Sequence[Any],
    name: str,
    make: Callable[..., Any],
) -> tuple[Any, Any]:
    """Make the functions: of broadcast ``inputs``, the flat vectors of all ranks, their weights, and sums."""
    totals = [rule.total.type(f"part of rank {rank}") for rank in range(n_ranks)]
    weights = [rule.weight.type(f"weight of rank {rank}") for rank in range(n_ranks)]
    given = dict(zip(rule.vectors, parts, strict=True))
    # In rank order, as an all-reduce does.
    given |= {rule.total: reduce(add, totals), rule.weight: reduce(add, weights)}
    arrays = [*inputs, *totals, *weights]
    both = partial(make, [], givens=given, on_unused_input="ignore")
    update = both(
        bcast_inputs=[*arrays, *rule.sums],
        updates=[*zip(parts, rule.values, strict=True), *rule.others],
        name=name,
    )
    if not rule.sums:
        return update, None
    return update, both(
        [(one, None) for one in rule.partial_sums], bcast_inputs=arrays, name=f"sums of {name}"
    )


def _fields(call: messages.Call) -> dict[str, Any]:
    return {one.name: getattr(call, one.name) for one in fields(call)}
