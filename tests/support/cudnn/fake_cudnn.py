"""A fake of cuDNN's front end, which computes with NumPy on the memory at the given addresses.

    cudnn = fake_cudnn.make()                   graphs are computed in float64, as dims and strides say
    cupy = fake_cudnn.make_cupy(monkeypatch)    `fake_cupy` whose arrays, streams and memory have addresses

It has the names and signatures of nvidia-cudnn-frontend 1.22.1 that synk calls, and no others. It refuses
what that refuses: steps out of order, a graph whose lengths do not fit, an address that is no ``int``. Its
engines write to all of a workspace; those for float32 round to TF32 unless tensor cores are deselected.
"""

import ctypes
import sys
from enum import Enum
from itertools import count, pairwise
from types import ModuleType

import numpy as np

from support.cudnn.places_of_windows import Places
from support.cupy import fake_cupy
from synk.gpu.speedups import graphs

data_type = Enum("data_type", "NOT_SET FLOAT DOUBLE HALF BFLOAT16")
heur_mode = Enum("heur_mode", "A B FALLBACK OPENSOURCE")
build_plan_policy = Enum("build_plan_policy", "HEURISTICS_CHOICE ALL")
numerical_note = Enum(
    "numerical_note", "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION NONDETERMINISTIC"
)

STEPS = ["made", "validated", "lowered", "listed", "supported", "built"]


class cudnnGraphNotSupportedError(Exception):
    """No engine."""


class Tensor:
    def __init__(self, dim=None, stride=None, data_type=None, uid=-1, source=None):
        self.dim, self.stride, self.data_type, self.uid = dim, stride, data_type, uid
        self.source = source  # computes it, in float64 and in the order of cuDNN's axes
        self.is_output = False

    def set_output(self, value):
        self.is_output = value
        return self

    def set_uid(self, value):
        self.uid = value
        return self

    def set_dim(self, value):
        self.dim = value
        return self

    def set_stride(self, value):
        self.stride = value
        return self

    def set_data_type(self, value):
        self.data_type = value
        return self

    def at(self, address):
        """Return the memory of the tensor as an array."""
        dtype = np.dtype(dtype_names()[self.data_type])
        span = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_char * (span * dtype.itemsize)).from_address(address)
        return np.ndarray(self.dim, dtype, memory, strides=[s * dtype.itemsize for s in self.stride])


def dtype_names():
    names = {data_type.FLOAT: "float32", data_type.DOUBLE: "float64", data_type.HALF: "float16"}
    return names | {data_type.BFLOAT16: "bfloat16"}


def make(workspace=100):
    """Return the fake module; ``module.log`` lists its calls, ``module.refuses`` judges graphs."""
    cudnn = ModuleType("cudnn")
    cudnn.__version__ = "1.22.1"
    cudnn.backend_version = lambda: 91900
    for value in (data_type, heur_mode, build_plan_policy, numerical_note, cudnnGraphNotSupportedError):
        setattr(cudnn, value.__name__, value)
    cudnn.log = []
    cudnn.refuses = lambda graph: False
    cudnn.fails = False  # at every launch
    cudnn.streams = {}
    numbers = count(1)

    def create_handle():
        handle = next(numbers)
        cudnn.log.append(("handle", handle))
        cudnn.streams[handle] = 0
        return handle

    def set_stream(handle, stream):
        assert type(handle) is int
        assert type(stream) is int
        cudnn.log.append(("stream", handle, stream))
        cudnn.streams[handle] = stream

    class pygraph(Graph):
        module = cudnn
        workspace_size = workspace

    cudnn.create_handle, cudnn.set_stream, cudnn.pygraph = create_handle, set_stream, pygraph
    return cudnn


class Graph:
    module = None
    workspace_size = 0

    def __init__(
        self,
        name="test_graph",
        io_data_type=data_type.NOT_SET,
        intermediate_data_type=data_type.NOT_SET,
        compute_data_type=data_type.NOT_SET,
        handle=None,
        sm_version=None,
        device_property=None,
    ):
        assert handle in self.module.streams
        is_double = io_data_type is data_type.DOUBLE
        inner = data_type.DOUBLE if is_double else data_type.FLOAT
        assert (intermediate_data_type, compute_data_type) == (inner, inner)
        self.name, self.io = name, io_data_type
        self.inputs, self.results, self.notes, self.window = [], [], [], None
        self.step = "made"

    def _after(self, step, at=None):
        assert self.step in (step, at), f"{self.step}, and not {step}"

    def tensor(self, dim, stride, data_type=data_type.NOT_SET, uid=-1):
        self._after("made")
        assert all(type(n) is int for n in (*dim, *stride)), (dim, stride)
        tensor = Tensor(dim, stride, data_type, uid)
        self.inputs.append(tensor)
        return tensor

    def _operate(self, compute):
        self._after("made")
        result = Tensor(source=compute)
        self.results.append(result)
        return result

    def conv_fprop(self, image, weight, pre_padding, post_padding, stride, dilation):
        self.window = Places(pre_padding, post_padding, stride, dilation)
        self.shapes = lambda target: (image.dim, weight.dim, target.dim)
        return self._operate(lambda read, target: self.window.forward(read(image), read(weight)))

    def conv_dgrad(self, loss, filter, pre_padding, post_padding, stride, dilation):
        self.window = Places(pre_padding, post_padding, stride, dilation)
        self.shapes = lambda target: (target.dim, filter.dim, loss.dim)
        return self._operate(
            lambda read, target: self.window.input_gradient(read(loss), read(filter), target.dim)
        )

    def conv_wgrad(self, image, loss, pre_padding, post_padding, stride, dilation):
        self.window = Places(pre_padding, post_padding, stride, dilation)
        self.shapes = lambda target: (image.dim, target.dim, loss.dim)
        return self._operate(
            lambda read, target: self.window.weight_gradient(read(image), read(loss), target.dim)
        )

    def bias(self, input, bias):
        assert bias.dim[0] == 1
        assert bias.dim[2:] == [1, 1]
        return self._operate(lambda read, target: input.source(read, target) + read(bias, False))

    def validate(self):
        self._after("made")
        (self.target,) = [tensor for tensor in self.results if tensor.is_output]
        assert self.target is self.results[-1]
        for tensor in (*self.inputs, self.target):
            assert tensor.uid > 0
            assert tensor.data_type is self.io
            assert len(tensor.dim) == len(tensor.stride) == 4
            order = sorted(zip(tensor.stride, tensor.dim, strict=True))
            assert not any(m > 1 and s < t * n for (t, n), (s, m) in pairwise(order))
        self.step = "validated"

    def build_operation_graph(self):
        self._after("validated")
        image, weights, result = self.shapes(self.target)
        groups = image[1] // weights[1]
        assert image[1] == groups * weights[1]
        if weights[0] != result[1] or weights[0] % groups or image[0] != result[0]:
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM: channels")
        if [*result[2:]] != self.window.counts(image[2:], weights[2:]):
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM: is_valid_spatial_dim")
        self.step = "lowered"

    def create_execution_plans(self, modes):
        self._after("lowered")
        assert modes == [heur_mode.A, heur_mode.FALLBACK]
        self.step = "listed"

    def deselect_numeric_notes(self, notes):
        self._after("listed")
        assert all(isinstance(note, numerical_note) for note in notes)
        self.notes += notes

    def deselect_workspace_greater_than(self, n_bytes):
        self._after("listed")
        assert n_bytes >= self.workspace_size

    def check_support(self):
        self._after("listed")
        if self.module.refuses(self):
            raise cudnnGraphNotSupportedError("No valid engine configs")
        self.step = "supported"

    def build_plans(self, policy=build_plan_policy.HEURISTICS_CHOICE):
        self._after("supported")
        assert policy is build_plan_policy.HEURISTICS_CHOICE
        self.module.log.append(("plan", self.name))
        self.step = "built"

    def get_workspace_size(self):
        self._after("built")
        return self.workspace_size

    def execute(self, tensor_to_device_buffer, workspace, handle=None):
        self._after("built")
        addresses = tensor_to_device_buffer
        assert {type(x) for x in (*addresses, *addresses.values(), workspace, handle)} == {int}
        if not {tensor.uid for tensor in (*self.inputs, self.target)} <= set(addresses):
            raise ValueError("Uid 1 not found in variant pack.")
        if self.module.fails:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        assert not any(address % 16 for address in addresses.values())
        if self.workspace_size:
            ctypes.memset(workspace, 0xFF, self.workspace_size)
        self.module.log.append(("execute", self.name, handle, self.module.streams[handle]))
        is_tf32 = self.io is data_type.FLOAT and numerical_note.TENSOR_CORE not in self.notes

        def read(tensor, is_factor=True):
            values = tensor.at(addresses[tensor.uid])
            return (as_tf32(values) if is_tf32 and is_factor else values).astype("float64")

        self.target.at(addresses[self.target.uid])[...] = self.target.source(read, self.target)


def as_tf32(values):
    """Keep 10 bits of the fraction."""
    return (np.ascontiguousarray(values).view("uint32") & np.uint32(0xFFFFE000)).view("float32")


class Memory:
    """Bytes of an allocator."""

    def __init__(self, n_bytes):
        self._bytes = np.zeros(n_bytes + 16, "uint8")
        self.ptr = self._bytes.ctypes.data + -self._bytes.ctypes.data % 16


def make_cupy(monkeypatch):
    """Return `fake_cupy` with addresses for cuDNN; ``cupy.allocated`` has bytes of workspaces."""
    for name in [*filter(is_of_cupy, sys.modules)]:
        monkeypatch.delitem(sys.modules, name)  # the real ones come back afterwards
    monkeypatch.setattr(graphs, "load", graphs.load)
    cupy = fake_cupy.make()
    for name in [*filter(is_of_cupy, sys.modules)]:
        monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))
    cupy.allocated = []

    def alloc(size):
        cupy.allocated.append(size)
        return Memory(size)

    cupy.cuda.alloc = alloc
    cupy.cuda.get_device_id = lambda: cupy.cuda.Device().id
    return cupy


def is_of_cupy(name):
    return name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")
