"""Primitives and their memory objects for one set of shapes, ready to run.

    ConvolutionPlan(arrays): write the arrays' addresses into the memory objects, then run the steps in order

A `PlanBuilder` makes a plan, which takes milliseconds; to run it costs microseconds of Python.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from synk.compile.native.methods import HEAD, layout_is_known
from synk.ops.kernels.onednn.binding import failure
from synk.ops.kernels.onednn.engine import Engine


class PlanStep(NamedTuple):
    """A primitive, its arguments, and oneDNN's name of its implementation."""

    primitive: int
    arguments: Any  # ctypes array of Argument
    implementation: str


class PlanParts(NamedTuple):
    """The memory objects, steps and scratch memory of a plan."""

    slots: tuple[int, ...]  # memory objects of the result and of the inputs
    steps: tuple[PlanStep, ...]
    placed: tuple[tuple[int, int], ...]  # memory object, offset in the workspace
    workspace: int  # bytes
    zeroes: bool  # whether the result is filled with zeros first
    constants: tuple[np.ndarray, ...]
    handles: tuple[tuple[Callable, int], ...]  # a function that destroys, and the handle for it


class ConvolutionPlan:
    """Compute one result from arrays of one set of shapes.

    It uses ``workspace`` bytes of the engine's workspace; ``implementations`` are oneDNN's names of the
    implementations that its steps run.
    """

    def __init__(self, engine: Engine, parts: PlanParts):
        self.workspace = parts.workspace
        self.implementations = tuple(step.implementation for step in parts.steps)
        self._engine, self._parts, self._base = engine, parts, 0
        self._steps = tuple(
            (s.primitive, len(s.arguments), ctypes.addressof(s.arguments)) for s in parts.steps
        )
        self._set, self._execute = engine.api.dnnl_memory_set_data_handle, engine.api.dnnl_primitive_execute
        self._pointer = pointer_reader()
        # At exit the system takes everything back, and the library may be gone by then.
        weakref.finalize(self, destroy_all, parts.handles).atexit = False

    def __call__(self, out: np.ndarray, *arrays: np.ndarray) -> None:
        """Compute ``out`` from ``arrays``, which come in the order of the calls of `PlanBuilder.array`.

        All are C-contiguous float32 arrays, of the shapes that the plan was made for.
        """
        engine = self._engine
        with engine.lock:
            if self.workspace:
                self._place()
            set_handle, pointer = self._set, self._pointer
            for slot, array in zip(self._parts.slots, (out, *arrays), strict=True):
                set_handle(slot, pointer(array))
            if self._parts.zeroes:
                out.fill(0)
            before = engine.use_threads()
            try:
                self._run()
            finally:
                engine.set_threads(before)

    def _run(self) -> None:
        execute, stream = self._execute, self._engine.stream
        for primitive, count, arguments in self._steps:
            status = execute(primitive, stream, count, arguments)
            if status:
                raise failure(status, "dnnl_primitive_execute")

    def _place(self) -> None:
        """Write the addresses of scratch memory into the memory objects, if the workspace has moved."""
        workspace = self._engine.workspace
        workspace.grow(self.workspace)
        if self._base != workspace.address:
            self._base = workspace.address
            for handle, offset in self._parts.placed:
                self._set(handle, self._base + offset)


def destroy_all(handles: Sequence[tuple[Callable, int]]) -> None:
    """Destroy primitives and memory objects."""
    for destroy, handle in handles:
        destroy(handle)


@cache
def pointer_reader() -> Callable[[Any], int]:
    """Return a function that returns the address of an array's first element.

    ``array.ctypes.data`` builds an object, which takes ten times as long as reading the array's C structure.
    """
    if not layout_is_known():
        return lambda array: array.ctypes.data
    word, head = ctypes.c_ssize_t.from_address, HEAD
    return lambda array: word(id(array) + head).value
