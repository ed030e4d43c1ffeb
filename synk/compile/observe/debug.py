"""Check every node of a program while it runs.

    emit -> Debug(node, implementation) -> the implementation with checks around it -> DebugError

An error names the node, the user's line that built it and what is wrong with it.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import AllocEmpty
from pytensor.tensor.random.op import RandomVariable

from synk.compile.array_modules import array_module
from synk.compile.compat import inner_graph
from synk.compile.dispatch.graph_ops import Branches, copy_value
from synk.compile.dispatch.sampler import same_numbers
from synk.compile.host_call import HostCall
from synk.compile.linker import ArrayLinker, array_mode
from synk.compile.observe.checks import (
    largest_of,
    new_numbers,
    on_host,
    widened,
    wrong_sharing,
    wrong_type,
    wrong_values,
    wrong_writing,
)
from synk.compile.programs.emit import Observer, emit
from synk.compile.programs.text.program import Program, built_by
from synk.compile.regions.making import JUNK
from synk.compile.regions.region import Region
from synk.compile.rewriting.rewrites import inner_rewriter

ANSWERS = ("raise", "warn", "ignore")


class DebugError(AssertionError):
    """A node of a program has broken the contract of entries; the message says how."""


def debug_mode(nan: str = "raise", inf: str = "ignore", xp: Any = np) -> Mode:
    """Return a mode for ``pytensor.function`` like `array_mode`, with every node checked; see `Debug`."""
    return array_mode(ArrayLinker(xp, observe=Debug(nan, inf, xp)))


class Debug:
    """An observer that checks each node's outputs after it ran.

    Outputs must have the declared dtype, number of axes and static shape; share memory with inputs only as
    ``view_map`` and ``destroy_map`` say, and not with each other; inputs that the Op does not destroy must
    be as they were; and the values must equal those of the Op's own ``perform``. Random variables that are
    drawn another way than in PyTensor are not compared with it.

    Parameters
    ----------
    nan, inf : {"raise", "warn", "ignore"}
        What to do where outputs have NaN, or infinities, and no input has: a `DebugError`, a
        ``RuntimeWarning`` or nothing.
    xp : module, default numpy

    Attributes
    ----------
    skipped : list of str
        Nodes that could not be compared with ``perform``, and why.
    """

    def __init__(self, nan: str = "raise", inf: str = "ignore", xp: Any = np):
        for name, answer in (("nan", nan), ("inf", inf)):
            if answer not in ANSWERS:
                raise ValueError(f"{name}={answer!r} is unknown; choose one of {', '.join(ANSWERS)}")
        self.nan, self.inf = nan, inf
        self.xp = xp
        self.skipped: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"xp": self.xp.__name__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, xp=import_module(state["xp"]))

    def __call__(self, node: Apply, implementation: Callable) -> Callable:
        """Return ``implementation`` with checks around it."""
        implementation = self._look_inside(node, implementation)
        reference = self._reference(node, implementation)
        stored = getattr(implementation, "stored", ())  # in 16 bits, maybe

        def checked(*inputs, **keywords):
            before = [copy_value(value) for value in inputs]
            result = implementation(*inputs, **keywords)
            results = result if len(node.outputs) > 1 else (result,)
            if isinstance(node.op, AllocEmpty):
                result.fill(JUNK)
            self._report(
                node, self._broken(node, inputs, before, results, out_arrays(keywords), stored), "raise"
            )
            # Where it is a node of a region that is wrong, this says so before the region does.
            expected = None if reference is None else reference(before)
            self._report(node, new_numbers(before, results, "nan"), self.nan)
            self._report(node, new_numbers(before, results, "inf"), self.inf)
            if expected is not None:
                between = getattr(reference, "largest", 0.0)
                self._report(node, wrong_values(node, inputs, results, expected, between), "raise")
            return result

        return checked

    def _broken(self, node, inputs, before, results, out, stored) -> Iterator[str]:
        yield from wrong_type(node, results, stored)
        yield from wrong_sharing(node, inputs, results, out, self.xp)
        yield from wrong_writing(node, inputs, before, out, self.xp)

    def _report(self, node: Apply, complaints: Iterator[str], answer: str) -> None:
        if answer == "ignore":
            return
        for complaint in complaints:
            message = f"{node}: {complaint}\n{built_by(node)}"
            if answer == "raise":
                raise DebugError(message)
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _look_inside(self, node: Apply, implementation: Callable) -> Callable:
        """Return an implementation that checks the nodes of an inner graph one by one, if there is one."""
        op = node.op
        if isinstance(implementation, Branches):
            then, otherwise = op.true_branch, op.false_branch
            return Branches(inner_program(then, self.xp, self), inner_program(otherwise, self.xp, self))
        return inner_program(op, self.xp, self) if isinstance(implementation, Program) else implementation

    def _reference(self, node: Apply, implementation: Callable) -> Callable | None:
        """Return the implementation that a node's results are compared with, or None without one."""
        if isinstance(implementation, HostCall | Program | Branches) or not comparable(node.op, self.xp):
            return None
        if isinstance(node.op, Region):
            return RegionReference(node.op, self)
        try:
            return Reference(node, self._skip)
        except Exception as error:
            self._skip(node, error)
            return None

    def _skip(self, node: Apply, error: Exception) -> None:
        note = f"{node}: {type(error).__name__}: {error}"
        if note not in self.skipped:
            self.skipped.append(note)


@contextmanager
def nan_allowed(mode: Any) -> Iterator[None]:
    """Within this context, let a program of ``mode`` give NaN and infinities: without rows, means are NaN."""
    debug = getattr(getattr(mode, "linker", None), "observe", None)
    if not isinstance(debug, Debug):
        yield
        return
    answers = debug.nan, debug.inf
    debug.nan = debug.inf = "ignore"
    try:
        yield
    finally:
        debug.nan, debug.inf = answers


class RegionReference:
    """The reference for a region: it runs the nodes in Python, and checks them one by one.

    Attributes
    ----------
    largest : float
        The largest number that went into the nodes or came out in the latest call. Where such numbers cancel,
        the rest may be rounding error. It is 0 if the region is elementwise.
    """

    def __init__(self, op: Region, debug: Debug):
        self.largest = 0.0
        self._elementwise = op.elementwise
        self._debug = debug
        self._program = emit(op.fgraph, debug.xp, observe=self._observed)

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self.largest = (
            0.0 if self._elementwise else max(map(largest_of, map(np.asarray, inputs)), default=0.0)
        )
        return self._program(*inputs)

    def _observed(self, node: Apply, implementation: Callable) -> Callable:
        checked = self._debug(node, implementation)

        def run(*inputs, **keywords):
            result = checked(*inputs, **keywords)
            found = result if isinstance(result, tuple) else (result,)
            if not self._elementwise:
                self.largest = max(self.largest, *map(largest_of, map(np.asarray, found)))
            return result

        return run


class Reference:
    """The reference for a node: it runs the Op's own implementation on the host.

    Once that has failed, a call returns None.
    """

    def __init__(self, node: Apply, skip: Callable[[Apply, Exception], None]):
        self._node, self._skip = node, skip
        # The own implementation of an Op with an inner graph would ask for a compiler.
        inside = isinstance(node.op, OpFromGraph)
        self._run: Callable | None = (
            inner_program(node.op, np) if inside else UnconvertedHostCall(with_own_inputs(node), np)
        )

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        if self._run is None:
            return None
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                # Python's own ``~True`` is -2: where the Op's implementation meets that, it is wrong.
                warnings.simplefilter("error", DeprecationWarning)
                result = self._run(*map(as_declared, inputs, self._node.inputs))
        except Exception as error:
            self._run = None
            self._skip(self._node, error)
            return None
        return result if len(self._node.outputs) > 1 else (result,)


class UnconvertedHostCall(HostCall):
    """Run a node's own implementation, and return its results in the dtypes that it gives."""

    def _to_device(self, variable: Variable, value: Any) -> Any:
        return value


def with_own_inputs(node: Apply) -> Apply:
    """Return a copy of a node with a new variable for each input, as their values may differ in dtype."""
    inputs = [v if isinstance(v, Constant) else v.type() for v in node.inputs]
    return Apply(node.op, inputs, [variable.type() for variable in node.outputs])


def as_declared(value: Any, variable: Variable) -> Any:
    """Return a value on the host, in the dtype of its variable if the program keeps it in 16 bits."""
    value = on_host(value)
    dtype = getattr(variable.type, "dtype", None)
    return widened(value) if str(getattr(value, "dtype", dtype)) != dtype else value


def out_arrays(keywords: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arrays that the caller of an implementation has passed as ``out``."""
    out = keywords.get("out")
    return out if isinstance(out, tuple) else (out,)


def inner_program(op: Any, xp: Any, observe: Observer | None = None) -> Program:
    """Compile the inner graph of an Op to a program."""
    return emit(inner_graph(op, inner_rewriter(xp)), xp, unpack=True, observe=observe)


def comparable(op: Any, xp: Any) -> bool:
    """Tell whether the program must compute the same values as the Op's own implementation.

    It need not for `AllocEmpty`, whose memory is left as it was found, nor for random variables that the
    program draws by another algorithm.
    """
    if isinstance(op, RandomVariable):
        return same_numbers(op) and array_module(xp).sampler(op) is None
    return not isinstance(op, AllocEmpty)
