"""Draws in the steps of a loop: the numbers, and the next states, of the same loop in Python."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scan.op import Scan
from pytensor.tensor.random import basic
from pytensor.tensor.random.op import RandomVariable

from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.regions.draws import DRAWS

NATIVE, PYTHON = array_mode(), array_mode(ArrayLinker(native=False))

x, s, n = pt.dvector("x"), pt.dscalar("s"), pt.lscalar("n")
GIVEN = [np.array([0.4, 0.7, 1.5]), 0.8, 5]
TWO = {  # what each is drawn of
    basic.ExponentialRV: lambda one, other: (abs(one),),
    basic.PoissonRV: lambda one, other: (abs(one) * 9,),
    basic.UniformRV: lambda one, other: (one, one + abs(other)),
    basic.BernoulliRV: lambda one, other: (pt.clip(one - 0.6, 0, 1),),
    basic.CategoricalRV: lambda one, other: (
        pt.concatenate([pt.stack([one[0] % 1, other, one[1]]), pt.ones(20)]) / 30,
    ),
    basic.IntegersRV: lambda one, other: ((pt.floor(one * 10) % 30).astype("int64"), 40),
}


def loop(step, start, mode, n_steps=n, **keywords):
    """Return a function that returns all states of a loop, and the generator's next state."""
    generator = pytensor.shared(np.random.default_rng(7))
    states, after = pytensor.scan(
        step, outputs_info=[start, generator], n_steps=n_steps, return_updates=False, **keywords
    )
    return pytensor.function([x, s, n], [states, after], mode=mode, on_unused_input="ignore"), generator


def is_native(function):
    return not any(isinstance(node.op, Scan) for node in function.maker.fgraph.apply_nodes)


def compare(step, start=x, given=GIVEN):
    (native, before), (python, _) = (loop(step, start, mode) for mode in (NATIVE, PYTHON))
    assert is_native(native)
    for n_steps in (given[-1], 0):
        (found, left), (expected, right) = (f(*given[:-1], n_steps) for f in (native, python))
        np.testing.assert_array_equal(found, expected)
        assert left.bit_generator.state == right.bit_generator.state
    assert before.get_value().bit_generator.state == np.random.default_rng(7).bit_generator.state


OTHERS = [(basic.BernoulliRV, "bool"), (basic.BernoulliRV, "int64"), (basic.CategoricalRV, "int64")]


KINDS = [*DRAWS, *OTHERS]

# What a size that is given changes is the same for all, but for choices, which have no axis of their own.
GIVEN_SIZE = (basic.NormalRV, basic.CategoricalRV)


@pytest.mark.parametrize(
    ("kind", "dtype", "size"),
    [
        *(slow(kind, dtype, "of parameters") for kind, dtype in KINDS),
        *((kind, dtype, "given") for kind, dtype in KINDS if kind in GIVEN_SIZE),
        *(slow(kind, dtype, "given") for kind, dtype in KINDS if kind not in GIVEN_SIZE),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_step_draws_what_numpy_draws(gave_up, kind, dtype, size):
    op = kind(dtype=dtype)
    parameters = TWO.get(kind, lambda one, other: (one, abs(other)))

    def step(state, generator):
        wanted = None if size == "of parameters" else (2, state.shape[0])
        given = parameters(abs(state) + 0.5, s)
        after, drawn = op(*given, size=wanted, rng=generator, return_next_rng=True)
        drawn = drawn if wanted is None else drawn.sum(axis=0)
        return 0.5 * state + drawn.astype("float64") / 10, after

    compare(step)
    assert not gave_up


@pytest.mark.slow
def test_a_step_draws_of_each_kind_what_numpy_draws(gave_up):
    """All kinds in one loop, each of a generator of its own: one text to compile."""
    generators = [pytensor.shared(np.random.default_rng(k)) for k in range(len(KINDS))]

    def step(state, *generators):
        afters, results = [], []
        for (kind, dtype), generator in zip(KINDS, generators, strict=True):
            given = TWO.get(kind, lambda one, other: (one, abs(other)))(abs(state) + 0.5, s)
            after, drawn = kind(dtype=dtype)(*given, rng=generator, return_next_rng=True)
            afters.append(after)
            results.append(drawn + 0 * state)
        return [0.5 * state + results[0] / 10, *afters, sum(results)]

    outputs = pytensor.scan(step, outputs_info=[x, *generators, None], n_steps=n, return_updates=False)
    native, python = (pytensor.function([x, s, n], outputs, mode=mode) for mode in (NATIVE, PYTHON))
    assert is_native(native)
    for found, expected in zip(native(*GIVEN), python(*GIVEN), strict=True):
        if isinstance(found, np.random.Generator):
            assert found.bit_generator.state == expected.bit_generator.state
        else:
            np.testing.assert_array_equal(found, expected)
    assert not gave_up


def test_further_bits_decide_where_the_first_are_those_of_the_probability(gave_up):
    words = np.random.default_rng(7).integers(0, 2**64 - 1, 40, "uint64", endpoint=True).view("uint32")

    def step(state, generator):
        after, drawn = basic.bernoulli(state, rng=generator, return_next_rng=True)
        return drawn.astype("float64"), after

    compare(step, given=[(words + 0.5) / 2.0**32, 0.0, 1])
    assert not gave_up


def test_a_number_is_drawn(gave_up):
    def step(state, generator):
        after, drawn = basic.normal(state, 0.5, rng=generator, return_next_rng=True)
        return drawn, after

    compare(step, start=s)
    assert not gave_up


@pytest.mark.parametrize("scale", [-1.0, -0.0, np.nan])
def test_numpy_says_what_it_refuses_and_nothing_has_been_drawn(scale):
    def step(state, generator):
        after, drawn = basic.normal(state, pt.switch(state > 9, s, 1.0), rng=generator, return_next_rng=True)
        return 10.0 + drawn * 0, after

    (native, generator), (python, _) = (loop(step, s, mode) for mode in (NATIVE, PYTHON))
    outcomes = []
    for function in (native, python):
        try:
            outcomes.append(function(GIVEN[0], scale, 3)[0].tolist())
        except ValueError as error:
            outcomes.append(str(error).partition("\n")[0])
    assert str(outcomes[0]) == str(outcomes[1])
    assert generator.get_value().bit_generator.state == np.random.default_rng(7).bit_generator.state


def test_a_generator_of_which_two_draw_stays_in_python():
    def step(state, generator):
        after, drawn = basic.normal(state, 1, rng=generator, return_next_rng=True)
        _, other = basic.uniform(size=state.shape, rng=generator, return_next_rng=True)
        return drawn + other, after

    (native, _), (python, _) = (loop(step, x, mode) for mode in (NATIVE, PYTHON))
    assert not is_native(native)
    np.testing.assert_array_equal(native(*GIVEN)[0], python(*GIVEN)[0])


def test_loops_in_loops_draw(gave_up):
    def inner(total, generator):
        after, drawn = basic.exponential(abs(total) + 0.1, rng=generator, return_next_rng=True)
        return drawn, after

    def step(state, generator):
        sums, after = pytensor.scan(
            inner, outputs_info=[state.sum(), generator], n_steps=3, return_updates=False
        )
        return state * 0.5 + sums.sum(), after

    compare(step)
    assert not gave_up


def test_a_draw_outside_of_loops_is_a_line_of_pythons():
    function = pytensor.function(
        [x],
        basic.normal(x, 1.0, rng=pt.random.shared_rng(np.random.default_rng(0)), return_next_rng=True)[
            1
        ].sum(),
        mode=NATIVE,
    )
    assert any(isinstance(node.op, RandomVariable) for node in function.maker.fgraph.apply_nodes)
