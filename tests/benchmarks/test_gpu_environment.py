"""The environment for a GPU's machine: what that has stays where it is, and is found there."""

import json
import subprocess
import sys

import pytest

LOOK = """
import json, site, sys
import numpy, pytensor
print(json.dumps([numpy.__file__, pytensor.__file__, sys.prefix, site.getsitepackages()]))
"""


@pytest.fixture
def environment(module):
    return module("gpu_environment")


def test_packages_of_this_python_are_found_from_there(environment, tmp_path):
    folder = tmp_path / "made"
    environment.venv.create(folder, system_site_packages=True, with_pip=False)
    python = folder / "bin" / "python"
    environment.inherit(python)
    *files, prefix, places = json.loads(environment.ask(python, "-c", LOOK))
    here = json.loads(subprocess.check_output([sys.executable, "-c", LOOK], cwd=tmp_path))
    assert files == here[:2]
    assert prefix == str(folder)
    assert set(here[3]) <= set(places)  # or CUDA's libraries are not found


def test_what_is_missing_is_named(environment, tmp_path, monkeypatch):
    (tmp_path / "wheels").mkdir()
    with pytest.raises(SystemExit, match=r"there are no wheels in .*make gpu-wheels FOR=3"):
        environment.install(tmp_path / "python", tmp_path / "wheels")
    monkeypatch.setattr(environment, "NEEDED", ("json", "surely_missing"))
    monkeypatch.setattr(environment, "install", lambda python, wheels: None)
    monkeypatch.setattr(sys, "argv", ["gpu_environment.py", str(tmp_path / "made")])
    with pytest.raises(SystemExit, match="surely_missing: No module named 'surely_missing'"):
        environment.main()
