"""The wheel holds every module of the source tree, and each is imported from it, far from the checkout."""

import configparser
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "synk": ROOT / "synk",
    "synk.extensions": ROOT / "extensions",
}  # synk/extensions is a link to the second
SOURCES = ["setup.cfg", "pyproject.toml", "LICENSE", "README.rst", "synk", "extensions"]

# Comes with an extra: a module may need it to be imported.
OPTIONAL = {"cupy", "nutpie", "pymc"}

IMPORT_ALL = """
import importlib, json, sys
answers = {}
for name in json.loads(sys.argv[1]):
    try:
        answers[name] = importlib.import_module(name).__file__
    except ModuleNotFoundError as missing:
        answers[name] = f"needs {missing.name}"
print(json.dumps(answers))
"""


def packages():
    """Name every directory of modules in the source tree."""
    return sorted({name for _, name in modules_and_packages()})


def modules():
    """Name every module of the source tree that can be imported without running a program."""
    return sorted(name for name, _ in modules_and_packages() if not name.endswith("__main__"))


def modules_and_packages():
    for top, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            package = ".".join([top, *path.relative_to(folder).parent.parts])
            yield package if path.stem == "__init__" else f"{package}.{path.stem}", package


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the sources, in a folder called synk, so that builds leave the checkout clean."""
    source = tmp_path_factory.mktemp("parent") / "synk"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored, symlinks=True)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="module")
def installed(source, tmp_path_factory):
    """Build the wheel and install it in a folder of its own."""
    wheels, target = (tmp_path_factory.mktemp(name) for name in ("wheels", "target"))
    pip("wheel", "--no-build-isolation", "--wheel-dir", wheels, source)
    pip("install", "--target", target, *wheels.glob("synk-*.whl"))
    return target


def pip(command, *arguments):
    offline = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    whole = [sys.executable, "-m", "pip", command, *offline, *arguments]
    done = subprocess.run(whole, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_setup_cfg_lists_every_package():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert sorted(config["options"]["packages"].split()) == packages()


def test_every_package_has_an_init():
    assert set(packages()) - set(modules()) == set()


def test_every_module_is_imported_from_the_wheel(installed, tmp_path):
    command = [sys.executable, "-P", "-c", IMPORT_ALL, json.dumps(modules())]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout.splitlines()[-1])
    # An editable installation steps in for what the wheel lacks: the file tells where a module came from.
    elsewhere = {name: file for name, file in answers.items() if not file.startswith(str(installed))}
    excused = {f"needs {package}" for package in OPTIONAL}
    assert {name: file for name, file in elsewhere.items() if file not in excused} == {}


def test_the_wheel_holds_every_other_file_of_the_tree(installed):
    """The C sources of kernels, and the mark that says that all is typed."""
    files = {
        f"{top.replace('.', '/')}/{path.relative_to(folder)}"
        for top, folder in FOLDERS.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    regions = {f"synk/compile/regions/prelude/{name}" for name in ("prelude.h", "walks.c")}
    assert {"synk/py.typed", "synk/kernels/loops/common.c", *regions} <= files
    assert {name for name in files if not (installed / name).is_file()} == set()


def test_an_editable_installation_is_found_from_the_parent_folder_of_a_clone(source, tmp_path):
    """There the clone's folder, which is called synk too, may be taken for a package without a file."""
    make = "import setuptools.build_meta as made, sys; print(made.build_editable(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", make, str(tmp_path)], cwd=source, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    shutil.unpack_archive(next(tmp_path.glob("*.whl")), tmp_path / "site", "zip")
    # As a site folder of its own: -S leaves out the one in which synk is installed already.
    ask = "import importlib.util, site, sys; site.addsitedir(sys.argv[1]); "
    ask += "print(importlib.util.find_spec('synk').origin)"
    command = [sys.executable, "-S", "-c", ask, str(tmp_path / "site")]
    found = subprocess.run(command, cwd=source.parent, capture_output=True, text=True)
    assert found.stdout.strip() == str(source / "synk" / "__init__.py"), found.stderr
