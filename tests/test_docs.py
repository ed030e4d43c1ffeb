"""Every snippet in README.rst, CONTRIBUTING.rst and docs/ is run, and prints what the page says it prints."""

import re
import subprocess
import sys
import textwrap
from contextlib import closing
from glob import glob
from pathlib import Path

import pytest
from test_floors import FLOORS

from support.machines import hosts
from support.processes.scripts import run
from support.slow import slow
from synk.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.rst"))
PAGES = [ROOT / "README.rst", ROOT / "CONTRIBUTING.rst", *DOCS]
# What a copy by `make without-gpu` lacks.
AWAY = () if (ROOT / "synk" / "gpu").is_dir() else ("docs/gpu", "gpu/", "synk/gpu/", "tests/gpu/")
MADE = ("docs/gpu_report.rst", "build/gpu/failures.txt", "build/site", "build/wheels")  # by make
BLOCK = re.compile(r"^( *)\.\. code-block:: (\w+)\n((?:\n|\1 +.*\n)+)", re.MULTILINE)


def blocks(page, language):
    """Return the code blocks of ``page`` in ``language``, in order."""
    return [
        textwrap.dedent(body).strip()
        for _, found, body in BLOCK.findall(page.read_text())
        if found == language
    ]


def identify(page):
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


WITH_SNIPPETS = [page for page in PAGES if blocks(page, "python")]
# What a newcomer tries first; each page is a script of some seconds.
FIRST = ("README.rst", "CONTRIBUTING.rst")


@pytest.mark.parametrize(
    "page",
    [page if page.name in FIRST else slow(page) for page in WITH_SNIPPETS],
    ids=identify,
)
@pytest.mark.usefixtures("warm_interpreter")
def test_snippets_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    if page.name == "pymc.rst" and sys.version_info < (3, 12):
        pytest.skip("PyMC 6 needs Python 3.12")
    monkeypatch.chdir(tmp_path)
    text = "\n\n".join(["import warnings\nwarnings.simplefilter('error')", *blocks(page, "python")])
    done = run_on_hosts(text, tmp_path) if page.name == "machines.rst" else run(text, deadline=200)
    assert done.returncode == 0, done.stderr
    said = [line for text in blocks(page, "text") for line in text.splitlines() if line]
    assert done.stdout.splitlines() == said


def run_on_hosts(text, folder):
    """Run a script on the first of two hosts, name spaces of this machine; skip where none can be made."""
    if reason := hosts.missing():
        pytest.skip(reason)
    script = folder / "page.py"
    script.write_text(text)
    with closing(hosts.Hosts(2, folder)) as made:
        done = made.run("h1", [sys.executable, str(script)])
    done.stderr = done.stdout
    # What Open MPI says of itself begins with a host and a process, [h1:00011], and comes or does not.
    done.stdout = re.sub(r"^\[\w+:\d+\].*\n", "", done.stdout, flags=re.MULTILINE)
    return done


def test_the_readme_shows_the_first_snippet_of_pymc():
    # Which is run from its own page, as PyMC is not there for every Python.
    assert blocks(PAGES[0], "py") == blocks(ROOT / "docs" / "pymc.rst", "python")[:1]


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_commands_name_targets_and_scripts_that_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in (line for text in blocks(page, "sh") for line in text.splitlines()):
        command = line.split("#")[0].split()
        if command[0] == "make":
            assert command[1] in targets, line
        elif command[1:3] == ["-m", "pytest"]:
            folders = [word for word in command[3:] if word.startswith("tests")]
            assert folders, line
            assert all((ROOT / folder).exists() for folder in folders), line
        elif command[1:3] == ["-m", "synk"]:
            assert command[3] in COMMANDS, line
        elif command[0].endswith("python"):
            assert (ROOT / command[1]).is_file(), line
        else:
            pytest.fail(f"no rule tells how to check the command {line!r}")


def test_every_page_is_named_in_the_readme():
    readme = PAGES[0].read_text()
    assert "CONTRIBUTING.rst" in readme
    # Of a folder of pages, the one that lists them; Sphinx warns of a page that none lists.
    pages = {page if page.parent.name == "docs" else page.with_name("index.rst") for page in DOCS}
    named = {page.relative_to(ROOT).as_posix() for page in pages if page != ROOT / "docs" / "index.rst"}
    assert sorted(path for path in named if path not in readme) == []


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_files_that_a_page_names_exist(page):
    named = re.findall(r"``(\w+/[\w/]*(?:\.\w+)?)``", page.read_text())
    places = (ROOT / "synk", ROOT)
    missing = [path for path in named if not any(glob(f"{place / path}*") for place in places)]
    assert [path for path in missing if path not in MADE and not path.startswith(AWAY)] == []


@pytest.mark.slow
def test_the_drawn_call_goes_through_the_files_that_contributing_names():
    command = [sys.executable, ROOT / "docs" / "draw_call.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    master, worker = (set(re.findall(r"^ +(\S+\.py)", part, re.M)) for part in done.stdout.split("\nrank 1"))
    steps = dict(re.findall(r"^(\d+)\. (.*?)(?=^\S|\Z)", PAGES[1].read_text(), re.MULTILINE | re.DOTALL))
    named = {number: set(re.findall(r"``([\w/]+\.py)``", text)) for number, text in steps.items()}
    on_master = named["4"] | named["5"] | named["9"] - {"run/rank/failures.py"} | {"run/session/commands.py"}
    assert len(on_master) > 5
    assert on_master - master == set()
    assert named["8"] - worker - {"run/rank/rank.py"} == set()  # to which the loop goes through a message
    assert "run/rank/program.py" in master & worker


def test_floors_of_the_design_are_those_of_the_code():
    page = (ROOT / "docs" / "design.rst").read_text()
    suites = re.findall(r"^(\d+) +``(\w+)/?``", page, re.MULTILINE)
    floors = [(suite or "__init__", n) for n, on in enumerate(FLOORS["synk"], 1) for suite in on]
    assert sorted((suite, int(number)) for number, suite in suites) == sorted(floors)
