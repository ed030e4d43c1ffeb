"""What is defined in a script, in a process that plays one, is pickled for processes that do not have it."""

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import synk
from synk.values import by_value
from synk.values.by_value import dumps

ROOT = Path(synk.__file__).parents[1]

SCRIPT = """
import io, pickle, sys
from synk.values.by_value import reduced

class Tower:
    def __init__(self, height): self.height = height

def floors(tower, each=3): return tower.height // each

class Pickler(pickle.Pickler):
    reducer_override = staticmethod(reduced)

file = io.BytesIO()
Pickler(file, protocol=5).dump((Tower, Tower(12), floors, io.StringIO))
sys.stdout.buffer.write(file.getvalue())
"""


def ran(text, *arguments, told=b""):
    """Return what a process prints that runs this."""
    ended = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        input=told,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout


@pytest.fixture(scope="module")
def of_the_script():
    pytest.importorskip("cloudpickle")
    return ran(SCRIPT)


def test_classes_and_functions_of_the_script_travel_by_value(of_the_script):
    kind, tower, floors, imported = pickle.loads(of_the_script)
    assert isinstance(tower, kind)
    assert floors(tower) == 4
    assert imported is io.StringIO


RECEIVER = """
import pickle, sys
from synk.values.by_value import dumps

kind, tower, floors, _ = pickle.loads(sys.stdin.buffer.read())
sys.stdout.buffer.write(dumps(kind(floors(tower))))
"""


def test_objects_of_such_classes_come_back(of_the_script):
    """The receiver's pickle finds their class nowhere by its name."""
    answer = ran(RECEIVER, told=of_the_script)
    assert pickle.loads(answer).height == 4


def test_what_is_not_of_the_script_goes_by_name():
    for value in (io.StringIO, dumps, 3, np.zeros(2), lambda: None):
        assert by_value.reduced(value) is NotImplemented


def test_without_cloudpickle_it_is_said_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    kind = type("Tower", (), {"__module__": "__main__"})
    with pytest.raises(
        TypeError, match=r"Tower is defined in the script.*pip install 'synk-pytensor\[mpi\]'"
    ):
        by_value.reduced(kind)


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not this one")


@pytest.mark.parametrize("loaded", [False, True])
def test_what_pickles_in_neither_way_raises(monkeypatch, loaded):
    if loaded:
        pytest.importorskip("cloudpickle")
    else:
        monkeypatch.delitem(sys.modules, "cloudpickle", raising=False)
    with pytest.raises(TypeError, match="not this one"):
        dumps([Unpicklable()])


def test_the_second_try_starts_again_with_the_buffers():
    pytest.importorskip("cloudpickle")
    array, buffers = np.arange(3.0), []
    payload = dumps([array, lambda: 3], buffers.clear, buffer_callback=buffers.append)
    assert len(buffers) == 1
    arrived, function = pickle.loads(payload, buffers=buffers)
    np.testing.assert_array_equal(arrived, array)
    assert function() == 3
