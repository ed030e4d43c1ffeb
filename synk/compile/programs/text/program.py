"""Run a graph as a Python function, and note on an error which node failed.

    source, nodes by line -> Program -> results
                             exception -> line -> node -> blame -> a note on the exception

A traceback names a line of the program, and each line runs one node: so an error's note can name the node,
its number, the user's line that built it and the inputs it was given.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import CodeType, TracebackType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from pytensor.graph.basic import Apply

from synk.compile.programs.graphs.origin import nearest_lines, user_lines, write_line
from synk.compile.programs.passes.host_or_device import Transfers


class Program:
    """A graph as a Python function.

    Call it with the values of the graph's inputs; it returns a tuple with those of its outputs.

    Parameters
    ----------
    source : str
        The Python text, which defines ``program``.
    namespace : dict
        The functions and constants that the text uses, by name.
    nodes, host_nodes, transfers, device_inputs, result_sides
        The attributes of these names.

    Attributes
    ----------
    source : str
        The Python text.
    nodes : dict of int to Apply
        The nodes by the line that runs them, counted from 1.
    function : callable
        The function that the text defines. A call of it, unlike one of the program, adds no note to errors.
    host_nodes : tuple of Apply
        Nodes that run their Op's own Python implementation, those of inner graphs included.
    transfers : Transfers
        Arrays that one call sends from the host to the device and back, inner graphs apart.
    device_inputs : sequence of int
        Inputs that are read on the device.
    result_sides : tuple of str
        The side, host or device, of each output.
    """

    _numbers = count()

    def __init__(
        self,
        source: str,
        namespace: dict[str, Any],
        nodes: Mapping[int, Apply],
        *,
        host_nodes: tuple[Apply, ...],
        transfers: Transfers,
        device_inputs: Sequence[int],
        result_sides: tuple[str, ...],
    ):
        self.source = source
        self.host_nodes = host_nodes
        self.transfers = transfers
        self.device_inputs = device_inputs
        self.result_sides = result_sides
        self.nodes = nodes
        exec(compile(source, f"<array program {next(self._numbers)}>", "exec"), namespace)
        self.function: Callable = namespace["program"]
        _by_code[self.function.__code__] = self

    def __call__(self, *inputs):
        try:
            return self.function(*inputs)
        except Exception as error:
            self.blame(error)
            raise

    def failed_node(self, error: BaseException) -> Apply | None:
        """Return the node on whose line ``error`` arose, or None if it arose outside the program.

        If that node is a region, the node inside of it that failed is returned.
        """
        program, trace = self._place(error)
        return None if trace is None else program.nodes.get(trace.tb_lineno)

    def _place(self, error: BaseException) -> tuple["Program", TracebackType | None]:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self.function.__code__:
            trace = trace.tb_next
        program, inner = self, trace
        while isinstance(getattr(program.nodes.get(getattr(trace, "tb_lineno", 0)), "op", None), OfNodes):
            while inner is not None and (inner is trace or inner.tb_frame.f_code not in _by_code):
                inner = inner.tb_next
            if inner is None:
                break
            program, trace = _by_code[inner.tb_frame.f_code], inner
        return program, trace

    def blame(self, error: BaseException) -> None:
        """Add a note to ``error``: which node failed, which line built it and what inputs it was given."""
        program, trace = self._place(error)
        if program is not self:
            return  # which has said so
        node = self.failed_node(error)
        if trace is None or node is None:
            return
        place = f"{list(self.nodes.values()).index(node)} of {len(self.nodes)}"
        line = self.source.splitlines()[trace.tb_lineno - 1]
        error.add_note(blame(node, place, values_at(trace, line)))


class OfNodes:
    """An Op that stands for several nodes; when it fails, they run as a program of their own."""


_by_code: WeakValueDictionary[CodeType, Program] = WeakValueDictionary()


MAX_LINES = 3  # of the user's, where a node was made of several


def blame(node: Apply, place: str, values: Sequence[Any]) -> str:
    """Return the note on a node that failed; ``place`` is "5 of 12", ``values`` are the inputs' if known."""
    inputs = [
        f"  {variable.name or f'input {position}'}: {describe(value)}"
        for position, (variable, value) in enumerate(zip(node.inputs, values, strict=False))
    ]
    outer = getattr(node.tag, "inside_of", None)
    parts = [
        f"Apply node that caused the error: {node}",
        *([f"Inside of {outer}"] if outer else []),
        f"Node {place}, as pytensor.dprint numbers them",
        built_by(node),
    ]
    return "\n".join([*parts, "Inputs:", *inputs] if inputs else parts)


def built_by(node: Apply) -> str:
    """Return words that name the user's lines that built a node, or else the nearest node before it."""
    lines = user_lines(node.outputs[0])
    if lines:
        return _listed("Built by", lines)
    lines = nearest_lines(node)
    if lines:
        return _listed("Built by PyTensor, in a gradient or a rewrite, on what was built by", lines)
    return "No line of yours is known to have built it; config.traceback__limit=-1 keeps whole stacks"


def describe(value: Any) -> str:
    """Return the dtype and shape of an array, its strides if it is not contiguous, its value if it is 0-d."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return type(value).__name__
    text = f"{value.dtype} {tuple(value.shape)}"
    if value.shape == ():
        return f"{text} = {value}"
    contiguous = not isinstance(value, np.ndarray) or value.flags.c_contiguous
    return text if contiguous else f"{text}, strides {value.strides} bytes"


def values_at(trace: TracebackType, line: str) -> list[Any]:
    """Return the arguments of the call in a ``line`` of a program that has failed, ``v2 = Dot_1(v0, c1)``.

    They are read from ``trace``, the traceback of the program's own frame: a line's arguments are deleted
    after it.
    """
    frame = trace.tb_frame
    known = {**frame.f_globals, **frame.f_locals}
    calls = [part for part in ast.walk(ast.parse(line.strip())) if isinstance(part, ast.Call)]
    return [known.get(ast.unparse(argument)) for argument in calls[0].args] if calls else []


def _listed(heading: str, lines: Sequence[Any]) -> str:
    written = [write_line(line).replace("\n", "\n  ") for line in lines[:MAX_LINES]]
    more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return "\n  ".join([heading, *written, *more])
