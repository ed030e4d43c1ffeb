"""Make a plan: create primitives and memory objects, and give buffers their places in the workspace.

    array(layout), buffer(descriptors), step(primitive descriptor, memory objects), ...
        -> finish() -> ConvolutionPlan

Buffers lie in the engine's workspace, one after the other. The scratchpads of all steps share one place
behind them.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from synk.ops.kernels.onednn import binding
from synk.ops.kernels.onednn.binding import Argument, Unsupported, created
from synk.ops.kernels.onednn.convolution_plan import ConvolutionPlan, PlanParts, PlanStep, destroy_all
from synk.ops.kernels.onednn.engine import PAGE, Engine
from synk.ops.kernels.onednn.shapes import ArrayLayout, contiguous


@dataclass(frozen=True)
class MemoryObject:
    """A memory object of oneDNN, and its descriptor, which is freed when planning is over."""

    handle: int
    descriptor: int


class PlanBuilder:
    """Collect the steps of a plan; as a context manager, free what only planning needs when it ends.

    ``zeroes`` says whether the result is to be filled with zeros before the first step.
    """

    def __init__(self, engine: Engine):
        self.engine, self.api, self.zeroes = engine, engine.api, False
        self._temporary = contextlib.ExitStack()
        self._handles: list[tuple[Callable, int]] = []
        self._slots: list[int] = []
        self._steps: list[PlanStep] = []
        self._placed: list[tuple[int, int]] = []  # memory object, offset
        self._scratchpads: list[tuple[int, int]] = []  # memory object, bytes
        self._constants: list[np.ndarray] = []
        self._buffers = 0  # bytes

    def __enter__(self) -> PlanBuilder:
        self._temporary.enter_context(self.engine.lock)
        self._temporary.callback(self.engine.set_threads, self.engine.use_threads())
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self._temporary.close()
        if kind is not None:
            destroy_all(self._handles)

    def finish(self) -> ConvolutionPlan:
        """Return the plan of the steps so far."""
        scratchpads = [(handle, self._buffers) for handle, _ in self._scratchpads]
        parts = PlanParts(
            slots=tuple(self._slots),
            steps=tuple(self._steps),
            placed=(*self._placed, *scratchpads),
            workspace=self._buffers + max((size for _, size in self._scratchpads), default=0),
            zeroes=self.zeroes,
            constants=tuple(self._constants),
            handles=tuple(self._handles),
        )
        return ConvolutionPlan(self.engine, parts)

    def array(self, layout: ArrayLayout) -> MemoryObject:
        """Return a memory object for the result or for an input, whose array is given anew to each run.

        Call this for the result first, then for the inputs: a run takes its arrays in the same order.
        """
        memory = self._memory(self.descriptor(layout))
        self._slots.append(memory.handle)
        return memory

    def buffer(self, *descriptors: int) -> tuple[MemoryObject, ...]:
        """Return a memory object for each descriptor; all are views of one place in the workspace."""
        memories = tuple(self._memory(descriptor) for descriptor in descriptors)
        self._placed += [(memory.handle, self._buffers) for memory in memories]
        size = max(self.api.dnnl_memory_desc_get_size(descriptor) for descriptor in descriptors)
        self._buffers += size + -size % PAGE
        return memories

    def descriptor(self, layout: ArrayLayout) -> int:
        """Return a memory descriptor, which is freed when planning is over."""
        return self._for_now(describe(self.api, layout), self.api.dnnl_memory_desc_destroy)

    def attributes(self, relu: bool = False) -> int:
        """Return the attributes of a primitive, whose result is rectified if ``relu``.

        oneDNN's own ReLU turns NaN into zero, which would hide that a training diverges. Its leaky ReLU with
        a slope of zero, ``prelu``, keeps NaN at no cost; it turns negative numbers into -0.0 and minus
        infinity into NaN. A step of such a primitive takes `slope` as an argument.
        """
        api = self.api
        attributes = self._for_now(created(api.dnnl_primitive_attr_create), api.dnnl_primitive_attr_destroy)
        api.dnnl_primitive_attr_set_scratchpad_mode(attributes, binding.USER_SCRATCHPAD)
        if relu:
            operations = self._for_now(created(api.dnnl_post_ops_create), api.dnnl_post_ops_destroy)
            api.dnnl_post_ops_append_prelu(operations, 0)
            api.dnnl_primitive_attr_set_post_ops(attributes, operations)
        return attributes

    def slope(self, ndim: int) -> dict[int, MemoryObject]:
        """Return the argument for the slope, zero, of a primitive that rectifies; see `attributes`.

        ``ndim`` is the number of axes of the primitive's result.
        """
        memory = self._memory(self.descriptor(contiguous(*[1] * ndim)))
        # Only one number counts, but some implementations load it as a vector of 16.
        zeros = np.zeros(16, "float32")
        self._constants.append(zeros)
        self.api.dnnl_memory_set_data_handle(memory.handle, zeros.ctypes.data)
        return {binding.FIRST_POST_OPERATION | binding.WEIGHTS: memory}

    def primitive(self, function: Any, *arguments: Any, prefer: str = "") -> int:
        """Make a primitive descriptor with one of oneDNN's functions, and return it.

        ``arguments`` lack the function's first one, a place for the descriptor. The first implementation
        whose name contains ``prefer`` is taken, if there is one. Raise `Unsupported` if there is no
        implementation, or only oneDNN's reference, a slow loop over elements.
        """
        first = self._made(function, arguments)
        if implementation(self.api, first).startswith("ref"):
            raise Unsupported(f"oneDNN has only {implementation(self.api, first)} for this")
        if prefer:
            wanted = self._made(function, arguments)
            while prefer not in implementation(self.api, wanted):
                if self.api.dnnl_primitive_desc_next_impl(wanted) != binding.SUCCESS:
                    return first
            return wanted
        return first

    def step(self, primitive_descriptor: int, arguments: Mapping[int, MemoryObject]) -> None:
        """Add a step that runs a primitive; ``arguments`` maps roles, such as SOURCE, to memory objects."""
        api = self.api
        primitive = created(api.dnnl_primitive_create, primitive_descriptor)
        self._handles.append((api.dnnl_primitive_destroy, primitive))
        given = [(kind, memory.handle) for kind, memory in arguments.items()]
        scratchpad = self.query(primitive_descriptor, binding.SCRATCHPAD_DESCRIPTOR)
        size = api.dnnl_memory_desc_get_size(scratchpad) if scratchpad else 0
        if size:
            handle = self._memory(scratchpad).handle
            self._scratchpads.append((handle, size))
            given.append((binding.SCRATCHPAD, handle))
        array = (Argument * len(given))(*(Argument(*pair) for pair in given))
        self._steps.append(PlanStep(primitive, array, implementation(api, primitive_descriptor)))

    def reorder(self, source: MemoryObject, target: MemoryObject) -> None:
        """Add a step that copies all elements of ``source`` to their places in the layout of ``target``."""
        api, engine = self.api, self.engine.handle
        ends = source.descriptor, engine, target.descriptor, engine
        primitive = self.primitive(api.dnnl_reorder_primitive_desc_create, *ends, self.attributes())
        self.step(primitive, {binding.SOURCE: source, binding.TARGET: target})

    def query(self, primitive_descriptor: int, what: int) -> int:
        """Return the memory descriptor that a primitive wants for an array; ``what`` is which one."""
        return self.api.dnnl_primitive_desc_query_md(primitive_descriptor, what, 0)

    def _made(self, function: Any, arguments: tuple) -> int:
        return self._for_now(created(function, *arguments), self.api.dnnl_primitive_desc_destroy)

    def _for_now(self, handle: int, destroy: Callable) -> int:
        self._temporary.callback(destroy, handle)
        return handle

    def _memory(self, descriptor: int) -> MemoryObject:
        handle = created(self.api.dnnl_memory_create, descriptor, self.engine.handle, None)
        self._handles.append((self.api.dnnl_memory_destroy, handle))
        return MemoryObject(handle, descriptor)


def implementation(api: Any, primitive_descriptor: int) -> str:
    """Return oneDNN's name of the implementation of a primitive, such as ``brgconv:avx512_core``."""
    name = ctypes.c_char_p()
    api.dnnl_primitive_desc_query(primitive_descriptor, binding.IMPLEMENTATION, 0, ctypes.byref(name))
    return (name.value or b"").decode()


def describe(api: Any, layout: ArrayLayout) -> int:
    """Return a new memory descriptor of float32 elements."""
    ndim, lengths = len(layout.lengths), binding.Dims(*layout.lengths)
    make: Any
    order: Any
    if layout.strides is None:
        make, order = api.dnnl_memory_desc_create_with_tag, binding.ANY
    else:
        make, order = api.dnnl_memory_desc_create_with_strides, binding.Dims(*layout.strides)
    return binding.created(make, ndim, lengths, binding.FLOAT32, order)
