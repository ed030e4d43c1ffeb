"""Imports go down the floors, never up or in a circle; extensions use the public API only.

The syntax tree of every module is read, nothing is imported.
``python tests/test_floors.py`` prints the floors with what each suite imports, and every arrow up; with
``--diagram``, it draws the suites as boxes. Rules:

- every suite of synk has a floor, and imports suites of lower floors only; so have and do the parts of a
  suite, and theirs. One import alone goes up, that of ``gpu/`` where devices are chosen: there it enters
  itself in the tables of the others;
- modules make no circle either, wherever in them an import stands;
- outside of ``gpu/`` no line names CuPy, NCCL or cuDNN, but where devices are chosen and in the doctor;
- ``transport/`` imports no PyTensor;
- no module is loose, each suite's first line says what it is for, no docstring opens with a question word;
- a public class has one home, and no two modules of a suite share a name or differ by its ending, but that a
  folder may have a module of its name;
- ``extensions/`` imports ``synk`` and its public names, itself, and what replaces a file and checks a number;
- only ``current`` has a module global that is assigned to: the current session.

Imports under ``if TYPE_CHECKING:`` count for all rules, because a module that names another one depends on it
in its reader's head.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from textwrap import indent

import pytest

ROOT = Path(__file__).parent.parent

# What is inside of a package, from the lowest floor up: folders and modules, "*" is every module that is not
# named. Each imports what is on lower floors only. The package's own __init__.py is above all of it. Suites
# are inside of synk, whose __init__.py and __main__.py, "", lie under what is built on the public API.
FLOORS: dict[str, tuple[set[str], ...]] = {
    "synk": (
        {"values"},  # arithmetic without a process
        {"compile", "transport"},  # graphs without processes; processes without graphs
        {"exact"},
        {"run", "ops"},
        {"gpu"},
        {""},
        {"extensions", "tools"},
    ),
    "synk.transport": ({"memory", "processes"}, {"commands"}, {"comm"}, {"machines"}),
    "synk.compile": (
        {"array_modules", "compat", "native"},  # compat: what differs between versions of PyTensor
        {"host_call"},
        {"tables"},  # what Ops say about themselves
        {"programs"},
        {"rewriting"},
        {"regions"},  # what runs as C, and in Python where that gives up
        {"dispatch"},  # the entries of Ops, some of which hold programs
        {"linker", "kernels"},  # kernels: the former name of elementwise
        {"observe"},
    ),
    "synk.compile.programs": (
        {"graphs"},
        {"elementwise"},  # elementwise chains as C
        {"passes"},  # decisions about a program
        {"text"},
        {"emit"},  # the passes' plan, written down
    ),
    "synk.exact": ({"run_values"}, {"rules"}, {"collectives"}, {"*"}),
    "synk.run": (
        {"device"},
        {"arrays"},
        {"rank"},
        {"functions", "recording"},
        {"collectives", "launch"},
        {"on_machines"},
        {"session"},
    ),
    "synk.ops": ({"kernels"}, {"*"}),
    "synk.gpu": (
        {"comm", "device", "elementwise"},
        {"dispatch", "kernels", "rank"},
        {"rewriting", "speedups"},
        {"setup"},
    ),
    "synk.tools": ({"doctor"}, {"bench", "cache"}),
    "synk.extensions": (
        {"batches", "checkpoint", "gradients", "initialisers", "losses", "schedules"},
        {"interchange", "layers", "updates"},
        {"train"},
        {"fit"},  # trains with any step
        {"pymc"},
    ),
}
# The one module that imports what is above it, and what that enters itself in: programs and runs on GPUs.
REGISTRATION = ("synk.run.device.choose", "synk.gpu")
# Of libraries that only GPUs need. `nccl=` is an option that users of Synkhronos pass.
LIBRARIES = re.compile(r'cupy|cudnn|(?<!", )nccl(?! ?: bool|", nccl|`)', re.IGNORECASE)
# The last one tells owners of any array how to copy it to the host.
MAY_NAME_LIBRARIES = (
    "synk.gpu.",
    "synk.run.device.choose",
    "synk.tools.doctor.gpus",
    "synk.tools.doctor.gpu_probe",
    "synk.values.checks",
)
WITHOUT_PYTENSOR = ("synk.values", "synk.transport")
# What extensions may import of synk, beside what `import synk` brings: public packages, and the one way to
# replace a file, to check a number and to show something in a notebook.
FOR_EXTENSIONS = {"compile", "ops", "values.atomic_write", "values.checks", "values.notebooks"}
MAY_ASSIGN_GLOBALS = {"synk.run.session.current"}
# A docstring is a sentence with a verb; these open a riddle.
ENDING = re.compile(r"(s|er|ed|ing|ion|ation|e)+$")
NO_SENTENCE = re.compile(r"(What|Return what|Have|Whoever|How|Which|Where|When|Whether)\b")

FOLDERS = {"synk": ROOT / "synk", "synk.extensions": ROOT / "extensions"}


@dataclass(frozen=True)
class Module:
    """A module by its full name, with its text."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, self.name)


@dataclass(frozen=True)
class Import:
    """An import of a module: ``import source``, or ``from source import name``."""

    source: str
    name: str | None
    line: int

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
        Module(name, path.read_text(), path.name == "__init__.py")
        for package, folder in FOLDERS.items()
        for path in sorted(folder.rglob("*.py"))
        for name in [module_name(package, path.relative_to(folder))]
    ]


def module_name(package: str, path: Path) -> str:
    """Return ``synk.exact.rule`` for ``exact/rule.py``, and ``synk.exact`` for ``exact/__init__.py``."""
    parts = path.with_suffix("").parts
    return ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])


@cache
def imports(module: Module) -> list[Import]:
    """Return every import of synk in a module, also those inside functions."""
    return list(_imports(module))


def _imports(module: Module) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            asked: list[tuple[str, str | None]] = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            asked = [(absolute(node, module), alias.name) for alias in node.names]
        else:
            continue
        for source, name in asked:
            if source.split(".")[0] == "synk":
                yield Import(source, name, node.lineno)


def absolute(node: ast.ImportFrom, module: Module) -> str:
    """Return the full name of what stands between ``from`` and ``import``."""
    if not node.level:
        return node.module or ""
    above = module.name.split(".")
    above = above[: len(above) - node.level + module.is_package]
    return ".".join([*above, node.module] if node.module else above)


def parts_of(name: str) -> list[str]:
    """Return what lies inside of what: ``synk.__main__`` and ``synk`` are the part "" of synk."""
    found = name.split(".")
    return [found[0], ""] if found[1:] in ([], ["__main__"]) else found


def floor(package: str, part: str) -> int | None:
    """Return the floor of a part of a package, the lowest is 1, or None when nobody has assigned one.

    The package itself, the part "" where it is not named, is above all that is in it.
    """
    floors = FLOORS[package]
    above = None if part else len(floors) + 1
    return next(
        (number for number, parts in enumerate(floors, start=1) if known(package, part) in parts), above
    )


def known(package: str, part: str) -> str:
    """Return a part of a package as `FLOORS` names it."""
    named = set().union(*FLOORS[package])
    return part if part in named or not part or "*" not in named else "*"


def homeless(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every module without a floor, or without a suite."""
    for module in modules:
        names = parts_of(module.name)
        if len(names) == 2 and names[1] and not module.is_package:
            yield f"{module.name} is loose: move it into a suite"
            continue
        for depth in range(1, len(names)):
            package = ".".join(names[:depth])
            if package in FLOORS and floor(package, names[depth]) is None:
                yield f"{module.name} has no floor in {package}: add it to FLOORS, as low as it fits"


def speechless(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every suite whose first line does not say what it is for, and for riddles."""
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


@dataclass(frozen=True)
class Arrow:
    """An import that leaves a part of ``package`` for another part of it."""

    module: str
    line: int
    target: str
    package: str
    here: str  # the part that imports
    there: str  # the part that is imported

    @property
    def goes_up(self) -> bool:
        """Whether what is imported is not on a lower floor; parts without a floor are another complaint."""
        here, there = floor(self.package, self.here), floor(self.package, self.there)
        return here is not None and there is not None and there >= here


def arrows(modules: list[Module]) -> Iterator[Arrow]:
    """Yield every import between parts of a package that has floors."""
    names = {module.name for module in modules}
    for module in modules:
        for asked in imports(module):
            target = asked.target(names)
            above, below = parts_of(module.name), parts_of(target)
            depth = next((n for n, (a, b) in enumerate(zip(above, below, strict=False)) if a != b), None)
            depth = min(len(above), len(below)) if depth is None else depth
            package = ".".join(above[:depth])
            if package not in FLOORS:
                continue
            here, there = (known(package, [*names, ""][depth]) for names in (above, below))
            if here != there:
                yield Arrow(module.name, asked.line, target, package, here, there)


def upward(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every import of a part that is not on a lower floor."""
    for arrow in arrows(modules):
        if arrow.goes_up and not is_registration(arrow.module, arrow.target):
            here, there = floor(arrow.package, arrow.here), floor(arrow.package, arrow.there)
            yield f"{arrow.module}:{arrow.line} on floor {here} imports {arrow.target} on floor {there}"


def is_registration(module: str, target: str) -> bool:
    """Say whether an import is the one by which GPUs enter themselves below."""
    importer, package = REGISTRATION
    return module == importer and f"{target}.".startswith(f"{package}.")


def named(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every line that names a library which only GPUs need."""
    for module in modules:
        if not f"{module.name}.".startswith(MAY_NAME_LIBRARIES) and not inside_extensions(module.name):
            for number, line in enumerate(module.text.splitlines(), start=1):
                if found := LIBRARIES.search(line):
                    yield f"{module.name}:{number} names {found[0]}"


def with_pytensor(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every import of PyTensor where only processes and arrays are known."""
    for module in modules:
        if module.name.startswith(WITHOUT_PYTENSOR):
            for node in ast.walk(module.tree):
                asked = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                asked += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if any(name.split(".")[0] == "pytensor" for name in asked):
                    yield f"{module.name}:{node.lineno} imports PyTensor"


def in_part(name: str, package: str, part: str) -> bool:
    """Say whether a module is in a part of a package."""
    names, depth = parts_of(name), package.count(".") + 1
    return ".".join(names[:depth]) == package and known(package, [*names, ""][depth]) == part


def table(modules: list[Module], package: str = "synk", number: str = "") -> Iterator[str]:
    """Yield a line for each part of a package, from the top floor down: its size, and what it imports."""
    drawn = [arrow for arrow in arrows(modules) if arrow.package == package]
    for at, parts in reversed(list(enumerate(FLOORS[package], start=1))):
        for part in sorted(parts):
            inside = [module for module in modules if in_part(module.name, package, part)]
            below = sorted({arrow.there or "synk" for arrow in drawn if arrow.here == part})
            name = "  " * package.count(".") + (part or "synk")
            yield f"{number + str(at):>6} {name:18}{len(inside):4} modules    {', '.join(below)}"
            if f"{package}.{part}" in FLOORS:
                yield from table(modules, f"{package}.{part}", f"{number}{at}.")


def diagram(modules: list[Module], package: str = "synk") -> Iterator[str]:
    """Yield the boxes of a floor of a package, side by side, from the top floor down.

    A box is a part of the package with the parts that it imports, those of higher floors first.
    """
    drawn = [arrow for arrow in arrows(modules) if arrow.package == package]
    for at, parts in reversed(list(enumerate(FLOORS[package], start=1))):
        boxes = []
        for part in sorted(parts):
            if any(in_part(module.name, package, part) for module in modules):
                ups = {arrow.there: arrow.goes_up for arrow in drawn if arrow.here == part}
                below = sorted(ups, key=lambda there: (-(floor(package, there) or 0), there))
                names = [f"{there or package}{' (up)' if ups[there] else ''}" for there in below]
                boxes.append(box(part or package, f"imports {', '.join(names) or 'nothing'}"))
        if boxes:
            yield "\n".join(
                f"{at if row == 1 else ' '} {' '.join(cells)}"
                for row, cells in enumerate(zip(*boxes, strict=True))
            )


def box(*lines: str) -> list[str]:
    """Return the lines of a box around ``lines``."""
    width = max(map(len, lines))
    edge = "─" * (width + 2)
    return [f"┌{edge}┐", *(f"│ {line:{width}} │" for line in lines), f"└{edge}┘"]


def homonyms(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every public class name that two modules give to classes of their own."""
    homes: dict[str, set[str]] = {}
    for module in modules:
        for node in ast.walk(module.tree) if not inside_extensions(module.name) else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(module.name)
    for name, those in homes.items():
        if len(those) > 1:
            yield f"{name} is a class in {' and in '.join(sorted(those))}"


def twins(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for modules and folders of a suite whose names are one word, but for its ending.

    A folder may have a module of its name.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for module in modules:
        suite, *parts = parts_of(module.name)[1:]
        words = [ENDING.sub("", part) for part in parts]
        for depth, word in enumerate(words):
            if word not in words[:depth] and not inside_extensions(module.name):
                found.setdefault((suite, word), set()).add("/".join(parts[: depth + 1]))
    for (suite, _), names in found.items():
        if len(names) > 1:
            yield f"{suite} has {' and '.join(sorted(names))}"


def circles(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for every circle of imports that a walk meets first."""
    names = {module.name for module in modules}
    graph = {
        module.name: sorted(
            target
            for target in {asked.target(names) for asked in imports(module)} & names
            if not is_registration(module.name, target)
        )
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
    public |= FOR_EXTENSIONS
    for module in modules:
        if not inside_extensions(module.name):
            continue
        for asked in imports(module):
            of_synk = asked.source == "synk" and (asked.name is None or asked.name in public)
            of_synk |= asked.source in {f"synk.{name}" for name in FOR_EXTENSIONS}
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


RULES = [
    *(homeless, speechless, upward, circles, named, with_pytensor),
    *(homonyms, twins, private, assigned_globals),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_source_obeys(rule):
    assert list(rule(read_modules())) == []


def made_up(sources):
    """Return modules of lines ``name: text``; a name that ends in a dot, or none at all, is a package's."""
    for source in sources.split("\n"):
        name, text = source.split(":", 1)
        yield Module(f"synk.{name}".rstrip("."), text.strip(), name.endswith(".") or not name)


IN_TYPES = "values.rows: if TYPE_CHECKING: from ..run.arrays.data import Data\nrun.arrays.data:"
OF_DISPATCH = "compile.programs.passes.place: from synk.compile.dispatch import f\ncompile.dispatch.:"
CIRCLE = (
    "transport.memory.shm: from . import limits\n"
    "transport.memory.limits: from synk.transport.memory.shm import f"
)
CIRCLE_OF_TYPES = (
    "values.rows: if TYPE_CHECKING: from synk.values.lengths import Length\n"
    "values.lengths: from synk.values.rows import Row"
)
VIOLATIONS = [
    (homeless, "attic.:", "synk.attic has no floor in synk"),
    (homeless, "arrays:", "synk.arrays is loose"),
    (homeless, "compile.attic:", "synk.compile.attic has no floor in synk.compile"),
    (homeless, "compile.programs.attic.x:", "attic.x has no floor in synk.compile.programs"),
    (speechless, "run.: import numpy", "synk.run does not say what it is for"),
    (speechless, "run.arrays: 'What is in it.'", "synk.run.arrays has no verb in 'What is in it.'"),
    (upward, "values.rows: from synk.run.x import f\nrun.x:", "1 on floor 1 imports synk.run.x on floor 4"),
    (upward, "values.rows: from synk.run import x\nrun.x:\nrun.:", "imports synk.run.x on floor 4"),
    (upward, "values.rows: def f(): import synk.run.x", "rows:1 on floor 1 imports synk.run"),
    (
        upward,
        "transport.comm.host: from ..machines.tree import f\ntransport.machines.tree:",
        "floor 3 imports",
    ),
    (upward, "ops.pool: import synk.run.rank.rank", "on floor 4 imports synk.run.rank.rank on floor 4"),
    (upward, "run.rank.: from ..session.x import f\nrun.session.x:", "synk.run.rank:1 on floor 3 imports"),
    (upward, IN_TYPES, "imports synk.run.arrays.data on floor 4"),
    (upward, OF_DISPATCH, "synk.compile.programs.passes.place:1 on floor 4 imports synk.compile.dispatch on"),
    (
        upward,
        "compile.linker: def f(): from synk.compile import f\ncompile.:",
        "imports synk.compile on floor 10",
    ),
    (upward, "values.rows: import synk", "synk.values.rows:1 on floor 1 imports synk on floor 6"),
    (upward, "run.rank.x: from synk.extensions import sgd", "imports synk.extensions on floor 7"),
    (upward, "extensions.train: import synk.extensions.fit.loop\nextensions.fit.loop:", "on floor 4"),
    (circles, CIRCLE, "transport.memory.shm -> synk.transport.memory.limits -> synk.transport.memory.shm"),
    (circles, CIRCLE_OF_TYPES, "synk.values.rows -> synk.values.lengths -> synk.values.rows"),
    (circles, "run.arrays.x: import synk.run.arrays.x", "synk.run.arrays.x -> synk.run.arrays.x"),
    (
        upward,
        "run.launch.x: import synk.gpu\ngpu.: 'GPUs.'",
        "x:1 on floor 4 imports synk.gpu on floor 5",
    ),
    (named, "run.rank.x: # as CuPy has it\ngpu.y: # cupy", "synk.run.rank.x:1 names CuPy"),
    (named, 'run.x: def f(nccl: bool = True): checked("nccl", nccl), import_nccl()', "x:1 names nccl"),
    (with_pytensor, "transport.comm.host: def f(): from pytensor import shared", "host:1 imports PyTensor"),
    (
        homonyms,
        "run.x: class Row: pass\ntransport.x: class Row: pass",
        "class in synk.run.x and in synk.transport",
    ),
    (twins, "run.rank.calls:\nrun.session.calling:", "run has rank/calls and session/calling"),
    (private, "extensions.a: from synk import values\nvalues.:", "imports values from synk, which is not in"),
    (private, "extensions.a: import synk.values", "imports synk.values"),
    (private, "extensions.a: from ..values import f", "imports f from synk.values"),
    (private, "extensions.a: from synk.ops.pool import f", "imports f from synk.ops.pool"),
    (private, "extensions.a: import synk; synk.run.session.end()", "synk.extensions.a:1 uses synk.run"),
    (assigned_globals, "run.data: def f(): global state; state = 1", "data:1 assigns the global state"),
]


@pytest.mark.parametrize(("rule", "sources", "complaint"), VIOLATIONS)
def test_a_violation_is_found(rule, sources, complaint):
    found = list(rule([*made_up(sources)]))
    assert len(found) == 1
    assert complaint in found[0]


def boxes_of(drawn):
    """Return the row of each box of a drawn diagram, and what its box says that it imports."""
    lines = "\n".join(drawn).splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1::2]] for line in lines]
    return {
        name: (row, said.removeprefix("imports ").split(", "))
        for row, names in enumerate(cells)
        if names and not names[0].startswith("imports ")
        for name, said in zip(names, cells[row + 1], strict=True)
    }


def test_a_suite_is_drawn_above_those_that_it_imports():
    boxes = boxes_of(diagram(read_modules()))
    drawn = [arrow for arrow in arrows(read_modules()) if arrow.package == "synk"]
    assert len(boxes) > 8
    assert len(drawn) > 100
    for arrow in drawn:
        if not is_registration(arrow.module, arrow.target):
            (row, said), there = boxes[arrow.here or "synk"], arrow.there or "synk"
            assert there in said
            assert row < boxes[there][0]


def test_a_diagram_shows_suites_with_what_they_import():
    sources = "run.x: import synk.exact.y, synk.values.z\nops.x: import synk.exact.y\nexact.y:\nvalues.z:"
    assert "\n".join(diagram([*made_up(sources)])).splitlines() == [
        "  ┌───────────────┐ ┌───────────────────────┐",
        "4 │ ops           │ │ run                   │",
        "  │ imports exact │ │ imports exact, values │",
        "  └───────────────┘ └───────────────────────┘",
        "  ┌─────────────────┐",
        "3 │ exact           │",
        "  │ imports nothing │",
        "  └─────────────────┘",
        "  ┌─────────────────┐",
        "1 │ values          │",
        "  │ imports nothing │",
        "  └─────────────────┘",
    ]


def test_the_design_shows_the_diagram_of_the_source():
    page = (ROOT / "docs" / "design.rst").read_text()
    if not (ROOT / "synk" / "gpu").is_dir():  # a copy by `make without-gpu`
        page = re.sub(r" *┌─+┐\n.*│ gpu +│\n.*│\n *└─+┘\n", "", page)
    shown = "".join(line for line in page.splitlines(keepends=True) if re.match(r" {4}.*[┐│┘]$", line))
    assert shown == indent("\n".join(diagram(read_modules())), "    ") + "\n", "paste what --diagram prints"


if __name__ == "__main__":
    if sys.argv[1:] == ["--diagram"]:
        print("\n".join(diagram(read_modules())))
        sys.exit()
    print(" floor part                            imports")
    print("\n".join(table(read_modules())))
    up = [arrow for arrow in arrows(read_modules()) if arrow.goes_up]
    for arrow in up:
        print(f"up: {arrow.module}:{arrow.line} imports {arrow.target}")
    for circle in circles(read_modules()):
        print(f"circle: {circle}")
