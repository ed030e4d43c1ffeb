"""Write the text of a program as the passes have decided: a line for each node and each value that crosses.

    ProgramPlan -> ProgramWriter, asked step by step -> ProgramText -> Program

    def program(v0, v1, v2):
        if v0:
            v3 = Dot_1(v1, v2)
        else:
            v3 = None
        return (v3, )

Every block defines the same names whether it has run or not, so later lines can delete them without a test.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from synk.compile.compat import IfElse
from synk.compile.programs.passes.decisions import Buffer, Finish, PieceCopy, ProgramPlan
from synk.compile.programs.passes.finish import Announcer
from synk.compile.programs.passes.host_or_device import PlacedStep
from synk.compile.programs.text.buffers import copy_update, open_buffer, part, put
from synk.compile.programs.text.program import Program
from synk.compile.programs.text.transfer import CROSSINGS
from synk.compile.tables import DEVICE, HOST


class ProgramWriter:
    """A program whose lines are being written."""

    def __init__(
        self,
        inputs: Sequence[Variable],
        xp: ModuleType,
        plan: ProgramPlan,
        announcer: Announcer | None,
    ):
        self._xp, self._plan, self._announcer = xp, plan, announcer
        self._text = ProgramText(inputs)
        self._names = self._text.names
        self._conditions = conditions_of(plan.placed.steps)
        self._node_at: dict[int, Apply] = {}
        self._buffers: dict[Buffer, str] = {}
        values: dict[Variable, Any] = {}
        for step in plan.placed.constants:
            (source,), (copy,) = step.inputs, step.outputs
            value = values[source] if source in values else source.data  # noqa: SIM401  (copies have no data)
            values[copy] = CROSSINGS[step.to](value, xp)
            self._names[copy] = self._names.bind(values[copy], "c")

    def node(self, step: PlacedStep, implementation: Callable) -> None:
        """Add the line that runs a node, in the block of its guard."""
        node: Any = step.node
        guard = self._plan.guards.get(node, ())
        self._text.under([(self._conditions[condition], true) for condition, true in guard])
        out = self._out(node, dict(zip(node.inputs, step.inputs, strict=True)))
        self._text.call(step.outputs, self._names.bind(implementation, label(node)), step.inputs, out)
        self._node_at[self._text.n_lines] = node
        for action in self._plan.actions.get(node, ()):
            self._act(action)

    def _act(self, action: PieceCopy | Finish) -> None:
        """Add the line that copies a piece into its place, or that announces final elements."""
        buffer = self._buffer(action.buffer)
        if isinstance(action, PieceCopy):
            copy = self._names.bind(put(action.start, action.stop), "put")
            self._text.add(f"{copy}({buffer}, {self._names[action.piece]})")
        else:
            assert self._announcer is not None, "nobody else asks for it"
            kind = action.buffer.output.type
            self._announcer.expect(action.variable, kind.shape, kind.dtype)
            tell = partial(self._announcer.finished, action.variable, start=action.start)
            self._text.add(f"{self._names.bind(tell, 'finished')}({buffer})")

    def crossing(self, step: PlacedStep, always: bool) -> None:
        """Add the line that copies a value to the other side, or to another dtype, in the open block.

        With ``always``, the line stands behind the block, and runs in every call.
        """
        if always:
            self._text.under([])
        function = self._names.bind(partial(CROSSINGS[step.to], xp=self._xp), f"to_{step.to}")
        self._text.call(step.outputs, function, step.inputs)

    def delete(self, variables: Sequence[Variable]) -> None:
        """Add a line that deletes the names of values."""
        self._text.delete(variables)

    def program(self, unpack: bool, host_nodes: tuple[Apply, ...]) -> Program:
        """Add the last lines and compile the text."""
        placed = self._plan.placed
        self._text.under([])
        for k in self._plan.destinations.copied:
            self._text.add(f"o{k} = {self._names[placed.results[k]]}.copy()")
        results = [self._result(k, output) for k, output in enumerate(placed.results)]
        bare = unpack and len(results) == 1
        together = f"({''.join(f'{result}, ' for result in results)})"
        self._text.add(f"return {results[0] if bare else together}")
        return Program(
            str(self._text),
            self._names.namespace,
            self._node_at,
            host_nodes=host_nodes,
            transfers=placed.transfers,
            device_inputs=placed.device_inputs,
            result_sides=tuple([HOST if v in placed.on_host else DEVICE for v in placed.results]),
        )

    def _result(self, k: int, output: Variable) -> str:
        """Return the expression of the value that the program returns as output ``k``."""
        found, on_host = self._plan.destinations, self._plan.placed.on_host
        result = f"o{k}" if k in found.copied else self._names[output]
        if isinstance(output.type, TensorType) and output.type.ndim == 0:
            # Reductions and ufuncs make NumPy scalars of 0-d results; callers get arrays.
            asarray = np.asarray if output in on_host else self._xp.asarray
            result = f"{self._names.bind(asarray, 'asarray')}({result})"
        if k not in found.update_targets:
            return result
        target = self._names[self._plan.target(found.update_targets[k])]
        return f"{self._names.bind(copy_update, 'copy_update')}({target}, {result})"

    def _out(self, node: Apply, read: Mapping[Variable, Variable]) -> str:
        """Return the text of a node's ``out=`` argument, or "" if the node gets none.

        ``read`` gives for each input the copy of it that the node reads.
        """
        found, reuse = self._plan.destinations, self._plan.reuse
        if node in found.joins:
            return f", out={self._buffer(found.joins[node].buffer)}"
        if node in reuse:
            places = ["None" if source is None else self._names[read[source]] for source in reuse[node]]
            return f", out={places[0]}" if len(places) == 1 else f", out=({', '.join(places)})"
        slot = found.slots.get(node)
        if slot is None:
            return ""
        buffer = self._buffer(slot.buffer)
        if slot.shape == slot.buffer.output.type.shape:
            return f", out={buffer}"
        return f", out={self._names.bind(part(slot.start, slot.stop, slot.shape), 'part')}({buffer})"

    def _buffer(self, buffer: Buffer) -> str:
        """Return the name of a buffer; the first time, add the line that opens it."""
        if buffer not in self._buffers:
            kind = buffer.output.type
            opened = self._names.bind(open_buffer(self._xp, kind.shape, kind.dtype), "opened")
            target = "" if buffer.target is None else self._names[self._plan.target(buffer.target)]
            name = self._buffers[buffer] = f"d{len(self._buffers)}"
            self._text.add(f"{name} = {opened}({target})")
        return self._buffers[buffer]


def conditions_of(steps: Iterable[PlacedStep]) -> dict[Variable, Variable]:
    """Return for each condition the copy of it that its ``IfElse`` reads, which blocks test."""
    return {
        step.node.inputs[0]: step.inputs[0]
        for step in steps
        if step.node is not None and isinstance(step.node.op, IfElse)
    }


INDENT = "    "

Tests = list[tuple[Variable, bool]]  # of a block: conditions, and the truth that each must have


class ProgramText:
    """The lines of a function of ``inputs``, and the names of its variables."""

    def __init__(self, inputs: Sequence[Variable]):
        self.names = Names()
        self._lines = [f"def program({self.names_of(inputs)}):"]
        self._tests: Tests = []  # of the open block
        self._made: set[Variable] = set()  # in the open block, and still there
        self._lost: list[Variable] = []  # made before the open block, deleted in it

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    @property
    def n_lines(self) -> int:
        """The number of lines so far, which is also the line number of the latest one."""
        return len(self._lines)

    def add(self, line: str) -> None:
        """Add a line, to the open block if there is one."""
        self._lines.append(f"{INDENT}{INDENT if self._tests else ''}{line}")

    def call(
        self, outputs: Sequence[Variable], name: str, inputs: Sequence[Variable], more: str = ""
    ) -> None:
        """Add the line that computes ``outputs``; ``more`` stands after the inputs."""
        arguments = f"{self.names_of(inputs)}{more}".removeprefix(", ")
        self.add(f"{self.names_of(outputs)} = {name}({arguments})")
        if self._tests:
            self._made.update(outputs)

    def delete(self, variables: Sequence[Variable]) -> None:
        """Add a line that deletes the names of values."""
        if variables:
            self.add(f"del {self.names_of(variables)}")
        if self._tests:
            self._lost += [variable for variable in variables if variable not in self._made]
            self._made.difference_update(variables)

    def under(self, tests: Tests) -> None:
        """Open the ``if`` block in which all conditions have the truth beside them, unless it is open.

        Without ``tests``, the next lines stand in no block.
        """
        if tests == self._tests:
            return
        self._close()
        if tests:
            written = [f"{'' if true else 'not '}{self.names[condition]}" for condition, true in tests]
            self.add(f"if {' and '.join(written)}:")
        self._tests = tests

    def names_of(self, variables: Sequence[Variable]) -> str:
        """Return the names of variables, with commas between them."""
        return ", ".join([self.names[variable] for variable in variables])

    def _close(self) -> None:
        """Close the open block, with an ``else`` that leaves the same names where the block has not run."""
        made, lost = sorted([self.names[variable] for variable in self._made]), self.names_of(self._lost)
        self._tests, self._made, self._lost = [], set(), []
        if made or lost:
            self.add("else:")
        if made:
            self.add(f"{INDENT}{' = '.join(made)} = None")
        if lost:
            self.add(f"{INDENT}del {lost}")


class Names(dict):
    """The names of variables, made on first use; ``namespace`` has what the text uses by name."""

    def __init__(self) -> None:
        super().__init__()
        self.namespace: dict[str, Any] = {}

    def __missing__(self, variable: Variable) -> str:
        constant = isinstance(variable, Constant)
        name = self[variable] = f"{'c' if constant else 'v'}{len(self)}"
        if constant:
            self.namespace[name] = variable.data
        return name

    def bind(self, value: Any, name: str) -> str:
        """Put a function or another value into the namespace, under a new name, and return the name."""
        name = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{len(self.namespace)}"
        self.namespace[name] = value
        return name


def label(node: Apply) -> str:
    """Return a short name of a node's Op; of an Elemwise, that of its scalar Op."""
    return type(node.op.scalar_op if isinstance(node.op, Elemwise) else node.op).__name__
