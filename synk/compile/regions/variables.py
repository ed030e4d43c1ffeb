"""Keep track of a region's variables while its text is written: numbers, views and lengths.

In the text a variable is a number, ``const double t3``, if it has no axes; else a view ``v3`` of memory that
is an argument's, a result's or the region's own. Moving elements makes another view of the same memory. What
lies in memory of the region's own is given back after its last use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.type import DenseTensorType

from synk.compile.programs.elementwise.dialect import TYPES, Dialect
from synk.compile.regions.c_texts import NoText
from synk.compile.regions.memory import OwnMemory
from synk.compile.regions.views import View
from synk.compile.regions.walks import copy

LARGEST = 256  # elements of a constant in a text


class Variables(OwnMemory):
    """The variables of a region in the making.

    Parameters
    ----------
    nodes : sequence of Apply
        In the order they run.
    inputs, outputs : sequence of Variable
        What the region takes and returns.
    dialect : Dialect
        C, with the elementary functions that there are.
    """

    def __init__(
        self,
        nodes: Sequence[Apply],
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        dialect: Dialect,
    ):
        super().__init__()
        self.dialect = dialect
        self.inputs, self.outputs, self.nodes = inputs, list(outputs), nodes
        self._numbers: dict[Variable, str] = {}
        self._views: dict[Variable, View] = {}
        self._lengths: dict[Variable, Sequence[str]] = {}  # of vectors of lengths, as expressions
        self._readers: dict[Variable, int] = {}
        self.uses: dict[Variable, list[Apply]] = {}
        for k, node in enumerate(nodes):
            for variable in node.inputs:
                self._readers[variable] = k
                self.uses.setdefault(variable, []).append(node)
        self._kept: frozenset[Variable] = frozenset(outputs)  # read when all nodes have run
        self._placed: set[Variable] = set()  # outputs that lie where they are returned
        self._destined: dict[Variable, View | Callable[[str], View]] = {}
        self.done: set[Apply] = set()  # nodes that were written with one before them

    def number(self, variable: Variable) -> str:
        """Return the expression of a variable without axes."""
        if isinstance(variable, Constant) and isinstance(variable.type, ScalarType | DenseTensorType):
            type_of(variable)
            return self.dialect.literal(np.asarray(variable.data).item(), variable.type.dtype)
        return self._numbers[variable]

    def generator(self, variable: Variable, reader: Apply) -> str:
        """Return the pointer to a generator's bits; NoText if another node than ``reader`` has them too."""
        if variable not in self._numbers or self.uses[variable] != [reader] or self.is_kept(variable):
            raise NoText("a generator that others read")
        return self._numbers[variable]

    def view(self, variable: Variable) -> View:
        """Return the view of a variable's elements."""
        if variable not in self._views:
            if variable in self._lengths:
                self.write_numbers(variable, self._lengths.pop(variable))
            elif isinstance(variable, Constant):
                return self._constant(variable)
            else:
                self._know(variable, self.number_view(variable.type.dtype, self.number(variable)))
        return self._views[variable]

    def length(self, variable: Variable, axis: int) -> str:
        """Return the expression of a length."""
        static = variable.type.shape[axis]
        return str(static) if static is not None else self.view(variable).shape[axis]

    def lengths(self, variable: Variable) -> Sequence[str]:
        """Return the expressions of a vector of lengths, such as a shape."""
        if isinstance(variable, Constant):
            return [f"{int(length)}L" for length in variable.data]
        if variable in self._lengths:
            return self._lengths[variable]
        count = variable.type.shape[0]
        if count is None:
            raise NoText("a vector of nobody knows how many lengths")
        view = self.view(variable)
        return [f"(long)*({view.kind} *)({view.at(str(k))})" for k in range(count)]

    def bind(self, variable: Variable, name: str | View) -> None:
        """Say that a variable is a number, or a view."""
        if isinstance(name, View):
            self._know(variable, name)
        else:
            self._numbers[variable] = name

    def bind_part(self, variable: Variable, view: View, *steps: str) -> None:
        """Say that a variable is what lies so many steps away in a view, along its first axes."""
        if variable.type.ndim:
            self.bind(variable, self.let_rest(view, *steps))
        else:
            self.know_number(variable, f"*({view.kind} *)({view.at(*steps)})")

    def destine(self, variable: Variable, place: View | Callable[[str], View]) -> None:
        """Say in which view a node inside of a block is to make a variable.

        A function writes what makes the view, given the name of the array of lengths.
        """
        self._destined[variable] = place

    def store(self, variable: Variable, place: View) -> None:
        """Copy a variable to a view, unless it was made there."""
        if not getattr(variable.type, "ndim", 0):
            self.line(f"*({place.kind} *){place}.data = {self.number(variable)};")
        elif (view := self.view(variable)) != place:
            self.demand_same(view.shape, place.shape)
            copy(self, view, place)

    def know_number(self, variable: Variable, expression: str) -> None:
        """Say what a variable without axes is."""
        self._numbers[variable] = self.let(type_of(variable), expression)

    def know_lengths(self, variable: Variable, lengths: Sequence[str]) -> None:
        """Say what the elements of a vector of lengths are."""
        self._lengths[variable] = lengths

    @property
    def known_lengths(self) -> Collection[Variable]:
        """The vectors whose elements are known one by one."""
        return self._lengths

    def write_numbers(self, variable: Variable, numbers: Sequence[str]) -> None:
        """Make a vector of numbers."""
        view = self.new(variable, [str(len(numbers))])
        for k, number in enumerate(numbers):
            self.line(f"(({view.kind} *){view}.data)[{k}] = {number};")

    def know_regrouped(self, variable: Variable, source: Variable, shape: Sequence[str]) -> None:
        """Say that a variable has the elements of another in C order: as a view or a copy, as they lie."""
        view, n = self.view(source), len(shape)
        size = np.dtype(view.dtype).itemsize
        lengths, strides = self.let_array(shape), self.let_array(["0"] * n)
        total = self.let("long", f"elements({view.ndim}, {view}.shape)" if view.ndim else "1")
        self.demand(f"fill_in({n}, {lengths}, {total})")
        as_it_lies = f"regroup({view.ndim}, &{view}, {size}, {n}, {lengths}, {strides})"
        dense = self.copied_unless(as_it_lies, view)
        if n:
            made = self._view(view.dtype, n, f"{dense}.data", lengths, strides)
            self._places.put(made.name, self._places.of(dense.name))
            self._know(variable, made)
        else:
            self.know_number(variable, f"*({view.kind} *){dense}.data")

    def same(self, variable: Variable, source: Variable) -> None:
        """Say that a variable is another one."""
        if source in self._lengths:
            self._lengths[variable] = self._lengths[source]
        else:
            has_axes = getattr(variable.type, "ndim", 0)
            self.bind(variable, self.view(source) if has_axes else self.number(source))

    def know_view(
        self, variable: Variable, source: Variable, data: str, shape: Sequence[str], strides: Sequence[str]
    ) -> None:
        """Say that a variable's elements lie in the memory of another one."""
        view = self.view(source)
        if shape:
            self._know(variable, self.let_part(view, data, shape, strides))
        else:
            self.know_number(variable, f"*(const {view.kind} *)({data})")

    def new(self, variable: Variable, shape: Sequence[str] | str, like: View | None = None) -> View:
        """Return the view of new memory for a variable: of a result, if the region returns it.

        ``shape`` are expressions, or the one name of an array of lengths; ``like`` is a view
        with its axes in the same order, and lengths.
        """
        ndim, dtype = variable.type.ndim, variable.type.dtype
        lengths = shape if isinstance(shape, str) else self.let_array(shape)
        if variable in self._destined:
            place = self._destined[variable]
            view = place if isinstance(place, View) else place(lengths)
            self.demand_same([f"{lengths}[{axis}]" for axis in range(ndim)], view.shape)
        elif variable not in self.outputs or variable in self._placed:
            view = self._of_our_own(ndim, dtype, lengths, like, whole=True)
        else:
            strides, _ = self._dense(ndim, dtype, lengths, like)
            k = self.outputs.index(variable)
            at, number = len(self.inputs) + k, np.dtype(dtype).num
            given = f"n_given > {at} ? given[{at}] : 0"
            self.line(f"r[{k}] = result({given}, {ndim}, {lengths}, {strides}, {number});")
            # Of a node with several results none is written before all of them are there.
            self._lines.append(f"    if (!r[{k}]) goto give_up;")
            self._placed.add(variable)
            self.begun = True
            view = self._view(dtype, ndim, f"r[{k}]->data", lengths, f"r[{k}]->strides")
        self._know(variable, view)
        return view

    def take_over(self, variable: Variable, source: Variable, node: Apply) -> View | None:
        """Return the view of ``source`` for a variable, if it is new memory that nobody reads later."""
        view = self._views.get(source)
        # In a block, the next time round may read it.
        if view is None or variable in self.outputs or self.in_block:
            return None
        others = [self._views[one].name for one in node.inputs if one in self._views]
        others.remove(view.name)
        if not self._places.is_free_after(view.name, self._at, others):
            return None
        self._know(variable, view)
        return view

    def is_kept(self, variable: Variable) -> bool:
        """Tell whether a variable is read when all nodes have run."""
        return variable in self._kept

    def _know(self, variable: Variable, view: View) -> None:
        self._views[variable] = view
        last = len(self.nodes) if variable in self._kept else self._readers.get(variable, self._at)
        self._places.keep(view.name, last)

    def _constant(self, variable: Variable) -> View:
        """Return the view of a small constant, whose elements stand in the text."""
        kind, dtype = type_of(variable), variable.type.dtype
        if np.size(variable.data) > LARGEST:
            raise NoText("a constant of many elements")
        values = np.ascontiguousarray(variable.data)
        name, ndim = self._name("v"), values.ndim
        listed = ", ".join(self.dialect.literal(value.item(), dtype) for value in values.reshape(-1))
        shape, strides = (", ".join(map(str, numbers)) or "0" for numbers in (values.shape, values.strides))
        self.line(f"static const {kind} {name}d[{max(values.size, 1)}] = {{{listed or 0}}};")
        self.line(f"static const long {name}n[{max(ndim, 1)}] = {{{shape}}};")
        self.line(f"static const long {name}s[{max(ndim, 1)}] = {{{strides}}};")
        view = self._view(dtype, variable.type.ndim, f"(char *){name}d", f"{name}n", f"{name}s")
        self._know(variable, view)
        return view


def type_of(variable: Variable) -> str:
    """Return the C type of a variable's elements; NoText if there is none."""
    dtype = getattr(variable.type, "dtype", None)
    if dtype not in TYPES or not isinstance(variable.type, DenseTensorType | ScalarType):
        raise NoText(f"regions do not compute in {variable.type}")
    return TYPES[dtype]
