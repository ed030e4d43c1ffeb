"""Note the name of each variable of a region in its text: of a number, a view or a list of lengths.

    variable -> number(variable), ``t3``;  view(variable), ``v3``;  lengths(variable), [``v3.shape[0]``, ...]

A variable without axes is a number, ``const double t3``. Any other is a view ``v3`` of the memory of an
argument, of a result or of the region's own; several variables may be views of the same memory. The elements
of a vector of lengths, such as a shape, are noted as expressions; they are written to memory only if the text
of a node asks for a view of the vector.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.type import DenseTensorType

from synk.compile.programs.elementwise.dialect import TYPES, Dialect
from synk.compile.regions.c_texts import NoText
from synk.compile.regions.lines import Text
from synk.compile.regions.liveness import Liveness
from synk.compile.regions.memory import OwnMemory
from synk.compile.regions.views import View
from synk.compile.regions.walks import copy

LARGEST = 256  # elements of a constant in a text


class Variables:
    """The variables of a region whose text is being written.

    Parameters
    ----------
    text : Text
    liveness : Liveness
    memory : OwnMemory
    dialect : Dialect
        Writes constants.
    outputs : list of Variable
        The variables that the region returns, in arrays that its caller gets.
    n_inputs : int
        Arguments of the region; arrays for the results may come behind them.

    Attributes
    ----------
    placed : set of Variable
        The outputs whose elements lie in the arrays that are returned.
    """

    def __init__(
        self,
        text: Text,
        liveness: Liveness,
        memory: OwnMemory,
        dialect: Dialect,
        outputs: Sequence[Variable],
        n_inputs: int,
    ):
        self._text, self._liveness, self._memory, self._dialect = text, liveness, memory, dialect
        self._outputs, self._n_inputs = list(outputs), n_inputs
        self._numbers: dict[Variable, str] = {}
        self._views: dict[Variable, View] = {}
        self._lengths: dict[Variable, Sequence[str]] = {}  # of vectors of lengths, as expressions
        self.placed: set[Variable] = set()
        self._destined: dict[Variable, View | Callable[[str], View]] = {}

    def number(self, variable: Variable) -> str:
        """Return the C expression of a variable without axes."""
        if isinstance(variable, Constant) and isinstance(variable.type, ScalarType | DenseTensorType):
            type_of(variable)
            return self._dialect.literal(np.asarray(variable.data).item(), variable.type.dtype)
        return self._numbers[variable]

    def generator(self, variable: Variable, reader: Apply) -> str:
        """Return the C pointer to a generator's bits; raise NoText unless ``reader`` alone uses them."""
        alone = [*self._liveness.readers(variable)] == [reader] and not self._liveness.is_kept(variable)
        if variable not in self._numbers or not alone:
            raise NoText("a generator that others read")
        return self._numbers[variable]

    def view(self, variable: Variable) -> View:
        """Return the view of a variable's elements; the first time, add the lines that name it."""
        if variable not in self._views:
            if variable in self._lengths:
                self.write_numbers(variable, self._lengths.pop(variable))
            elif isinstance(variable, Constant):
                self.bind(variable, self._constant(variable))
            else:
                self.bind(variable, self._text.number_view(variable.type.dtype, self.number(variable)))
        return self._views[variable]

    def length(self, variable: Variable, axis: int) -> str:
        """Return the C expression of the length of an axis."""
        static = variable.type.shape[axis]
        return str(static) if static is not None else self.view(variable).shape[axis]

    def lengths(self, variable: Variable) -> Sequence[str]:
        """Return the C expressions of the elements of a vector of lengths, such as a shape."""
        if isinstance(variable, Constant):
            return [f"{int(length)}L" for length in variable.data]
        if variable in self._lengths:
            return self._lengths[variable]
        count = variable.type.shape[0]
        if count is None:
            raise NoText("a vector of lengths whose number is not known")
        view = self.view(variable)
        return [f"(long)*({view.kind} *)({view.at(str(k))})" for k in range(count)]

    @property
    def known_lengths(self) -> Collection[Variable]:
        """The vectors whose elements are noted as expressions, one by one."""
        return self._lengths

    def bind(self, variable: Variable, name: str | View) -> None:
        """Note the name of a variable: of a number in C, or a view."""
        if isinstance(name, View):
            self._views[variable] = name
            self._memory.places.keep(name.name, self._liveness.last_reader(variable))
        else:
            self._numbers[variable] = name

    def bind_part(self, variable: Variable, view: View, *steps: str) -> None:
        """Note that a variable is the part of a view at the positions ``steps`` along its first axes."""
        if variable.type.ndim:
            self.bind(variable, self._text.declare_subview(view, *steps))
        else:
            self.bind_number(variable, f"*({view.kind} *)({view.at(*steps)})")

    def same(self, variable: Variable, source: Variable) -> None:
        """Note that a variable has the elements of another one, and the same name."""
        if source in self._lengths:
            self._lengths[variable] = self._lengths[source]
        else:
            has_axes = getattr(variable.type, "ndim", 0)
            self.bind(variable, self.view(source) if has_axes else self.number(source))

    def bind_number(self, variable: Variable, expression: str) -> None:
        """Add a line that names the value of a variable without axes, given its expression."""
        self._numbers[variable] = self._text.let(type_of(variable), expression)

    def bind_lengths(self, variable: Variable, lengths: Sequence[str]) -> None:
        """Note the elements of a vector of lengths, as expressions."""
        self._lengths[variable] = lengths

    def bind_view(
        self, variable: Variable, source: Variable, data: str, shape: Sequence[str], strides: Sequence[str]
    ) -> None:
        """Add lines that name the view of a variable whose elements lie in the memory of another one."""
        view = self.view(source)
        if shape:
            self.bind(variable, self._memory.subview(view, data, shape, strides))
        else:
            self.bind_number(variable, f"*(const {view.kind} *)({data})")

    def bind_reshaped(self, variable: Variable, source: Variable, shape: Sequence[str]) -> None:
        """Name the view of a variable that has the elements of another one, in C order, in another shape.

        It lies in the memory of the other one if that is possible, which each call decides, or else in a
        copy.
        """
        text, view, n = self._text, self.view(source), len(shape)
        size = np.dtype(view.dtype).itemsize
        lengths, strides = text.declare_array(shape), text.declare_array(["0"] * n)
        total = text.let("long", f"elements({view.ndim}, {view}.shape)" if view.ndim else "1")
        text.demand(f"fill_in({n}, {lengths}, {total})")
        as_it_lies = f"regroup({view.ndim}, &{view}, {size}, {n}, {lengths}, {strides})"
        dense = self._memory.copied_unless(as_it_lies, view)
        if n:
            made = text.view_of_arrays(view.dtype, n, f"{dense}.data", lengths, strides)
            self._memory.places.put(made.name, self._memory.places.of(dense.name))
            self.bind(variable, made)
        else:
            self.bind_number(variable, f"*({view.kind} *){dense}.data")

    def write_numbers(self, variable: Variable, numbers: Sequence[str]) -> None:
        """Add lines that write a vector of numbers to new memory."""
        view = self.new(variable, [str(len(numbers))])
        for k, number in enumerate(numbers):
            self._text.line(f"(({view.kind} *){view}.data)[{k}] = {number};")

    def new(self, variable: Variable, shape: Sequence[str] | str, like: View | None = None) -> View:
        """Return the view of new memory for a variable: of a result's array, if the region returns it.

        ``shape`` is a list of expressions, or the name of an array of lengths. The axes lie in memory in the
        order of those of the view ``like``, which has as many.
        """
        ndim, dtype = variable.type.ndim, variable.type.dtype
        lengths = shape if isinstance(shape, str) else self._text.declare_array(shape)
        if variable in self._destined:
            place = self._destined[variable]
            view = place if isinstance(place, View) else place(lengths)
            self._text.demand_same([f"{lengths}[{axis}]" for axis in range(ndim)], view.shape)
        elif variable not in self._outputs or variable in self.placed:
            view = self._memory.new(ndim, dtype, lengths, like, whole=True)
        else:
            view = self._result(self._outputs.index(variable), ndim, dtype, lengths, like)
            self.placed.add(variable)
        self.bind(variable, view)
        return view

    def _result(self, k: int, ndim: int, dtype: str, lengths: str, like: View | None) -> View:
        """Return the view of the array of result ``k``: the caller's array if that fits, or a new one."""
        strides, _ = self._memory.strides(ndim, dtype, lengths, like)
        at, number = self._n_inputs + k, np.dtype(dtype).num
        given = f"n_given > {at} ? given[{at}] : 0"
        self._text.line(f"r[{k}] = result({given}, {ndim}, {lengths}, {strides}, {number});")
        # Not by `demand`, because this goto is no late failure: a node writes none of its results before the
        # arrays of all of them are made.
        self._text.lines.append(f"    if (!r[{k}]) goto give_up;")
        self._text.begun = True
        return self._text.view_of_arrays(dtype, ndim, f"r[{k}]->data", lengths, f"r[{k}]->strides")

    def take_over(self, variable: Variable, source: Variable, node: Apply) -> View | None:
        """Return the view of ``source`` for a variable that ``node`` computes in the same memory.

        None unless the view is a whole piece of the region's own memory that nothing reads after the node.
        """
        view = self._views.get(source)
        # In a loop, the next step may read it.
        if view is None or variable in self._outputs or self._text.in_loop:
            return None
        others = [self._views[one].name for one in node.inputs if one in self._views]
        others.remove(view.name)
        if not self._memory.places.is_free_after(view.name, self._liveness.at, others):
            return None
        self.bind(variable, view)
        return view

    def destine(self, variable: Variable, place: View | Callable[[str], View]) -> None:
        """Let the node that computes a variable inside of a loop write it into the view ``place``.

        ``place`` may be a function, which returns the view, given the name of the variable's array of
        lengths.
        """
        self._destined[variable] = place

    def store(self, variable: Variable, place: View) -> None:
        """Add a line that copies a variable to a view, unless it was written there."""
        if not getattr(variable.type, "ndim", 0):
            self._text.line(f"*({place.kind} *){place}.data = {self.number(variable)};")
        elif (view := self.view(variable)) != place:
            self._text.demand_same(view.shape, place.shape)
            copy(self._text, view, place)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget behind this context the names noted in it: names of a loop are unknown behind the loop."""
        names = self._views, self._numbers, self._lengths
        self._views, self._numbers, self._lengths = (dict(table) for table in names)
        yield
        self._views, self._numbers, self._lengths = names

    def _constant(self, variable: Variable) -> View:
        """Return the view of a small constant, whose elements are written into the text."""
        kind, dtype = type_of(variable), variable.type.dtype
        if np.size(variable.data) > LARGEST:
            raise NoText("a constant of many elements")
        values = np.ascontiguousarray(variable.data)
        name, ndim = self._text.name("v"), values.ndim
        listed = ", ".join(self._dialect.literal(value.item(), dtype) for value in values.reshape(-1))
        shape, strides = (", ".join(map(str, numbers)) or "0" for numbers in (values.shape, values.strides))
        self._text.line(f"static const {kind} {name}d[{max(values.size, 1)}] = {{{listed or 0}}};")
        self._text.line(f"static const long {name}n[{max(ndim, 1)}] = {{{shape}}};")
        self._text.line(f"static const long {name}s[{max(ndim, 1)}] = {{{strides}}};")
        return self._text.view_of_arrays(
            dtype, variable.type.ndim, f"(char *){name}d", f"{name}n", f"{name}s"
        )


def type_of(variable: Variable) -> str:
    """Return the C type of a variable's elements; raise NoText if there is none."""
    dtype = getattr(variable.type, "dtype", None)
    if dtype not in TYPES or not isinstance(variable.type, DenseTensorType | ScalarType):
        raise NoText(f"regions do not compute in {variable.type}")
    return TYPES[dtype]
