"""The surroundings that a process is given which is no fork of the script's."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytensor

from synk.run.launch.surroundings import Surroundings

ENTER = """
import json, os, pickle, sys
import numpy as np, pytensor
pickle.loads(bytes.fromhex(sys.argv[1])).enter()
print(json.dumps([os.getcwd(), sys.path[0], sys.argv, np.geterr(), pytensor.config.floatX,
    sys.getrecursionlimit(), os.environ.get("MINE"), os.environ.get("THEIRS")]))
"""


def entered(surroundings):
    """Return what surrounds another process once it has entered."""
    words = [sys.executable, "-c", ENTER, pickle.dumps(surroundings).hex()]
    said = subprocess.run(
        words, env={**os.environ, "THEIRS": "kept"}, capture_output=True, text=True, check=True
    )
    return json.loads(said.stdout)


def test_a_process_of_this_machine_has_all_of_the_scripts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setattr(pytensor.config, "floatX", "float32")
    with np.errstate(divide="raise", over="call"):
        present = Surroundings.present()
    folder, first, argv, errors, kind, limit, mine, theirs = entered(present)
    assert (folder, first, argv) == (str(tmp_path), str(tmp_path), ["train.py", "--fast"])
    assert (errors["divide"], errors["over"]) == ("raise", "warn")  # what is called stays with the script
    assert (kind, limit) == ("float32", sys.getrecursionlimit())
    assert (mine, theirs) == ("1", None)


def test_another_machine_keeps_its_environment_and_its_path_comes_behind(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MINE", "1")
    _, first, *_, theirs = entered(Surroundings.present(of_another_machine=True))
    assert (first, theirs) == (str(tmp_path), "kept")
