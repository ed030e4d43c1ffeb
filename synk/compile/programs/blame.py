"""Say where in a program an exception arose: the node, its place, its user's line and its inputs.

exception -> line of the program -> node -> blame -> a note on the exception
"""

import ast
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from synk.compile.graphs.origin import nearest_lines, user_lines, write_line

MAX_LINES = 3  # of the user's, where a node was made of several


def blame(node: Apply, place: str, values: Sequence[Any]) -> str:
    """Describe a node that failed.

    Parameters
    ----------
    node : Apply
    place : str
        Where it stands: ``"5 of 12"``.
    values : sequence
        Of its inputs, as far as they are known.
    """
    inputs = [
        f"  {variable.name or f'input {position}'}: {describe(value)}"
        for position, (variable, value) in enumerate(zip(node.inputs, values, strict=False))
    ]
    parts = [
        f"Apply node that caused the error: {node}",
        f"Node {place}, as pytensor.dprint numbers them",
        built_by(node),
    ]
    return "\n".join([*parts, "Inputs:", *inputs] if inputs else parts)


def built_by(node: Apply) -> str:
    """Say which of the user's lines built a node, or the nearest node before it that has any."""
    lines = user_lines(node.outputs[0])
    if lines:
        return _listed("Built by", lines)
    lines = nearest_lines(node)
    if lines:
        return _listed("Built by PyTensor, in a gradient or a rewrite, on what was built by", lines)
    return "No line of yours is known to have built it; config.traceback__limit=-1 keeps whole stacks"


def describe(value: Any) -> str:
    """Return an array's dtype and shape, strides where it is not contiguous, its value where it is 0-d."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return type(value).__name__
    text = f"{value.dtype} {tuple(value.shape)}"
    if value.shape == ():
        return f"{text} = {value}"
    contiguous = not isinstance(value, np.ndarray) or value.flags.c_contiguous
    return text if contiguous else f"{text}, strides {value.strides} bytes"


def values_at(trace: TracebackType, line: str) -> list[Any]:
    """Return the values that a call in a running program was given.

    Parameters
    ----------
    trace : traceback
        Of the program's own frame; nothing that its line reads is deleted before the next.
    line : str
        The source: ``v2 = Dot_1(v0, c1)``.
    """
    frame = trace.tb_frame
    known = {**frame.f_globals, **frame.f_locals}
    calls = [part for part in ast.walk(ast.parse(line.strip())) if isinstance(part, ast.Call)]
    return [known.get(ast.unparse(argument)) for argument in calls[0].args] if calls else []


def _listed(heading: str, lines: Sequence[Any]) -> str:
    written = [write_line(line).replace("\n", "\n  ") for line in lines[:MAX_LINES]]
    more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return "\n  ".join([heading, *written, *more])
