"""Every public function and class says what it takes, and has an example that gives what it shows."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from support.processes.scripts import run
from support.slow import slow

# What is for users, by module: functions and classes alike.
ROOMS = (
    "synk",
    "synk.extensions",
    "synk.extensions.train",
    "synk.extensions.gradients",
    "synk.extensions.updates",
    "synk.extensions.schedules",
    "synk.extensions.fit",
    "synk.extensions.checkpoint",
    "synk.extensions.interchange",
    "synk.extensions.layers",
    "synk.extensions.losses",
    "synk.extensions.initialisers",
    "synk.ops",
)
if sys.version_info >= (3, 12):  # as PyMC 6 needs
    ROOMS += ("synk.extensions.pymc",)
# Of these classes, methods have examples of their own.
WITH_METHODS = {"Data": ("set_value", "set_length", "set_shape", "free_memory")}
WITH_METHODS["Function"] = ("__call__", "as_pytensor", "build_inputs", "explain", "profile")

# Each example begins with these names, as docs/reference/index.rst says, and with two ranks, unless it forks.
SCRIPT = """
import doctest, os, warnings
from importlib import import_module
import numpy as np
import pytensor
import pytensor.tensor as pt
import synk
from synk import ops
from synk.extensions import batches, checkpoint, initialisers, layers, losses, schedules, train, updates

warnings.simplefilter("error")
given = dict(globals())
parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
for where in {names!r}:
    room, _, name = where.partition(":")
    found = import_module(room)
    for part in name.split("."):
        found = getattr(found, part)
    if ">>> synk.fork(" in found.__doc__:
        synk.close()
    elif not synk.is_open():
        synk.fork(2)
    runner.run(parser.get_doctest(found.__doc__, dict(given), where, None, None))
synk.close()
assert not runner.failures, runner.failures
"""


def public():
    """Yield what users call, as ``"module:name"``, with the object; exceptions are raised, not called."""
    for room in ROOMS:
        module = import_module(room)
        for name in module.__all__:
            found = getattr(module, name)
            if not callable(found) or (inspect.isclass(found) and issubclass(found, BaseException)):
                continue
            yield f"{room}:{name}", found
            for method in WITH_METHODS.get(name, ()) if room == "synk" else ():
                yield f"{room}:{name}.{method}", getattr(found, method)


PUBLIC = dict(public())


# Other functions make these.
MADE = ("synk:Data", "synk:Function", "synk:OnRanks", "synk.extensions.fit:Training")
MADE += ("synk.extensions.updates:Averaged",)
MADE += ("synk.extensions.pymc:LogDensity", "synk.extensions.pymc:MeanField")


def takes_arguments(name):
    """Say whether users give it arguments of its own; layers without any take those of their base class."""
    found = PUBLIC[name]
    inherits = inspect.isclass(found) and not {"__init__", "__new__"} & vars(found).keys()
    if name in MADE or inherits:
        return False
    return any(argument != "self" for argument in inspect.signature(found).parameters)


def test_what_is_public_has_an_example_and_says_what_it_takes():
    docs = {name: inspect.getdoc(found) for name, found in PUBLIC.items()}
    assert len(docs) > 100
    assert [name for name, doc in docs.items() if "\nExamples\n--------\n>>> " not in doc] == []
    silent = [name for name, doc in docs.items() if "\nParameters\n----------\n" not in doc]
    assert [name for name in silent if takes_arguments(name)] == []


def test_the_reference_has_what_is_public():
    pages = sorted((Path(__file__).parent.parent / "docs" / "reference").glob("*.rst"))
    named = set()
    for line in (line for page in pages for line in page.read_text().splitlines()):
        if module := re.match(r"\.\. currentmodule:: (.*)", line):
            room = module[1]
        elif entry := re.match(r"\.\. auto(?:function|class|data|exception):: (.*)", line):
            named.add(f"{room}:{entry[1]}")
    wanted = {f"{room}:{name}" for room in ROOMS for name in import_module(room).__all__}
    modules = {f"synk.extensions:{room.rpartition('.')[2]}" for room in ROOMS}
    assert sorted(wanted - modules - named) == []


@pytest.mark.parametrize("room", ROOMS)
def test_completion_offers_what_is_for_users_and_nothing_else(room):
    module = import_module(room)
    shown = {f"{room}.{name}" for name in dir(module) if not name.startswith("__")}
    imported = {"synk.extensions", "synk.ops", *ROOMS} & sys.modules.keys()
    assert shown - imported == {f"{room}.{name}" for name in module.__all__} - imported


def in_room(room):
    return [name for name in PUBLIC if name.startswith(f"{room}:")]


# Some examples of the verbs hold that examples are run at all; a room takes up to ten seconds.
FEW = in_room("synk")[::8]


@pytest.mark.parametrize(
    "names",
    [pytest.param(FEW, id="few"), *(slow(in_room(room), id=room) for room in ROOMS)],
)
def test_examples_give_what_they_show(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(SCRIPT.format(names=names), deadline=200)
    assert done.returncode == 0, done.stdout + done.stderr
