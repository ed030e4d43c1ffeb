"""Make a plan from a descriptor: cuDNN's graph, the engine that its heuristics choose, and its workspace.

    Descriptor -> graph of one convolution (and a bias) -> heuristics -> engines that obey the rules -> plan

An engine is one of cuDNN's implementations. The rules: it gives the same bits each time, sums in float32 or
wider, and uses TF32 only where that is allowed. The rectifier is not part of the graph, since cuDNN does not
promise that NaN stays NaN in it.

A plan is for one kind of GPU. It is made with a handle of the machine's GPU or, in tests, from the properties
of an H200 that the machine does not have. No plan has run yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from synk.gpu.kernels.cudnn.descriptor import (
    BIAS,
    FORWARD,
    IMAGE,
    INPUT_GRADIENT,
    RESULT,
    WEIGHT_GRADIENT,
    WEIGHTS,
    Descriptor,
    Tensor,
)

# The names of cuDNN for dtypes of arrays; those of 16 bits are summed in float32.
DTYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}

# Numerical notes of engines that add in a random order, add in 16 bits, or round their inputs further.
NEVER = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS")
# With arrays of float32, engines that use tensor cores compute in TF32.
TF32_ENGINES = "TENSOR_CORE"

# Bytes. Engines for float32 in NHWC without TF32 copy both images, 0.6 GB at ResNet-50's batch of 128.
MOST_WORKSPACE = 1 << 30


class UnsupportedByCudnn(Exception):
    """No engine of cuDNN computes this convolution."""


class CudnnPlan(NamedTuple):
    """A graph that is ready to be executed."""

    graph: Any  # cudnn.pygraph
    workspace: int  # bytes
    descriptor: Descriptor


def make_plan(cudnn: Any, descriptor: Descriptor, **gpu: Any) -> CudnnPlan:
    """Build the plan for a descriptor whose arrays are not empty; this takes 10 to 40 ms.

    ``gpu`` is the ``handle`` of a GPU, or ``device_property`` and ``sm_version`` of one that is not there.
    Raise `UnsupportedByCudnn` if no engine computes this, and RuntimeError if cuDNN refuses the graph or
    lacks a library.
    """
    graph = describe(cudnn, descriptor, **gpu)
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes([getattr(cudnn.numerical_note, name) for name in refused(descriptor)])
        graph.deselect_workspace_greater_than(MOST_WORKSPACE)
        graph.check_support()
        graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    except cudnn.cudnnGraphNotSupportedError as error:
        raise UnsupportedByCudnn(f"cuDNN has no engine for {descriptor}: {error}") from error
    return CudnnPlan(graph, graph.get_workspace_size(), descriptor)


def refused(descriptor: Descriptor) -> tuple[str, ...]:
    """Return the numerical notes of the engines that must not be chosen."""
    without_tf32 = descriptor.dtype == "float32" and not descriptor.tf32
    return (*NEVER, TF32_ENGINES) if without_tf32 else NEVER


def describe(cudnn: Any, descriptor: Descriptor, **gpu: Any) -> Any:
    """Return cuDNN's graph for a descriptor."""
    dtype = getattr(cudnn.data_type, DTYPES[descriptor.dtype])
    inner = cudnn.data_type.DOUBLE if descriptor.dtype == "float64" else cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        name=descriptor.operation,
        io_data_type=dtype,
        intermediate_data_type=inner,
        compute_data_type=inner,
        **gpu,
    )
    tensors = {uid: _input(graph, descriptor.tensor(uid), dtype) for uid in descriptor.inputs}
    _output(_convolve(graph, descriptor, tensors), descriptor.tensor(descriptor.target), dtype)
    return graph


def _convolve(graph: Any, descriptor: Descriptor, tensors: dict[int, Any]) -> Any:
    """Add the convolution, or its gradient, to the graph; return its result."""
    window = descriptor.convolution.window
    before, after = zip(*window.padding, strict=True)
    geometry = {
        "pre_padding": list(before),
        "post_padding": list(after),
        "stride": list(window.stride),
        "dilation": list(window.dilation),
    }
    if descriptor.operation == INPUT_GRADIENT:
        return graph.conv_dgrad(loss=tensors[RESULT], filter=tensors[WEIGHTS], **geometry)
    if descriptor.operation == WEIGHT_GRADIENT:
        return graph.conv_wgrad(image=tensors[IMAGE], loss=tensors[RESULT], **geometry)
    assert descriptor.operation == FORWARD
    result = graph.conv_fprop(image=tensors[IMAGE], weight=tensors[WEIGHTS], **geometry)
    return graph.bias(input=result, bias=tensors[BIAS]) if descriptor.has_bias else result


def _input(graph: Any, tensor: Tensor, dtype: Any) -> Any:
    uid, lengths, strides = tensor
    return graph.tensor(dim=list(lengths), stride=list(strides), data_type=dtype, uid=uid)


def _output(result: Any, tensor: Tensor, dtype: Any) -> None:
    """Mark a tensor as the result of the graph, and set its identifier, lengths, strides and dtype."""
    result.set_output(True)
    result.set_uid(tensor.uid)
    result.set_dim(list(tensor.lengths))
    result.set_stride(list(tensor.strides))
    result.set_data_type(dtype)
