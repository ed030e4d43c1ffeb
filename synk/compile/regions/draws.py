"""C texts of random variables in the steps of a loop, by the functions of NumPy that draw the same numbers.

    generator, size, parameters -> for each element: its parameters -> a draw

Steps draw from a copy of the generator that the region has been given (`RegionFunction`), so the generator is
unchanged if the region gives up. Outside of loops random variables are drawn in Python, where they cost
little beside the copy of a generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import NamedTuple

from pytensor.graph.basic import Apply
from pytensor.tensor.random import basic
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type_other import NoneTypeT

from synk.compile.native.bit_generators import BITS, drawing_text
from synk.compile.programs.elementwise.dialect import TYPES
from synk.compile.programs.elementwise.templates import is_float
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.lines import Text
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.views import View, listed


class Draw(NamedTuple):
    """A function of NumPy that draws one number of a distribution, with parameters ``x1`` and ``x2``.

    ``arguments`` stand behind the bits in the call, ``after`` behind the call. Unless ``condition`` holds for
    the parameters, the region gives up, and Python draws or raises the error.
    """

    function: str
    arguments: str
    condition: str
    after: str = ""


NOT_NEGATIVE = "x{0} >= 0 && !__builtin_signbit(x{0})"
SCALED = Draw("random_normal", ", x1, x2", NOT_NEGATIVE.format(2))
SHAPED = " && ".join(NOT_NEGATIVE.format(k) for k in (1, 2))
DRAWS = {
    (basic.NormalRV, "float64"): SCALED,
    # In float32, as `synk.compile.dispatch.sampler` draws them.
    (basic.NormalRV, "float32"): Draw("random_standard_normal_f", "", "x2 >= 0", " * x2 + x1"),
    (basic.UniformRV, "float64"): Draw(
        "random_uniform", ", x1, x2 - x1", "__builtin_isfinite(x2 - x1) && x2 >= x1"
    ),
    (basic.UniformRV, "float32"): Draw("random_standard_uniform_f", "", "1", " * (x2 - x1) + x1"),
    (basic.ExponentialRV, "float64"): Draw("random_exponential", ", x1", NOT_NEGATIVE.format(1)),
    (basic.GammaRV, "float64"): Draw("random_gamma", ", x1, x2", SHAPED),
    (basic.BetaRV, "float64"): Draw("random_beta", ", x1, x2", "x1 > 0 && x2 > 0"),
    (basic.LaplaceRV, "float64"): SCALED._replace(function="random_laplace"),
    (basic.LogisticRV, "float64"): SCALED._replace(function="random_logistic"),
    (basic.LogNormalRV, "float64"): SCALED._replace(function="random_lognormal"),
    (basic.PoissonRV, "int64"): Draw("random_poisson", ", x1", f"{NOT_NEGATIVE.format(1)} && x1 < 1e18"),
    (basic.IntegersRV, "int64"): Draw(
        "random_bounded_uint64", ", x1, (unsigned long)(x2 - 1) - (unsigned long)x1, 0, 0", "x1 < x2"
    ),
}
EACH = """\
    if (!in_c_order($n, ndim, views, index, stride, p))
        return 0;
    for (long left = ndim ? elements(ndim, views[0]->shape) : 1; left; left--) {
        $body
        next_row($n, ndim, views[0]->shape, index, stride, p);
    }"""
DRAWN = Template(f"""\
SHARED int NAME(Bits *bits, const int ndim, const View *const *views, const long count, const long step)
{{
    long index[ndim + 1], stride[ndim + 1][$n], at = 0, ties = 0;
    unsigned long pair = 0;
    char *p[$n];
{EACH}
    if (!ties)
        return 1;
{EACH.replace("$body", "$again")}
    return 1;
}}
""")
ONE = "{parameters} if (!({condition})) return 0; *({kind} *)p[0] = {draw};"
# 32 random bits decide, unless they equal the first 32 bits of the probability: such elements, ties, are
# decided by further bits in a second pass.
PROBABILITY = "const double x1 = *({given} *)p[1], scaled = x1 * 4294967296.0;"
PROBABILITY += " const unsigned first = scaled < 4294967295.0 ? scaled : 4294967295.0;"
BERNOULLI = (
    PROBABILITY
    + """ if (!(x1 >= 0 && x1 <= 1)) return 0;
        if (!(at % 2)) pair = bits->next_uint64(bits->state);
        const unsigned word = at++ % 2 ? pair >> 32 : pair;
        ties += word == first;
        *({kind} *)p[0] = word == first ? 2 : word < first;"""
)
TIES = (
    PROBABILITY
    + """
        if (*({kind} *)p[0] == 2) *({kind} *)p[0] = bits->next_double(bits->state) < scaled - first;"""
)
# The number of running sums that a uniform number exceeds.
CATEGORICAL = """const double drawn = bits->next_double(bits->state);
        {given} sum = 0;
        long found = 0;
        for (long k = 0; k < count; k++) {{
            const {given} more = *({given} *)(p[1] + k * step);
            if (!(more >= 0)) return 0;
            sum += more;
            found += sum < drawn;
        }}
        *({kind} *)p[0] = found;"""


@c_text.register(RandomVariable)
def draw(op: RandomVariable, node: Apply, region: RegionWriter) -> None:
    """Write a loop that draws element by element, in C order."""
    generator, size, *parameters = node.inputs
    after, out = node.outputs
    if op.inplace or not region.text.in_loop or out.type.dtype not in TYPES:
        raise NoText(f"no C text for {op} here")
    region.variables.bind(after, region.variables.generator(generator, node))
    read = [region.variables.view(parameter) for parameter in parameters]
    count = step = "0"
    if isinstance(op, basic.CategoricalRV):
        whole = read[0]
        count, step = whole.shape[-1], whole.strides[-1]
        read = [region.text.declare_view(whole.dtype, whole.at(), whole.shape[:-1], whole.strides[:-1])]
    texts = _texts(op, out.type.dtype, [one.dtype for one in read])
    given = [_with_axes(region.text, one, out.type.ndim) for one in read]
    lengths = _common(given) if isinstance(size.type, NoneTypeT) else [*region.variables.lengths(size)]
    for length in lengths:
        region.text.demand(f"{length} >= 0")
    if out.type.ndim:
        target = region.variables.new(out, lengths)
    else:
        region.variables.bind(out, region.text.declare_variable(TYPES[out.type.dtype]))
        target = region.text.number_view(out.type.dtype, region.variables.number(out))
    region.text.declarations[BITS] = None
    name = region.text.function(DRAWN.substitute(n=1 + len(given), body=texts[0], again=texts[1]))
    views = listed([target, *given])
    region.text.demand(f"{name}({region.variables.number(after)}, {target.ndim}, {views}, {count}, {step})")


def _texts(op: RandomVariable, dtype: str, given: Sequence[str]) -> tuple[str, str]:
    """Return the lines that draw an element, and those of a second pass over elements left undecided."""
    how, kind, kinds = DRAWS.get((type(op), dtype)), TYPES[dtype], [TYPES.get(one, "") for one in given]
    whole = isinstance(op, basic.IntegersRV)
    fit = all(one.startswith("int" if whole else ("float", "int", "uint", "bool")) for one in given)
    if fit and isinstance(op, basic.BernoulliRV):
        return BERNOULLI.format(kind=kind, given=kinds[0]), TIES.format(kind=kind, given=kinds[0])
    if isinstance(op, basic.CategoricalRV) and is_float(given[0]):
        return CATEGORICAL.format(kind=kind, given=kinds[0]), ""
    if how is None or not fit or "" in kinds:
        raise NoText(f"no C text for {op} of {given}")
    own = "long" if whole else "float" if kind == "float" else "double"
    parameters = " ".join(f"const {own} x{k} = *({one} *)p[{k}];" for k, one in enumerate(kinds, start=1))
    drawn = f"{drawing_text(how.function)}(bits{how.arguments}){how.after}"
    return ONE.format(parameters=parameters, condition=how.condition, kind=kind, draw=drawn), ""


def _with_axes(text: Text, view: View, ndim: int) -> View:
    """Return a view with ``ndim`` axes; the new ones come first, and have length 1."""
    added = ndim - view.ndim
    if added < 0:
        raise NoText("a parameter of more axes than there are draws")
    return text.declare_view(view.dtype, view.at(), ["1"] * added + view.shape, ["0"] * added + view.strides)


def _common(views: Sequence[View]) -> list[str]:
    """Return expressions of the lengths to which views broadcast."""
    return [
        " : ".join([*(f"{length} != 1 ? {length}" for length in lengths), "1"])
        for lengths in zip(*(view.shape for view in views), strict=True)
    ]
