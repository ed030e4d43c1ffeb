"""Arguments for `test_api_model`, right and wrong, as plain text and numbers that failing examples can show.

An array is (dtype, shape, seed), a Data the name of its slot, a shared variable its name.
"""

import numpy as np
from hypothesis import strategies as st

from support.api.model import TYPES
from support.api.recipes import EXPRESSIONS, SLICEABLE, UPDATES, Recipe, names_in

# Slots of Data: dtype, dimensions, and whether rows pair with those selected.
DATA = {
    "dx": ("float64", 2, False),
    "dm": ("float64", 2, True),
    "dk": ("int64", 1, False),
    "dv": ("float64", 1, False),
    "d0": ("float32", 0, False),
}


def sample(description):
    """Return the array that (dtype, shape, seed) means: small halves, or whole numbers."""
    dtype, shape, seed = description
    values = np.random.default_rng(seed).integers(-4, 5, shape) * (1 if np.dtype(dtype).kind in "bi" else 0.5)
    return np.asarray(values).astype(dtype)


def mostly(right, *wrong):
    """Draw from ``right``, and now and then from the others."""
    # Not at the ends, which hypothesis likes best.
    return st.integers(0, 24).flatmap(lambda n: st.one_of(*wrong) if n == 13 else right)


lengths = st.integers(3, 8) | st.integers(0, 5)
seeds = st.integers(0, 9)
variables = st.sampled_from(list(TYPES))
slots = st.sampled_from(list(DATA))
operations = mostly(
    st.sampled_from(["sum", "min", "max", "prod", "avg"]), st.sampled_from(["mean", "c_sum", None])
)


# --- selections ------------------------------------------------------------------------------------------

ends = st.none() | st.integers(-9, 9)
plain_slices = st.builds(slice, ends, ends)
lists = st.lists(st.integers(-3, 3), max_size=6) | st.lists(st.integers(-9, 9), max_size=4)
wrong_selections = st.sampled_from(
    [
        *(-1, 100, True, 2.0, 1.5, [True, False, True], [0.5], [[0, 1], [1, 0]], [[0]], [9, -9], "rows"),
        *(slice(0, 4, 2), slice(3, 0, -1), slice(0.5, 2), slice("a", None), np.array(1.0)),
    ]
)
selections = st.one_of(
    st.integers(0, 8), plain_slices, lists, lists.map(lambda rows: np.array(rows, "int32"))
)
batches = st.none() | st.none() | mostly(selections, wrong_selections)
# A list that holds neither slices nor lists is one selection for all ranks.
each = st.lists(plain_slices | st.lists(st.integers(-1, 0), max_size=3), min_size=3, max_size=3)
batches_s = st.none() | st.none() | mostly(plain_slices | lists | each | st.integers(0, 3), wrong_selections)


# --- values and collectives ------------------------------------------------------------------------------


def shape_of(known, length):
    return tuple(length if axis is None else axis for axis in known)


def values_of(name):
    """Describe values of a shared variable: its own type, as a rule."""
    dtype, known = TYPES.get(name, ("float64", ()))
    right = st.builds(lambda length, seed: (dtype, shape_of(known, length), seed), lengths, seeds)
    fitting = [slot for slot, kind in DATA.items() if kind[:2] == (dtype, len(known))]
    others = [
        *DATA,
        ("complex128", shape_of(known, 2), 0),
        (dtype, (*shape_of(known, 2), 2), 0),
        (dtype, (5,), 0),
    ]
    return mostly(right | st.sampled_from(fitting) if fitting else right, st.sampled_from(others))


def named(build, allowed):
    """Draw names of one variable (a string) or several (a tuple), and what ``build`` makes of them."""
    right = st.sampled_from(allowed)
    several = st.lists(right, min_size=1, max_size=3, unique=True).map(tuple)
    wrong = st.sampled_from([*TYPES, ("b", "f"), "nonsense", ("v", "v"), ("s", "nonsense")])
    return mostly(right | several, wrong).flatmap(build)


def verb(name, values=None, allowed=None, **options):
    """Draw (verb, names, options) of ``allowed`` variables; ``values``: whether it takes any, or "maybe"."""

    def build(names):
        listed = names if isinstance(names, tuple) else (names,)
        drawn = dict(options)
        if values:
            right = st.tuples(*map(values_of, listed)).map(list)
            short = right.map(lambda described: described[:-1])
            drawn["values"] = mostly(right, short) if isinstance(names, tuple) else right
            if values == "maybe":
                drawn["values"] |= st.none()
        return st.tuples(st.just(name), st.just(names), st.fixed_dictionaries(drawn))

    return named(build, allowed or list(TYPES))


ranks = mostly(st.sampled_from([0, 0, 1, 2]), st.sampled_from([3, -1, True, 0.0, None]))
FLOATS = ["v", "m", "h", "s", "f"]
GROWING = ["v", "m", "h", "i", "b"]

combining = st.one_of(
    verb("all_reduce", allowed=FLOATS, op=operations),
    verb("all_reduce", op=mostly(st.sampled_from(["prod", "min", "max"]), operations)),
    verb("reduce", op=mostly(st.sampled_from(["prod", "min", "max"]), operations), in_place=st.booleans()),
    verb("reduce", allowed=FLOATS, op=operations, in_place=st.booleans()),
    verb("all_gather", allowed=GROWING),
    verb("reduce_scatter", allowed=["v", "m", "h"], op=operations),
    verb("all_to_all", allowed=GROWING),
    verb("gather", nd_up=mostly(st.sampled_from([0, 1]), st.just(2))),
    verb("get_value", rank=ranks),
    verb("get_shapes"),
    verb("gather", allowed=GROWING, nd_up=st.just(0)),
    verb("get_lengths", allowed=[*GROWING, "f"]),
)
handing_out = st.one_of(
    verb("broadcast", values="maybe"),
    verb("scatter", values=True, allowed=GROWING, batch=batches),
    verb("scatter", values=True, allowed=GROWING, batch=st.none()),
    verb("set_value", values=True, rank=ranks, batch=st.none()),
    verb("set_value", values=True, allowed=GROWING, rank=ranks, batch=batches),
)


# --- functions -------------------------------------------------------------------------------------------

AMONG_ROWS = ["gather", None, "c_gather"]
AMONG_SUMS = ["avg", "sum", "avg", "min", "max", "prod", "gather", None, "c_avg", "c_sum"]


@st.composite
def outputs(draw):
    text = draw(st.sampled_from(list(EXPRESSIONS)))
    right = st.sampled_from(AMONG_ROWS if EXPRESSIONS[text][2] else AMONG_SUMS)
    return text, draw(mostly(right, st.sampled_from(["mean", "c_mean"])))


@st.composite
def updates(draw):
    name = draw(variables)
    fitting = [t for t in UPDATES[name] if EXPRESSIONS[t][:2] == (TYPES[name][0], len(TYPES[name][1]))]
    text = draw(mostly(st.sampled_from(fitting), st.sampled_from(UPDATES[name])))
    # Rows of some slices do not add up; those of whole variables are the same in each.
    rows = EXPRESSIONS[text][2] and bool(names_in(text) & set("xk"))
    operation = draw(st.sampled_from(["gather"] if rows else ["avg", "sum", "min", "max", "prod", None]))
    return name, text, operation


@st.composite
def make_recipes(draw):
    made_outputs = tuple(draw(st.lists(outputs(), max_size=3)))
    made_updates = tuple(draw(st.lists(updates(), max_size=2, unique_by=lambda update: update[0])))
    plain = Recipe("", made_outputs, made_updates)
    updated = {name for name, _, _ in made_updates}
    sliceable = sorted((plain.used & set(SLICEABLE)) - updated) if draw(st.booleans()) else []
    scattered, bcast = sorted(plain.used & set("xk")), sorted(plain.used & set("yc"))
    if "x" in scattered and draw(st.integers(0, 9)) == 9:
        scattered, bcast = [n for n in scattered if n != "x"], [*bcast, "x"]
    wrong = draw(mostly(st.none(), st.sampled_from(["absent", "twice", "unused", "slice", "0-d", "updated"])))
    if wrong == "absent":
        scattered = scattered[1:]
    elif wrong == "twice":
        bcast = [*bcast, *bcast, "y", *scattered]
    elif wrong == "unused":
        bcast = sorted({*bcast, "c"})
    elif wrong == "slice":
        sliceable = [*sliceable, "v", "m"]
    elif wrong == "0-d":
        scattered = [*scattered, "c"]
    elif wrong == "updated":
        made_updates = (*made_updates, *made_updates[:1])
    return Recipe(
        "".join(scattered),
        made_outputs,
        made_updates,
        "".join(bcast),
        tuple(sliceable),
        alone=draw(st.booleans()),
        unused="raise" if wrong else "ignore",
    )


recipes = make_recipes()
sources = st.fixed_dictionaries(
    {},
    optional={
        "x": st.sampled_from(["data", "dx", "dm"]),
        "k": st.sampled_from(["data", "dk"]),
        "y": st.sampled_from(["data", "dv"]),
        "c": st.sampled_from(["data", "d0"]),
    },
)
call_options = st.fixed_dictionaries(
    {
        "n_rows": lengths,
        "seed": seeds,
        "alone": st.sampled_from([False] * 7 + [True]),
        "fitted": mostly(st.just(True), st.just(False)),  # to what the function takes
        "sources": sources,
        "wrong": mostly(
            st.none(), st.sampled_from(["longer", "columns", "ndim", "dtype", "missing", "unknown"])
        ),
        "batch": batches,
        "batch_s": batches_s,
        "num_slices": mostly(st.sampled_from([1, 1, 2, 3, 20]), st.sampled_from([0, -1, 1.5, True])),
        "output_subset": mostly(
            st.none() | st.lists(st.integers(0, 2), max_size=3),
            st.sampled_from([[7], [-1], [0.5], [True], 0, "0"]),
        ),
    }
)
