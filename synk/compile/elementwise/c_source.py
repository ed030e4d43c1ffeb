"""Write a kernel as C: a loop over arrays whose shapes and strides it reads from the array objects.

The compiled function takes the objects themselves, inputs first, and answers ``DONE``; ``MISMATCH`` if
lengths differ; ``UNFIT`` if an argument is not a plain aligned array of its dtype. Axes along which all
operands lie one after another are taken as one; the rest is an odometer over rows (``prelude.c``). A row
has two loops: one for the strides that the static pattern leads to expect, which the compiler turns into
vector instructions, and one for any strides.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from string import Template

import numpy as np

from synk.compile.elementwise.body import Body
from synk.compile.elementwise.writer import type_name
from synk.native.compiler import ELEMENTARY

MISMATCH, UNFIT = 1, 2
NAME = "KERNEL"  # stands for the name that a kernel gets when it is compiled


@dataclass(frozen=True)
class CSource:
    """The text of one kernel.

    Attributes
    ----------
    text : str
        Functions whose names start with ``NAME``.
    functions : frozenset of (str, str, int)
        Mathematical functions to declare; see `Writer`.
    """

    text: str
    functions: frozenset[tuple[str, str, int]]


TEMPLATE = Template("""\
$element
static void ${name}_expected(long n, char *const *p)
{
$hoisted
    INDEPENDENT
    for (long i = 0; i < n; i++) {
$expected
    }
}

static void ${name}_strided(long n, char *const *p, const long *stride)
{
$pointers
    for (long i = 0; i < n; i++) {
        SCALAR;
$strided
    }
}

int $name($parameters)
{
    static const Operand operands[$n] = {$operands};
    Array *const arrays[$n] = {$arguments};
    long shape[$axes], index[$axes] = {0}, stride[$axes][$n];
    char *p[$n];
    const int ndim = -geometry($n, $n_inputs, $ndim, arrays, operands, shape, stride);
    if (ndim <= 0)
        return -ndim;
    for (int k = 0; k < $n; k++)
        p[k] = arrays[k]->data;
    const long *s = stride[ndim - 1];
    const int as_expected = $condition;
    do {
        if (as_expected)
            ${name}_expected(shape[ndim - 1], p);
        else
            ${name}_strided(shape[ndim - 1], p, s);
    } while (next_row($n, ndim - 1, shape, index, stride, p));
    return DONE;
}
""")


def c_source(body: Body) -> CSource:
    """Return the C text of a kernel."""
    operands = [*body.inputs, *body.outputs]
    every = range(len(operands))
    fixed = [k for k, operand in enumerate(body.inputs) if operand.broadcast[-1:] == (True,)]
    sizes = [0 if k in fixed else np.dtype(operands[k].dtype).itemsize for k in every]
    pointers = [f"    char *const p{k} = p[{k}];" for k in every]
    steps = [f"    const long s{k} = stride[{k}];" for k in every]
    text = TEMPLATE.substitute(
        name=NAME,
        element=element(body, "static inline __attribute__((always_inline))"),
        hoisted="\n".join([*pointers, *(f"    {_load(body, k, f'p{k}')}" for k in fixed)]),
        expected=_row(body, [f"p{k} + {sizes[k]} * i" for k in every], fixed),
        pointers="\n".join([*pointers, *steps]),
        strided=_row(body, [f"p{k} + s{k} * i" for k in every]),
        parameters=", ".join(f"Array *a{k}" for k in every),
        arguments=", ".join(f"a{k}" for k in every),
        operands=", ".join(_operand(operand) for operand in operands),
        condition=" && ".join(f"s[{k}] == {sizes[k]}" for k in every),
        n=len(operands),
        n_inputs=len(body.inputs),
        ndim=body.ndim,
        axes=max(1, body.ndim),
    )
    return CSource(text, body.functions)


def element(body: Body, qualifiers: str) -> str:
    """Return the function that computes one element; C and CUDA share it."""
    reads = [f"const {type_name(o.dtype)} x{i}" for i, o in enumerate(body.inputs)]
    writes = [f"{type_name(o.dtype)} *y{i}" for i, o in enumerate(body.outputs)]
    lines = [*body.lines, *(f"*y{i} = {result};" for i, result in enumerate(body.results))]
    statements = "\n".join(f"    {line}" for line in lines)
    return f"{qualifiers} void {NAME}_element({', '.join(reads + writes)})\n{{\n{statements}\n}}\n"


def _row(body: Body, places: list[str], fixed: Iterable[int] = ()) -> str:
    """Load, compute and store one element, whose operands are at ``places``."""
    n_inputs = len(body.inputs)
    names = [f"x{i}" for i in range(n_inputs)] + [f"&y{i}" for i in range(len(body.outputs))]
    lines = [_load(body, k, places[k]) for k in range(n_inputs) if k not in fixed]
    lines += [f"{type_name(o.dtype)} y{i};" for i, o in enumerate(body.outputs)]
    lines += [f"{NAME}_element({', '.join(names)});"]
    lines += [
        f"*({type_name(o.dtype)} *)({place}) = y{i};"
        for i, (o, place) in enumerate(zip(body.outputs, places[n_inputs:], strict=True))
    ]
    return "\n".join(f"        {line}" for line in lines)


def _load(body: Body, k: int, place: str) -> str:
    kind = type_name(body.inputs[k].dtype)
    return f"const {kind} x{k} = *(const {kind} *)({place});"


def _operand(operand) -> str:
    mask = sum(1 << axis for axis, fixed in enumerate(operand.broadcast) if fixed)
    return f"{{{np.dtype(operand.dtype).num}, {mask}}}"


def translation_unit(kernels: dict[str, CSource], vectorised: frozenset[str] = ELEMENTARY) -> str:
    """Return one C file with all ``kernels``, by name.

    Parameters
    ----------
    kernels : dict
        Source by the name that the function gets.
    vectorised : frozenset of str
        Mathematical functions that have a form on vectors.
    """
    functions = sorted(set().union(*(source.functions for source in kernels.values())))
    parts = [f"#define HEAD {object.__basicsize__}", prelude()]
    parts += [_declare(*function, vectorised) for function in functions]
    parts += [source.text.replace(NAME, name) for name, source in kernels.items()]
    return "\n".join(parts)


def prelude() -> str:
    """Return the text that every kernel file starts with."""
    return files("synk.compile.elementwise").joinpath("prelude.c").read_text()


def _declare(function: str, dtype: str, n_arguments: int, vectorised: frozenset[str]) -> str:
    kind, suffix = type_name(dtype), "f" if dtype == "float32" else ""
    attribute = '__attribute__((simd("notinbranch"))) ' if function in vectorised else ""
    return f"{attribute}{kind} {function}{suffix}({', '.join([kind] * n_arguments)});"
