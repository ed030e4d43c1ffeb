"""Write an elementwise kernel as CUDA text for NVRTC: a grid-stride loop over all elements.

A kernel has two functions. ``NAME_flat`` is for arrays whose elements lie in the same order, without gaps;
operands that broadcast along every axis have one element:

    NAME_flat(n, x0, x1, ..., y0, ...)

An input of one element (`is_number`) is two parameters: its address, and its value, which is used if the
address is null.

``NAME_strided`` is for all other arrays. It also takes the lengths of the axes, and the strides in bytes of
each operand, along the axes on which it does not broadcast (`stride_axes`):

    NAME_strided(n, length_0, ..., stride_0_0, ..., x0, x1, ..., y0, ...)

Both functions compute several elements at a time where they can: see `cuda_packs`.

This is text only: `cuda_kernels` compiles and launches it. All integers are ``long long``.
"""

from string import Template

from synk.compile.programs.elementwise.body import Body, Operand, element
from synk.compile.programs.elementwise.chain_writer import type_name
from synk.gpu.elementwise.cuda_access import (
    CONVERSIONS,
    converted,
    element_lines,
    flat_place,
    is_number,
    stride_axes,
    strided_place,
    type_in_memory,
)
from synk.gpu.elementwise.cuda_packs import PACKS, pack_width, packed_flat, packed_rows, row_width

# --fmad=false: contracted into fused multiply-adds, a fused graph would round otherwise than an unfused one.
OPTIONS = ("--fmad=false", "-std=c++17")

THREADS = 256  # in a block

# Division in 64 bits takes a GPU several times as long as in 32 bits, which suffice except for huge arrays.
STEP = """\
#ifndef SYNK_STEP
#define SYNK_STEP
static __device__ __forceinline__ long long step(long long &rest, long long length)
{
    if (length == 1)
        return 0;
    if ((unsigned long long)rest >> 32 | (unsigned long long)length >> 32) {
        const long long index = rest % length;
        rest /= length;
        return index;
    }
    const unsigned int number = rest, divisor = length, quotient = number / divisor;
    rest = quotient;
    return number - quotient * divisor;
}
#endif
"""

# Loops are not unrolled: an output may be an input, so the compiler could not read ahead anyway.
TEMPLATE = Template("""\
$conversions$packs$step$element
extern "C" __global__ void __launch_bounds__($threads) ${name}_flat($flat_parameters)
{
$numbers
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long threads = (long long)blockDim.x * gridDim.x;
$packed
#pragma unroll 1
    for (long long i = begin + first; i < n; i += threads) {
$flat
    }
}

extern "C" __global__ void __launch_bounds__($threads) ${name}_strided($strided_parameters)
{
$numbers
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long threads = (long long)blockDim.x * gridDim.x;
$rows
#pragma unroll 1
    for (long long i = begin + first; i < n; i += threads) {
$index
$strided
    }
}
""")


def source(body: Body, name: str) -> str:
    """Return the CUDA text of a kernel.

    Parameters
    ----------
    body : Body
        Written in the dialect `CUDA`.
    name : str
        First part of the functions' names.
    """
    operands = [*body.inputs, *body.outputs]
    pointers = [word for k in range(len(operands)) for word in _parameters(body, k)]
    lengths = [f"length_{axis}" for axis in range(body.ndim)]
    strides = [f"stride_{k}_{axis}" for k, operand in enumerate(operands) for axis in stride_axes(operand)]
    places = [strided_place(k, operand, k < len(body.inputs)) for k, operand in enumerate(operands)]
    indices = _indices(body.ndim)
    integers = [f"long long {word}" for word in ("n", *lengths, *strides)]
    return TEMPLATE.substitute(
        name=name,
        conversions=CONVERSIONS if any(operand.stored for operand in operands) else "",
        packs=PACKS if max(pack_width(operands), row_width(operands)) > 1 else "",
        threads=THREADS,
        step=STEP if body.ndim > 1 else "",
        element=element(body, f"{name}_element", "static __device__ __forceinline__"),
        numbers="\n".join(_number(k, operand) for k, operand in enumerate(body.inputs) if is_number(operand)),
        flat_parameters=", ".join(["long long n", *pointers]),
        packed=packed_flat(body, name),
        rows=packed_rows(body, name, indices),
        flat=element_lines(body, name, [flat_place(k, operand) for k, operand in enumerate(operands)]),
        strided_parameters=", ".join([*integers, *pointers]),
        index=indices,
        strided=element_lines(body, name, places),
    )


def _parameters(body: Body, k: int) -> list[str]:
    n_inputs = len(body.inputs)
    operand = (*body.inputs, *body.outputs)[k]
    words = [f"{'const ' if k < n_inputs else ''}{type_in_memory(operand)} *p{k}"]
    return [*words, f"{type_name(operand.dtype)} v{k}"] if k < n_inputs and is_number(operand) else words


def _number(k: int, operand: Operand) -> str:
    """Return the line that reads input k, of one element, before the loop."""
    return (
        f"    const {type_name(operand.dtype)} x{k} = p{k} ? {converted('from', operand, f'*p{k}')} : v{k};"
    )


def _indices(ndim: int) -> str:
    """Return the lines that compute the index along each axis from the number i of an element."""
    lines = ["long long rest = i;"] if ndim > 1 else []
    lines += [f"const long long i{axis} = step(rest, length_{axis});" for axis in range(ndim - 1, 0, -1)]
    lines += [f"const long long i0 = {'rest' if ndim > 1 else 'i'};"] if ndim else []
    return "\n".join(f"        {line}" for line in lines)
