"""Find the line of the user's code that built a node.

PyTensor keeps the stack where a variable was made in ``tag.trace``, and rewrites copy it to what they put
in its place. The frame to show is the innermost one that is not in PyTensor, synk or Python itself. Only that
frame travels with a graph, so that an error on a worker names it too.

    tag.trace -> user_lines -> pack -> (pickle) -> unpack -> tag.trace
"""

import os
import sysconfig
from collections import deque
from collections.abc import Sequence

import pytensor
from pytensor.graph.basic import Apply, Variable

Line = tuple[str, int, str, str | None]  # file, line number, function, source text: a frame of tag.trace
Packed = tuple[list[tuple[Line, ...]], list[int]]

LIBRARIES = tuple(
    os.path.join(os.path.abspath(folder), "")
    for folder in (
        os.path.dirname(pytensor.__file__),
        os.path.join(os.path.dirname(__file__), *[os.pardir] * 3),
    )
)
PYTHON = os.path.join(sysconfig.get_path("stdlib"), "")
MAX_SEARCH = 500  # nodes; what is further away says nothing
N_CHARACTERS = 60  # of a line in messages
PACKAGES = ("site-packages", "dist-packages")  # may lie inside Python's own folder


def user_lines(variable: Variable) -> tuple[Line, ...]:
    """Return the lines of the user's code that built ``variable``.

    There is most often one; several where a rewrite merged nodes; none where the stack that PyTensor kept
    (``config.traceback__limit`` frames of it) lies in libraries altogether, as it may for gradients.
    """
    try:
        trace = _read(variable.tag, "trace")
    except AttributeError:
        return ()
    if len(trace) == 1:
        return _innermost(trace[0])
    return tuple(dict.fromkeys([line for frames in trace for line in _innermost(frames)]))


def nearest_lines(node: Apply) -> tuple[Line, ...]:
    """Return the lines that built ``node``, or else the nearest node before it of which lines are known."""
    waiting, seen = deque([node]), {node}
    while waiting and len(seen) < MAX_SEARCH:
        node = waiting.popleft()
        lines = user_lines(node.outputs[0])
        if lines:
            return lines
        ahead = dict.fromkeys(variable.owner for variable in node.inputs)
        fresh = [owner for owner in ahead if owner is not None and owner not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
    return ()


def write_line(line: Line) -> str:
    """Return a line with its file and number in the form that tracebacks have."""
    file, number, function, text = line
    place = f'File "{file}", line {number}, in {function}'
    return f"{place}\n    {text}" if text else place


def place_of(node: Apply | None) -> str:
    """Return file, number and text of the user's line that built a node, or the nearest one, in short.

    "" if no line is known.
    """
    lines = nearest_lines(node) if node is not None else ()
    if not lines:
        return ""
    file, number, _, text = lines[0]
    return f"{os.path.basename(file)}:{number}" + (f", {shorten(text)}" if text else "")


def shorten(text: str) -> str:
    """Return a line of code, cut to `N_CHARACTERS`."""
    text = text.strip()
    return text if len(text) <= N_CHARACTERS else text[: N_CHARACTERS - 1] + "…"


def built_as(made: Variable, *values: Variable) -> Variable:
    """Give a new variable the traces of ``values``, from which it is made, and return it."""
    made.tag.trace = [frames for value in values for frames in getattr(value.tag, "trace", [])]
    return made


def remade(node: Apply, inputs: Sequence[Variable]) -> Apply:
    """Return a copy of a node on other inputs, with its names and traces; the node itself if none differs."""
    if all(one is other for one, other in zip(inputs, node.inputs, strict=True)):
        return node
    made = node.clone_with_new_inputs(list(inputs), strict=False)
    keep_origin(node.outputs, made.outputs)
    return made


def keep_origin(written: Sequence[Variable], made: Sequence[Variable]) -> None:
    """Give the new variables ``made`` the names and traces of the ``written`` ones that they replace."""
    for old, new in zip(written, made, strict=True):
        new.name = old.name
        new.tag.trace = getattr(old.tag, "trace", [])


def pack(nodes: Sequence[Apply]) -> Packed:
    """Return the different tuples of lines that built ``nodes``, and for each node the index of its tuple."""
    numbers: dict[tuple[Line, ...], int] = {}
    order = [numbers.setdefault(user_lines(node.outputs[0]), len(numbers)) for node in nodes]
    return list(numbers), order


def unpack(nodes: Sequence[Apply], packed: Packed) -> None:
    """Give nodes the traces that `pack` has returned for them."""
    different, order = packed
    traces = [[[line] for line in lines] for lines in different]
    for node, number in zip(nodes, order, strict=True):
        for output in node.outputs:
            _write(output.tag, "trace", traces[number])


def _innermost(frames: Sequence[Line]) -> tuple[Line, ...]:
    """Return the innermost frame of the user's code, or nothing.

    A ``make_node`` is passed over: what applied the user's Op is wanted, not the Op's own code.
    """
    for frame in frames[::-1]:
        if not _libraries[frame[0]] and frame[2] != "make_node":
            return (frame,)
    return ()


class LibraryFiles(dict):
    """A table that tells of a source file's name whether it belongs to PyTensor, synk or Python itself."""

    def __missing__(self, file: str) -> bool:
        inside = file.startswith((*LIBRARIES, "<frozen", "<__array"))
        own = file.startswith(PYTHON) and not any(folder in file for folder in PACKAGES)
        self[file] = inside or own
        return inside or own


_libraries = LibraryFiles()
# A tag's own access to attributes is written in Python, which would take most of the time.
_read, _write = object.__getattribute__, object.__setattr__
