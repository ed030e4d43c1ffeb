"""Write the CUDA text that reads and writes operands: their types, addresses and conversions.

    Operand -> parameters, the place of element i, or of indices i0, i1, ... -> lines of a loop's body

An operand is an input or output of the kernel. Operands of 16 bits are stored as ``unsigned short``, and
computed in float. NVRTC comes without ``cuda_fp16.h``, so the conversions are written as instructions; files
with such operands begin with `CONVERSIONS`.

This is text only; nothing is compiled here.
"""

import numpy as np

from synk.compile.programs.elementwise.body import Body, Operand
from synk.compile.programs.elementwise.chain_writer import type_name

# Rounding is to the nearest number, ties to even. A bfloat16 is the upper half of a float.
CONVERSIONS = """\
#ifndef SYNK_CONVERSIONS
#define SYNK_CONVERSIONS
static __device__ __forceinline__ float from_float16(unsigned short bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
static __device__ __forceinline__ unsigned short to_float16(float x)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
static __device__ __forceinline__ float from_bfloat16(unsigned short bits)
{
    return __uint_as_float((unsigned int)bits << 16);
}
static __device__ __forceinline__ unsigned short to_bfloat16(float x)
{
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif
"""


def is_number(operand: Operand) -> bool:
    """Return whether an input has one element, which can be passed by value."""
    return all(operand.broadcast)


def stride_axes(operand: Operand) -> tuple[int, ...]:
    """Return the axes along which the operand does not broadcast, whose strides the kernel takes."""
    return tuple(axis for axis, broadcast in enumerate(operand.broadcast) if not broadcast)


def size_in_memory(operand: Operand) -> int:
    """Return the bytes of one element as stored."""
    return np.dtype("uint16" if operand.stored else operand.dtype).itemsize


def type_in_memory(operand: Operand) -> str:
    """Return the CUDA type of one element as stored."""
    return "unsigned short" if operand.stored else type_name(operand.dtype)


def converted(direction: str, operand: Operand, text: str) -> str:
    """Return ``text`` converted ``"from"`` or ``"to"`` the operand's 16-bit type, if it has one."""
    return f"{direction}_{operand.stored}({text})" if operand.stored else text


def flat_place(k: int, operand: Operand) -> str:
    """Return the expression for element i of operand number k in the flat function."""
    return f"p{k}[{'0' if is_number(operand) else 'i'}]"


def strided_place(k: int, operand: Operand, read: bool, kind: str = "") -> str:
    """Return the expression for operand k at indices i0, i1, ...: one element, or a ``kind``."""
    steps = "".join(f" + i{axis} * stride_{k}_{axis}" for axis in stride_axes(operand))
    const = "const " if read else ""
    return f"*({const}{kind or type_in_memory(operand)} *)(({const}char *)p{k}{steps})"


def variables(body: Body) -> list[str]:
    """Return the names of the kernel's variables for its operands, inputs first."""
    return [f"x{i}" for i in range(len(body.inputs))] + [f"y{i}" for i in range(len(body.outputs))]


def element_lines(body: Body, name: str, places: list[str]) -> str:
    """Return the lines that read one element of each input, compute, and write one of each output."""
    names, n_inputs = variables(body), len(body.inputs)
    arguments = [*names[:n_inputs], *(f"&{word}" for word in names[n_inputs:])]
    lines = [
        f"const {type_name(operand.dtype)} {word} = {converted('from', operand, place)};"
        for operand, word, place in zip(body.inputs, names, places, strict=False)
        if not is_number(operand)
    ]
    lines += [f"{type_name(o.dtype)} {word};" for o, word in zip(body.outputs, names[n_inputs:], strict=True)]
    lines += [f"{name}_element({', '.join(arguments)});"]
    lines += [
        f"{place} = {converted('to', operand, word)};"
        for operand, word, place in zip(body.outputs, names[n_inputs:], places[n_inputs:], strict=True)
    ]
    return "\n".join(f"        {line}" for line in lines)
