"""Write the loops of CUDA kernels over packs: several elements that one instruction reads or writes.

    Operands -> elements in a pack, conditions on addresses -> a loop over packs, and where it stops

If each thread read 16 bits at a time, too few bytes would be in flight to keep the memory busy, so a thread
reads up to 16 bytes of each operand. With no more elements than threads, single elements are better.

This is text only; nothing is compiled here.
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

# All inputs of a pack are read before any output is written. The compiler could not decide that itself, since
# for all it knows an output may be an input.
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
    """Return the elements in a pack of the flat function: as many of the widest as one instruction reads."""
    return _width([operand for operand in operands if not is_number(operand)])


def row_width(operands: Sequence[Operand]) -> int:
    """Return the elements in a pack of the strided function, which takes packs where strides allow it."""
    return _width([operand for operand in operands if _has_rows(operand)])


def packed_flat(body: Body, name: str) -> str:
    """Return the flat function's loop over packs; it sets ``begin``, the first element that is left."""
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
    """Return the strided function's loop over packs; it sets ``begin``, the first element that is left.

    It runs only if elements along the last axis are adjacent, and rows are whole numbers of packs at aligned
    addresses. An operand that broadcasts along the last axis is read as one element for the whole pack.
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
    """Return a loop over packs; ``packs`` maps the operands that are read as packs to their places."""
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
