"""Elementwise kernels for CuPy's arrays, compiled by NVRTC through ``cupy.RawModule``, with a disk cache.

A kernel is compiled when it is first called, together with all kernels that are not compiled yet: so all
those of one program become one module.

    Elemwise node -> CupyKernels.kernel -> Kernel -> (first call) -> CupyKernels.build -> launches

*Unrun* on GPUs: tests compile the kernels by NVRTC, and run them on an emulator.
"""

import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply

from synk.compile.native.store import name_of
from synk.compile.programs.elementwise.body import Body, Operand, elemwise_body
from synk.gpu.elementwise.cuda_access import is_number
from synk.gpu.elementwise.cuda_dialect import CUDA
from synk.gpu.elementwise.cuda_layout import lay_out
from synk.gpu.elementwise.cuda_source import OPTIONS, THREADS, source

BLOCK = (THREADS,)
MISMATCH, UNFIT = 1, 2
NAME = "KERNEL"  # placeholder for a kernel's name, which is derived from its text
MOST_LAYOUTS = 256  # launch plans that a kernel keeps, one for each set of shapes; beyond, it starts anew

Functions = tuple[Callable[..., None], Callable[..., None]]  # flat, strided


class Kernel:
    """One elementwise kernel, compiled at its first call.

    Attributes
    ----------
    function : callable
        Takes the arrays, inputs first, and writes the outputs. Returns 0; ``MISMATCH`` if lengths differ;
        ``UNFIT`` if an argument has another dtype. An input of one element may be a NumPy scalar, which is
        passed by value. Callers must read the attribute at each call, because the first call replaces it.
    """

    def __init__(self, kernels: "CupyKernels", body: Body, instead: Callable[..., int]):
        self.text = source(body, NAME)
        self.name = name_of(self.text)
        self.instead = instead  # what runs if the compiler fails
        self.function: Callable[..., int] = self._first_call
        self._inputs, self._outputs = body.inputs, body.outputs
        self._kernels = kernels

    def compiled(self, functions: Functions) -> None:
        """Use these compiled functions from the next call on."""
        self.function = Launcher(self._inputs, self._outputs, functions)

    def _first_call(self, *arrays):
        self._kernels.build(self)
        return self.function(*arrays)


class Launcher:
    """Launch one kernel with the arguments that its arrays need.

    Parameters
    ----------
    inputs, outputs : sequence of Operand
    functions : (callable, callable)
        The flat and the strided function of the kernel, called as ``function(grid, block, arguments)``.
    """

    def __init__(self, inputs: Sequence[Operand], outputs: Sequence[Operand], functions: Functions):
        self._functions = functions
        self._operands = operands = (*inputs, *outputs)
        self._dtypes = [np.dtype(operand.stored or operand.dtype) for operand in operands]
        # From last to first, since each of them is replaced by two arguments, which shifts those behind it.
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
                # An address, or else a null pointer and the value: the kernel ignores the value if it has an
                # address.
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
        """Return the launch plan for all arrays of these dtypes, shapes and strides."""
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
    """The launch for arrays of certain dtypes, shapes and strides, or the reason why there is none."""

    function: Callable[..., None] | None  # None if there is nothing to compute, or arrays do not fit
    grid: tuple[int, ...]
    integers: tuple[Any, ...]  # the kernel's first arguments
    status: int  # what the launcher returns


def _kind(operand: Operand) -> Any:
    """Return the NumPy type by which a number is passed to the kernel."""
    return np.dtype("uint8" if operand.dtype == "bool" else operand.dtype).type


class CupyKernels:
    """Make and compile the elementwise kernels of one process.

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
            Called in place of `Kernel.function`, with the same arguments, if the compiler fails.
        reads, gives : sequence of str, optional
            For each input and output, the 16-bit dtype that it is stored in, or "".

        Raises
        ------
        NoTemplate
            If one of the node's Ops cannot be written in CUDA.
        """
        kernel = Kernel(self, elemwise_body(node, CUDA, reads, gives), instead)
        self._waiting.append(weakref.ref(kernel))
        return kernel

    def build(self, kernel: Kernel) -> None:
        """Compile ``kernel``, and all other kernels that have not been compiled yet, in one module."""
        waiting = [kernel, *(other for ref in self._waiting if (other := ref()) is not None)]
        self._waiting.clear()
        # Sorted by name, so that the same kernels always make the same text, which is the key of CuPy's
        # cache.
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


cupy_kernels = cache(CupyKernels)  # one for each array module
