"""The text of a program in the making: its lines, its names and the ``if`` block that is open.

    def program(v0, v1, v2):
        if v0:
            v3 = Dot_1(v1, v2)
        else:
            v3 = None
        return (v3, )

Every block leaves the same names behind, whether it has run or not, so what follows deletes them without
asking. What the lines do is the business of ``writer``.
"""

import re
from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import Elemwise

INDENT = "    "

Tests = list[tuple[Variable, bool]]  # what a block asks for: conditions, and the truth that each must have


class ProgramText:
    """The lines of a function of ``inputs``.

    Attributes
    ----------
    names : Names
    n_lines : int
        Lines so far, which is the number of the latest.
    """

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
        return len(self._lines)

    def add(self, line: str) -> None:
        """Add a line, to the open block if there is one."""
        self._lines.append(f"{INDENT}{INDENT if self._tests else ''}{line}")

    def call(
        self, outputs: Sequence[Variable], name: str, inputs: Sequence[Variable], more: str = ""
    ) -> None:
        """Add the line that computes ``outputs``; ``more`` stands after the inputs."""
        self.add(f"{self.names_of(outputs)} = {name}({self.names_of(inputs)}{more})")
        if self._tests:
            self._made.update(outputs)

    def delete(self, variables: Sequence[Variable]) -> None:
        """Add a line that lets go of values."""
        if variables:
            self.add(f"del {self.names_of(variables)}")
        if self._tests:
            self._lost += [variable for variable in variables if variable not in self._made]
            self._made.difference_update(variables)

    def under(self, tests: Tests) -> None:
        """Open the block that runs where all variables have the truth beside them, unless it is open.

        Without ``tests``, what follows runs always.
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
        """Close the open block: where it has not run, the same names are left, without a value."""
        made, lost = sorted([self.names[variable] for variable in self._made]), self.names_of(self._lost)
        self._tests, self._made, self._lost = [], set(), []
        if made or lost:
            self.add("else:")
        if made:
            self.add(f"{INDENT}{' = '.join(made)} = None")
        if lost:
            self.add(f"{INDENT}del {lost}")


class Names(dict):
    """Names of variables, made on first use; what the text calls is bound in ``namespace``."""

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
        """Return a name for a function, or another value, that is its own."""
        name = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{len(self.namespace)}"
        self.namespace[name] = value
        return name


def label(node: Apply) -> str:
    """Return a short name of a node's Op; of a scalar Op's elementwise form, that of the scalar Op."""
    return type(node.op.scalar_op if isinstance(node.op, Elemwise) else node.op).__name__
