"""A graph as a Python function that knows which node each of its lines runs.

    source, nodes by line -> Program -> results
                             exception -> line -> node -> a note that says what failed

A traceback names a line of the program, a line names a node: that is how an error finds its node.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any

from pytensor.graph.basic import Apply

from synk.compile.passes.place import Transfers
from synk.compile.programs.blame import blame, values_at


class Program:
    """A graph as a Python function.

    Call it with the values of the graph's inputs; it returns a tuple with those of its outputs.

    Parameters
    ----------
    source : str
        The Python text, which defines ``program``.
    namespace : dict
        What the text calls by name.
    nodes : dict of int to Apply
        The nodes by the line that runs them, counted from 1.
    host_nodes, transfers, device_inputs, result_sides
        The attributes of these names.

    Attributes
    ----------
    source : str
        The Python text.
    function : callable
        What it defines: called by itself, it says nothing of what failed, see `blame`.
    host_nodes : tuple of Apply
        Nodes that run their Op's own Python implementation, those of inner graphs included.
    transfers : Transfers
        Arrays that one call sends from the host to the device and back, inner graphs apart.
    device_inputs : sequence of int
        Inputs that are read on the device.
    result_sides : tuple of str
        Where each output is.
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
        self._nodes = nodes
        exec(compile(source, f"<array program {next(self._numbers)}>", "exec"), namespace)
        self.function: Callable = namespace["program"]

    def __call__(self, *inputs):
        try:
            return self.function(*inputs)
        except Exception as error:
            self.blame(error)
            raise

    def failed_node(self, error: BaseException) -> Apply | None:
        """Return the node on whose line ``error`` arose, or None if it arose outside the program."""
        trace = self._own_trace(error)
        return None if trace is None else self._nodes.get(trace.tb_lineno)

    def _own_trace(self, error: BaseException) -> TracebackType | None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self.function.__code__:
            trace = trace.tb_next
        return trace

    def blame(self, error: BaseException) -> None:
        """Note on ``error`` which node failed, who built it and what it was given."""
        trace, node = self._own_trace(error), self.failed_node(error)
        if trace is None or node is None:
            return
        place = f"{list(self._nodes.values()).index(node)} of {len(self._nodes)}"
        line = self.source.splitlines()[trace.tb_lineno - 1]
        error.add_note(blame(node, place, values_at(trace, line)))
