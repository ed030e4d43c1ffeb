"""Imports go down the floors, never up or in a circle; extensions use the public API only.

The syntax tree of every module is read, nothing is imported.
``python tests/test_floors.py`` prints the table. Rules:

- every room of synk has a floor, and imports rooms of lower floors only; so have and do the inner rooms of
  ``compile/``;
- modules make no circle either, wherever in them an import stands;
- no module is loose, each room's first line says what it is for, and no docstring opens with a question word;
- ``extensions/`` imports ``synk`` and its public names, and itself;
- only ``current`` has a module global that is assigned to: the current session.

Imports under ``if TYPE_CHECKING:`` obey the floors, because a module that names a higher one depends on it in
its reader's head. They make no circle: two modules of one floor may name each other's types, since nothing is
imported when the program runs.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A room is a package right under synk, with all that is in it; "" is synk/__init__.py and __main__.py.
# A room imports rooms of lower floors only.
FLOORS = (
    {"values", "native"},  # pure values; compiled code
    {"memory", "processes", "compile"},
    {"transport", "kernels"},
    {"comm"},
    {"arrays", "device", "machines"},
    {"ops", "rank"},
    {"functions", "gpu_speedups", "recording"},
    {"collectives"},
    {"run"},
    {""},
    {"bench", "doctor"},
    {"extensions", "cache"},  # on the public API; a command that prints sizes as the doctor does
)
# The same of a room's own folders and loose modules, its inner rooms; what its __init__.py imports is free.
INNER_FLOORS = {
    "compile": (
        {
            "compat",
            "wrong_rewrites",
            "trackers",
        },  # what differs between versions of PyTensor, and what it keeps
        {"graphs", "host_call", "sound_rewrites"},
        {"tables", "elementwise", "rows"},  # what Ops say about themselves; elementwise chains as C and CUDA
        {"passes"},  # decisions about a program
        {"programs", "rewrites"},
        {"emit"},  # the passes' plan, written down
        {"regions"},  # what runs as C, and in Python where that gives up
        {"dispatch"},  # the entries of Ops, some of which hold programs
        {"linker", "kernels"},  # kernels: the former name of elementwise
        {"observe"},
    )
}
PUBLIC_PACKAGES = {"compile", "ops"}  # of synk, beside what `import synk` brings
MAY_ASSIGN_GLOBALS = {"synk.run.session.current"}
# A docstring is a sentence with a verb; these open a riddle.
NO_SENTENCE = re.compile(r"(What|Return what|Have|Whoever|How|Which|Where|When|Whether)\b")

FOLDERS = {"synk": ROOT / "synk", "synk.extensions": ROOT / "extensions"}


@dataclass(frozen=True)
class Module:
    """A module by its full name, with its syntax tree."""

    name: str
    tree: ast.Module
    is_package: bool = False


@dataclass(frozen=True)
class Import:
    """An import of a module: ``import source``, or ``from source import name``."""

    source: str
    name: str | None
    line: int
    for_types: bool  # under `if TYPE_CHECKING:`

    def __str__(self) -> str:
        return self.source if self.name is None else f"{self.name} from {self.source}"

    def target(self, names: set[str]) -> str:
        """Return the module that is meant: ``name`` may be a module of ``source`` or something in it."""
        inner = f"{self.source}.{self.name}"
        return inner if inner in names else self.source


@cache
def read_modules() -> list[Module]:
    """Read every module of the source tree; no rule changes them."""
    return [
        Module(name, ast.parse(path.read_text(), str(path)), path.name == "__init__.py")
        for package, folder in FOLDERS.items()
        for path in sorted(folder.rglob("*.py"))
        for name in [module_name(package, path.relative_to(folder))]
    ]


def module_name(package: str, path: Path) -> str:
    """Return ``synk.transport.comm.host_communicator`` for ``transport/comm/host_communicator.py``, and ``synk.transport.comm`` for ``transport/comm/__init__.py``."""
    parts = path.with_suffix("").parts
    return ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])


@cache
def imports(module: Module) -> list[Import]:
    """Return every import of synk in a module, also those inside functions."""
    return list(_imports(module))


def _imports(module: Module) -> Iterator[Import]:
    for_types = {
        id(inner)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            asked: list[tuple[str, str | None]] = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            asked = [(absolute(node, module), alias.name) for alias in node.names]
        else:
            continue
        for source, name in asked:
            if source.split(".")[0] == "synk":
                yield Import(source, name, node.lineno, id(node) in for_types)


def absolute(node: ast.ImportFrom, module: Module) -> str:
    """Return the full name of what stands between ``from`` and ``import``."""
    if not node.level:
        return node.module or ""
    above = module.name.split(".")
    above = above[: len(above) - node.level + module.is_package]
    return ".".join([*above, node.module] if node.module else above)


def room(name: str) -> str:
    """Return the room of a module."""
    found = name.removeprefix("synk").removeprefix(".").split(".")[0]
    return "" if found == "__main__" else found


def floor(name: str) -> int | None:
    """Return the floor of a module, the lowest is 1, or None when nobody has assigned one."""
    return next((number for number, rooms in enumerate(FLOORS, start=1) if room(name) in rooms), None)


def inner_room(name: str) -> str:
    """Return the inner room of a module, "" for its room's ``__init__.py``."""
    return [*name.split("."), "", ""][2]


def inner_floor(name: str) -> int | None:
    """Return the floor of a module inside its room, the lowest is 1; above all others for ``__init__.py``."""
    floors = INNER_FLOORS[room(name)]
    if not inner_room(name):
        return len(floors) + 1
    return next((number for number, rooms in enumerate(floors, start=1) if inner_room(name) in rooms), None)


def homeless(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every module without a floor, or without a room."""
    for module in modules:
        if floor(module.name) is None:
            yield f"{module.name} has no floor: add its room to FLOORS, as low as it fits"
        elif module.name.count(".") == 1 and not module.is_package and room(module.name):
            yield f"{module.name} is loose: move it into a room"
        elif room(module.name) in INNER_FLOORS and inner_floor(module.name) is None:
            yield f"{module.name} has no floor in its room: add it to INNER_FLOORS, as low as it fits"


def speechless(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every room whose first line does not say what it is for, and for riddles."""
    for module in modules:
        if module.name.count(".") == 1 and module.is_package:
            said = ast.get_docstring(module.tree) or ""
            if not said or len(said.splitlines()[0]) < 20:
                yield f"{module.name} does not say what it is for"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                said = ast.get_docstring(node) or ""
                if NO_SENTENCE.match(said):
                    yield f"{module.name} has no verb in {said.splitlines()[0]!r}"


def upward(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every import of a room that is not on a lower floor."""
    names = {module.name for module in modules}
    for module in modules:
        for asked in imports(module):
            target = asked.target(names)
            here, there = floor(module.name), floor(target)
            if room(module.name) == room(target):
                if room(target) not in INNER_FLOORS or inner_room(module.name) == inner_room(target):
                    continue
                here, there = inner_floor(module.name), inner_floor(target)
            if here is not None and there is not None and there >= here:
                yield f"{module.name}:{asked.line} on floor {here} imports {target} on floor {there}"


def table(modules: list[Module]) -> Iterator[str]:
    """Yield a line for each room, from the top floor down: its size, and the rooms that it imports."""
    for number, rooms in reversed(list(enumerate(FLOORS, start=1))):
        for name in sorted(rooms):
            yield row(str(number), name or "synk", [one for one in modules if room(one.name) == name], room)
            inside = [one for one in modules if room(one.name) == name and inner_room(one.name)]
            for inner, names in reversed(list(enumerate(INNER_FLOORS.get(name, ()), start=1))):
                for part in sorted(names):
                    those = [one for one in inside if inner_room(one.name) == part]
                    yield row(f"{number}.{inner}", f"  {part}", those, partial(inner_name, inside=name))


def inner_name(name: str, inside: str) -> str:
    """Return the inner room of a module of the room ``inside``, the room of any other."""
    return inner_room(name) if room(name) == inside else room(name)


def row(number: str, name: str, inside: list[Module], part: Callable[[str], str]) -> str:
    """Return the line of a room, or an inner one, whose modules are ``inside``."""
    names = {module.name for module in read_modules()}
    asked = {part(one.target(names)) for module in inside for one in imports(module)} - {name.strip()}
    below = ", ".join(sorted(below or "synk" for below in asked))
    return f"{number:>4} {name:14}{len(inside):4} modules    {below}"


def circles(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every circle of imports that a walk meets first."""
    names = {module.name for module in modules}
    graph = {
        module.name: sorted({asked.target(names) for asked in imports(module) if not asked.for_types} & names)
        for module in modules
    }
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> Iterator[str]:
        if name in path:
            yield " -> ".join([*path[path.index(name) :], name])
        elif name not in done:
            for target in graph[name]:
                yield from walk(target, [*path, name])
            done.add(name)

    for name in graph:
        yield from walk(name, [])


def private(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for everything in ``extensions`` that reaches behind synk's public names."""
    public = next((public_names(module) for module in modules if module.name == "synk"), set())
    public |= PUBLIC_PACKAGES
    for module in modules:
        if not inside_extensions(module.name):
            continue
        for asked in imports(module):
            of_synk = asked.source == "synk" and (asked.name is None or asked.name in public)
            of_synk |= asked.source in {f"synk.{name}" for name in PUBLIC_PACKAGES}
            if not of_synk and not inside_extensions(asked.target({"synk.extensions"})):
                yield f"{module.name}:{asked.line} imports {asked}, which is not in synk.__all__"
        for node in ast.walk(module.tree):
            of_synk = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "synk"
            if of_synk and node.attr not in public | {"extensions"}:
                yield f"{module.name}:{node.lineno} uses synk.{node.attr}, which is not in synk.__all__"


def inside_extensions(name: str) -> bool:
    """Say whether a module is ``synk.extensions`` or in it."""
    return f"{name}.".startswith("synk.extensions.")


def public_names(module: Module) -> set[str]:
    """Return the names that a module lists in ``__all__``."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def assigned_globals(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every ``global`` statement outside the one module that may have one."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Global) and module.name not in MAY_ASSIGN_GLOBALS:
                names = ", ".join(node.names)
                yield f"{module.name}:{node.lineno} assigns the global {names}: pass an object in instead"


RULES = [homeless, speechless, upward, circles, private, assigned_globals]


@pytest.mark.parametrize("rule", RULES)
def test_the_source_obeys(rule):
    assert list(rule(read_modules())) == []


def made_up(sources):
    """Return modules of lines ``name: text``; a name that ends in a dot, or none at all, is a package's."""
    for source in sources.split("\n"):
        name, text = source.split(":", 1)
        yield Module(f"synk.{name}".rstrip("."), ast.parse(text.strip()), name.endswith(".") or not name)


IN_TYPES = "values.rows: if TYPE_CHECKING: from ..arrays.data import Data\narrays.data:"
OF_DISPATCH = "compile.passes.place: from synk.compile.dispatch import f\ncompile.dispatch.:"
CIRCLE = "memory.shm: from . import limits\nmemory.limits: from synk.transport.memory.shm import f"
VIOLATIONS = [
    (homeless, "attic.:", "synk.attic has no floor"),
    (homeless, "arrays:", "synk.run.arrays is loose"),
    (homeless, "compile.attic:", "synk.compile.attic has no floor in its room"),
    (speechless, "arrays.: import numpy", "synk.run.arrays does not say what it is for"),
    (speechless, "arrays.data: 'What is in it.'", "synk.run.arrays.data has no verb in 'What is in it.'"),
    (
        upward,
        "values.rows: from synk.run.session.session import f\nrun.session:",
        "1 on floor 1 imports synk.run.session.session",
    ),
    (
        upward,
        "values.rows: from synk.run.session import session\nrun.session:\nrun.:",
        "imports synk.run.session.session on",
    ),
    (
        upward,
        "values.rows: def f(): import synk.run.session.session",
        "rows:1 on floor 1 imports synk.run.session",
    ),
    (upward, "comm.host: from ..rank.rank import f\nrank.rank:", "on floor 4 imports synk.run.rank.rank"),
    (upward, "ops.pool: import synk.run.rank.rank", "on floor 6 imports synk.run.rank.rank on floor 6"),
    (
        upward,
        "comm.: from ..arrays.data import f\narrays.data:",
        "synk.transport.comm:1 on floor 4 imports synk.arr",
    ),
    (upward, IN_TYPES, "imports synk.run.arrays.data on floor 5"),
    (
        upward,
        OF_DISPATCH,
        "synk.compile.programs.passes.host_or_device:1 on floor 4 imports synk.compile.dispatch on floor 8",
    ),
    (
        upward,
        "compile.emit: def f(): from synk.compile import f\ncompile.:",
        "6 imports synk.compile on floor 11",
    ),
    (upward, "values.rows: import synk", "synk.values.rows:1 on floor 1 imports synk on floor 10"),
    (upward, "run.session: from synk.extensions import sgd", "imports synk.extensions on floor 12"),
    (
        circles,
        CIRCLE,
        "synk.transport.memory.shm -> synk.transport.memory.limits -> synk.transport.memory.shm",
    ),
    (circles, "arrays.data: import synk.run.arrays.data", "synk.run.arrays.data -> synk.run.arrays.data"),
    (private, "extensions.a: from synk import values\nvalues.:", "imports values from synk, which is not in"),
    (private, "extensions.a: import synk.values", "imports synk.values"),
    (private, "extensions.a: from ..values import f", "imports f from synk.values"),
    (private, "extensions.a: from synk.ops.pool import f", "imports f from synk.ops.pool"),
    (
        private,
        "extensions.a: import synk; synk.run.session.session.end()",
        "synk.extensions.a:1 uses synk.run.session",
    ),
    (assigned_globals, "arrays.data: def f(): global state; state = 1", "data:1 assigns the global state"),
]


@pytest.mark.parametrize(("rule", "sources", "complaint"), VIOLATIONS)
def test_a_violation_is_found(rule, sources, complaint):
    found = list(rule([*made_up(sources)]))
    assert len(found) == 1
    assert complaint in found[0]


if __name__ == "__main__":
    print("floor room       modules    imports")
    print("\n".join(table(read_modules())))
