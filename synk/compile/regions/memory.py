"""The text of a region with memory of its own, which is given back after its last use.

lengths -> scratch, copied_unless, new_later -> a view of a place m[k], in the frame or in the heap
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from synk.compile.regions.lines import Text
from synk.compile.regions.places import Places
from synk.compile.regions.views import View
from synk.compile.regions.walks import copy


class OwnMemory(Text):
    """Lines of C that take memory, and give it back."""

    def __init__(self) -> None:
        super().__init__()
        self._places = Places()
        self._at = 0  # the node that is being written
        self._in_block: int | None = None  # the first place that was taken in the open block, if one is

    def is_own(self, view: View) -> bool:
        """Tell whether a view lies in memory that was taken in this block."""
        return self._places.is_own_since(view.name, self._in_block or 0)

    @property
    def in_block(self) -> bool:
        """Tell whether the node that is written runs again and again."""
        return self._in_block is not None

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Give back what is taken meanwhile, in each step of a loop."""
        mark, before = self._name("room"), self._in_block
        self.line(f"char *const {mark} = room;")
        first = self._in_block = len(self._places)
        yield
        for place in range(first, len(self._places)):
            self._give(place)
        self.line(f"room = {mark};")
        self._in_block = before

    def let_part(self, source: View, data: str, shape: Sequence[str], strides: Sequence[str]) -> View:
        """Name a view of some of another one's elements."""
        view = self.let_view(source.dtype, data, shape, strides)
        self._places.put(view.name, self._places.of(source.name))
        return view

    def scratch(self, dtype: str, shape: Sequence[str]) -> View:
        """Return the view of memory that is needed for this node only, if no variable is bound to it."""
        return self._of_our_own(len(shape), dtype, self.let_array(shape))

    def copied_unless(self, condition: str, view: View) -> View:
        """Return a view if a condition holds, or else that of a copy in C order."""
        holds, place = self.let("int", condition), self._places.take(self._at)
        strides = self.let_array(["0"] * view.ndim)
        self.line(f"if (!{holds}) {{")
        self._take(place, f"dense({view.ndim}, {view}.shape, {np.dtype(view.dtype).itemsize}, {strides})")
        copy(self, view, self._view(view.dtype, view.ndim, f"m[{place}]", f"{view}.shape", strides))
        self.line("}")
        data, steps = f"{holds} ? {view}.data : m[{place}]", f"{holds} ? {view}.strides : {strides}"
        made = self._view(view.dtype, view.ndim, data, f"{view}.shape", steps)
        # The memory of the source is kept too.
        self._places.put(made.name, self._places.of(view.name) | {place})
        return made

    def new_later(self, dtype: str, shape: Sequence[str]) -> tuple[View, str, str]:
        """Return the view of memory that is there when a line has run, its array of lengths, and that line.

        The line gets the lengths that are in the array when it runs.
        """
        ndim, place = len(shape), self._places.take(self._at)
        lengths, strides = self.let_array(shape), self.let_array(["0"] * ndim)
        view = View(self._name("v"), dtype, ndim)
        self.line(f"View {view} = {{0, {lengths}, {strides}}};")
        self._places.put(view.name, {place})
        n_bytes = f"dense({ndim}, {lengths}, {np.dtype(dtype).itemsize}, {strides})"
        # Of the heap: what the frame has is given back at the end of the block in which the line is.
        take = f"m[{place}] = take(&(char *){{frame + sizeof frame}}, frame + sizeof frame, {n_bytes});"
        return view, lengths, f"{take} if (!m[{place}]) goto give_up; {view}.data = m[{place}];"

    def _of_our_own(
        self, ndim: int, dtype: str, lengths: str, like: View | None = None, whole: bool = False
    ) -> View:
        place = self._places.take(self._at)
        strides, n_bytes = self._dense(ndim, dtype, lengths, like)
        self._take(place, n_bytes)
        view = self._view(dtype, ndim, f"m[{place}]", lengths, strides)
        self._places.put(view.name, {place}, whole)
        return view

    def _take(self, place: int, n_bytes: str) -> None:
        self.line(f"m[{place}] = take(&room, frame + sizeof frame, {n_bytes});")
        self.demand(f"m[{place}]")

    def _give(self, place: int) -> None:
        self.line(f"give(frame, frame + sizeof frame, &m[{place}]);")

    def _dense(self, ndim: int, dtype: str, lengths: str, like: View | None) -> tuple[str, str]:
        """Return the names of strides and of a number of bytes."""
        strides, n_bytes = self.let_array(["0"] * ndim), self._name("b")
        how, model = ("dense", "") if like is None else ("dense_like", f", &{like}")
        size = np.dtype(dtype).itemsize
        self.line(f"const long {n_bytes} = {how}({ndim}, {lengths}, {size}, {strides}{model});")
        return strides, n_bytes
