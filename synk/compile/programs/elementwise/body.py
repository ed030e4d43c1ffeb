"""Turn a node of scalar Ops into the body of a kernel: the statements for one element.

Elemwise node -> Body -> loops in C (`synk.compile.regions.walks`)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.scalar.basic import Composite
from pytensor.scalar.loop import ScalarLoop

import synk.compile.programs.elementwise.templates_math  # noqa: F401  registers its templates
from synk.compile.programs.elementwise.chain_writer import NoTemplate, Value, Writer, type_name
from synk.compile.programs.elementwise.dialect import Dialect, with_slower
from synk.compile.programs.elementwise.templates import template


@dataclass(frozen=True)
class Operand:
    """An array that a kernel reads or writes.

    Attributes
    ----------
    dtype : str
        Type of its elements in the body.
    broadcast : tuple of bool
        For each axis, whether its length is 1, so that the one element is used at all places along it.
    stored : str
        "float16" or "bfloat16" if the elements, float32 in the body, have this type in memory.
    """

    dtype: str
    broadcast: tuple[bool, ...]
    stored: str = ""


@dataclass(frozen=True)
class Body:
    """The statements that compute one element of each output; elements of inputs are ``x0, x1, ...``.

    Attributes
    ----------
    inputs, outputs : tuple of Operand
        All have the same number of axes.
    lines : tuple of str
        Statements.
    results : tuple of str
        The expression of each output's element.
    functions : frozenset of (str, str, int)
        Mathematical functions called; see `Writer`.
    constants : tuple of (str, str)
        Dtypes and literals of the parameters ``c0, c1, ...``.
    repeats : bool
        Whether some of the lines are in a loop.
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    functions: frozenset[tuple[str, str, int]]
    constants: tuple[tuple[str, str], ...] = ()
    repeats: bool = False

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.outputs[0].broadcast)


def elemwise_body(
    node: Apply, dialect: Dialect, reads: Sequence[str] = (), gives: Sequence[str] = ()
) -> Body:
    """Write the body of an Elemwise node, or of a node of one scalar Op.

    Parameters
    ----------
    node : Apply
    dialect : Dialect
    reads, gives : sequence of str, optional
        ``Operand.stored`` of each input and output; for dialects that convert as they read and write.

    Raises
    ------
    NoTemplate
        One of its scalar Ops has no template, or not for its dtypes.
    """
    write = Writer(dialect)
    inputs = [Value(f"x{i}", variable.type.dtype) for i, variable in enumerate(node.inputs)]
    scalar_op = getattr(node.op, "scalar_op", node.op)
    n_steps = node.inputs[0] if isinstance(scalar_op, ScalarLoop) else None
    if isinstance(n_steps, Constant) and np.size(n_steps.data) == 1:
        inputs[0] = write.literal(np.asarray(n_steps.data).item(), n_steps.type.dtype)
    results = apply_scalar_op(scalar_op, write, inputs, [v.type.dtype for v in node.outputs])
    return Body(
        _operands(node.inputs, reads),
        _operands(node.outputs, gives),
        tuple(write.lines),
        tuple(map(str, results)),
        frozenset(write.functions),
        tuple(write.constants),
        write.repeats,
    )


def _operands(variables: Sequence[Any], stored: Sequence[str]) -> tuple[Operand, ...]:
    return tuple(
        Operand(variable.type.dtype, tuple(length == 1 for length in variable.type.shape), kind)
        for variable, kind in zip(variables, stored or [""] * len(variables), strict=True)
    )


def apply_scalar_op(
    scalar_op: Any, write: Writer, inputs: Sequence[Value], dtypes: Sequence[str]
) -> list[Value]:
    """Write the statements of a scalar Op, a Composite or a ScalarLoop; return the values of its outputs."""
    for dtype in (*(value.dtype for value in inputs), *dtypes):
        type_name(dtype)  # refuses those that kernels do not compute in
    if isinstance(scalar_op, Composite):
        return _apply_graph(scalar_op.fgraph, write, inputs)
    if isinstance(scalar_op, ScalarLoop):
        return _apply_loop(scalar_op, write, inputs, dtypes)
    if len(dtypes) != 1:
        raise NoTemplate(f"templates have one output, {scalar_op} has {len(dtypes)}")
    return [write.let(template(scalar_op, write, list(inputs), dtypes[0]), dtypes[0])]


def _apply_graph(fgraph: Any, write: Writer, inputs: Sequence[Value]) -> list[Value]:
    values = dict(zip(fgraph.inputs, inputs, strict=True))

    def value_of(variable):
        if isinstance(variable, Constant):
            return write.constant(variable.data, variable.type.dtype)
        return values[variable]

    for node in fgraph.toposort():
        arguments = [value_of(variable) for variable in node.inputs]
        dtypes = [variable.type.dtype for variable in node.outputs]
        values.update(zip(node.outputs, apply_scalar_op(node.op, write, arguments, dtypes), strict=True))
    return [value_of(variable) for variable in fgraph.outputs]


def _apply_loop(
    scalar_op: ScalarLoop, write: Writer, inputs: Sequence[Value], dtypes: Sequence[str]
) -> list[Value]:
    """Write the loop of a ScalarLoop for one element; return its states, then whether ``until`` ended it."""
    n_steps, *given = inputs
    if write.dialect.name != "C" or not (scalar_op.is_while or n_steps.text.rstrip("L").isdigit()):
        raise NoTemplate("a number of steps that must not be negative, which Python says")
    n_states = len(dtypes) - scalar_op.is_while
    begin = [*given[:n_states], *[write.literal(False, "bool")] * scalar_op.is_while]
    states = [write.declare_variable(value, dtype) for value, dtype in zip(begin, dtypes, strict=True)]
    with write.steps(f"i < {n_steps}" + f" && !{states[-1]}" * scalar_op.is_while):
        # Elements take their steps one by one, so functions are not computed on vectors.
        write.dialect, dialect = with_slower(write.dialect), write.dialect
        results = _apply_graph(scalar_op.fgraph, write, [*states[:n_states], *given[n_states:]])
        write.dialect = dialect
        # The last result, whether the loop ends, is set first: it may be a state as it was before the step.
        for state, result in reversed(list(zip(states, results, strict=True))):
            write.set(state, result)
    return states


def element(body: Body, name: str, qualifiers: str) -> str:
    """Return the text of the function, in the dialect, that computes one element."""
    reads = [f"const {type_name(o.dtype)} x{i}" for i, o in enumerate(body.inputs)]
    reads += [f"const {type_name(dtype)} c{i}" for i, (dtype, _) in enumerate(body.constants)]
    writes = [f"{type_name(o.dtype)} *y{i}" for i, o in enumerate(body.outputs)]
    lines = [*body.lines, *(f"*y{i} = {result};" for i, result in enumerate(body.results))]
    statements = "\n".join(f"    {line}" for line in lines)
    return f"{qualifiers} void {name}({', '.join(reads + writes)})\n{{\n{statements}\n}}\n"


def has_template(node: Apply, dialect: Dialect) -> bool:
    """Tell whether an Elemwise node can be written in ``dialect``."""
    try:
        elemwise_body(node, dialect)
    except NoTemplate:
        return False
    return True
