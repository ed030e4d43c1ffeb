"""Collectives on shared variables, against NumPy on the values of all ranks."""

import importlib
import inspect
import pickle
import pydoc
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of
from synk.run.session import current

module_ranks = runs_of(3, later=[1])


def variable(values, name="v"):
    """Return a shared variable that has ``values[rank]`` on each rank."""
    made = pytensor.shared(np.array(values[0]), name=name)
    for rank, value in enumerate(values):
        synk.set_value(rank, made, value)
    return made


def sample(n_ranks, *shape, dtype="float64", seed=0):
    """Return one array of small numbers for each rank."""
    generator = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "bu":
        return list(generator.integers(0, 2, size=(n_ranks, *shape)).astype(dtype))
    return list((4 * generator.normal(size=(n_ranks, *shape))).astype(dtype))


REDUCED = {
    "avg": lambda values: np.mean(values, axis=0),
    "sum": lambda values: np.sum(values, axis=0),
    "prod": lambda values: np.prod(values, axis=0),
    "min": lambda values: np.min(values, axis=0),
    "max": lambda values: np.max(values, axis=0),
}

FLOATS, INTEGERS = ["float64", "float32", "float16"], ["int64", "int8", "uint16"]
REDUCIBLE = [
    *[(dtype, op) for dtype in FLOATS for op in REDUCED],
    *[(dtype, op) for dtype in INTEGERS for op in ("sum", "prod", "min", "max")],
    *[("bool", op) for op in ("prod", "min", "max")],
    ("complex64", "sum"),
    ("complex64", "avg"),
]


# --- all_reduce and reduce -----------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "op"), REDUCIBLE)
def test_all_reduce_gives_every_rank_the_result_of_numpy(module_ranks, dtype, op):
    rtol = {"float16": 2e-3, "float32": 1e-5, "complex64": 1e-5}.get(dtype, 1e-12)
    for shape in ((), (5,), (2, 3)):
        values = sample(module_ranks, *shape, dtype=dtype)
        v = variable(values)
        assert synk.all_reduce(v, op) is None
        results = synk.gather(v)
        assert results.dtype == dtype
        wide = np.array(values, dtype="float32" if dtype == "float16" else dtype)
        expected = REDUCED[op](wide).astype(dtype)
        for result in results:
            np.testing.assert_allclose(result, expected, rtol=rtol)
        assert len({result.tobytes() for result in results}) == 1


@pytest.mark.parametrize("op", REDUCED)
def test_reduce_changes_rank_0_only_or_returns_the_result(module_ranks, op):
    values = sample(module_ranks, 4)
    v = variable(values)
    expected = REDUCED[op](values)
    np.testing.assert_allclose(synk.reduce(v, op, in_place=False), expected, rtol=1e-12)
    np.testing.assert_array_equal(synk.gather(v), values)
    assert synk.reduce(v, op) is None
    np.testing.assert_allclose(synk.get_value(0, v), expected, rtol=1e-12)
    for rank in range(1, module_ranks):
        np.testing.assert_array_equal(synk.get_value(rank, v), values[rank])


def test_avg_is_the_default_and_the_plain_mean_over_ranks(module_ranks):
    v = variable([np.array([3.0 * rank]) for rank in range(module_ranks)])
    assert synk.reduce(v, in_place=False) == 3 * (module_ranks - 1) / 2
    synk.all_reduce(v)
    assert synk.gather(v).tolist() == [[3 * (module_ranks - 1) / 2]] * module_ranks


def test_large_arrays_of_all_sizes_are_reduced(module_ranks):
    # The buffer grows, is used again, and large results come home.
    for size in (10, 300_001, 7, 0, 1_000_000):
        values = sample(module_ranks, size, dtype="float32")
        v = variable(values)
        synk.all_reduce(v, "sum")
        for rank in range(module_ranks):
            np.testing.assert_allclose(synk.get_value(rank, v), np.sum(values, axis=0), rtol=1e-5, atol=1e-5)


def test_a_view_of_memory_is_reduced_like_an_array(module_ranks):
    v = pytensor.shared(np.zeros((3, 2)), name="v", borrow=True)
    strided = synk.function([], updates=[(v, (v + np.arange(6.0).reshape(2, 3).T))])
    strided()
    synk.all_reduce(v, "sum")
    np.testing.assert_array_equal(synk.get_value(0, v), module_ranks * np.arange(6.0).reshape(2, 3).T)


@pytest.mark.parametrize(
    ("value", "op", "error", "match"),
    [
        (1, "avg", TypeError, "'v' has dtype int64, which has no .avg."),
        (True, "sum", TypeError, "'v' is boolean, which has no .sum."),
        (True, "avg", TypeError, "'v' is boolean"),
        (1j, "max", TypeError, "'v' is complex"),
        (1.0, "gather", ValueError, "'gather' is not a reduce operation"),
        (1.0, None, ValueError, "None is not a reduce operation"),
    ],
)
def test_what_has_no_meaning_is_refused(value, op, error, match):
    v = pytensor.shared(np.array([value]), name="v")
    for verb in (synk.all_reduce, synk.reduce):
        with pytest.raises(error, match=match):
            verb(v, op)


# --- broadcast, scatter, set_value ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda value: value, lambda value: synk.data(np.asarray(value, float))], ids=["array", "data"]
)
def test_broadcast_of_values_replaces_those_of_all_ranks(module_ranks, make):
    v = variable(sample(module_ranks, 2))
    for value in ([1.0, 2.0], [], np.arange(50_000.0)):
        synk.broadcast(v, make(value))
        np.testing.assert_array_equal(synk.gather(v), [value] * module_ranks)
        np.testing.assert_array_equal(v.get_value(), value)
    scalar = pytensor.shared(0.0)
    synk.broadcast(scalar, make(4))
    assert synk.gather(scalar).tolist() == [4] * module_ranks


# --- gather, get_value, lengths and shapes -------------------------------------------------------------


def test_gather_stacks_on_a_new_axis_or_joins(module_ranks):
    values = sample(module_ranks, 2, 3)
    v = variable(values)
    np.testing.assert_array_equal(synk.gather(v), np.stack(values))
    np.testing.assert_array_equal(synk.gather(v, nd_up=1), np.stack(values))
    np.testing.assert_array_equal(synk.gather(v, nd_up=0), np.concatenate(values))
    with pytest.raises(ValueError, match="nd_up=2 is neither 0"):
        synk.gather(v, nd_up=2)


def test_gather_of_0d_variables_stacks(module_ranks):
    v = variable([np.float64(rank) for rank in range(module_ranks)])
    assert synk.gather(v).tolist() == list(range(module_ranks))
    with pytest.raises(ValueError, match="'v' is 0-d.* use nd_up=1"):
        synk.gather(v, nd_up=0)


def test_ragged_shards_do_not_stack(module_ranks):
    values = [np.arange(rank + 1.0) for rank in range(module_ranks)]
    v = variable(values)
    np.testing.assert_array_equal(synk.gather(v, nd_up=0), np.concatenate(values))
    if module_ranks > 1:
        with pytest.raises(ValueError, match=r"'v' has shapes \(1,\), \(2,\), \(3,\).*nd_up=0"):
            synk.gather(v)


def test_get_value_returns_a_copy(module_ranks):
    values = sample(module_ranks, 3)
    v = variable(values)
    for rank in range(module_ranks):
        result = synk.get_value(rank, v)
        np.testing.assert_array_equal(result, values[rank])
        result[...] = 100
    np.testing.assert_array_equal(synk.gather(v), values)
    for result in (synk.gather(v), synk.reduce(v, in_place=False)):
        result[...] = 100
    np.testing.assert_array_equal(synk.gather(v), values)


# --- several variables ---------------------------------------------------------------------------------


def test_nccl_is_accepted(module_ranks):
    v = variable([np.ones(2)] * module_ranks)
    for nccl in (True, False):
        synk.broadcast(v, nccl=nccl)
        synk.all_reduce(v, "avg", nccl=nccl)
        synk.reduce(v, "avg", nccl=nccl)
        assert synk.gather(v, nccl=nccl).shape == (module_ranks, 2)
    synk.all_gather(v, nccl=False)
    assert synk.get_lengths(v) == [2 * module_ranks] * module_ranks


# --- random states -------------------------------------------------------------------------------------


def test_broadcast_of_a_random_state_gives_each_rank_its_stream(module_ranks):
    state = pytensor.shared(np.random.default_rng(3), name="state")
    bits = np.random.default_rng(3).bit_generator
    synk.broadcast(state)
    for _ in range(2):
        for rank in range(module_ranks):
            expected = np.random.Generator(bits.jumped(rank) if rank else bits)
            assert synk.get_value(rank, state).random() == expected.random()
            bits = np.random.default_rng(3).bit_generator
        synk.broadcast(state)
    for wrong in (synk.all_reduce, synk.gather, synk.get_shapes, partial(synk.set_value, 0, values=1)):
        with pytest.raises(TypeError, match="'state' is not an array|not an array"):
            wrong(shared_vars=state)
    with pytest.raises(TypeError, match="broadcast it without values"):
        synk.broadcast(state, np.random.default_rng(3))


def test_a_random_state_is_set_on_one_rank_which_goes_on_with_it(module_ranks):
    state, other = (pytensor.shared(np.random.default_rng(3), name=name) for name in ("state", "other"))
    kept = [synk.get_value(rank, [state, other]) for rank in range(module_ranks)]
    last, given = module_ranks - 1, np.random.default_rng(8)
    synk.set_value(last, [state, other], [given, given])
    expected = [*kept[:last], (given, given)]
    for rank, (one, two) in enumerate(expected):
        now = synk.get_value(rank, [state, other])
        assert [value.bit_generator.state for value in now] == [
            one.bit_generator.state,
            two.bit_generator.state,
        ]
    given.random()  # the rank has a copy
    assert synk.get_value(last, state).random() == np.random.default_rng(8).random()
    with pytest.raises(TypeError, match="'state' is not an array"):
        synk.set_value(last, [state, other], [given, 1.0])
    with pytest.raises(IndexError, match="out of range"):
        synk.set_value(module_ranks, state, given)


# --- what is refused, and what follows -----------------------------------------------------------------


def test_ranks_out_of_range_are_refused(module_ranks):
    v = pytensor.shared(np.ones(2), name="v")
    for rank in (module_ranks, -1, 100):
        with pytest.raises(
            IndexError, match=f"rank={rank} is out of range: the run has {module_ranks} ranks"
        ):
            synk.get_value(rank, v)
        with pytest.raises(IndexError, match="out of range"):
            synk.set_value(rank, v, [1.0])
    for rank in (True, 1.0, "0", None):
        with pytest.raises(TypeError, match="is not an integer"):
            synk.get_value(rank, v)
    assert synk.get_value(np.int64(0), v).tolist() == [1, 1]


def test_wrong_variables_and_values_are_refused(module_ranks):
    v, other = pytensor.shared(np.ones(2, "float32"), name="v"), pytensor.shared(1.0, name="other")
    x = pt.vector("x")
    for verb in (synk.all_reduce, synk.gather, synk.get_shapes, synk.broadcast, partial(synk.get_value, 0)):
        with pytest.raises(TypeError, match="expected shared variables, got x"):
            verb(x)
        with pytest.raises(ValueError, match="'v' is given twice"):
            verb([v, v])
    for wrong in (
        np.ones((2, 2)),
        1.0,
        np.ones(2) + 1j,
        synk.data(np.ones(2)),
        synk.data(np.ones((2, 2), "float32")),
    ):
        for verb in (synk.broadcast, synk.scatter, partial(synk.set_value, 0)):
            with pytest.raises(TypeError, match="'v'"):
                verb(v, wrong)
    for values in (np.ones(2), [np.ones(2)]):
        with pytest.raises(TypeError, match="values must be a list with one entry for each of the 2"):
            synk.broadcast([v, other], values)
    with pytest.raises(ValueError, match="0-d|no rows"):
        synk.scatter(other, 2.0)
    for batch, error in ((3, IndexError), ([2], IndexError), (True, TypeError), (slice(0, 2, 2), ValueError)):
        with pytest.raises(error, match="batch"):
            synk.scatter(v, np.ones(2, "float32"), batch=batch)
        with pytest.raises(error, match="batch"):
            synk.set_value(0, v, np.ones(2, "float32"), batch=batch)
    np.testing.assert_array_equal(synk.gather(v), [[1, 1]] * module_ranks)


def test_ranks_with_different_shapes_get_a_mismatch_and_go_on(module_ranks):
    if module_ranks == 1:
        pytest.skip("a lone rank agrees with itself")
    v = variable([np.ones(2 + (rank == 1)) for rank in range(module_ranks)])
    for verb in (synk.all_reduce, partial(synk.reduce, in_place=False)):
        for _ in range(2):
            with pytest.raises(synk.CollectiveMismatch, match=r"rank 0: .*\[2\].*rank 1: .*\[3\]") as caught:
                verb(v, op="sum")
            assert isinstance(caught.value, ValueError)
            assert synk.get_lengths(v) == [2 + (rank == 1) for rank in range(module_ranks)]
    synk.set_value(1, v, np.ones(2))
    synk.all_reduce(v, "sum")
    np.testing.assert_array_equal(synk.gather(v), np.full((module_ranks, 2), module_ranks))


def test_rows_of_different_width_do_not_join(module_ranks):
    if module_ranks == 1:
        pytest.skip("a lone rank agrees with itself")
    v = variable([np.ones((1, 2 + rank)) for rank in range(module_ranks)])
    with pytest.raises(ValueError, match=r"'v'|rank 0"):
        synk.all_gather(v)
    with pytest.raises(ValueError, match="v|must match"):
        synk.gather(v, nd_up=0)
    assert synk.get_shapes(v) == [(1, 2 + rank) for rank in range(module_ranks)]


def test_a_static_length_is_kept(module_ranks):
    v = pytensor.shared(np.arange(6.0), shape=(6,), name="v")
    synk.broadcast(v, np.ones(6))
    if module_ranks == 1:
        return
    for change in (lambda: synk.scatter(v, np.ones(6)), lambda: synk.all_gather(v)):
        with pytest.raises(TypeError, match="6 rows by its type"):
            change()
    with pytest.raises(TypeError, match="6 rows by its type"):
        synk.broadcast(v, synk.data(np.ones(5)))


# --- check_finite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_what_is_not_finite_is_named_by_rank_and_variable(module_ranks, dtype):
    fine = pytensor.shared(np.ones(4, dtype), name="fine")
    bad = pytensor.shared(np.ones((2, 3), dtype), name="bad")
    synk.check_finite([fine, bad])
    values = np.ones((2, 3), dtype)
    values[0, 1], values[1, 1], values[1, 2] = np.nan, np.inf, -np.inf
    last = module_ranks - 1
    synk.set_value(last, bad, values)
    with pytest.raises(synk.NonFinite) as caught:
        synk.check_finite([fine, bad])
    assert isinstance(caught.value, ArithmeticError)
    if module_ranks > 1:
        assert [failure.rank for failure in caught.value.failures] == [last]
    assert f"not finite on rank {last}: 3 of 6 values (1 NaN) of 'bad'" in str(caught.value)
    assert "'fine'" not in str(caught.value)
    synk.check_finite(fine)  # the run goes on


def test_all_ranks_and_variables_that_are_not_finite_are_named(module_ranks):
    one, other = (pytensor.shared(np.array([np.nan]), name=name) for name in ("one", "other"))
    with pytest.raises(synk.NonFinite) as caught:
        synk.check_finite([one, other])
    for rank in range(module_ranks):
        said = f"not finite on rank {rank}: 1 of 1 values (1 NaN) of 'one', 1 of 1 values (1 NaN) of 'other'"
        assert said in str(caught.value)


def test_integers_empty_ones_and_scalars_are_finite(module_ranks):
    synk.check_finite([pytensor.shared(value) for value in (np.arange(3), np.zeros((0, 2)), np.array(1.5))])
    with pytest.raises(TypeError):
        synk.check_finite(pytensor.shared(np.random.default_rng(0)))


def test_a_check_in_a_sequence_stops_it_before_what_follows(module_ranks):
    flat = pytensor.shared(np.zeros(3), name="flat")
    weights = pytensor.shared(np.zeros(3), name="weights")
    x = pt.matrix("x")
    gradient = synk.function([x], updates=[(flat, x.sum(axis=0))])
    update = synk.function([], updates=[(weights, weights - flat)])
    step = synk.sequence(gradient, (synk.check_finite, flat), (synk.all_reduce, flat, "sum"), update)
    step(np.ones((4, 3)))
    before = synk.gather(weights)
    rows = np.ones((4, 3))
    rows[-1, 1] = np.nan  # of the last rank
    with pytest.raises(synk.NonFinite, match=f"rank {module_ranks - 1}: 1 of 3 values"):
        step(rows)
    np.testing.assert_array_equal(synk.gather(weights), before)
    step(np.ones((4, 3)))
    assert (synk.gather(weights) == 2 * before).all()


@pytest.mark.parametrize("op", ["avg", "sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_and_infinities_are_reduced_to_the_same_bits_on_every_rank(module_ranks, dtype, op):
    patterns = np.array([1.0, np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(dtype).max, 3.5], dtype)
    of_ranks = [np.roll(np.tile(patterns, 9), 5 * rank + rank) for rank in range(module_ranks)]
    v = pytensor.shared(of_ranks[0].copy(), name="v")
    for rank, values in enumerate(of_ranks):
        synk.set_value(rank, v, values)
    synk.all_reduce(v, op)
    results = [value.tobytes() for value in synk.gather(v)]
    assert set(results) == {results[0]}
    wide = np.array(of_ranks).astype("float32" if dtype == "float16" else dtype)
    with np.errstate(all="ignore"):
        ufunc = {"avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(op, np.add)
        total = ufunc.reduce(wide)
        expected = (total / module_ranks if op == "avg" else total).astype(dtype)
    np.testing.assert_array_equal(synk.get_value(0, v), expected)


def test_calls_by_keyword_are_repeated_as_they_are(module_ranks):
    v, w = variable([np.ones(2)] * module_ranks), variable([np.ones(3)] * module_ranks, "w")
    commands = set()
    for number in range(1, 4):
        synk.all_reduce(op="sum", shared_vars=v)
        assert synk.get_value(rank=0, shared_vars=v).tolist() == [module_ranks**number] * 2
        last = current.session("test").collectives._last
        commands |= {one.command for kind, one in last.items() if kind.name == "all_reduce"}
    assert len(commands) == 1
    synk.all_reduce(shared_vars=w, op="sum")
    synk.all_reduce(w, op="max")
    assert synk.gather(w).tolist() == [[module_ranks] * 3] * module_ranks
    with pytest.raises(TypeError, match="shared_vars"):
        synk.all_reduce(v, shared_vars=v)


def test_a_verb_is_a_function_with_the_signature_and_docstring_of_its_class():
    assert str(inspect.signature(synk.reduce)) == (
        "(shared_vars: 'Any', op: 'str' = 'avg', *, in_place: 'bool' = True, nccl: 'bool' = True) -> 'Any'"
    )
    assert str(inspect.signature(synk.check_finite)) == "(shared_vars: 'Any') -> 'None'"
    verbs = [verb for name in synk.__all__ if hasattr(verb := getattr(synk, name), "collective")]
    assert len(verbs) == 13
    for verb in verbs:
        assert inspect.isfunction(verb)
        assert verb.__module__ == "synk"
        assert getattr(synk, verb.__name__) is verb is pickle.loads(pickle.dumps(verb))
        assert verb.__doc__ == verb.collective.__doc__
        assert inspect.getdoc(verb).splitlines()[0] in pydoc.render_doc(verb, renderer=pydoc.plaintext)


def test_another_operation_is_no_repetition(module_ranks):
    v = variable([np.full(2, 1.0 + rank) for rank in range(module_ranks)])
    for op, expected in (("max", module_ranks), ("sum", module_ranks**2), ("sum", module_ranks**3)):
        synk.all_reduce(v, op)
        assert synk.gather(v).tolist() == [[expected] * 2] * module_ranks


LATER = """
from dataclasses import dataclass
from synk.run.collectives.collective import Collective
from synk.run.functions.prepared import PreparedStep
from synk.values.messages import Step

@dataclass(slots=True)
class LaterStep(Step):
    variables: tuple
    filler: bytes
    def run(self, rank):
        for variable in self.variables:
            rank.variables.assign(variable, rank.value(variable) + 1)

class Later(Collective):
    name = "later"
    n_bytes = 0
    def prepare(self, run):
        return PreparedStep(LaterStep(self.identities(run), bytes(self.n_bytes)), None)
"""


@pytest.mark.parametrize("n_bytes", [0, 1 << 17], ids=["in a mailbox", "in a frame"])
def test_a_step_that_workers_do_not_find_is_their_error(module_ranks, tmp_path, monkeypatch, n_bytes):
    name = f"defined_later_{module_ranks}_{n_bytes}"
    (tmp_path / f"{name}.py").write_text(LATER)
    monkeypatch.syspath_prepend(tmp_path)
    later = importlib.import_module(name)
    later.Later.n_bytes = n_bytes
    v = pytensor.shared(np.zeros(2), name="v")
    synk.broadcast(v)
    if module_ranks > 1:
        with pytest.raises(ModuleNotFoundError, match=name):
            synk._verb(later.Later)(v)
    exec(LATER, script := {"__name__": "__main__"})
    script["Later"].n_bytes = n_bytes
    synk.broadcast(v, np.zeros(2))
    synk._verb(script["Later"])(v)
    assert [synk.get_value(rank, v).tolist() for rank in range(module_ranks)] == [[1, 1]] * module_ranks
