"""The wheel holds every module of the source tree, and each is imported from it, far from the checkout."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
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
def wheels(source, tmp_path_factory):
    """Build the wheel, in a folder of its own."""
    wheels = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--no-build-isolation", "--wheel-dir", wheels, source)
    return wheels


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    """Install the wheel in a folder of its own."""
    target = tmp_path_factory.mktemp("target")
    pip("install", "--target", target, *wheels.glob("synk_pytensor-*.whl"))
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
    assert {"synk/py.typed", "synk/ops/kernels/loops/common.c", *regions} <= files
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


# --- its name ----------------------------------------------------------------------------------------

OTHER = {  # the project that is called synk on PyPI, as its wheel is
    "synk/__init__.py": 'name = "synk"\n',
    "synk-0.0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: synk\nVersion: 0.0.1\n",
    "synk-0.0.1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


class Environment:
    """A virtual environment that sees the packages of this one, but for synk."""

    def __init__(self, folder):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        # A path and no site folder, whose own lines would bring the checkout.
        (self.packages / "packages_of_this.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def pip(self, *words):
        """Run pip for this environment, without an index; return what it says."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--no-input", *words]
        environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_NO_COMPILE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, *words):
        """Run its Python far from the checkout; return status and all output."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [self.python, "-P", *words]
        done = subprocess.run(command, cwd=self.packages, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path / "venv")


@pytest.fixture
def other(tmp_path):
    """The wheel of the other project."""
    wheel = tmp_path / "synk-0.0.1-py3-none-any.whl"
    record = "".join(f"{name},,\n" for name in [*OTHER, "synk-0.0.1.dist-info/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in [*OTHER.items(), ("synk-0.0.1.dist-info/RECORD", record)]:
            archive.writestr(name, text)
    return wheel


def test_it_is_installed_with_its_extras_by_its_name(wheels, environment):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = ",".join(config["options.extras_require"])
    # The checkout, which the environment sees the metadata of, would do for pip.
    install = ["install", "--force-reinstall", "--no-deps", "--find-links", wheels]
    said = environment.pip(*install, f"synk-pytensor[{extras}]")
    assert "does not provide" not in said
    ask = "import synk; from importlib.metadata import packages_distributions as of, version; "
    ask += "print(synk.__file__, version('synk-pytensor') == synk.__version__, of()['synk'][0])"
    status, said = environment.run("-W", "error", "-c", ask)
    assert (status, said) == (0, f"{environment.packages}/synk/__init__.py True synk-pytensor\n")
    # As messages say where an extra is missing: synk itself is installed, and looked for in no index.
    said = environment.pip("install", "--dry-run", "synk-pytensor[mpi,onednn,tensorboard,safetensors,pymc]")
    assert "already satisfied: synk-pytensor" in said
    assert "Would install" not in said


def test_another_project_called_synk_is_named_until_it_is_gone(wheels, environment, other):
    install = ["install", "--force-reinstall", "--no-deps"]
    (ours,) = wheels.glob("synk_pytensor-*.whl")
    environment.pip(*install, ours)
    shutil.unpack_archive(other, environment.packages, "zip")  # its file takes the place of ours
    assert environment.run("-c", "import synk; print(synk.name)") == (0, "synk\n")
    for words in (["-c", "from synk.extensions import updates"], ["-m", "synk", "bench"]):
        status, said = environment.run(*words)
        assert status == 1
        assert re.search("another project's, called synk too", said), said
    environment.pip(*install, ours)
    status, said = environment.run("-c", "import synk; import synk.extensions; print(synk.fork.__name__)")
    assert status == 0
    assert "\n<string>:1: SynkWarning: another project called synk is installed beside this one" in said
    assert said.count("SynkWarning") == said.count("synk-0.0.1.dist-info") == 1
    # The remedy, which is needed since what is uninstalled takes the file along.
    environment.pip("uninstall", "--yes", "synk")
    assert not (environment.packages / "synk" / "__init__.py").exists()
    environment.pip(*install, ours)
    assert environment.run("-W", "error", "-c", "import synk; print(synk.fork.__name__)") == (0, "fork\n")
