"""oneDNN's convolutions against the definitions of their Ops in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import Refuses, perform
from synk.compile.tables import accepts_out
from synk.ops.convolve import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.kernels.onednn import OneDnn, available, plan_builder, reason
from synk.ops.kernels.onednn.convolution import MOST_PLANS
from synk.ops.kernels.onednn.engine import engine
from synk.ops.kernels.window import Convolution, Window

pytestmark = pytest.mark.skipif(not available(), reason=reason())

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)


class Case:
    """Arrays and a geometry: NCHW and float64 here, the layout and float32 for oneDNN."""

    def __init__(self, convolution, n, per_group, outputs_per_group, height, width, kh, kw, seed=0):
        random = np.random.default_rng(seed)
        self.convolution, groups = convolution, convolution.groups
        rows, columns = convolution.window.output_lengths(height, width, kh, kw)

        def small(*shape):
            # Sums of products of small integers are exact in float32, in any order.
            return random.integers(-3, 4, shape).astype("float64")

        self.x = small(n, per_group * groups, height, width)
        self.w = small(outputs_per_group * groups, per_group, kh, kw)
        self.bias = small(outputs_per_group * groups)
        self.gy = small(n, outputs_per_group * groups, rows, columns)

    def turned(self, array):
        return array.transpose(0, 2, 3, 1) if self.convolution.layout == "NHWC" else array

    def give(self, array):
        """Return an image as oneDNN takes it."""
        return np.ascontiguousarray(self.turned(array), "float32")

    def arguments(self, which):
        w = self.w.astype("float32")
        return [
            (self.give(self.x), w),
            (self.give(self.gy), w, *self.x.shape[2:]),
            (self.give(self.x), self.give(self.gy), *w.shape[2:]),
        ][which]

    def expected(self, which, relu=False, has_bias=False):
        """Return the result of the Op by its own definition in float64, as float32."""
        x, gy, w = self.turned(self.x), self.turned(self.gy), self.w
        if which == FORWARD:
            result = perform(Conv2d(self.convolution, relu), x, w, *[self.bias] * has_bias)
        elif which == INPUT_GRADIENT:
            result = perform(Conv2dInputGradient(self.convolution), gy, w, *self.x.shape[2:])
        else:
            result = perform(Conv2dWeightGradient(self.convolution), x, gy, *w.shape[2:])
        return result[0].astype("float32")


def implementation(provider, convolution, which):
    return [provider.forward, provider.input_gradient, provider.weight_gradient][which](convolution)


def case(layout="NHWC", groups=1, stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), lengths=None):
    window = Window(None, stride, padding, dilation)
    return Case(Convolution(window, groups, layout), *(lengths or (2, 32, 48, 6, 7, 1, 1)))


small = st.integers(1, 3)
pair = st.tuples(small, small)
pads = st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2)
channels = st.sampled_from([1, 2, 3, 5, 8, 16, 32])


@st.composite
def cases(draw):
    window = Window(None, draw(pair), draw(pads), draw(pair))
    convolution = Convolution(
        window, draw(st.sampled_from([1, 1, 2, 4])), draw(st.sampled_from(["NCHW", "NHWC"]))
    )
    kh, kw = draw(pair)
    lengths = [
        max(draw(st.integers(1, 12)), (k - 1) * d + 1 - sum(p), 1)
        for k, d, p in zip((kh, kw), window.dilation, window.padding, strict=True)
    ]
    return Case(convolution, draw(st.integers(0, 3)), draw(channels), draw(channels), *lengths, kh, kw)


class Oracle:
    """Takes over what oneDNN has nothing fast for, which may be no more than results of one pixel in NCHW."""

    def __init__(self, case):
        self.case = case

    def forward(self, convolution, relu, has_bias):
        return lambda *arrays, out: np.copyto(out, self.case.expected(FORWARD, relu, has_bias))

    def input_gradient(self, convolution):
        return lambda *arguments, out: np.copyto(out, self.case.expected(INPUT_GRADIENT))

    def weight_gradient(self, convolution):
        return lambda *arguments, out: np.copyto(out, self.case.expected(WEIGHT_GRADIENT))


def spare(case):
    """Return the provider that takes over for a case."""
    one_pixel = case.convolution.layout == "NCHW" and case.gy.shape[2:] == (1, 1)
    return Oracle(case) if one_pixel else Refuses()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(case=cases(), relu=st.booleans(), has_bias=st.booleans())
def test_every_geometry_is_computed_exactly(case, relu, has_bias):
    provider = OneDnn(spare(case))
    bias = [case.bias.astype("float32")] if has_bias else []
    y = provider.forward(case.convolution, relu, has_bias)(*case.arguments(FORWARD), *bias)
    np.testing.assert_array_equal(y, case.expected(FORWARD, relu, has_bias))
    for which in (INPUT_GRADIENT, WEIGHT_GRADIENT):
        found = implementation(provider, case.convolution, which)(*case.arguments(which))
        np.testing.assert_array_equal(found, case.expected(which))
        assert found.flags.c_contiguous


PRODUCTS = {
    "dense": case(),
    "ending in a window": case(stride=(2, 3), lengths=(2, 32, 48, 8, 7, 1, 1)),
    "few inputs": case(lengths=(2, 16, 64, 5, 5, 1, 1)),
    "few inputs, strided": case(lengths=(2, 16, 64, 4, 6, 1, 1), stride=(2, 2)),
    "many weights": case(lengths=(1, 1024, 1024, 3, 2, 1, 1)),
    "many weights, strided": case(lengths=(1, 1024, 1088, 4, 6, 1, 1), stride=(2, 2)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("which", [FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT])
def test_windows_of_one_pixel_are_products(name, which):
    here = PRODUCTS[name]
    compute = implementation(OneDnn(Refuses()), here.convolution, which)
    np.testing.assert_array_equal(compute(*here.arguments(which)), here.expected(which))
    if name != "ending in a window" and (which == WEIGHT_GRADIENT or "many" in name):
        (_, plan) = next(iter(compute.plans.values()))
        assert not any("conv" in part for part in plan.implementations), plan.implementations


@pytest.mark.parametrize("name", ["dense", "many weights", "many weights, strided"])
def test_bias_and_relu_are_part_of_a_product(name):
    here = PRODUCTS[name]
    y = OneDnn(Refuses()).forward(here.convolution, True, True)(
        *here.arguments(FORWARD), here.bias.astype("float32")
    )
    np.testing.assert_array_equal(y, here.expected(FORWARD, True, True))


@pytest.mark.parametrize("k", [1, 3])
def test_relu_keeps_nan(k):
    here = case(lengths=(1, 32, 32, 6, 6, k, k))
    x, w = here.arguments(FORWARD)
    x[0, 3, 3, 0] = np.nan
    y = OneDnn(Refuses()).forward(here.convolution, relu=True)(x, w)
    assert np.isnan(y).sum() == 32 * k * k
    assert not (y < 0).any()


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("which", [FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT])
def test_out_is_written_in_place(layout, which):
    here = case(layout, padding=((1, 1), (1, 1)), lengths=(2, 5, 4, 6, 7, 3, 3))
    compute = implementation(OneDnn(Refuses()), here.convolution, which)
    assert accepts_out(compute, np)
    out = np.full(here.expected(which).shape, np.nan, "float32")
    assert compute(*here.arguments(which), out=out) is out
    np.testing.assert_array_equal(out, here.expected(which))


@pytest.mark.parametrize("which", [FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT])
def test_results_are_new_arrays(which):
    here = case()
    compute = implementation(OneDnn(Refuses()), here.convolution, which)
    first, second = (compute(*here.arguments(which)) for _ in range(2))
    assert not np.shares_memory(first, second)


def test_a_plan_is_made_once_for_its_shapes_and_the_oldest_goes_first():
    here = case()
    compute = OneDnn(Refuses()).forward(here.convolution)
    x, w = here.arguments(FORWARD)
    compute(x, w)
    made = list(compute.plans.values())
    compute(x.copy(), w.copy())
    assert [id(plan) for plan in compute.plans.values()] == [id(plan) for plan in made]
    for width in range(1, MOST_PLANS + 1):
        compute(x[:1, :1, :width].repeat(width + 1, 1), w)
    assert len(compute.plans) == MOST_PLANS
    assert made[0] not in compute.plans.values()
    np.testing.assert_array_equal(compute(x, w), here.expected(FORWARD))


def test_results_do_not_depend_on_what_ran_before():
    """Kernels share their workspace, and whatever an earlier one has left in it must not matter."""
    random = np.random.default_rng(0)
    runs = []
    for here in [*PRODUCTS.values(), case(padding=((1, 1), (1, 1)), lengths=(2, 3, 64, 9, 9, 3, 3))]:
        for which in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT):
            compute = implementation(OneDnn(Refuses()), here.convolution, which)
            arguments = [a * 1.1 if isinstance(a, np.ndarray) else a for a in here.arguments(which)]
            runs.append((compute, arguments, compute(*arguments)))
    for index in random.permutation(len(runs)):
        compute, arguments, result = runs[index]
        if engine().workspace.size:
            engine().workspace._buffer.fill(255)  # not a number, in float32
        np.testing.assert_array_equal(compute(*arguments), result)


def test_arrays_that_are_not_contiguous_are_copied_and_others_refused():
    here = case()
    compute = OneDnn(Refuses()).forward(here.convolution)
    x, w = here.arguments(FORWARD)
    spread = np.repeat(x, 2, axis=3)[..., ::2]
    np.testing.assert_array_equal(compute(spread, w), here.expected(FORWARD))
    with pytest.raises(TypeError, match="float32, not float64"):
        compute(x.astype("float64"), w)


def test_shapes_that_do_not_go_together_are_refused():
    here = case()
    x, w = here.arguments(FORWARD)
    with pytest.raises(ValueError, match="do not go with 31 channels"):
        OneDnn(Refuses()).forward(here.convolution)(x[..., 1:].copy(), w)
    with pytest.raises(ValueError, match="does not go with a result of"):
        OneDnn(Refuses()).input_gradient(here.convolution)(here.give(here.gy), w, 3, 3)
    with pytest.raises(ValueError, match="where \\(48,\\) is needed"):
        OneDnn(Refuses()).forward(here.convolution, has_bias=True)(x, w, np.zeros(3, "float32"))


class Elsewhere:
    """A provider that remembers what it is asked."""

    def forward(self, convolution, relu, has_bias):
        return lambda x, w, *bias, out: np.copyto(out, 7)

    def input_gradient(self, convolution):
        return lambda gy, w, height, width, out: np.copyto(out, height)

    def weight_gradient(self, convolution):
        return lambda x, gy, kh, kw, out: np.copyto(out, kw)


@pytest.mark.parametrize(("which", "filled"), [(FORWARD, 7), (INPUT_GRADIENT, 6), (WEIGHT_GRADIENT, 1)])
def test_another_provider_computes_what_onednn_does_not(monkeypatch, which, filled):

    here = case()
    monkeypatch.setattr(plan_builder, "implementation", lambda api, primitive: "ref:any")
    compute = implementation(OneDnn(Elsewhere()), here.convolution, which)
    assert (compute(*here.arguments(which)) == filled).all()


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_without_elements_nothing_is_planned(layout):
    empty = case(layout, padding=((1, 1), (1, 1)), lengths=(2, 0, 4, 3, 3, 3, 3))
    x, w = empty.arguments(FORWARD)
    bias = np.array([-1, 2, np.nan, 3], "float32")
    y = OneDnn(Refuses()).forward(empty.convolution, True, True)(x, w, bias)
    expected = np.maximum(bias, 0) + np.zeros((2, 3, 3, 4), "float32")
    np.testing.assert_array_equal(y if layout == "NHWC" else y.transpose(0, 2, 3, 1), expected)

    none = case(layout, lengths=(0, 3, 4, 3, 3, 3, 3))
    assert (OneDnn(Refuses()).weight_gradient(none.convolution)(*none.arguments(WEIGHT_GRADIENT)) == 0).all()
