"""A CuPy whose launches compute nothing and are written down: what they are, and what bytes they move.

    with hollow_cupy.installed() as log:      # ``import cupy`` finds it, and one H200 is said to be there
        synk.fork(1, device="cuda", precision="bfloat16")
        ...
        log.launches.clear(); step(x, y); log.launches     # of one step, in order

Arrays have shapes, dtypes and addresses, but hardly a page of them is ever touched: programs run with the
shapes of a GPU's batches, and what is left of their time is Python's. Bytes are those of the arrays that a
launch is given, each read or written once; what it reads again, and workspaces, are not seen.

Results are garbage: for programs whose course depends on lengths only.
"""

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from unittest.mock import patch

import numpy as np

from support.cudnn import fake_cudnn
from support.cupy import fake_cublas, fake_cupy, stand_in
from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.device.probe import Gpu, Survey
from synk.gpu.kernels.cudnn import find_cudnn, handle
from synk.run.rank.program import RankProgram

SMALL = 1 << 16  # bytes: what is not larger is computed after all, where that is a function of arrays
NAMES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}  # of cuBLAS's types


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes
    ----------
    name : str
        Of the kernel, the operation of cuDNN, or the function of CuPy.
    arrays : tuple of (str, tuple of int)
        dtype and shape of each array that is read or written.
    node, program : str
        The Op that launched it and the function that it is part of; empty where there is none.
    flops : int
        Of a product.
    """

    name: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    node: str = ""
    program: str = ""
    flops: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(np.dtype(dtype).itemsize * prod(shape) for dtype, shape in self.arrays)


@dataclass
class Log:
    """Launches in order; ``node`` and ``program`` are what runs."""

    launches: list[Launch] = field(default_factory=list)
    node: str = ""
    program: str = ""

    def note(self, name, arrays, flops=0):
        """Add a launch, of (dtype, shape) for each array."""
        self.launches.append(Launch(name, tuple(arrays), self.node, self.program, flops))

    def observe(self, node, implementation):
        """Tell launches which node they belong to: an observer of programs."""
        name = str(node.op)

        def run(*inputs, **keywords):
            before, self.node = self.node, name
            try:
                return implementation(*inputs, **keywords)
            finally:
                self.node = before

        return run


@contextmanager
def installed(observed=True):
    """Let ``import cupy`` find it; yield the `Log`.

    Parameters
    ----------
    observed : bool
        Whether launches are told their nodes. Programs that are observed are not recorded in CUDA graphs.
    """
    log = Log()
    before = {*sys.modules}
    with ExitStack() as undo:
        replace = lambda *what: undo.enter_context(patch.object(*what))  # noqa: E731
        replace(fake_cublas, "gemmStridedBatchedEx", _gemm(log))
        replace(stand_in, "_run", _runner(log, stand_in._run))
        replace(RankProgram, "run_whole", _named(log, RankProgram.run_whole))
        if observed:
            replace(CudaDevice, "mode", _observed(log, CudaDevice.mode))
        cupy = fake_cupy.make(n_gpus=1)
        cupy.RawModule = _raw_module(log)
        _give_cudnn(cupy, log, undo)
        undo.enter_context(
            patch("synk.gpu.setup.choose_gpus.survey", lambda: Survey((Gpu(0, "NVIDIA H200"),))),
        )
        try:
            yield log
        finally:
            stand_in.on_use = None
            for name in {*sys.modules} - before:
                if name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends"):
                    del sys.modules[name]


def _named(log, run_whole):
    def run(program, *arguments):
        log.program = program.spec.name or ""
        try:
            return run_whole(program, *arguments)
        finally:
            log.program = ""

    return run


def _observed(log, mode):
    return lambda device, observe=None: mode(device, observe or log.observe)


# --- libraries ---------------------------------------------------------------------------------------


def _raw_module(log):
    class RawModule:
        def __init__(self, *, code, options=()):
            pass

        def get_function(self, name):
            def launch(grid, block, arguments, *, shared_mem=0):
                arrays = [x for x in arguments if isinstance(x, stand_in.ndarray)]
                log.note(name, [(x.dtype.name, x.shape) for x in arrays])

            return launch

    return RawModule


def _give_cudnn(cupy, log, undo):
    cudnn, names = fake_cudnn.make(workspace=0), fake_cudnn.dtype_names()

    class Pygraph(cudnn.pygraph):
        def execute(self, addresses, workspace, handle=None):
            _, weights, result = self.shapes(self.target)
            tensors = [(names[t.data_type], tuple(t.dim)) for t in (*self.inputs, self.target)]
            log.note(self.name, tensors, 2 * prod(result) * prod(weights[1:]))

    cudnn.pygraph = Pygraph
    undo.enter_context(patch.object(find_cudnn, "find", lambda: find_cudnn.FoundCudnn(cudnn)))
    for cached in (handle.plans, handle._handles):
        cached.cache_clear()
        undo.callback(cached.cache_clear)
    cupy.cuda.alloc = fake_cudnn.Memory
    cupy.cuda.get_device_id = lambda: cupy.cuda.Device().id


def _gemm(log):
    def gemm(handle, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc, count, *_):
        shapes = (count, m, k), (count, k, n), (count, m, n)
        kinds = [NAMES[kind] for kind in (at, bt, ct)]
        log.note("product", zip(kinds, shapes, strict=True), 2 * m * n * k * count)

    return gemm


# --- functions of CuPy ---------------------------------------------------------------------------------


def _runner(log, run):
    def hollow(function, arguments, keywords, is_view=False, waits=False):
        name = getattr(function, "__name__", "?")
        owner = getattr(function, "__self__", None)
        owner = owner if isinstance(owner, np.ndarray) else None
        if is_view or name == "empty_like" or _is_there(name, owner, arguments, keywords):
            return run(function, arguments, keywords, True)
        given = [x for x in (*arguments, *keywords.values()) if isinstance(x, stand_in.ndarray | np.ndarray)]
        if owner is not None:
            item = name in ("__setitem__", "__getitem__") and _is_basic(arguments[0])
            given.append(owner[arguments[0]] if item else owner)
        if max([x.nbytes for x in given], default=0) <= SMALL:
            result = run(function, arguments, keywords, is_view, waits)
        else:
            result = _shaped(function, name, owner, arguments, keywords, run)
        made = [result] if isinstance(result, stand_in.ndarray) and result is not keywords.get("out") else []
        log.note(name.strip("_"), [(x.dtype.name, x.shape) for x in (*given, *made)])
        return result

    return hollow


def _is_there(name, owner, arguments, keywords):
    """Tell whether CuPy gives back the array itself."""
    if name == "astype":
        return not keywords.get("copy", True) and owner.dtype == arguments[0]
    return name == "ascontiguousarray" and arguments[0].flags.c_contiguous


def _is_basic(key):
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or part is ... or isinstance(part, slice | int | np.integer) for part in parts)


def _shaped(function, name, owner, arguments, keywords, run):
    """Return an array of the shape and dtype that a function would give."""
    out = keywords.get("out")
    if name in ("__setitem__", "fill") or out is not None:
        return out
    if name == "astype":
        dtype = arguments[0] if arguments else keywords["dtype"]
        return stand_in.ndarray(np.empty_like(owner, dtype))
    if name in ("copy", "ascontiguousarray"):
        source = arguments[0]._value if owner is None else owner
        return stand_in.ndarray(np.empty(source.shape, source.dtype))
    if isinstance(function, np.ufunc):
        arrays = [x._value if isinstance(x, stand_in.ndarray) else x for x in arguments]
        one = [np.ones((1,) * x.ndim, x.dtype) if isinstance(x, np.ndarray) else x for x in arrays]
        shape = np.broadcast_shapes(*map(np.shape, arrays))
        return stand_in.ndarray(np.empty(shape, function(*one, **keywords).dtype))
    return run(function, arguments, keywords)
