"""The C of a walk over views: what happens to each element, row by row, and what folds elements to one.

    Body, the results that are stored, the folds -> a function of lengths and views

A row has two loops: one for the strides that the static pattern leads to expect, which the compiler turns
into vector instructions, and one for any strides. A fold along rows takes a block of elements at a time, in
eight parts, always in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING

import numpy as np
from pytensor.graph.basic import Variable

from synk.compile.elementwise.body import Body, Operand, element
from synk.compile.elementwise.dialect import TYPES
from synk.compile.elementwise.templates import carrier, is_float
from synk.compile.regions.table import NoText
from synk.native.compiler import ELEMENTARY

if TYPE_CHECKING:
    from synk.compile.regions.writer import RegionWriter


@dataclass(frozen=True)
class Fold:
    """The way in which the elements along some axes become one.

    ``combine`` is C, of ``a`` and ``b``; ``start`` changes nothing.
    """

    dtype: str
    axes: tuple[int, ...]
    combine: str
    start: str

    @property
    def chooses(self) -> bool:
        """Tell whether it keeps one of two elements, so that nothing comes of none."""
        return self.combine.endswith("? b : a")


def run(region: RegionWriter, body: Body, views: Sequence[str]) -> None:
    """Add a loop over views that have the same shape."""
    name = region.function(loop_text(body, [0], []))
    listed = ", ".join(f"&{view}" for view in views)
    region.line(f"{name}({views[-1]}.shape, (const View *const[]){{{listed}}});")


def whole(variable: Variable) -> Operand:
    """Return an operand with the dtype of a variable none of whose axes is known to be of length one."""
    return Operand(variable.type.dtype, (False,) * variable.type.ndim)


def copied(operand: Operand) -> Body:
    """Return the body that copies an element."""
    return Body((operand,), (operand,), (), ("x0",), frozenset())


def copy(region: RegionWriter, source: str, target: str, operand: Operand) -> None:
    """Copy the elements of one view to another of the same shape."""
    run(region, copied(operand), [source, target])


def fill(region: RegionWriter, target: str, operand: Operand, value: str) -> None:
    """Set all elements of a view to one value."""
    run(region, Body((), (operand,), (), (value,), frozenset()), [target])


def sum_of(left: str, right: str, dtype: str) -> str:
    """Return the sum of two numbers of a dtype, which wraps as NumPy's does."""
    up = carrier(dtype)
    return f"({TYPES[dtype]})({up}{left} + {up}{right})"


def one_element(body: Body, name: str = "NAME") -> str:
    """Return the function that computes one element."""
    return element(body, name, "static inline __attribute__((always_inline))")


ALONG = Template("""\
static void NAME_along$number(const long n, char *const *p)
{
$hoisted
    for (long at = 0; at < n; at += $block) {
        const long m = $length;
        INDEPENDENT
        for (long i = 0; i < m; i++) {
$expected
        }
$folded
    }
$last
}
""")

LOOP = Template("""\
$element
$along
static void NAME_strided(const long n, char *const *p, const long *stride)
{
$pointers
$strided
}

SHARED void NAME(const long *whole, const View *const *views)
{
    static const long fixed[$n] = {$masks};
    long shape[$axes], index[$axes] = {0}, stride[$axes][$n];
    char *p[$n];
    const int ndim = walk($n, $model, $ndim, whole, views, fixed, shape, stride);
    if (!ndim)
        return;
    for (int k = 0; k < $n; k++)
        p[k] = views[k]->data;
    const long *s = stride[ndim - 1];
    const int along = $condition;
    void *const others = let_others(elements($ndim, whole));
    do {
$calls
        else
            NAME_strided(shape[ndim - 1], p, s);
    } while (next_row($n, ndim - 1, shape, index, stride, p));
    if (others)
        PyEval_RestoreThread(others);
}
""")

FOLD = Template("""\
static inline $kind NAME($kind start, const $kind *x, const long n)
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
    """Return the function that folds a row of elements."""
    # Of sums, and of choices of whole numbers, compilers make better vectors when the loop is unrolled.
    rolled = "ROLLED" if fold.chooses and is_float(fold.dtype) else ""
    return FOLD.substitute(kind=TYPES[fold.dtype], combine=fold.combine, rolled=rolled)


def loop_text(body: Body, stored: Sequence[int], folds: Sequence[tuple[int, Fold]]) -> str:
    """Return the function of a loop: of ``whole`` lengths and of views, of inputs, results and folds."""
    ndim, n_inputs = body.ndim, len(body.inputs)
    if not ndim:
        raise NoText("a walk over no axes")
    results = [(k, body.outputs[k].dtype) for k in stored]
    targets = [(k, fold) for k, fold in folds]
    masks = [mask_of(operand.broadcast) for operand in body.inputs]
    masks += [mask_of(body.outputs[k].broadcast) for k in stored]
    masks += [sum(1 << axis for axis in fold.axes) for _, fold in targets]
    dtypes = [o.dtype for o in body.inputs] + [d for _, d in results] + [fold.dtype for _, fold in targets]
    every, n = range(len(masks)), len(masks)
    names = [f"x{i}" for i in range(n_inputs)] + [f"&y{i}" for i in range(len(body.outputs))]

    def load(k: int, place: str) -> str:
        kind = TYPES[dtypes[k]]
        return f"const {kind} x{k} = *(const {kind} *)({place});"

    def row(places: Sequence[str], loaded: Sequence[int], blocked: Sequence[int]) -> str:
        lines = [load(k, places[k]) for k in range(n_inputs) if k not in loaded]
        lines += [f"{TYPES[o.dtype]} y{i};" for i, o in enumerate(body.outputs)]
        lines += [f"NAME_element({', '.join(names)});"]
        for k, (i, dtype) in enumerate(results, start=n_inputs):
            lines.append(f"*({TYPES[dtype]} *)({places[k]}) = y{i};")
        for k, (i, fold) in enumerate(targets, start=n_inputs + len(results)):
            kind = TYPES[fold.dtype]
            if k in blocked:
                lines.append(f"block{k}[i] = y{i};")
            else:
                place = f"*({kind} *)({places[k]})"
                lines.append(f"{{ const {kind} a = {place}, b = y{i}; {place} = {fold.combine}; }}")
        return "\n".join(f"            {line}" for line in lines)

    pointers = [f"    char *const p{k} = p[{k}];" for k in every]

    def along(number: int, axis: int) -> tuple[str, str]:
        """Return the function of a row along an axis, and whether a row's strides are as it expects."""
        fixed = [mask >> axis & 1 for mask in masks]
        sizes = [0 if one else np.dtype(dtype).itemsize for one, dtype in zip(fixed, dtypes, strict=True)]
        hoisted = [k for k in range(n_inputs) if fixed[k]]
        rows = [k for k in range(n_inputs + len(results), n) if fixed[k]]  # folded along rows
        kinds = {k: TYPES[dtypes[k]] for k in rows}
        first = [f"    {kind} block{k}[BLOCK], sum{k} = *({kind} *)p{k};" for k, kind in kinds.items()]
        text = ALONG.substitute(
            number=number,
            hoisted="\n".join([*pointers, *(f"    {load(k, f'p{k}')}" for k in hoisted), *first]),
            block="BLOCK" if rows else "n",
            length="n - at < BLOCK ? n - at : BLOCK" if rows else "n",
            expected=row(
                [f"p{k} + {sizes[k]} * {'(at + i)' if rows else 'i'}" for k in every], hoisted, rows
            ),
            folded="\n".join(f"        sum{k} = NAME_fold{k}(sum{k}, block{k}, m);" for k in rows),
            last="\n".join(f"    *({kind} *)p{k} = sum{k};" for k, kind in kinds.items()),
        )
        return text, " && ".join(f"s[{k}] == {sizes[k]}" for k in every)

    fold_functions = [
        fold_text(fold).replace("NAME", f"NAME_fold{k}")
        for k, (_, fold) in enumerate(targets, start=n_inputs + len(results))
    ]
    slow = any(function in ELEMENTARY for function, *_ in body.functions)
    if slow:
        strided = _by_blocks(body, dtypes, results, targets)
    else:
        line = row([f"p{k} + s{k} * i" for k in every], (), ())
        strided = f"    for (long i = 0; i < n; i++) {{\n        SCALAR;\n{line}\n    }}"
    # A whole array first: the results' order of axes, if they have all.
    model = next(
        (k for k in (*range(n_inputs, n_inputs + len(results)), *range(n_inputs)) if not masks[k]), 0
    )
    # A reduction's rows may lie along any axis; each is a loop that must be compiled.
    axes = {tuple(mask >> axis & 1 for mask in masks): axis for axis in range(ndim)}
    ways = [*axes.values()][::-1] if targets and not slow else [ndim - 1]
    texts, tests = zip(*[along(number, axis) for number, axis in enumerate(ways)], strict=True)
    return LOOP.substitute(
        element="\n".join([*fold_functions, one_element(body, "NAME_element")]),
        along="\n".join(texts),
        calls=" else\n".join(
            f"        if (along == {k})\n            NAME_along{k}(shape[ndim - 1], p);"
            for k in range(len(ways))
        ),
        pointers="\n".join([*pointers, *(f"    const long s{k} = stride[{k}];" for k in every)]),
        strided=strided,
        masks=", ".join(map(str, masks)),
        condition=" : ".join(f"{test} ? {k}" for k, test in enumerate(tests)) + " : -1",
        n=n,
        model=model,
        ndim=ndim,
        axes=max(1, ndim),
    )


def _by_blocks(
    body: Body, dtypes: Sequence[str], results: Sequence[tuple[int, str]], targets: Sequence[tuple[int, Fold]]
) -> str:
    """Return the loop for any strides where functions take most of the time, which go by vectors."""
    n_inputs, n_outputs = len(body.inputs), len(body.outputs)
    kinds = [TYPES[output.dtype] for output in body.outputs]
    names = [f"x{i}" for i in range(n_inputs)] + [f"&block{i}[i]" for i in range(n_outputs)]
    loads = [
        f"            const {TYPES[dtypes[k]]} x{k} = *(const {TYPES[dtypes[k]]} *)(p{k} + s{k} * (at + i));"
        for k in range(n_inputs)
    ]
    stores = [
        f"            *({TYPES[dtype]} *)(p{k} + s{k} * (at + i)) = block{i}[i];"
        for k, (i, dtype) in enumerate(results, start=n_inputs)
    ]
    for k, (i, fold) in enumerate(targets, start=n_inputs + len(results)):
        kind, place = TYPES[fold.dtype], f"*({TYPES[fold.dtype]} *)(p{k} + s{k} * (at + i))"
        stores.append(
            f"            {{ const {kind} a = {place}, b = block{i}[i]; {place} = {fold.combine}; }}"
        )
    return "\n".join(
        [
            *(f"    {kind} block{i}[BLOCK];" for i, kind in enumerate(kinds)),
            "    for (long at = 0; at < n; at += BLOCK) {",
            "        const long m = n - at < BLOCK ? n - at : BLOCK;",
            "        INDEPENDENT",
            "        for (long i = 0; i < m; i++) {",
            *loads,
            f"            NAME_element({', '.join(names)});",
            "        }",
            "        for (long i = 0; i < m; i++) {",
            "            SCALAR;",
            *stores,
            "        }",
            "    }",
        ]
    )


def mask_of(pattern: Sequence[bool]) -> int:
    """Return a number whose bit i says that the one element along axis i serves all."""
    return sum(1 << axis for axis, fixed in enumerate(pattern) if fixed)
