"""Functions of one graph: they are sent to the ranks, called there, and the ranks' results are combined.

Definition -> GraphFunction.ready: every rank has the function -> prepare: plan of a call, step -> combine
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from pytensor.graph.traversal import ancestors
from pytensor.printing import debugprint as dprint

from synk.exact.alone import without_collectives
from synk.exact.check import FirstCall, checked
from synk.exact.definition import Definition
from synk.exact.explain import explain, gathers
from synk.exact.run_values import describe
from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import FIRST, Effect, is_tracked
from synk.run.functions.announced_rows import AnnouncedRows
from synk.run.functions.call_plan import CallPlan, plan_call
from synk.run.functions.prepared import PreparedStep
from synk.run.functions.selections import CallOptions
from synk.run.functions.specify import to_spec
from synk.run.functions.step_function import StepFunction
from synk.values import messages
from synk.values.by_value import Code
from synk.values.reduction import Output, combine


class GraphFunction(StepFunction):
    """A function of one PyTensor graph, made by `synk.function`.

    ``written`` is the definition as the script wrote it, ``definition`` the one that the ranks compute, with
    collectives in the graph.
    """

    def __init__(
        self, owner: Owner, number: int, written: Definition, definition: Definition, check: Any = None
    ):
        super().__init__(owner, definition.name, definition.all_inputs, definition.returns)
        self._number = number
        self._written = written
        self._definition = definition  # also keeps the shared variables alive
        # Compares the first call with one process; None without ``check``, and after the first call.
        self._first = None if check is None else FirstCall(written, checked(check))
        self._spec: Any = None  # the `ProgramSpec` that the ranks have; None if they have none
        self._code = Code()  # the script's code in that
        self._reshapes: tuple[int, ...] = ()  # updated variables, whose numbers of rows may change
        self._outputs: list[Output] = []
        self._effect = Effect()
        self._finish: Any = None  # combines the results of all ranks to the outputs
        self._announced = AnnouncedRows()
        self._finalizer = weakref.finalize(self, owner.functions.forget, number)
        self._finalizer.atexit = False

    @property
    def output_modes(self) -> list[str | None]:
        return list(self._definition.output_modes)

    @property
    def update_modes(self) -> list[str | None]:
        return [update.mode for update in self._definition.updates]

    @property
    def scattered(self) -> tuple[Any, ...]:
        return self._definition.inputs

    @property
    def outputs(self) -> tuple[Any, ...]:
        return self._written.outputs

    def can_batch_s(self) -> bool:
        return bool(self._definition.sliceables)

    def check_open(self) -> None:
        """Raise SynkStateError if the function's run was closed."""
        self._owner.check_open(f"function {self.name!r}")

    @property
    def written(self) -> Definition:
        """The function as the script wrote it."""
        return self._written

    @property
    def code(self) -> Code:
        """The script's code in the function on the ranks; sending it again makes another `Code` object."""
        return self._code

    def begin_anew(self) -> None:
        """Make the ranks forget the function, because their number changed; the next call sends it again."""
        if self._spec is not None:
            self._owner.functions.forget(self._number)
            self._spec = self._last = None
            self._announced.forget()

    def ready(self) -> int:
        """Send the function to all ranks unless they have it with its present code; return its number."""
        self.check_open()
        if self._spec is None or self._code.has_changed():
            code = Code()
            alone = self._owner.n_ranks == 1
            definition = without_collectives(self._definition) if alone else self._definition
            spec = to_spec(definition, self._owner.memory.shared.identify_read, code)
            self._owner.check_imported(code.modules, also_indirectly=True)
            self._owner.functions.install(messages.Build(self._number, spec))
            self._effect = self._effect_of(self._definition)
            self._spec, self._code = spec, code
            self._reshapes = tuple(update.variable for update in spec.updates)
            if self._definition.outputs:
                self._outputs = [*map(self._output, count(), self._definition.outputs)]
                self._finish = partial(combine, self._outputs)
        return self._number

    def _output(self, position: int, output: Any) -> Output:
        """Describe for `combine` how the ranks' values of one output are combined."""
        what = f"output {position} ({describe(output)}) of {self.name!r}"
        mode, axis = self._spec.output_modes[position], self._definition.output_axes[position]
        return Output(mode, getattr(output.type, "dtype", None), what, axis)

    def _effect_of(self, definition: Definition) -> Effect:
        """Return a call's effect: which variables must be equal on all ranks, and how updates leave them."""
        leaves: dict[bool | None, list[Any]] = {None: [], False: [], True: []}
        for update in definition.updates:
            leaves[update.per_rank].append(update.variable)
        return Effect(
            leaves_equal=self._tracked(leaves[False]),
            leaves_per_rank=self._tracked(leaves[True]),
            since=f"function {self.name!r}, in which each rank updates it by itself",
            takes_equal=self._tracked(definition.takes_equal),
            name=self.name,
            remedies={self._owner.memory.shared.identify(one): text for one, text in definition.remedies},
            computed_from=tuple(
                (made, self._tracked(update.sources))
                for update in definition.updates
                for made in self._tracked([update.variable])
                if update.sources
            ),
            leaves_parts=self._tracked([one.variable for one in definition.updates if one.mode == "sum"]),
        )

    def _tracked(self, variables: Sequence[Any]) -> tuple[int, ...]:
        """Return the identities of variables, without random states."""
        return self._owner.memory.shared.identify_all([one for one in variables if is_tracked(one)])

    def updated_variables(self) -> tuple[Any, ...]:
        return tuple([update.variable for update in self._definition.updates])

    def updated(self) -> tuple[int, ...]:
        """Return the identities of the shared variables that the function updates, without random states."""
        return self._tracked(self.updated_variables())

    def effects(self) -> list[Effect | None]:
        """Return the effect of a call; first send the function to the ranks, unless they have it."""
        self.ready()
        return [self._effect]

    def effect(self) -> Effect:
        """Return the effect of a call on shared variables, without sending the function to the ranks."""
        if self._spec is not None:
            return self._effect
        self._owner.memory.shared.identify_read(self.updated_variables())  # in one message
        return self._effect_of(self._definition)

    def check_alone(self, made: set[Any]) -> None:
        written = self._written
        read = ancestors(written.results)
        known, per_rank = self._owner.memory.shared.known, self._owner.memory.per_rank
        for variable in dict.fromkeys(read):
            since = per_rank.of(known(variable)) if variable not in made else None
            if since is not None and since.kind != FIRST and self._owner.n_ranks > 1:
                raise ValueError(
                    f"{self.name!r}.as_pytensor computes with rank 0's values alone, but "
                    f"{describe(variable)} is per rank since {since.what}; make it equal on all ranks "
                    "first, rows by synk.all_gather, or call the function"
                )
        made.update(update.variable for update in written.updates)

    def run_alone(self, arrays: Sequence[Any]) -> list[Any]:
        number = self.ready()
        since = f"{self.name!r}.as_pytensor, which updates it on rank 0 only"
        effect = Effect((), self.updated(), since, kind=FIRST)
        self._owner.memory.shared_storage.separate(self._reshapes)
        self._owner.memory.per_rank.now = self._owner.memory.per_rank.after([effect])
        values = self._owner.functions.run_alone(number, arrays)
        return [output.with_rows_in_place(value) for output, value in zip(self._outputs, values, strict=True)]

    def explanation(self) -> list[str]:
        return explain(self._written, self._definition)

    def gathers(self) -> list[str]:
        return gathers(self._written, self._definition)

    def graph_text(self) -> list[str]:
        written = self._written
        results = written.results
        modes = written.modes
        updated = [update.variable.name for update in written.updates]
        return [f"{modes} {updated}", dprint(results, print_type=True, file="str") if results else ""]

    def _run_anew(self, inputs: Sequence[Any], options: CallOptions) -> list[Any]:
        if self._first is None:
            return super()._run_anew(inputs, options)
        expected = self._first.expected(self.plan(inputs, options).whole_inputs())
        values = super()._run_anew(inputs, options)
        first, self._first = self._first, None
        first.compare(values, expected, self._owner.n_ranks)
        return values

    def check_compared(self) -> None:
        """Raise ValueError if ``check="first"`` was given and the function was not called yet."""
        if self._first is not None:
            raise ValueError(
                f"{self.name!r} has check='first': call it once by itself before it joins a sequence"
            )

    def sliced_variables(self) -> tuple[int, ...]:
        """Return the identities of the sliceable shared variables."""
        self.ready()
        return self._spec.sliceables

    def prepare_step(self, values: Sequence[Any], options: CallOptions) -> PreparedStep:
        """Check a call, and return its only step."""
        self.ready()
        plan = self.plan(values, options)
        step = plan.step(self._number, self._owner.memory.staging, self._announced)
        self._owner.memory.shared_storage.separate(self._reshapes)
        reuse = plan.reuse(step)
        reuse = reuse and reuse._replace(updates=self._reshapes)
        return PreparedStep(step, self._finish, self._reshapes, reuse, self._code)

    def plan(self, values: Sequence[Any], options: CallOptions) -> CallPlan:
        """Check a call, and decide which rows it reads."""
        definition, owner = self._definition, self._owner
        lengths = owner.memory.lengths.of(self._spec.sliceables) if definition.sliceables else ()
        return plan_call(definition, values, options, lengths, owner.n_ranks, owner.on_host)
