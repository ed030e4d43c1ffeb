"""A PyTensor linker that runs a graph as one straight-line program of array calls, and its mode.

    array_mode() -> Mode: rewrites, and ArrayLinker
    rewritten graph -> emit -> Program -> thunk (what pytensor.function calls)
                                       -> thunk.run (what ranks call, by `synk.compile.rewriting.rewritten`)

Usable without the rest of synk: ``pytensor.function(..., mode=array_mode())``.
"""

import warnings
from collections.abc import Callable
from copy import copy
from importlib import import_module
from typing import Any

import numpy as np
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.basic import JITLinker
from pytensor.link.utils import raise_with_op

import synk.compile.regions  # noqa: F401  (registers its rewrite, and the entry of regions)
from synk.compile.programs.emit import Observer, emit
from synk.compile.programs.passes.finish import Announcer
from synk.compile.programs.text.program import Program
from synk.compile.programs.text.transfer import check_narrow, is_on_host, to_device
from synk.compile.rewriting.queries import KeepingMode
from synk.compile.rewriting.rewrites import UNWANTED, array_query, natively
from synk.compile.tables import DEVICE, HOST
from synk.values.floating import IGNORING

HOST_OPS = ("allow", "warn", "raise")
EITHER = "either"


class ArrayLinker(JITLinker):
    """Link a graph to calls of an array module.

    Parameters
    ----------
    xp : module, default numpy
        Array module that computes: ``numpy``, or one with its interface.
    host_ops : {"allow", "warn", "raise"}
        What to do about Ops without an array entry, which run their own Python implementation on
        the host: nothing, a ``UserWarning`` or a ``NotImplementedError`` when the graph is compiled.
    allow_gc : bool, default True
        Let go of inputs and outputs after each call.
    observe : callable, optional
        ``observe(node, implementation)`` returns what runs in place of each node's implementation;
        see `synk.compile.programs.emit.emit`.
    outputs : {"host", "device", "either"}
        Where a function returns its results, if ``xp`` is not NumPy; "either": each where it is computed.
        Updates are not results: shared variables move to the device when a function first reads them there,
        and stay.
    announcer : Announcer, optional
        Told which parts of a flat vector are final; see `synk.compile.programs.emit.emit`.
    narrow : {"float16", "bfloat16"}, optional
        Keep float32 arrays between nodes in 16 bits where products read them; inputs, results and shared
        variables stay float32. See `synk.compile.programs.passes.narrow`.
    native : bool, default True
        Run what has C texts as C functions, if there is a compiler and ``xp`` is NumPy; see
        `synk.compile.regions`. With ``narrow``, graphs run in Python.
    """

    incompatible_rewrites = UNWANTED

    def __init__(
        self,
        xp: Any = np,
        *,
        host_ops: str = "allow",
        allow_gc: bool = True,
        observe: Observer | None = None,
        outputs: str = "host",
        announcer: Announcer | None = None,
        narrow: str | None = None,
        native: bool = True,
    ):
        if host_ops not in HOST_OPS:
            raise ValueError(f"host_ops={host_ops!r} is unknown; choose one of {', '.join(HOST_OPS)}")
        if outputs not in (HOST, DEVICE, EITHER):
            raise ValueError(f"outputs={outputs!r} is unknown; choose one of {HOST}, {DEVICE}, {EITHER}")
        if narrow is not None:
            check_narrow(narrow)
        super().__init__(allow_gc=allow_gc)
        self.xp = xp
        self.outputs = outputs
        self.host_ops = host_ops
        self.observe = observe
        self.announcer = announcer
        self.narrow = narrow
        self.native = native and narrow is None and xp is np

    def __copy__(self) -> "ArrayLinker":
        linker = type(self).__new__(type(self))
        linker.__dict__.update(self.__dict__)
        return linker

    def __getstate__(self) -> dict[str, Any]:
        # Modules do not pickle, and a mode travels to the workers with the function that asks for it.
        return self.__dict__ | {"xp": self.xp.__name__, "announcer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, xp=import_module(state["xp"]))
        if self.narrow is not None:
            check_narrow(self.narrow)

    def __repr__(self) -> str:
        narrow = f", narrow={self.narrow!r}" if self.narrow else ""
        return f"{type(self).__name__}({self.xp.__name__}, host_ops={self.host_ops!r}{narrow})"

    def accept(self, fgraph, no_recycling=None, profile=None):
        # A linker holds one graph; for the next one the base class would rebuild it without xp and host_ops.
        linker = copy(self)
        linker.fgraph = None
        return super(ArrayLinker, linker).accept(fgraph, no_recycling, profile)

    def fgraph_convert(self, fgraph, order, input_storage, output_storage, storage_map, **kwargs) -> Program:
        """Return the program that computes ``fgraph`` in the given order."""
        on_host = [k for k, variable in enumerate(fgraph.inputs) if not isinstance(variable, SharedVariable)]
        program = self._emit(fgraph, order, on_host, self._outputs_on_host(fgraph), self.announcer)
        self._judge_host_nodes(program)
        return program

    def _outputs_on_host(self, fgraph) -> list[int]:
        """Return the outputs that the script reads on the host: all but new values of variables."""
        updates = fgraph.update_mapping or {}
        return [k for k in range(len(fgraph.outputs)) if k not in updates and self.outputs == HOST]

    def _emit(self, fgraph, order, inputs_on_host, outputs_on_host, announcer) -> Program:
        """Return the program of a graph, with the options of this linker."""
        with natively(self.native):  # inner graphs too
            return emit(
                fgraph,
                self.xp,
                order,
                observe=self.observe,
                updates=fgraph.update_mapping or {},
                inputs_on_host=inputs_on_host,
                outputs_on_host=outputs_on_host,
                outputs_anywhere=range(len(fgraph.outputs)) if self.outputs == EITHER else (),
                announcer=announcer,
                narrow=self.narrow,
            )

    def _link_program(self, fgraph, order, *storage) -> tuple[Program, Callable]:
        """Return the program of a graph, and the function that the thunk calls to run it."""
        program = self.fgraph_convert(fgraph, order, *storage)
        return program, program.function

    def _copy_to_device(self, function: Callable, k: int, value: Any) -> Any:
        """Copy the value of a shared variable, input ``k``, to the device; return the copy."""
        return to_device(value, self.xp)

    def create_thunk_inputs(self, storage_map) -> list[list]:
        """Return the one-element cells that hold the values of the graph's inputs."""
        return [storage_map[variable] for variable in self.fgraph.inputs]

    def jit_compile(self, fn):
        """Return ``fn``: a program is compiled when it is emitted."""
        return fn

    def create_jitable_thunk(self, compute_map, order, input_storage, output_storage, storage_map):
        """Return ``([thunk], nodes, program)``; this thunk, not the base class's, names the node that failed.

        The thunk's attribute ``run`` is for callers that do without PyTensor's own function: it takes the
        list of values of all inputs but shared variables, and returns the values of the outputs, then of the
        updates.
        """
        fgraph = self.fgraph
        program, function = self._link_program(fgraph, order, input_storage, output_storage, storage_map)
        inputs = self.create_thunk_inputs(storage_map)
        outputs = [storage_map[variable] for variable in fgraph.outputs]
        on_device = [
            (k, cell)
            for k, (variable, cell) in enumerate(zip(fgraph.inputs, inputs, strict=True))
            if k in program.device_inputs and isinstance(variable, SharedVariable)
        ]
        n_given = sum(not isinstance(variable, SharedVariable) for variable in fgraph.inputs)
        given, held = inputs[:n_given], inputs[n_given:]  # held: the cells of shared variables
        # What a node's own Python implementation looks up may be in the script's context.
        own_context = bool(program.host_nodes)

        def run(values):
            for k, cell in on_device:
                if is_on_host(cell[0]):
                    cell[0] = self._copy_to_device(function, k, cell[0])
            if held:
                values = [*values, *[cell[0] for cell in held]]
            try:
                # Infinities and NaN are values here, as in every other linker.
                if own_context:
                    with np.errstate(all="ignore"):
                        return function(*values)
                return IGNORING.copy().run(function, *values)
            except Exception as error:
                program.blame(error)
                node = program.failed_node(error)
                if node is None:
                    raise
                raise_with_op(fgraph, node)

        def thunk():
            values = run([cell[0] for cell in given])
            for cell, value in zip(outputs, values, strict=True):
                cell[0] = value

        thunk.run = run
        thunk.inputs, thunk.outputs, thunk.lazy = inputs, outputs, False
        return [thunk], order[-1:], program

    def _judge_host_nodes(self, program: Program) -> None:
        if self.host_ops == "allow" or not program.host_nodes:
            return
        names = ", ".join(sorted({str(node.op) for node in program.host_nodes}))
        message = (
            f"no array entry for {names}: runs on the host. Register one with "
            "synk.compile.array_funcify.register(type(op)), or pass ArrayLinker(host_ops='allow')"
        )
        if self.host_ops == "raise":
            raise NotImplementedError(message)
        warnings.warn(message, stacklevel=2)


def array_mode(linker: ArrayLinker | None = None) -> Mode:
    """Return a mode for ``pytensor.function`` that makes array programs.

    Parameters
    ----------
    linker : ArrayLinker, optional
        Default: a new ``ArrayLinker()`` on NumPy.

    Returns
    -------
    pytensor.compile.mode.Mode
        All of ``fast_run``, in-place rewrites included, without Ops that exist in C alone. Elementwise
        graphs are fused where the linker's array module has kernels; what they overwrite is decided when
        the program is emitted.
    """
    linker = ArrayLinker() if linker is None else linker
    return KeepingMode(linker, array_query(linker.xp, linker.native))
