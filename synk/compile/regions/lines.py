"""Collect the lines of a region's C function, and make the names in them.

expressions in C -> Text: lines that name them, demand something or loop -> the body of a function

Nothing here knows of nodes and variables: `variables` says which names stand for these, and `memory` adds the
lines that take the memory in which views lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from synk.compile.programs.elementwise.dialect import TYPES
from synk.compile.regions.views import View


class Text:
    """The lines of a C function while it is written.

    Attributes
    ----------
    lines : list of str
    declarations : dict of str to None
        The texts that stand before the function: functions that its lines call, of libraries and of this
        package, in the order of their first calls.
    loops : bool
        Whether some lines run more than once in a call.
    begun : bool
        Whether the array of a result has been made by a line so far.
    fails_late : bool
        Whether a line may give up the call after the array of a result has been made.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: dict[str, None] = {}
        self.loops = self.begun = self.fails_late = False
        self._depth = self._n_names = 0  # open loops; names so far

    def line(self, text: str) -> None:
        """Add a line."""
        self.fails_late |= "goto" in text and self.begun
        self.lines.append(f"    {text}")

    def demand(self, condition: str) -> None:
        """Add a line that gives up the region's call unless ``condition`` holds."""
        self.line(f"if (!({condition})) goto give_up;")

    def demand_same(self, lengths: Sequence[str], others: Sequence[str]) -> None:
        """Add lines that give up the region's call unless two lists of lengths are equal."""
        for one, other in zip(lengths, others, strict=True):
            self.demand(f"{one} == {other}")

    @property
    def in_loop(self) -> bool:
        """Tell whether the next line is inside of a loop that `steps` has opened."""
        return self._depth > 0

    @contextmanager
    def steps(self, count: str) -> Iterator[None]:
        """Open a loop whose steps have numbers ``i`` from 0 to ``count``, and close it behind this context.

        ``count`` may be followed by a condition, as in ``n && !done``; the loop ends when that does not hold.
        """
        self.loops, watch = True, self.name("watch")
        self._depth += 1
        self.line(f"Watch {watch} = {{1, 1, milliseconds()}};")
        self.line(f"for (long i = 0; i < {count}; i++) {{")
        self.line(f"if (!{watch}.left-- && !look(&{watch})) goto interrupted;")
        yield
        self.line("}")
        self._depth -= 1
        if not self.in_loop:
            self.line("come_back();")

    def repeats(self) -> None:
        """Note that the line before has a loop of unknown length; let signals be handled behind it."""
        self.loops = True
        self.breathe()

    def breathe(self) -> None:
        """Add a line that runs the handlers of signals if enough time has passed."""
        # Not by `line`, because this goto is no late failure: as in Python, an interrupt may come when some
        # results are written and others are not.
        self.lines.append("    if (*worked > BREATH && !breathe()) goto interrupted;")

    def name(self, letter: str) -> str:
        """Return a name that no other line has, which begins with ``letter``."""
        self._n_names += 1
        return f"{letter}{self._n_names}"

    def let(self, kind: str, expression: str) -> str:
        """Add a line that names the value of an expression of C type ``kind``; return the name."""
        name = self.name("t")
        self.line(f"const {kind} {name} = {expression};")
        return name

    def declare_variable(self, kind: str, start: str = "0") -> str:
        """Add a line that names a variable of C, which later lines change; return the name."""
        name = self.name("t")
        self.line(f"{kind} {name} = {start};")
        return name

    def declare_array(self, values: Sequence[str]) -> str:
        """Add a line that names an array of lengths or strides; return the name."""
        name = self.name("n")
        self.line(f"long {name}[{max(len(values), 1)}] = {{{', '.join(values) or 0}}};")
        return name

    def declare_view(self, dtype: str, data: str, shape: Sequence[str], strides: Sequence[str]) -> View:
        """Add lines that name a view, given C for its address, lengths and strides; return the view."""
        lengths, steps = self.declare_array(shape), self.declare_array(strides)
        return self.view_of_arrays(dtype, len(shape), f"(char *)({data})", lengths, steps)

    def declare_subview(self, view: View, *steps: str) -> View:
        """Add a line that names the part of a view at positions ``steps`` along its first axes; return it."""
        n = len(steps)
        return self.view_of_arrays(
            view.dtype, view.ndim - n, view.at(*steps), f"{view}.shape + {n}", f"{view}.strides + {n}"
        )

    def number_view(self, dtype: str, number: str) -> View:
        """Return a view without axes, of one number."""
        place = number if number.isidentifier() else self.let(TYPES[dtype], number)
        return self.view_of_arrays(dtype, 0, f"(char *)&{place}", "0", "0")

    def view_of_arrays(self, dtype: str, ndim: int, data: str, lengths: str, strides: str) -> View:
        """Add a line that names a view, given the names of arrays of its lengths and strides; return it."""
        view = View(self.name("v"), dtype, ndim)
        self.line(f"const View {view} = {{{data}, {lengths}, {strides}}};")
        return view

    def function(self, text: str) -> str:
        """Declare a function in whose text ``NAME`` stands for its name; return the name.

        The name is a digest of the text, so all regions of a file share the function.
        """
        name = f"f{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self.declarations[text.replace("NAME", name)] = None
        return name
