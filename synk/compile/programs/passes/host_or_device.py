"""Decide on which side of host and device each node computes, and which values cross.

Lengths, shapes and conditions are read by Python, so they are computed with NumPy; arrays stay on the device.
A value that is needed on both sides crosses once, right after it is made; constants cross when the graph
is compiled. No array travels that this pass does not name, hence none waits for the device unseen.

    order -> wanted_on_host -> place -> Steps: nodes on their side, Copies between the sides

Pure: graphs in, decisions out. With NumPy there is one side, and `stay` decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.type import DenseTensorType

from synk.compile.tables import DEVICE, FOLLOW, HOST, MOVED, free_inputs, host_inputs, side


class Transfers(NamedTuple):
    """The most arrays that one call of a program copies to the device, and back."""

    uploads: int
    downloads: int


NO_TRANSFERS = Transfers(0, 0)

SCALAR = "scalar"  # a NumPy scalar, for launches on the device
SMALL = 64  # elements: NumPy computes so few in less time than a kernel's launch takes


class PlacedStep(NamedTuple):
    """A line of the program: a node, or the copy of a value to the side ``to``."""

    node: Apply | None
    inputs: Sequence[Variable]
    outputs: Sequence[Variable]
    to: str = ""


class Placement(NamedTuple):
    """The side, host or device, of each node and value."""

    steps: Sequence[PlacedStep]
    implementations: dict[Apply, Callable]
    results: Sequence[Variable]  # what the program returns, on the side where it is wanted
    on_host: Collection[Variable] = ()  # values that are made on the host or copied there
    moved: Collection[Apply] = ()  # nodes on the host because the device has no implementation
    constants: Sequence[PlacedStep] = ()  # copies that are made once, when the graph is compiled
    device_inputs: Sequence[int] = ()  # inputs that are read on the device
    targets: Mapping[Variable, Variable] = {}  # input -> the copy of it that an update may overwrite
    transfers: Transfers = NO_TRANSFERS


def stay(nodes: Sequence[Apply], outputs: Sequence[Variable], implement: Callable) -> Placement:
    """Return the placement of a graph where host and device are one."""
    steps = [PlacedStep(node, node.inputs, node.outputs) for node in nodes]
    implementations = {node: implement(node, DEVICE) for node in nodes}
    return Placement(steps, implementations, outputs)


def place(
    nodes: Sequence[Apply],
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    implement: Callable[[Apply, str], Any],
    *,
    inputs_on_host: Collection[int] = (),
    outputs_on_host: Collection[int] = (),
    outputs_anywhere: Collection[int] = (),
    updates: Mapping[int, int] | None = None,
) -> Placement:
    """Place a graph on host and device.

    Parameters
    ----------
    nodes : sequence of Apply
        In the order they run.
    inputs, outputs : sequence of Variable
        Of the graph.
    implement : callable
        ``implement(node, side)`` returns the implementation of a node on that side. If that for the device
        names the node itself among its ``host_nodes``, there is none; the node computes on the host then.
    inputs_on_host : collection of int
        Inputs whose values come from the host. The others come from the device, but may be on the host
        where the graph reads them there.
    outputs_on_host, outputs_anywhere : collection of int
        Outputs to return on the host, and outputs to return on the side where they are computed; the others
        are returned on the device.
    updates : mapping of int to int
        Which output is the new value of which input. It is returned on the side where the input is read.
    """
    placer = _Placer(nodes, inputs, [inputs[k] for k in inputs_on_host], implement)
    for node in nodes:
        placer.node(node)
    replaced = {k: inputs[i] for k, i in (updates or {}).items()}
    sides = [
        HOST if k in outputs_on_host else placer.home(output) if k in outputs_anywhere else DEVICE
        for k, output in enumerate(outputs)
    ]
    for k, target in replaced.items():
        sides[k] = placer.target_side(target)
    results = [placer.at(output, to) for output, to in zip(outputs, sides, strict=True)]
    targets = {v: placer.at(v, placer.target_side(v)) for v in replaced.values()}
    return placer.finish(results, targets)


def wanted_on_host(nodes: Sequence[Apply]) -> set[Variable]:
    """Return the values that nodes read on the host, and lengths and shapes these are computed from."""
    wanted: set[Variable] = set()
    for node in reversed(nodes):
        free, listed = set(free_inputs(node.op, node)), set(host_inputs(node.op, node))
        home = side(node.op, node)
        passes = home == FOLLOW and any(v in wanted and is_shape_like(v) for v in node.outputs)
        for position, variable in enumerate(node.inputs):
            reads = position in listed or (home in (HOST, MOVED) and position not in free)
            if reads or (passes and is_shape_like(variable)):
                wanted.add(variable)
    return wanted


def is_shape_like(variable: Variable) -> bool:
    """Tell whether a variable may be a length, a shape or a condition."""
    if not isinstance(variable.type, DenseTensorType):
        return True
    whole_numbers = variable.type.ndim == 1 and variable.type.dtype.startswith(("int", "uint", "bool"))
    return whole_numbers or is_small(variable)


def is_small(variable: Variable) -> bool:
    """Tell whether a variable is known to have few elements."""
    shape = getattr(variable.type, "shape", ())
    return None not in shape and prod(shape) <= SMALL


class _Placer:
    """A search for the side on which each node runs, and for values that must be copied to the other side."""

    def __init__(
        self,
        nodes: Sequence[Apply],
        inputs: Sequence[Variable],
        on_host: Collection[Variable],
        implement: Callable[[Apply, str], Any],
    ):
        self._nodes, self._inputs, self._on_host, self._implement = nodes, inputs, set(on_host), implement
        self._unsure = set(inputs)  # may be on the other side when the program is called
        self._wanted = wanted_on_host(nodes)
        self._homes = {v: self._home_of_input(v) for v in inputs}
        self._copies: dict[Variable, dict[str, Variable]] = {}
        self._arguments: dict[Apply, list[Variable]] = {}
        self._implementations: dict[Apply, Any] = {}
        self._moved: set[Apply] = set()

    def node(self, node: Apply) -> None:
        """Choose the side of a node, and note the copies of its inputs that it needs there."""
        home = self._side(node)
        implementation = None if home == MOVED else self._implement(node, home)
        if home == MOVED or (home == DEVICE and getattr(implementation, "host_nodes", ()) == (node,)):
            home, implementation = HOST, self._implement(node, HOST)
            self._moved.add(node)
        self._implementations[node] = implementation
        inner = getattr(implementation, "result_sides", ()) if home == DEVICE else ()
        sides = inner or [home] * len(node.outputs)
        self._homes.update(zip(node.outputs, sides, strict=True))
        self._arguments[node] = self._bring(node, home)

    def at(self, variable: Variable, to: str) -> Variable:
        """Return the copy of a variable on a side; the variable itself if it is known to be there."""
        if not isinstance(variable.type, DenseTensorType):
            return variable
        if self.home(variable) == to and variable not in self._unsure:
            return variable
        copies = self._copies.setdefault(variable, {})
        if to not in copies:
            copies[to] = variable.type()
        return copies[to]

    def target_side(self, variable: Variable) -> str:
        """Return the side on which the new value of an input must be."""
        return HOST if variable in self._wanted else DEVICE

    def finish(self, results, targets) -> Placement:
        """Return the placement: all nodes in order, each followed by copies of its results."""
        steps = [step for variable in self._inputs for step in self._crossings(variable)]
        for node in self._nodes:
            steps.append(PlacedStep(node, self._arguments[node], node.outputs))
            steps += [step for variable in node.outputs for step in self._crossings(variable)]
        constants = [v for v in self._copies if isinstance(v, Constant)]
        on_device = [k for k, v in enumerate(self._inputs) if DEVICE in self._copies.get(v, ())]
        on_host = [copies[HOST] for copies in self._copies.values() if HOST in copies]
        on_host += [v for v, home in self._homes.items() if home == HOST]
        return Placement(
            steps,
            self._implementations,
            results,
            set(on_host),
            self._moved,
            [step for variable in constants for step in self._crossings(variable)],
            on_device,
            targets,
            self._transfers(steps),
        )

    def _side(self, node: Apply) -> str:
        home = side(node.op, node)
        if home != FOLLOW:
            return home
        listed = set(host_inputs(node.op, node))
        others = [v for k, v in enumerate(node.inputs) if k not in listed or len(listed) == len(node.inputs)]
        if not all(self.home(v) == HOST for v in others):
            return DEVICE
        wanted = any(v in self._wanted for v in node.outputs)
        fits = is_shape_like if wanted else is_small
        return HOST if all(fits(v) for v in (*others, *node.outputs)) else DEVICE

    def _bring(self, node: Apply, home: str) -> list[Variable]:
        """Return for each input of a node the copy that the node reads."""
        listed, free = set(host_inputs(node.op, node)), set(free_inputs(node.op, node))
        arguments = []
        for position, variable in enumerate(node.inputs):
            to = HOST if position in listed else home
            if position in free and side(node.op, node) == HOST:
                arguments.append(variable)  # no more than its shape is read, wherever it is
                continue
            if position in free and home == DEVICE and self.home(variable) == HOST:
                to = SCALAR
            if position in listed and home == DEVICE and getattr(variable.type, "ndim", None) == 0:
                to = SCALAR  # launches take NumPy scalars along, but no arrays without axes
            arguments.append(self.at(variable, to))
        return arguments

    def home(self, variable: Variable) -> str:
        """Return the side on which a value is made."""
        on_host = isinstance(variable, Constant) or not isinstance(variable.type, DenseTensorType)
        return HOST if on_host else self._homes[variable]

    def _home_of_input(self, variable: Variable) -> str:
        array = isinstance(variable.type, DenseTensorType)
        return HOST if not array or variable in self._on_host or variable in self._wanted else DEVICE

    def _crossings(self, variable: Variable) -> list[PlacedStep]:
        copies = self._copies.get(variable, {})
        return [PlacedStep(None, [variable], [copy], to) for to, copy in copies.items()]

    def _transfers(self, steps) -> Transfers:
        """Return how many arrays are copied each way; a single number goes to the device without a copy."""
        homes = self._homes
        down = [s for s in steps if s.to in (HOST, SCALAR) and homes[s.inputs[0]] == DEVICE]
        up = [
            s for s in steps if s.to == DEVICE and homes[s.inputs[0]] == HOST and not is_single(s.inputs[0])
        ]
        return Transfers(len(up), len(down))


def is_single(variable: Variable) -> bool:
    """Tell whether a variable is known to have one element."""
    return all(getattr(variable.type, "broadcastable", (False,)))
