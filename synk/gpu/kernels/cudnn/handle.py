"""cuDNN as one thread uses it on one GPU: a handle, bound to CuPy's stream, and workspaces.

    current thread, current GPU -> CudnnHandle -> plan (made once in a process) -> execute on current stream

Handles and plans live as long as the process, like its CUDA; a process never forks after it has one.
Workspaces come from CuPy's allocator, and are freed with their stream.

This has run on the tests' replacement of cuDNN only, and on no GPU yet.
"""

from __future__ import annotations

import threading
import warnings
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from synk.gpu.kernels.cudnn import find_cudnn
from synk.gpu.kernels.cudnn.cudnn_plan import CudnnPlan, UnsupportedByCudnn, make_plan
from synk.gpu.kernels.cudnn.descriptor import Descriptor

MOST_PLANS = 1024  # of a process; a network has some hundred


class CudnnHandle:
    """A handle of cuDNN for one thread and one GPU, with its workspaces."""

    def __init__(self, cudnn: Any, cupy: Any, gpu: int):
        self.gpu = gpu
        self._cudnn, self._cupy = cudnn, cupy
        self._handle = cudnn.create_handle()
        self._bound: int | None = None  # the stream that the handle launches in
        self._workspaces: WeakKeyDictionary[Any, tuple[int, Any]] = WeakKeyDictionary()

    def plan(self, descriptor: Descriptor) -> CudnnPlan:
        """Return the plan for a descriptor: one that this process keeps, or a new one by `make_plan`."""
        kept, lock = plans()
        key = self.gpu, descriptor
        with lock:
            plan = kept.get(key)
            if plan is None:
                plan = make_plan(self._cudnn, descriptor, handle=self._handle)
                if len(kept) >= MOST_PLANS:
                    del kept[next(iter(kept))]
                kept[key] = plan
        return plan

    def execute(self, plan: CudnnPlan, pointers: dict[int, int]) -> None:
        """Launch a plan in the current stream; raise RuntimeError if cuDNN refuses.

        ``pointers`` are the addresses of the arrays, multiples of 16, by identifier.
        """
        stream = self._cupy.cuda.get_current_stream()
        if stream.ptr != self._bound:
            self._cudnn.set_stream(handle=self._handle, stream=stream.ptr)
            self._bound = stream.ptr
        memory = self._workspace(stream, plan.workspace) if plan.workspace else None
        try:
            plan.graph.execute(pointers, 0 if memory is None else memory.ptr, self._handle)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(f"cuDNN fails in {plan.descriptor}: {error}") from error

    def _workspace(self, stream: Any, n_bytes: int) -> Any:
        """Return memory of ``n_bytes`` that the next kernels of the stream may write to."""
        if stream.is_capturing():
            # A recorded launch writes to its workspace at every replay, so that must live as long as the
            # recording: it comes from the recording's pool. The one kept below may be freed earlier.
            return self._cupy.cuda.alloc(n_bytes)
        size, memory = self._workspaces.get(stream, (0, None))
        if size < n_bytes:
            # The allocator does not give the old workspace to another stream while kernels still write to it.
            self._workspaces.pop(stream, None)
            memory = self._cupy.cuda.alloc(n_bytes)
            self._workspaces[stream] = n_bytes, memory
        return memory


@cache
def plans() -> tuple[dict[tuple[int, Descriptor], CudnnPlan], threading.Lock]:
    """Return this process's plans, by GPU and descriptor, and the lock that guards them."""
    return {}, threading.Lock()


@cache
def _handles() -> threading.local:
    return threading.local()


def handle_of(cupy: Any) -> CudnnHandle:
    """Return the handle of the calling thread for its current GPU; RuntimeError if cuDNN makes none."""
    gpu = cupy.cuda.get_device_id()
    of_thread = _handles().__dict__
    found = of_thread.get(gpu)
    if found is None:
        found = of_thread[gpu] = CudnnHandle(find_cudnn.find().module, cupy, gpu)
    return found


def plan_or_none(cupy: Any, descriptor: Descriptor) -> CudnnPlan | None:
    """Return the plan for a descriptor, or None if another provider must compute it.

    Warn if cuDNN fails, but not if it merely has no engine for the geometry.
    """
    if descriptor.is_empty:
        return None
    try:
        return handle_of(cupy).plan(descriptor)
    except UnsupportedByCudnn:
        return None
    except RuntimeError as error:
        warnings.warn(
            f"cuDNN fails, and matrix products take its place, slower: {descriptor}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
