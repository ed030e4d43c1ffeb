"""Packs: elements of kernels in CUDA that are read and written by one instruction.

    Operands -> how many elements, and under which conditions -> a loop over packs, and where elements go on

16 bits by 16 bits, too few bytes are on their way to keep the memory busy: a thread asks for up to 16 bytes
of each operand. So it is where there are more elements than threads; few are better spread over all of them.

Pure text; imports `cuda_access`.
"""

from collections.abc import Mapping, Sequence
from string import Template

from synk.compile.programs.elementwise.body import Body, Operand
from synk.gpu.elementwise.cuda_access import (
    element_lines,
    is_number,
    size_in_memory,
    stride_axes,
    strided_place,
    type_in_memory,
)

BYTES = 16  # the most that one instruction reads

PACKS = """\
#ifndef SYNK_PACKS
#define SYNK_PACKS
template <class T, int N> struct alignas(N * sizeof(T)) Pack {
    T item[N];
};
#endif
"""

# Everything is read before anything is written, which the compiler cannot know to be allowed.
PACKED = Template("""\
    const long long begin = n > threads && $condition ? n / $width * $width : 0;
#pragma unroll 1
    for (long long i = $width * first; i < begin; i += $width * threads) {
$index$load
#pragma unroll
        for (int j = 0; j < $width; j++) {
$body
        }
$store
    }""")


def pack_width(operands: Sequence[Operand]) -> int:
    """Return how many elements the flat function takes at once: of the widest, what one instruction reads."""
    return _width([operand for operand in operands if not is_number(operand)])


def row_width(operands: Sequence[Operand]) -> int:
    """Return how many elements the strided function takes at once, where arrays allow it."""
    return _width([operand for operand in operands if _has_rows(operand)])


def packed_flat(body: Body, name: str) -> str:
    """Write the loop of the flat function; it defines ``begin``, the first element that is left."""
    operands = (*body.inputs, *body.outputs)
    width = pack_width(operands)
    places = {
        k: f"*({'const ' if k < len(body.inputs) else ''}{_type(operand, width)} *)(p{k} + i)"
        for k, operand in enumerate(operands)
        if not is_number(operand)
    }
    aligned = " | ".join(f"(unsigned long long)p{k}" for k in places)
    return _loop(body, name, width, f"({aligned}) % {BYTES} == 0", places)


def packed_rows(body: Body, name: str, indices: str) -> str:
    """Write the same for the strided function.

    All steps along the last axis must be of one element, all rows start at packs; what broadcasts along it
    has one element for a pack.
    """
    operands = (*body.inputs, *body.outputs)
    width, last = row_width(operands), body.ndim - 1
    rows = [k for k, operand in enumerate(operands) if _has_rows(operand)]
    conditions = [f"length_{last} % {width} == 0"]
    for k in rows:
        size, (*others, _) = size_in_memory(operands[k]), stride_axes(operands[k])
        starts = [f"(unsigned long long)p{k}", *(f"stride_{k}_{axis}" for axis in others)]
        conditions += [f"stride_{k}_{last} == {size}", f"({' | '.join(starts)}) % {size * width} == 0"]
    places = {k: strided_place(k, operands[k], k < len(body.inputs), _type(operands[k], width)) for k in rows}
    return _loop(body, name, width, " && ".join(conditions), places, indices)


def _has_rows(operand: Operand) -> bool:
    return operand.broadcast[-1:] == (False,)


def _width(operands: Sequence[Operand]) -> int:
    return BYTES // max(map(size_in_memory, operands)) if operands else 1


def _type(operand: Operand, width: int) -> str:
    return f"Pack<{type_in_memory(operand)}, {width}>"


def _loop(
    body: Body, name: str, width: int, condition: str, packs: Mapping[int, str], indices: str = ""
) -> str:
    """Write the loop over ``packs``, places by number of operand; others have one element for a pack."""
    if width == 1:
        return "    const long long begin = 0;"
    load, store, places = [], [], []
    for k, operand in enumerate((*body.inputs, *body.outputs)):
        read = k < len(body.inputs)
        places.append(f"q{k}.item[j]" if k in packs else strided_place(k, operand, read))
        if k in packs:
            kind = _type(operand, width)
            load.append(f"        const {kind} q{k} = {packs[k]};" if read else f"        {kind} q{k};")
            store += [] if read else [f"        {packs[k]} = q{k};"]
    return PACKED.substitute(
        width=width,
        condition=condition,
        index=f"{indices}\n" if indices else "",
        load="\n".join(load),
        body=element_lines(body, name, places),
        store="\n".join(store),
    )
