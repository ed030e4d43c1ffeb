"""The surroundings that a process is given which is no fork of the script's."""

import json
import pickle
import sys

import numpy as np
import pytensor
import pytest

from support.processes.scripts import run
from synk.run.launch.surroundings import Surroundings

pytestmark = pytest.mark.usefixtures("warm_interpreter")

ENTER = """
import json, os, pickle, sys
import numpy as np, pytensor
os.environ["THEIRS"] = "kept"
pickle.loads(bytes.fromhex(sys.argv[1])).enter()
print(json.dumps([os.getcwd(), sys.path[0], sys.argv, np.geterr(), pytensor.config.floatX,
    sys.getrecursionlimit(), os.environ.get("MINE"), os.environ.get("THEIRS")]))
"""


def entered(surroundings):
    """Return what surrounds another process once it has entered."""
    said = run(ENTER, pickle.dumps(surroundings).hex(), deadline=60)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_a_process_of_this_machine_has_all_of_the_scripts(tmp_path):
    with pytest.MonkeyPatch.context() as patch, np.errstate(divide="raise", over="call"):
        patch.chdir(tmp_path)
        patch.setattr(sys, "argv", ["train.py", "--fast"])
        patch.syspath_prepend(str(tmp_path))
        patch.setenv("MINE", "1")
        patch.setattr(pytensor.config, "floatX", "float32")
        present = Surroundings.present()
    folder, first, argv, errors, kind, limit, mine, theirs = entered(present)
    assert (folder, first, argv) == (str(tmp_path), str(tmp_path), ["train.py", "--fast"])
    assert (errors["divide"], errors["over"]) == ("raise", "warn")  # what is called stays with the script
    assert (kind, limit) == ("float32", sys.getrecursionlimit())
    assert (mine, theirs) == ("1", None)


def test_another_machine_keeps_its_environment_and_its_path_comes_behind(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        patch.setenv("MINE", "1")
        present = Surroundings.present(of_another_machine=True)
    _, first, *_, theirs = entered(present)
    assert (first, theirs) == (str(tmp_path), "kept")
