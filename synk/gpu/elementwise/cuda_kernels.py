"""Kernels of CuPy's arrays, compiled by NVRTC through ``cupy.RawModule``, which keeps them on disk.

A kernel is compiled when it is first called, together with all others that wait by then: those of one
program are one module.

    Elemwise node -> CupyKernels.kernel -> Kernel -> (first call) -> CupyKernels.build -> launches

*Unrun* on GPUs: tests compile the kernels by NVRTC, and run them on an emulator. Imports NumPy and PyTensor.
"""

import warnings
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply

from synk.compile.native.store import name_of
from synk.compile.programs.elementwise.body import Body, Operand, elemwise_body
from synk.compile.programs.elementwise.dialect import CUDA
from synk.gpu.elementwise.cuda_access import is_number
from synk.gpu.elementwise.cuda_layout import lay_out
from synk.gpu.elementwise.cuda_source import OPTIONS, THREADS, source

BLOCK = (THREADS,)
MISMATCH, UNFIT = 1, 2
NAME = "KERNEL"  # stands for the name that a kernel gets when it is compiled
MOST_LAYOUTS = 256  # kept by a kernel; a program that meets more shapes works them out anew

Functions = tuple[Callable[..., None], Callable[..., None]]  # flat, strided


class Kernel:
    """One elementwise kernel.

    Attributes
    ----------
    function : callable
        Takes the arrays, inputs first, fills in the outputs, and returns 0; ``MISMATCH`` if
        lengths differ; ``UNFIT`` if an argument has another dtype. Inputs of one element may be NumPy's
        numbers, which travel with the launch. Read it at each call: the first one replaces it.
    """

    def __init__(self, kernels: "CupyKernels", body: Body, instead: Callable[..., int]):
        self.text = source(body, NAME)
        self.name = name_of(self.text)
        self.instead = instead  # what runs if the compiler fails
        self.function: Callable[..., int] = self._first_call
        self._inputs, self._outputs = body.inputs, body.outputs
        self._kernels = kernels

    def compiled(self, functions: Functions) -> None:
        """Launch ``functions`` from now on."""
        self.function = Launcher(self._inputs, self._outputs, functions)

    def _first_call(self, *arrays):
        self._kernels.build(self)
        return self.function(*arrays)


class Launcher:
    """Launches one kernel, with what it needs to know of its arrays.

    Parameters
    ----------
    inputs, outputs : sequence of Operand
    functions : (callable, callable)
        ``function(grid, block, arguments)``, flat and strided.
    """

    def __init__(self, inputs: Sequence[Operand], outputs: Sequence[Operand], functions: Functions):
        self._functions = functions
        self._operands = operands = (*inputs, *outputs)
        self._dtypes = [np.dtype(operand.stored or operand.dtype) for operand in operands]
        # From the last one: what is put in there moves none of the others.
        kinds = [(k, _kind(operand)) for k, operand in enumerate(inputs) if is_number(operand)]
        self._numbers = [(k, kind, kind(0)) for k, kind in reversed(kinds)]
        self._plans: dict[Any, LaunchPlan] = {}

    def __call__(self, *arrays: Any) -> int:
        key = tuple([None if isinstance(x, np.generic) else (x.dtype, x.shape, x.strides) for x in arrays])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._planned(key, arrays)
        function, grid, integers, status = plan
        if function is not None:
            arguments: list[Any] = [*integers, *arrays]
            for k, kind, zero in self._numbers:
                # The address of an array, or a number by its value: the other one is not looked at.
                by_value, at = isinstance(arrays[k], np.generic), k + len(integers)
                arguments[at : at + 1] = (None, kind(arrays[k])) if by_value else (arrays[k], zero)
            function(grid, BLOCK, arguments)
        return status

    def _planned(self, key: Any, arrays: Sequence[Any]) -> "LaunchPlan":
        if len(self._plans) == MOST_LAYOUTS:
            self._plans.clear()
        plan = self._plans[key] = self._plan(arrays)
        return plan

    def _plan(self, arrays: Sequence[Any]) -> "LaunchPlan":
        """Decide how to launch; the answer holds for all arrays of these dtypes, shapes and strides."""
        numbers = [k for k, *_ in self._numbers]
        geometries: list[Any] = []
        for k, (array, dtype) in enumerate(zip(arrays, self._dtypes, strict=True)):
            by_value = isinstance(array, np.generic)
            if k not in numbers if by_value else array.dtype != dtype:
                return LaunchPlan(None, (), (), UNFIT)
            geometries.append(None if by_value else (array.shape, array.strides))
        layout = lay_out(self._operands, geometries, [dtype.itemsize for dtype in self._dtypes])
        if layout is None:
            return LaunchPlan(None, (), (), MISMATCH)
        function = self._functions[not layout.flat] if layout.blocks else None
        return LaunchPlan(function, (layout.blocks,), layout.integers, 0)


class LaunchPlan(NamedTuple):
    """The launch for a kind of arrays, or the reason why there is none."""

    function: Callable[..., None] | None  # None: there is nothing to compute, or no way
    grid: tuple[int, ...]
    integers: tuple[Any, ...]  # the kernel's first arguments
    status: int  # what the launcher returns


def _kind(operand: Operand) -> Any:
    """Return the type in which a number is handed over."""
    return np.dtype("uint8" if operand.dtype == "bool" else operand.dtype).type


class CupyKernels:
    """The kernels of one process.

    Parameters
    ----------
    xp : module
        CuPy.
    """

    dialect = CUDA

    def __init__(self, xp: ModuleType):
        self.xp = xp
        self._waiting: list[weakref.ref[Kernel]] = []
        self._compiled: dict[str, Functions] = {}

    def kernel(
        self, node: Apply, instead: Callable[..., int], reads: Sequence[str] = (), gives: Sequence[str] = ()
    ) -> Kernel:
        """Return a kernel that computes an Elemwise node.

        Parameters
        ----------
        node : Apply
            Of an Elemwise.
        instead : callable
            As `Kernel.function`; runs if the compiler fails.
        reads, gives : sequence of str, optional
            Which inputs and outputs are stored in 16 bits, as `body.Operand` has it.

        Raises
        ------
        NoTemplate
            It cannot be written in CUDA.
        """
        kernel = Kernel(self, elemwise_body(node, CUDA, reads, gives), instead)
        self._waiting.append(weakref.ref(kernel))
        return kernel

    def build(self, kernel: Kernel) -> None:
        """Compile ``kernel``, and all others that wait, unless they have been compiled before."""
        waiting = [kernel, *(other for ref in self._waiting if (other := ref()) is not None)]
        self._waiting.clear()
        # In an order that does not hang on when they were made: CuPy's cache goes by the whole text.
        missing = {k.name: k.text for k in waiting if k.name not in self._compiled}
        try:
            if missing:
                self._compile(dict(sorted(missing.items())))
        except Exception as error:  # of NVRTC, of CUDA's driver, or that NVRTC is not there at all
            warnings.warn(
                f"{type(error).__name__}: {error}\nGraphs run unfused on the GPU, several times slower; "
                "install CuPy with the NVRTC of its version of CUDA",
                stacklevel=3,
            )
        for one in waiting:
            if one.name in self._compiled:
                one.compiled(self._compiled[one.name])
            else:
                one.function = one.instead

    def _compile(self, texts: dict[str, str]) -> None:
        code = "\n".join(text.replace(NAME, name) for name, text in texts.items())
        module = self.xp.RawModule(code=code, options=OPTIONS)
        made = {
            name: (module.get_function(f"{name}_flat"), module.get_function(f"{name}_strided"))
            for name in texts
        }
        self._compiled.update(made)
