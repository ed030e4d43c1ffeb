"""Random API calls, valid and not, beside a NumPy model: the same results or the promised errors.

    rule (drawn arguments) -> model, then synk -> results or errors compared -> every rank's values compared

A failing example is printed as a list of calls. ``API_MODEL=2000`` runs about as many examples instead of the
few that every run repeats, with other arguments each time.
"""

import functools
import os
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from pytensor.compile.mode import Mode

import synk
from support.api import sequences
from support.api.arguments import (
    DATA,
    call_options,
    combining,
    handing_out,
    lengths,
    mostly,
    recipes,
    sample,
    seeds,
    shape_of,
    variables,
)
from support.api.data import DataRules
from support.api.functions import Given
from support.api.machine import Slot
from support.api.model import TYPES
from support.api.recipes import INPUTS, Recipe
from support.api.sequences import listed, used_by
from synk.compile import array_mode

N_EXAMPLES = int(os.environ.get("API_MODEL", 0))
EXAMPLES = {1: 8, 2: 20, 3: 12}  # of every run, by number of ranks
PART = 100  # so many examples end well before a test's deadline
SHRINKING_SECONDS = 30  # and so does the search for a simple failing example


sequence_items = st.integers(0, 3) | st.integers(0, 3) | combining | handing_out

# What each rank holds of a variable, however often that changes.
OF_SHARES = Recipe("", (("v", "gather"), ("v.sum()", "avg")), sliceable=("v",))
EVERYTHING = {
    **{"n_rows": 0, "seed": 0, "sources": {}, "wrong": None, "alone": False, "fitted": True},
    **{"batch": None, "batch_s": None, "num_slices": 1, "output_subset": None},
}


class Calls(DataRules):
    """All rules."""

    # --- shared variables ----------------------------------------------------------------------------------

    @rule(name=variables, length=lengths, seed=seeds)
    def drop_and_remake(self, name, length, seed):
        self.sequences = [entry for entry in self.sequences if name not in used_by(entry[0])]
        self.functions = [entry for entry in self.functions if name not in entry[0].variables]
        self.make(name, length, seed)
        self.look()

    @rule(name=variables, length=lengths, seed=seeds)
    def set_value_on_the_master(self, name, length, seed):
        value = sample((TYPES[name][0], shape_of(TYPES[name][1], length), seed))
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            self.variables[name].set_value(value)
        elsewhere = name in self.travelled and self.n_ranks > 1
        told = elsewhere and name not in self.warned
        assert [entry.category for entry in heard] == [synk.SynkWarning] * told
        if elsewhere:
            self.warned.add(name)
            self.model.values[name][0] = value
        else:
            self.model.put(name, value)
        self.look()

    # --- collectives ---------------------------------------------------------------------------------------

    @rule(collective=combining)
    def combine(self, collective):
        self._collective(collective)

    @rule(collective=handing_out)
    def hand_out(self, collective):
        self._collective(collective)
        for recipe, function in self.functions:
            if recipe == OF_SHARES:
                self._call([recipe], function, EVERYTHING)

    def _collective(self, collective):
        expected = self._valued(collective)
        self.both(
            lambda: sequences.collect(self.model, expected), self._verb(collective), listed(collective[1])
        )

    def _valued(self, collective):
        """Return a collective with arrays for descriptions, and slots of Data for their names."""
        verb, names, options = collective
        if options.get("values") is None:
            return collective
        values = [
            self.slots[value] if isinstance(value, str) else sample(value) for value in options["values"]
        ]
        return verb, names, options | {"values": values}

    def _verb(self, collective):
        verb, names, options = self._valued(collective)
        if options.get("values"):
            values = [value.data if isinstance(value, Slot) else value for value in options["values"]]
            options = options | {"values": values}
        shared = [self.variables.get(name, name) for name in listed(names)]
        if not isinstance(names, tuple):
            shared = shared[0]
            options = options | ({"values": options["values"][0]} if options.get("values") else {})
        return functools.partial(getattr(synk, verb), shared_vars=shared, **options)

    # --- functions -----------------------------------------------------------------------------------------

    @rule(recipe=recipes, rewritten=mostly(st.just(False), st.just(True)))
    def make_function(self, recipe, rewritten):
        symbols = {**self.inputs, **self.variables, "n_rows": synk.n_rows}
        mode = None if rewritten else Mode(array_mode().linker, None)
        made = []
        if self.both(recipe.check, lambda: made.append(recipe.build(synk.function, symbols, mode))):
            self.functions = [*self.functions[-3:], (recipe, *made)]

    @initialize(recipe=recipes)
    def start_with_functions(self, recipe):
        self.make_function(recipe, False)
        self.make_function(OF_SHARES, False)
        self.call(-1, EVERYTHING)

    @rule(recipe=recipes, options=call_options, more=call_options)
    def make_and_call(self, recipe, options, more):
        before = self.functions
        self.make_function(recipe, False)
        if self.functions is not before:
            self.call(-1, options)
            self.call(-1, more)

    @precondition(lambda self: self.functions)
    @rule(which=st.integers(0, 3), options=call_options)
    def call(self, which, options):
        recipe, function = self.functions[which % len(self.functions)]
        if options["alone"]:
            self._as_pytensor(recipe, function, options)
        else:
            self._call([recipe], function, options)

    @precondition(lambda self: self.functions)
    @rule(which=st.integers(0, 3), distribute=st.booleans())
    def drop_function(self, which, distribute):
        del self.functions[which % len(self.functions)]
        self.look()
        if distribute:
            self.distribute()

    def distribute(self):
        alive = [recipe for recipe, _ in self.functions]
        alive += [item for items, _ in self.sequences for item in items if isinstance(item, Recipe)]
        self.both(lambda: None, synk.distribute, used_by(alive))

    @rule(entries=mostly(st.lists(sequence_items, min_size=1, max_size=4), st.just([])))
    def make_sequence(self, entries):
        entries = [entry for entry in entries if self.functions or not isinstance(entry, int)]
        items, parts = [], []
        for entry in entries:
            if isinstance(entry, int):
                item, part = self.functions[entry % len(self.functions)]
            else:
                item, part = (
                    self._valued(entry),
                    self._verb(entry),
                )
            items.append(item)
            parts.append(part)
        made = []
        if self.both(
            lambda: sequences.create(self.model, items),
            lambda: made.append(synk.sequence(*parts)),
            used_by([item for item in items if not isinstance(item, Recipe)]),
        ):
            self.sequences = [*self.sequences[-1:], (items, *made)]

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 1), options=call_options)
    def call_sequence(self, which, options):
        items, function = self.sequences[which % len(self.sequences)]
        self._call(items, function, options)

    def _as_pytensor(self, recipe, function, options):
        given, args = self._inputs(recipe.inputs, options)
        self.both(
            lambda: sequences.call_alone(self.model, recipe, given),
            lambda: function.as_pytensor(**args),
            recipe.variables,
        )

    def _call(self, items, function, options):
        names = dict.fromkeys(name for item in items if isinstance(item, Recipe) for name in item.inputs)
        given, args = self._inputs(list(names), options)
        selection = {name: options[name] for name in ("batch", "batch_s", "num_slices")}
        subset = options["output_subset"]
        if options["fitted"]:
            selection, subset = self._fitted(selection, subset, items)
        self.both(
            lambda: sequences.call(self.model, items, given, selection, subset),
            lambda: function(**args, **selection, output_subset=subset),
            used_by(items),
        )

    def _fitted(self, selection, subset, items):
        """Return keywords without those that mean nothing to any of the items."""
        recipes = [item for item in items if isinstance(item, Recipe)]
        batch, batch_s, num_slices = selection.values()
        can_batch, can_share = any(r.scattered for r in recipes), any(r.sliceable for r in recipes)
        if isinstance(batch_s, list) and batch_s and isinstance(batch_s[0], slice | list):
            batch_s = batch_s[: self.n_ranks]
        if isinstance(subset, list):
            n_results = sequences.count_results(items)
            subset = [output for output in subset if not 0 <= output < 3 or output < n_results]
        return {
            "batch": batch if can_batch else None,
            "batch_s": batch_s if can_share else None,
            "num_slices": num_slices if can_batch or can_share else 1,
        }, subset

    def _inputs(self, names, options):
        """Return the inputs as the model takes them, and as synk does."""
        given, args = {}, {}
        for name in names:
            dtype, shape = self._type_of_input(name, options)
            array = sample((dtype, shape, options["seed"]))
            source = options["sources"].get(name, "array")
            if source in DATA:
                given[name] = Given(self.slots[source].contents, True, DATA[source][2])
                args[name] = self.slots[source].data
            else:
                given[name] = Given(array, source == "data")
                args[name] = synk.data(array) if source == "data" else array
        if options["wrong"] == "missing" and names:
            del given[names[0]], args[names[0]]
        if options["wrong"] == "unknown":
            given["z"], args["z"] = Given(np.zeros(1)), np.zeros(1)
        return given, args

    @staticmethod
    def _type_of_input(name, options):
        """Return dtype and shape of an input's value, with what is to be wrong with it."""
        dtype, known = INPUTS[name]
        wrong = options["wrong"]
        shape = shape_of(known, options["n_rows"] + (wrong == "longer" and name == "k"))
        if wrong == "columns" and name in "xy":
            shape = (*shape[:-1], 3)
        return "complex128" if wrong == "dtype" else dtype, (*shape, 2) if wrong == "ndim" else shape


@pytest.fixture(scope="module", params=EXAMPLES, ids="{} ranks".format)
def module_ranks(request):
    yield synk.fork(request.param)
    synk.close()


@pytest.mark.filterwarnings("ignore:.* does not give the numbers of one process")  # whatever is declared
@pytest.mark.parametrize("part", range(max(1, N_EXAMPLES // PART // len(EXAMPLES))))
def test_random_calls_end_as_in_the_model(module_ranks, part, monkeypatch):
    engine = "hypothesis.internal.conjecture.engine"
    monkeypatch.setattr(f"{engine}.MAX_SHRINKING_SECONDS", SHRINKING_SECONDS, raising=False)
    run_state_machine_as_test(
        lambda: Calls(module_ranks),
        settings=settings(
            max_examples=PART if N_EXAMPLES else EXAMPLES[module_ranks],
            stateful_step_count=30,
            derandomize=not N_EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
