"""The text of a region line by line: names for numbers, lengths, views and functions, and what it demands."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from synk.compile.programs.elementwise.dialect import TYPES
from synk.compile.regions.views import View


class Text:
    """Lines of C.

    Attributes
    ----------
    declarations : dict of str to None
        What stands before the text, in order: functions of the mathematical library and of its own.
    begun : bool
        Whether some result has a place by now.
    fails_late : bool
        Whether it may give up when results have been begun.
    """

    def __init__(self) -> None:
        self.declarations: dict[str, None] = {}
        self.begun = self.fails_late = False
        self._loops = False  # whether there has been a block, or an element's steps
        self._lines: list[str] = []
        self._n_names = 0

    def line(self, text: str) -> None:
        """Add a line."""
        self.fails_late |= "goto" in text and self.begun
        self._lines.append(f"    {text}")

    def demand(self, condition: str) -> None:
        """Give up the region's call unless ``condition`` holds."""
        self.line(f"if (!({condition})) goto give_up;")

    def demand_same(self, lengths: Sequence[str], others: Sequence[str]) -> None:
        """Give up the region's call unless lengths are the same as others."""
        for one, other in zip(lengths, others, strict=True):
            self.demand(f"{one} == {other}")

    def let(self, kind: str, expression: str) -> str:
        """Name the value of an expression."""
        name = self._name("t")
        self.line(f"const {kind} {name} = {expression};")
        return name

    def let_later(self, kind: str, start: str = "0") -> str:
        """Name a number that functions write."""
        name = self._name("t")
        self.line(f"{kind} {name} = {start};")
        return name

    def let_array(self, values: Sequence[str]) -> str:
        """Name an array of lengths."""
        name = self._name("n")
        self.line(f"long {name}[{max(len(values), 1)}] = {{{', '.join(values) or 0}}};")
        return name

    def let_view(self, dtype: str, data: str, shape: Sequence[str], strides: Sequence[str]) -> View:
        """Name a view."""
        lengths, steps = self.let_array(shape), self.let_array(strides)
        return self._view(dtype, len(shape), f"(char *)({data})", lengths, steps)

    def let_rest(self, view: View, *steps: str) -> View:
        """Name the view of what lies so many steps away in another one, along its first axes."""
        n = len(steps)
        return self._view(
            view.dtype, view.ndim - n, view.at(*steps), f"{view}.shape + {n}", f"{view}.strides + {n}"
        )

    def number_view(self, dtype: str, number: str) -> View:
        """Return the view of one number."""
        place = number if number.isidentifier() else self.let(TYPES[dtype], number)
        return self._view(dtype, 0, f"(char *)&{place}", "0", "0")

    def _view(self, dtype: str, ndim: int, data: str, lengths: str, strides: str) -> View:
        view = View(self._name("v"), dtype, ndim)
        self.line(f"const View {view} = {{{data}, {lengths}, {strides}}};")
        return view

    def function(self, text: str) -> str:
        """Return the name of a function with ``text``, in which ``NAME`` stands for it.

        All regions of a file share it.
        """
        name = f"f{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self.declarations[text.replace("NAME", name)] = None
        return name

    def _name(self, letter: str) -> str:
        self._n_names += 1
        return f"{letter}{self._n_names}"
