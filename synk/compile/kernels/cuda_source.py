"""Write a kernel as CUDA, for NVRTC: a grid-stride loop over all elements.

A file holds two functions. ``NAME_flat`` takes arrays that lie in memory alike, one element after another;
operands that broadcast along every axis have one element there:

    NAME_flat(n, x0, x1, ..., y0, ...)

An input of one element is two parameters: its address and, for an address of 0, its value, which then travels
with the launch (`is_number`).

``NAME_strided`` takes any: lengths of the axes, then the strides, in bytes, of each operand along the axes
that it does not broadcast (`stride_axes`):

    NAME_strided(n, length_0, ..., stride_0_0, ..., x0, x1, ..., y0, ...)

Pure text: compiling and launching are the business of the array module. All integers are ``long long``.

Operands that are stored in 16 bits are arrays of ``unsigned short``; what is between is computed in float.
NVRTC comes without ``cuda_fp16.h``, so conversions are the instructions themselves. Files with such operands
begin with `CONVERSIONS`, once however many kernels they have.
"""

from string import Template

from synk.compile.kernels.body import Body, Operand
from synk.compile.kernels.c_source import NAME, element
from synk.compile.kernels.writer import type_name

# As for C: without contraction a fused graph rounds as the same graph unfused.
OPTIONS = ("--fmad=false", "-std=c++17")

# To the nearest number, ties to the even one. The upper half of a float is a bfloat16.
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

# Division of 64 bits takes a GPU several times as long as that of 32, which does but for huge arrays.
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

TEMPLATE = Template("""\
$conversions$step$element
extern "C" __global__ void ${name}_flat($flat_parameters)
{
$numbers
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)blockDim.x * gridDim.x) {
$flat
    }
}

extern "C" __global__ void ${name}_strided($strided_parameters)
{
$numbers
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)blockDim.x * gridDim.x) {
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
    names = [f"x{i}" for i in range(len(body.inputs))] + [f"y{i}" for i in range(len(body.outputs))]
    pointers = [word for k in range(len(operands)) for word in _parameters(body, k)]
    lengths = [f"length_{axis}" for axis in range(body.ndim)]
    strides = [f"stride_{k}_{axis}" for k, operand in enumerate(operands) for axis in stride_axes(operand)]
    places = [_strided(k, operand, k < len(body.inputs)) for k, operand in enumerate(operands)]
    integers = [f"long long {word}" for word in ("n", *lengths, *strides)]
    return TEMPLATE.substitute(
        name=name,
        conversions=CONVERSIONS if any(operand.stored for operand in operands) else "",
        step=STEP if body.ndim > 1 else "",
        element=element(body, "static __device__ __forceinline__").replace(NAME, name),
        numbers="\n".join(_number(k, operand) for k, operand in enumerate(body.inputs) if is_number(operand)),
        flat_parameters=", ".join(["long long n", *pointers]),
        flat=_body(body, name, names, [f"p{k}[{_flat(operand)}]" for k, operand in enumerate(operands)]),
        strided_parameters=", ".join([*integers, *pointers]),
        index=_indices(body.ndim),
        strided=_body(body, name, names, places),
    )


def is_number(operand: Operand) -> bool:
    """Tell whether an input has one element, which may come by value."""
    return all(operand.broadcast)


def stride_axes(operand: Operand) -> tuple[int, ...]:
    """Return the axes along which the strided function is told the operand's stride."""
    return tuple(axis for axis, broadcast in enumerate(operand.broadcast) if not broadcast)


def _parameters(body: Body, k: int) -> list[str]:
    n_inputs = len(body.inputs)
    operand = (*body.inputs, *body.outputs)[k]
    words = [f"{'const ' if k < n_inputs else ''}{_type_in_memory(operand)} *p{k}"]
    return [*words, f"{type_name(operand.dtype)} v{k}"] if k < n_inputs and is_number(operand) else words


def _number(k: int, operand: Operand) -> str:
    """Read an input of one element, before the loop."""
    return (
        f"    const {type_name(operand.dtype)} x{k} = p{k} ? {_converted('from', operand, f'*p{k}')} : v{k};"
    )


def _type_in_memory(operand: Operand) -> str:
    return "unsigned short" if operand.stored else type_name(operand.dtype)


def _converted(direction: str, operand: Operand, text: str) -> str:
    return f"{direction}_{operand.stored}({text})" if operand.stored else text


def _flat(operand: Operand) -> str:
    return "0" if all(operand.broadcast) else "i"


def _strided(k: int, operand: Operand, read: bool) -> str:
    steps = [f"i{axis} * stride_{k}_{axis}" for axis in stride_axes(operand)]
    kind = f"{'const ' if read else ''}{_type_in_memory(operand)}"
    byte = "const char" if read else "char"
    return f"*({kind} *)(({byte} *)p{k}{''.join(f' + {step}' for step in steps)})"


def _indices(ndim: int) -> str:
    """Take the number of an element apart into one index for each axis, the last axis first."""
    lines = ["long long rest = i;"] if ndim > 1 else []
    lines += [f"const long long i{axis} = step(rest, length_{axis});" for axis in range(ndim - 1, 0, -1)]
    lines += [f"const long long i0 = {'rest' if ndim > 1 else 'i'};"] if ndim else []
    return "\n".join(f"        {line}" for line in lines)


def _body(body: Body, name: str, names: list[str], places: list[str]) -> str:
    n_inputs = len(body.inputs)
    arguments = [*names[:n_inputs], *(f"&{word}" for word in names[n_inputs:])]
    lines = [
        f"const {type_name(operand.dtype)} {word} = {_converted('from', operand, place)};"
        for operand, word, place in zip(body.inputs, names, places, strict=False)
        if not is_number(operand)
    ]
    lines += [f"{type_name(o.dtype)} {word};" for o, word in zip(body.outputs, names[n_inputs:], strict=True)]
    lines += [f"{name}_element({', '.join(arguments)});"]
    lines += [
        f"{place} = {_converted('to', operand, word)};"
        for operand, word, place in zip(body.outputs, names[n_inputs:], places[n_inputs:], strict=True)
    ]
    return "\n".join(f"        {line}" for line in lines)
