"""Kernels of NumPy arrays, compiled by the system's C compiler.

A kernel is compiled when it is first called, together with all others that wait by then: those of one
program cost one start of the compiler, and nothing where the store has them.

    Elemwise node -> CKernels.kernel -> Kernel -> (first call) -> CKernels.build -> function in C
"""

import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property

from pytensor.graph.basic import Apply

from synk.compile.elementwise.body import elemwise_body
from synk.compile.elementwise.c_source import CSource, c_source, prelude, translation_unit
from synk.compile.elementwise.dialect import c_dialect
from synk.native.compilation import CompileError
from synk.native.compiler import Compiler, vector_functions
from synk.native.libraries import Libraries, SourceText, kernel_of
from synk.native.store import Store, name_of


class Kernel:
    """One compiled loop.

    Attributes
    ----------
    function : callable
        Takes the arrays, inputs first, fills in the outputs, and returns 0, ``MISMATCH`` or ``UNFIT``
        (see `c_source`). Read it at each call: the first one replaces it.
    """

    def __init__(self, kernels: "CKernels", source: CSource, n_arrays: int, instead: Callable[..., int]):
        self.source, self.n_arrays = source, n_arrays
        self.instead = instead  # what runs if the compiler fails
        self.function: Callable[..., int] = self._first_call
        self._kernels = kernels

    def _first_call(self, *arrays):
        self._kernels.build(self)
        return self.function(*arrays)


class CKernels:
    """The kernels of one process.

    Parameters
    ----------
    compiler : Compiler
        Compiles them.
    store : Store
        Keeps them.
    """

    def __init__(self, compiler: Compiler, store: Store):
        self.compiler = compiler
        self.libraries = Libraries(compiler, store)
        self._vectorised = vector_functions()
        self.dialect = c_dialect(self._vectorised)
        self._waiting: list[weakref.ref[Kernel]] = []
        self._loaded: dict[str, Callable[..., int]] = {}
        self._failed = False  # which is said once

    def kernel(self, node: Apply, instead: Callable[..., int]) -> Kernel:
        """Return a kernel that computes an Elemwise node.

        Parameters
        ----------
        node : Apply
            Of an Elemwise.
        instead : callable
            As `Kernel.function`; runs if the compiler fails.

        Raises
        ------
        NoTemplate
            It cannot be written in C.
        """
        source = c_source(elemwise_body(node, self.dialect))
        kernel = Kernel(self, source, len(node.inputs) + len(node.outputs), instead)
        self._waiting.append(weakref.ref(kernel))
        return kernel

    def build(self, kernel: Kernel) -> None:
        """Load or compile ``kernel``, and all others that wait."""
        waiting = [kernel, *(other for ref in self._waiting if (other := ref()) is not None)]
        self._waiting.clear()
        missing = [kernel for kernel in waiting if not self._find(kernel)]
        if not missing:
            return
        try:
            self._compile(missing)
        except CompileError as error:
            for kernel in missing:
                kernel.function = kernel.instead
            if not self._failed:
                self._failed = True
                warnings.warn(f"{error}\nGraphs run unfused; set CC to a C compiler that works", stacklevel=3)

    def name(self, source: CSource) -> str:
        """Return the name of a kernel: a digest of all that its machine code depends on."""
        return name_of(self._environment, source.text, *map(str, sorted(source.functions)))

    @cached_property
    def _environment(self) -> str:
        return "\n".join([self.compiler.fingerprint, *sorted(self._vectorised), prelude()])

    def _find(self, kernel: Kernel) -> bool:
        """Take a kernel from those loaded already or from the store."""
        name = self.name(kernel.source)
        if name not in self._loaded:
            library = self.libraries.find(name)
            if library is None:
                return False
            try:
                self._loaded[name] = kernel_of(library, name, kernel.n_arrays)
            except (AttributeError, ValueError):
                return False
        kernel.function = self._loaded[name]
        return True

    def _compile(self, kernels: Sequence[Kernel]) -> None:
        by_name = {self.name(kernel.source): kernel for kernel in kernels}
        source = translation_unit({name: k.source for name, k in by_name.items()}, self._vectorised)
        (library,) = self.libraries.make([SourceText(source, tuple(by_name))])
        if isinstance(library, CompileError):
            raise library
        try:
            for name, kernel in by_name.items():
                self._loaded[name] = kernel_of(library, name, kernel.n_arrays)
        except (AttributeError, ValueError) as error:
            raise CompileError(f"{self.compiler.command[0]} makes something else: {error}") from None
        for kernel in kernels:
            kernel.function = self._loaded[self.name(kernel.source)]
