"""Take memory of a region's own, in the C frame or in the heap, and give it back after its last use.

lengths -> scratch, copied_unless, new_later -> a view of memory number k, ``m[k]``
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from synk.compile.regions.lines import Text
from synk.compile.regions.liveness import Liveness
from synk.compile.regions.places import Places
from synk.compile.regions.views import View
from synk.compile.regions.walks import copy


class OwnMemory:
    """The memory of a region's own: of arrays that are neither arguments nor results.

    Attributes
    ----------
    places : Places
        The pieces of memory, and the views that lie in them.
    """

    def __init__(self, text: Text, liveness: Liveness) -> None:
        self.places = Places()
        self._text, self._liveness = text, liveness
        self._first = 0  # the first place that was taken in the open loop

    def is_own(self, view: View) -> bool:
        """Tell whether a view lies in the region's own memory, taken in the open loop if there is one."""
        return self.places.is_own_since(view.name, self._first)

    @contextmanager
    def room(self) -> Iterator[None]:
        """Give back, at the end of each step of the open loop, the memory taken within this context."""
        mark, before = self._text.name("room"), self._first
        self._text.line(f"char *const {mark} = room;")
        first = self._first = len(self.places)
        yield
        for place in range(first, len(self.places)):
            self.give(place)
        self._text.line(f"room = {mark};")
        self._first = before

    def subview(self, source: View, data: str, shape: Sequence[str], strides: Sequence[str]) -> View:
        """Name a view of some elements of another one, whose memory is kept as long as this is needed."""
        view = self._text.declare_view(source.dtype, data, shape, strides)
        self.places.put(view.name, self.places.of(source.name))
        return view

    def scratch(self, dtype: str, shape: Sequence[str]) -> View:
        """Return the view of new memory, kept for the current node and for variables bound to the view."""
        return self.new(len(shape), dtype, self._text.declare_array(shape))

    def copied_unless(self, condition: str, view: View) -> View:
        """Return a view of the same elements: the given view if a C condition holds, or a copy in C order."""
        text, place = self._text, self._take_place()
        holds = text.let("int", condition)
        strides = text.declare_array(["0"] * view.ndim)
        text.line(f"if (!{holds}) {{")
        self._take(place, f"dense({view.ndim}, {view}.shape, {np.dtype(view.dtype).itemsize}, {strides})")
        copy(text, view, text.view_of_arrays(view.dtype, view.ndim, f"m[{place}]", f"{view}.shape", strides))
        text.line("}")
        data, steps = f"{holds} ? {view}.data : m[{place}]", f"{holds} ? {view}.strides : {strides}"
        made = text.view_of_arrays(view.dtype, view.ndim, data, f"{view}.shape", steps)
        # Each call decides which of the two it is, so the memory of both is kept.
        self.places.put(made.name, self.places.of(view.name) | {place})
        return made

    def new_later(self, dtype: str, shape: Sequence[str]) -> tuple[View, str, str]:
        """Return a view of memory that a line takes later, the name of its array of lengths, and that line.

        The memory has the lengths that are in the array when the line runs.
        """
        text, ndim, place = self._text, len(shape), self._take_place()
        lengths, strides = text.declare_array(shape), text.declare_array(["0"] * ndim)
        view = View(text.name("v"), dtype, ndim)
        text.line(f"View {view} = {{0, {lengths}, {strides}}};")
        self.places.put(view.name, {place})
        n_bytes = f"dense({ndim}, {lengths}, {np.dtype(dtype).itemsize}, {strides})"
        # From the heap: memory of the frame would be given back at the end of the step that takes it.
        take = f"m[{place}] = take(&(char *){{frame + sizeof frame}}, frame + sizeof frame, {n_bytes});"
        return view, lengths, f"{take} if (!m[{place}]) goto give_up; {view}.data = m[{place}];"

    def new(self, ndim: int, dtype: str, lengths: str, like: View | None = None, whole: bool = False) -> View:
        """Return the view of new memory with the lengths in an array.

        Its axes lie in memory in C order, or in the order of those of the view ``like``. ``whole`` says that
        the view is all of a variable, whose memory another variable may take over.
        """
        place = self._take_place()
        strides, n_bytes = self.strides(ndim, dtype, lengths, like)
        self._take(place, n_bytes)
        view = self._text.view_of_arrays(dtype, ndim, f"m[{place}]", lengths, strides)
        self.places.put(view.name, {place}, whole)
        return view

    def strides(self, ndim: int, dtype: str, lengths: str, like: View | None) -> tuple[str, str]:
        """Add lines that name the strides and the bytes of new memory; return both names; see `new`."""
        strides, n_bytes = self._text.declare_array(["0"] * ndim), self._text.name("b")
        how, model = ("dense", "") if like is None else ("dense_like", f", &{like}")
        size = np.dtype(dtype).itemsize
        self._text.line(f"const long {n_bytes} = {how}({ndim}, {lengths}, {size}, {strides}{model});")
        return strides, n_bytes

    def give(self, place: int) -> None:
        """Add the line that gives a piece of memory back."""
        self._text.line(f"give(frame, frame + sizeof frame, &m[{place}]);")

    def _take_place(self) -> int:
        return self.places.take(self._liveness.at)

    def _take(self, place: int, n_bytes: str) -> None:
        self._text.line(f"m[{place}] = take(&room, frame + sizeof frame, {n_bytes});")
        self._text.demand(f"m[{place}]")
