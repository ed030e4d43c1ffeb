"""The C of a loop over views: what it computes for each element, row by row, and how it folds elements.

    Body, the results that are stored, the folds -> a Loop, and its rows -> ``run`` in prelude/walks.c

A fold combines all elements along some axes. A loop has functions for rows with the strides that are most
likely, which the compiler turns into vector instructions; rows that lie otherwise are copied, a block of
elements at a time. A fold along a row combines such a block in eight parts, always in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

import numpy as np

from synk.compile.programs.elementwise.body import Body, Operand, element
from synk.compile.programs.elementwise.dialect import TYPES
from synk.compile.programs.elementwise.templates import carrier, is_float
from synk.compile.regions.c_texts import NoText
from synk.compile.regions.lines import Text
from synk.compile.regions.views import View, listed


@dataclass(frozen=True)
class Fold:
    """The way in which a reduction combines the elements along some axes.

    ``combine`` is a C expression of two elements ``a`` and ``b``; ``start`` is a value that changes nothing.
    """

    dtype: str
    axes: tuple[int, ...]
    combine: str
    start: str

    @property
    def chooses(self) -> bool:
        """Tell whether it keeps one of two elements, as a maximum does; it has no result without elements."""
        return self.combine.endswith("? b : a")


def call(
    text: Text,
    body: Body,
    stored: Sequence[int],
    folds: Sequence[tuple[int, Fold]],
    shape: str,
    views: list[View],
) -> str:
    """Return the C call of a loop over views with a common shape.

    ``views`` are those of the inputs, of the results with the numbers ``stored``, and of the folds.
    """
    named = [(k, fold, text.function(fold_text(fold))) for k, fold in folds]
    rows, loop = loop_texts(body, stored, named)
    name = text.function(loop.replace("ROWS", text.function(rows)))
    return f"run(&{name}, {shape}, {listed(views)});"


def run(text: Text, body: Body, views: list[View]) -> None:
    """Add a loop that computes the last of the views, element by element, from the others."""
    text.line(call(text, body, [0], [], f"{views[-1]}.shape", views))


def whole(view: View) -> Operand:
    """Return the operand for a view none of whose axes is known to have length 1."""
    return Operand(view.dtype, (False,) * view.ndim)


def copy_call(source: View, target: View, fixed: int = 0) -> str:
    """Return C that copies a view; for each bit i of ``fixed``, the source has one element along axis i."""
    size = np.dtype(target.dtype).itemsize
    return f"copy({target.ndim}, {target}.shape, {size}, &{source}, {fixed}, &{target});"


def copy(text: Text, source: View, target: View) -> None:
    """Add the line that copies the elements of one view to another of the same shape."""
    text.line(copy_call(source, target))


def fill(text: Text, target: View, number: str = "0") -> None:
    """Add the line that sets all elements of a view to one number."""
    text.line(copy_call(text.number_view(target.dtype, number), target, fixed=-1))


def sum_of(left: str, right: str, dtype: str) -> str:
    """Return C for the sum of two numbers of a dtype, which wraps as NumPy's does."""
    up = carrier(dtype)
    return f"({TYPES[dtype]})({up}{left} + {up}{right})"


def one_element(body: Body, name: str = "NAME") -> str:
    """Return the C function that computes one element."""
    return element(body, name, "static inline __attribute__((always_inline))")


ROW = Template("""\
static void $name(const long n, char *const *p, const double *c)
{
$before
    INDEPENDENT
    for (long i = 0; i < n; i++) {
$steps
    }
}
""")

ROW_BY_BLOCKS = Template("""\
static void $name(const long n, char *const *p, const double *c)
{
$before
    for (long at = 0; at < n; at += BLOCK) {
        const long m = n - at < BLOCK ? n - at : BLOCK;
        INDEPENDENT
        for (long i = 0; i < m; i++) {
$steps
        }
$folded
    }
$after
}
""")

LOOP = Template("""\
static const Loop NAME = {
    $n, $n_inputs, $n_folds, $ndim, $n_ways,
    (const long[]){$sizes}, (const long[]){$masks}, (const long[]){$strides},
    (Row *const[]){$rows}, $constants
};
""")

FOLD = Template("""\
SHARED $kind NAME($kind start, const $kind *x, const long n)
{
    $kind part[8];
    long i = 8;
    if (n < 16) {
        for (i = 0; i < n; i++) {
            const $kind a = start, b = x[i];
            start = $combine;
        }
        return start;
    }
    for (int k = 0; k < 8; k++)
        part[k] = x[k];
    for (; i + 8 <= n; i += 8) {
        $rolled
        for (int k = 0; k < 8; k++) {
            const $kind a = part[k], b = x[i + k];
            part[k] = $combine;
        }
    }
    for (; i < n; i++) {
        const $kind a = part[i & 7], b = x[i];
        part[i & 7] = $combine;
    }
    for (int half = 4; half; half /= 2)
        for (int k = 0; k < half; k++) {
            const $kind a = part[k], b = part[k + half];
            part[k] = $combine;
        }
    const $kind a = start, b = part[0];
    return $combine;
}
""")


def fold_text(fold: Fold) -> str:
    """Return the C function that folds a row of elements."""
    # Compilers make better vector code of sums, and of maxima of integers, if the loop is unrolled.
    rolled = "ROLLED" if fold.chooses and is_float(fold.dtype) else ""
    return FOLD.substitute(kind=TYPES[fold.dtype], combine=fold.combine, rolled=rolled)


def loop_texts(body: Body, stored: Sequence[int], folds: Sequence[tuple[int, Fold, str]]) -> tuple[str, str]:
    """Return C for the functions of rows, and for the `Loop`, in which ``ROWS`` stands for their name.

    Each fold comes with the number of the body's output that it reads, and the name of the function that
    folds a row. Loops that differ only in constants have the same rows.
    """
    ndim, n_inputs = body.ndim, len(body.inputs)
    if not ndim:
        raise NoText("a walk over no axes")
    operands = [*body.inputs, *(body.outputs[k] for k in stored)]
    masks = [mask_of(operand.broadcast) for operand in operands]
    masks += [sum(1 << axis for axis in fold.axes) for _, fold, _ in folds]
    dtypes = [*(operand.dtype for operand in operands), *(fold.dtype for _, fold, _ in folds)]
    sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
    # Each call chooses the axis along which rows lie, so there is a function for each axis; equal ones are
    # shared.
    ways = dict.fromkeys(tuple(mask >> axis & 1 for mask in masks) for axis in reversed(range(ndim)))
    strides = [[0 if one else size for one, size in zip(way, sizes, strict=True)] for way in ways]
    rows = [_row(f"NAME_row{k}", body, stored, folds, way) for k, way in enumerate(strides)]
    constants = ", ".join(text for _, text in body.constants)
    loop = LOOP.substitute(
        n=len(masks),
        n_inputs=n_inputs,
        n_folds=len(folds),
        ndim=ndim,
        n_ways=len(ways),
        sizes=", ".join(map(str, sizes)),
        masks=", ".join(map(str, masks)),
        strides=", ".join(str(stride) for way in strides for stride in way),
        rows=", ".join(f"ROWS_row{k}" for k in range(len(ways))),
        constants=f"(const double[]){{{constants}}}" if constants else "0",
    )
    return "\n".join([one_element(body, "NAME_element"), *rows]), loop


def _row(
    name: str,
    body: Body,
    stored: Sequence[int],
    folds: Sequence[tuple[int, Fold, str]],
    strides: Sequence[int],
) -> str:
    """Return the C function of a row whose operands have the given strides."""
    n_inputs, first_fold = len(body.inputs), len(body.inputs) + len(stored)
    before = [f"char *const p{k} = p[{k}];" for k in range(len(strides))]
    before += [f"const {TYPES[dtype]} c{k} = c[{k}];" for k, (dtype, _) in enumerate(body.constants)]
    steps: list[str] = []
    folded: list[str] = []
    after: list[str] = []
    blocks = not all(strides[first_fold:])
    i = "(at + i)" if blocks else "i"

    def place(k: int, dtype: str) -> str:
        return f"*({TYPES[dtype]} *)(p{k}{f' + {strides[k]} * {i}' if strides[k] else ''})"

    for k, operand in enumerate(body.inputs):
        lines = steps if strides[k] else before
        lines.append(f"const {TYPES[operand.dtype]} x{k} = {place(k, operand.dtype)};")
    names = [f"x{k}" for k in range(n_inputs)] + [f"c{k}" for k in range(len(body.constants))]
    names += [f"&y{k}" for k in range(len(body.outputs))]
    steps += [f"{TYPES[output.dtype]} y{k};" for k, output in enumerate(body.outputs)]
    steps.append(f"NAME_element({', '.join(names)});")
    steps += [f"{place(k, body.outputs[y].dtype)} = y{y};" for k, y in enumerate(stored, n_inputs)]
    for k, (y, fold, name_of_fold) in enumerate(folds):
        kind, total = TYPES[fold.dtype], place(first_fold + k, fold.dtype)
        if strides[first_fold + k]:
            steps.append(f"{{ const {kind} a = {total}, b = y{y}; {total} = {fold.combine}; }}")
        else:
            before.append(f"{kind} block{k}[BLOCK], sum{k} = {total};")
            steps.append(f"block{k}[i] = y{y};")
            folded.append(f"sum{k} = {name_of_fold}(sum{k}, block{k}, m);")
            after.append(f"{total} = sum{k};")
    return (ROW_BY_BLOCKS if blocks else ROW).substitute(
        name=name,
        before=_indented(1, before),
        steps=_indented(3 if blocks else 2, steps),
        folded=_indented(2, folded),
        after=_indented(1, after),
    )


def _indented(depth: int, lines: Sequence[str]) -> str:
    return "\n".join("    " * depth + line for line in lines)


def common_shape(views: list[View], patterns: Sequence[Sequence[bool]], shape: str) -> str:
    """Return the C condition that views have a common shape, which it writes to the array ``shape``.

    ``patterns`` tell, by view and axis, whether the view's length there is 1, so that its one element is
    repeated.
    """
    masks = ", ".join(str(mask_of(pattern)) for pattern in patterns)
    ndim = len(patterns[0])
    return f"common_shape({len(views)}, {ndim}, {listed(views)}, (const long[]){{{masks}}}, {shape})"


def mask_of(pattern: Sequence[bool]) -> int:
    """Return a number whose bit i says that the one element along axis i is repeated."""
    return sum(1 << axis for axis, fixed in enumerate(pattern) if fixed)
