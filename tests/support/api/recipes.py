"""Functions as text that PyTensor and NumPy read alike.

Recipe -> build: synk's function of symbolic names
       -> check: what building it promises
       -> functions.call: the same text over arrays
"""

import re
from dataclasses import dataclass

from support.api.model import TYPES
from support.api.rules import Problems, check_operation

# Inputs: dtype and the lengths known by type. A scattered one has any number of rows.
INPUTS = {
    "x": ("float64", (None, 2)),
    "k": ("int64", (None,)),
    "y": ("float64", (2,)),
    "c": ("int64", ()),
}

# Text -> dtype, dimensions, and whether the length differs from rank to rank: such do not add up.
EXPRESSIONS = {
    "x": ("float64", 2, True),
    "x.sum(axis=0)": ("float64", 1, False),
    "x.mean(axis=0)": ("float64", 1, False),
    "x[1]": ("float64", 1, False),
    "x @ y": ("float64", 1, True),
    "(x @ y).sum()": ("float64", 0, False),
    "k": ("int64", 1, True),
    "k * 2": ("int64", 1, True),
    "k.sum()": ("int64", 0, False),
    "k.max()": ("int64", 0, False),
    "k > 0": ("bool", 1, True),
    "(k > 0).all()": ("bool", 0, False),
    "n_rows": ("int64", 0, False),
    "n_rows * 0.5": ("float64", 0, False),
    "c + 1": ("int64", 0, False),
    "y.sum()": ("float64", 0, False),
    "v": ("float64", 1, True),
    "v.sum()": ("float64", 0, False),
    "v * 0.5 + 1": ("float64", 1, True),
    "m": ("float32", 2, True),
    "m.sum(axis=0)": ("float32", 1, False),
    "m + m": ("float32", 2, True),
    "i": ("int64", 1, True),
    "i + 1": ("int64", 1, True),
    "i.sum()": ("int64", 0, False),
    "s": ("float64", 0, False),
    "s + 1": ("float64", 0, False),
    "f": ("float64", 1, False),
    "f + y": ("float64", 1, False),
    "b": ("bool", 1, True),
    "h + h": ("float16", 1, True),
    "h.sum()": ("float16", 0, False),
}

# Variable -> its new values; some are of another type.
UPDATES = {
    "v": ["v * 0.5 + 1", "x @ y", "x.sum(axis=0)", "k"],
    "m": ["m + m", "m.sum(axis=0)"],
    "h": ["h + h"],
    "i": ["i + 1", "k * 2", "k", "x"],
    "b": ["k > 0"],
    "s": ["s + 1", "(x @ y).sum()", "n_rows * 0.5", "v.sum()", "n_rows * 0.5"],
    "f": ["f + y", "x.sum(axis=0)", "x.mean(axis=0)"],
}
SLICEABLE = ("v", "m", "i")


def names_in(text):
    return set(re.findall(r"\b[a-z]\b|n_rows", text))


@dataclass(frozen=True)
class Recipe:
    """A function as text.

    ``outputs`` holds (text, operation), ``updates`` (variable, text, operation). A lone output is returned
    without a list, no outputs as None.
    """

    scattered: str
    outputs: tuple
    updates: tuple = ()
    bcast: str = ""
    sliceable: tuple = ()
    alone: bool = False
    unused: str = "ignore"

    @property
    def inputs(self):
        return [*self.scattered, *self.bcast]

    @property
    def texts(self):
        return [text for text, _ in self.outputs] + [text for _, text, _ in self.updates]

    @property
    def used(self):
        return set().union(*map(names_in, self.texts))

    @property
    def variables(self):
        """Names of the shared variables that travel with the function, or are updated."""
        return (self.used & set(TYPES)) | {name for name, _, _ in self.updates}

    @property
    def modes(self):
        return [mode.removeprefix("c_") if mode else mode for _, mode in self.outputs]

    @property
    def returns(self):
        return "none" if not self.outputs else "single" if self.alone and len(self.outputs) == 1 else "list"

    @property
    def updated(self):
        return {name for name, _, _ in self.updates}

    def build(self, function, symbols, mode):
        """Make the function of synk; ``symbols`` are inputs, shared variables and ``n_rows``."""

        def read(text):
            return eval(text, {}, symbols)

        outputs = [(read(text), op) for text, op in self.outputs] or None
        return function(
            [symbols[name] for name in self.scattered],
            outputs[0] if self.returns == "single" else outputs,
            [symbols[name] for name in self.bcast],
            [(symbols[name], read(text), op) for name, text, op in self.updates],
            sliceable_shareds=[symbols[name] for name in self.sliceable],
            on_unused_input=self.unused,
            mode=mode,
        )

    # --- what building promises ----------------------------------------------------------------------

    def check(self):
        problems = Problems()
        for text, op in self.outputs:
            problems.of(self._check_mode, op, EXPRESSIONS[text][0])
        for name, text, op in self.updates:
            if EXPRESSIONS[text][:2] != (TYPES[name][0], len(TYPES[name][1])):
                problems.append(TypeError)
            if op == "gather" and TYPES[name][1] == ():
                problems.append(ValueError)
            problems.of(self._check_mode, op, TYPES[name][0])
        updated = [name for name, _, _ in self.updates]
        used, inputs = self.used, self.inputs
        if len(set(updated)) < len(updated) or len(set(self.sliceable)) < len(self.sliceable):
            problems.append(ValueError)
        if set(updated) & set(self.sliceable) or set(self.sliceable) - used:
            problems.append(ValueError)
        if len(set(inputs)) < len(inputs) or (used & set(INPUTS)) - set(inputs):
            problems.append(ValueError)
        if "c" in self.scattered:
            problems.append(TypeError)
        counted = set(self.scattered) if "n_rows" in used else set()
        if self.unused == "raise" and set(inputs) - used - counted:
            problems.append(ValueError)
        problems.settle()

    @staticmethod
    def _check_mode(op, dtype):
        plain = op.removeprefix("c_") if op else op
        if plain not in (None, "gather"):
            check_operation(plain, dtype)

    @staticmethod
    def update_mode(op):
        return op.removeprefix("c_") if op else op

    def needs_rows(self, text):
        return bool(names_in(text) & {*self.scattered, *self.sliceable, "n_rows"})
