"""Draw one call of a function: the files of synk that it goes through on each rank, in order.

    python docs/draw_call.py > build/call.txt

Two ranks run a call under `sys.setprofile`, so the drawing is of the code as it is. A file stands where the
call enters it first, under the file that called it, with the function that was entered and what its docstring
says.
"""

import ast
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

import synk

ROOT = Path(synk.__file__).parent
PROGRAM = "<array program"  # as the linker names the text of a program that it makes


class Event(NamedTuple):
    """A function of synk is entered or left."""

    nanoseconds: int  # of a clock that all processes of a machine share
    enters: bool
    file: str
    function: str


class Recorder:
    """Records the calls of one rank, from one call of this object to the next."""

    def __init__(self, rank: int):
        self.events: list[Event] = []

    def __call__(self) -> list[Event]:
        if sys.getprofile() is None:
            sys.setprofile(self.note)
            return []
        sys.setprofile(None)
        return self.events

    def note(self, frame: Any, event: str, argument: Any) -> None:
        """Note a call or a return, as `sys.setprofile` tells it."""
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith((f"{ROOT}/", PROGRAM)):
            name = code.co_filename.removeprefix(f"{ROOT}/")
            self.events.append(Event(time.monotonic_ns(), event == "call", name, code.co_qualname))


def record() -> list[list[Event]]:
    """Return what each of two ranks does in a call that selects rows, of a function that has run before."""
    synk.fork(2)
    x = pt.matrix("x")
    spread = synk.function([x], x.std(axis=0), name="spread")
    rows = synk.data(np.arange(24.0).reshape(8, 3))
    spread(rows)
    spread(rows, batch=[0, 7])
    recorders = synk.on_ranks(Recorder)
    recorders()
    begin = time.monotonic_ns()
    spread(rows, batch=[0, 1, 2, 5])
    end = time.monotonic_ns()
    of_ranks = recorders()
    synk.close()
    return [[event for event in events if begin < event.nanoseconds < end] for events in of_ranks]


def drawn(events: list[Event]) -> Iterator[str]:
    """Yield a line for each file, indented under the file that called it."""
    seen: set[str] = set()
    depths: list[int] = []  # of the lines under which the functions that run stand
    files: list[str] = []
    for event in events:
        if not event.enters:
            if depths:
                depths.pop(), files.pop()
            continue
        depth = depths[-1] if depths else 0
        inside = "<" not in event.function or event.file.startswith(PROGRAM)
        if event.file not in seen and inside:
            seen.add(event.file)
            depth += bool(depths)
            yield line(depth, event)
        depths.append(depth)
        files.append(event.file)


def line(depth: int, event: Event) -> str:
    """Return a file with the function that is entered, and its first sentence."""
    if event.file.startswith(PROGRAM):
        return "  " * depth + "the program of the graph, a line of Python for each node or region"
    head = f"{'  ' * depth}{event.file}  {event.function}"
    return f"{head:<72}  {first_line(event)}".rstrip()


def first_line(event: Event) -> str:
    """Return the first line of a function's docstring, or else of its class's, or of its file's."""
    node: Any = ast.parse((ROOT / event.file).read_text())
    said = ast.get_docstring(node)
    for name in event.function.split("."):
        node = next((one for one in ast.walk(node) if getattr(one, "name", None) == name), None)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            break
        said = ast.get_docstring(node) or said
    return said.splitlines()[0] if said else ""


if __name__ == "__main__":
    for rank, events in enumerate(record()):
        print(f"rank {rank}" + (", the script's process" if rank == 0 else ""))
        print("\n".join(f"  {text}" for text in drawn(events)) + "\n" * (rank == 0))
