"""The values that shared variables have on every rank, and what collectives make of them.

Model.all_reduce, .scatter, ... -> new values and results, or `Promised`
"""

import numpy as np

from support.api.rules import (
    Mismatch,
    Problems,
    Promised,
    check_fits,
    check_integer,
    check_operation,
    reduced,
    selected_of,
)

# Name -> dtype and the lengths known by type.
TYPES = {
    "v": ("float64", (None,)),
    "m": ("float32", (None, 2)),
    "h": ("float16", (None,)),
    "i": ("int64", (None,)),
    "b": ("bool", (None,)),
    "s": ("float64", ()),
    "f": ("float64", (2,)),
}


class Contents(np.ndarray):
    """The contents of a `Data`: an array, told apart because a `Data` must have a variable's very dtype."""


class Model:
    """The values of shared variables on all ranks.

    Attributes
    ----------
    values : dict
        Name to a list with each rank's array.
    """

    def __init__(self, n_ranks):
        self.n_ranks = n_ranks
        self.values = {}

    def put(self, name, value):
        """Give all ranks a value: of a variable that is new, or was never used."""
        self.values[name] = [value.copy() for _ in range(self.n_ranks)]

    # --- collectives; each takes a list of names ---------------------------------------------------------

    def all_reduce(self, names, op="avg"):
        self._check_names(names, lambda name: check_operation(op, TYPES[name][0]))
        for name in names:
            self.put(name, self._combined(name, op))

    def reduce(self, names, op="avg", in_place=True):
        self._check_names(names, lambda name: check_operation(op, TYPES[name][0]))
        results = [self._combined(name, op) for name in names]
        if not in_place:
            return results
        for name, result in zip(names, results, strict=True):
            self.values[name][0] = result

    def _combined(self, name, op):
        values = self.values[name]
        if len({value.shape for value in values}) > 1:
            raise Promised(Mismatch, on_ranks=True)
        return reduced(op, values)

    def all_gather(self, names):
        self._check_names(names, self._check_free_rows)
        for name in names:
            self.put(name, np.concatenate(self.values[name]))

    def reduce_scatter(self, names, op="avg"):
        self._check_names(names, self._check_free_rows)
        self._check_names(names, lambda name: check_operation(op, TYPES[name][0]))
        results = {name: np.array_split(self._combined(name, op), self.n_ranks) for name in names}
        self.values.update(results)

    def all_to_all(self, names):
        self._check_names(names, self._check_free_rows)
        for name in names:
            parts = [np.array_split(value, self.n_ranks) for value in self.values[name]]
            self.values[name] = [np.concatenate(of_rank) for of_rank in zip(*parts, strict=True)]

    def _check_free_rows(self, name):
        shape = TYPES[name][1]
        if shape == ():
            raise Promised(ValueError)
        if shape[0] is not None and self.n_ranks > 1:
            raise Promised(TypeError)

    def gather(self, names, nd_up=1):
        if nd_up not in (0, 1):
            raise Promised(ValueError)
        self._check_names(names, lambda name: None)
        return [self._gathered(self.values[name], nd_up) for name in names]

    @staticmethod
    def _gathered(values, nd_up):
        if values[0].ndim == 0 and nd_up == 0:
            raise Promised(ValueError)
        if nd_up == 0:
            return np.concatenate(values)
        if len({value.shape for value in values}) > 1:
            raise Promised(ValueError, late=True)
        return np.stack(values)

    def get_value(self, rank, names):
        problems = Problems()
        problems.of(check_integer, rank, 0, self.n_ranks, IndexError)
        problems.of(self._check_names, names, lambda name: None)
        problems.settle()
        return [self.values[name][rank] for name in names]

    def get_shapes(self, names):
        self._check_names(names, lambda name: None)
        return [[value.shape for value in self.values[name]] for name in names]

    def get_lengths(self, names):
        self._check_names(names, self._check_rows)
        return [[len(value) for value in self.values[name]] for name in names]

    def broadcast(self, names, values=None):
        if values is None:
            self._check_names(names, lambda name: None)
            values = [self.values[name][0] for name in names]
        self._hand_out(names, values, lambda array: [array] * self.n_ranks)

    def scatter(self, names, values, batch=None):
        def shards(array):
            return np.array_split(array[selected_of(array, batch)], self.n_ranks)

        self._hand_out(names, values, shards)

    def set_value(self, rank, names, values, batch=None):
        def one(array):
            mine = array if batch is None else array[selected_of(array, batch)]
            return [mine if other == rank else None for other in range(self.n_ranks)]

        problems = Problems()
        problems.of(check_integer, rank, 0, self.n_ranks, IndexError)
        problems.of(self._hand_out, names, values, one, bool(problems))
        problems.settle()

    def _hand_out(self, names, values, shares, only_check=False):
        """Give ranks their shares of values, arrays or `Contents`; nothing where anything is wrong."""
        problems = Problems()
        problems.of(self._check_names, names, lambda name: None)
        if len(values) != len(names) or set(names) - set(TYPES):
            raise Promised(*problems, TypeError)
        given = [
            problems.of(self._share, name, value, shares) for name, value in zip(names, values, strict=True)
        ]
        problems.settle()
        for name, of_ranks in zip(names, given, strict=True):
            for rank, value in enumerate(of_ranks):
                if value is not None and not only_check:
                    self.values[name][rank] = value.astype(TYPES[name][0])

    @staticmethod
    def _share(name, value, shares):
        dtype, shape = TYPES[name]
        array, in_data = np.asarray(value), isinstance(value, Contents)
        # Of a `Data` any part may be meant; what each rank gets of it must have the length of the type.
        check_fits(array, dtype, (None, *shape[1:]) if shape and in_data else shape, exact=in_data)
        of_ranks = shares(array)
        if shape and any(one is not None and shape[0] not in (None, len(one)) for one in of_ranks):
            raise Promised(TypeError)
        return of_ranks

    @staticmethod
    def _check_names(names, check):
        problems = Problems([ValueError] if len(set(names)) < len(names) else [])
        for name in names:
            if name not in TYPES:
                raise Promised(TypeError)
            problems.of(check, name)
        problems.settle()

    @staticmethod
    def _check_rows(name):
        if TYPES[name][1] == ():
            raise Promised(ValueError)
