"""What is defined in a script, in a process that plays one, is pickled for processes that do not have it."""

import io
import pickle
import threading
from types import FunctionType

import cloudpickle
import numpy as np
import pytest

from support.processes.scripts import run
from synk.values.by_value import Code, dumped, dumps, is_of_script
from synk.values.messages import Results

pytestmark = pytest.mark.usefixtures("warm_interpreter")

SCRIPT = """
import io, pickle
from synk.values.by_value import dumps

class Tower:
    def __init__(self, height): self.height = height

STOREY = 3

def floors(tower, most=9): return min(tower.height // STOREY, most)

class Changed(Tower): pass

payload = dumps((Tower, Tower(12), floors, io.StringIO))
print(payload.hex())
"""


def ran(text, told=b""):
    """Return what a process prints that runs this, which finds what it is told in its first argument."""
    ended = run(text, told.hex(), deadline=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def of_the_script(warm_interpreter):
    return bytes.fromhex(ran(SCRIPT))


def test_classes_and_functions_of_the_script_travel_by_value(of_the_script):
    kind, tower, floors, imported = pickle.loads(of_the_script)
    assert isinstance(tower, kind)
    assert floors(tower) == 4
    assert imported is io.StringIO


RECEIVER = """
import pickle, sys
from synk.values.by_value import dumps

kind, tower, floors, _ = pickle.loads(bytes.fromhex(sys.argv[1]))
print(dumps(kind(floors(tower))).hex())
"""


def test_objects_of_such_classes_come_back(of_the_script):
    """The receiver's pickle finds their class nowhere by its name."""
    answer = ran(RECEIVER, told=of_the_script)
    assert pickle.loads(bytes.fromhex(answer)).height == 4


def of_here(name, text, **read):
    """Return what a text defines by a name in a script of its own."""
    exec(text, read.setdefault("__name__", "__main__") and read)
    return read[name], read


def test_the_process_that_has_defined_it_finds_its_own():
    read_from, _ = of_here("f", "def f(): return a", a=1)
    kind, _ = of_here("K", "class K:\n    def f(self): return 1")
    assert pickle.loads(dumps([read_from, kind])) == [read_from, kind]
    assert kind.f is vars(kind)["f"]  # and has not filled it anew


def test_what_has_come_goes_home_as_what_it_was(of_the_script):
    kind, _, floors, _ = pickle.loads(of_the_script)
    tokens = [dumps(kind), dumps(floors)]
    again, floors_again = map(pickle.loads, tokens)
    assert again is kind  # by the class that is known here
    assert floors_again.__code__ == floors.__code__


def test_a_class_that_is_changed_in_place_is_changed_where_it_went():
    text = """
import pickle, sys
first, second = pickle.loads(bytes.fromhex(sys.argv[1]))
kind = pickle.loads(first)
assert kind().f() == 1
assert pickle.loads(second) is kind
print(kind().f())
"""
    kind, _ = of_here("K", "class K:\n    def f(self): return 1")
    first = dumps(kind)
    kind.f, _ = of_here("f", "def f(self): return 2")
    assert ran(text, told=pickle.dumps((first, dumps(kind)))) == "2\n"


def test_what_is_not_of_the_script_goes_by_name():
    for value in (io.StringIO, dumps, 3, np.zeros(2)):
        payload, code = dumped(value)
        assert not code
        assert payload == pickle.dumps(value, protocol=5)
    assert not is_of_script(dumps)
    assert "synk.values.by_value" in dumped(dumps)[1].modules


def test_messages_of_this_package_and_of_numpy_take_no_search_for_modules(monkeypatch):
    """Cloudpickle's search takes as long as all the rest of a message."""
    monkeypatch.setattr(cloudpickle.Pickler, "reducer_override", None)
    result = Results([np.ones(3)], 4)
    np.testing.assert_array_equal(pickle.loads(dumps(result)).values, result.values)


def change_global(f, read):
    read["a"] = 3


def change_default(f, read):
    f.__defaults__ = (3,)


def change_code(f, read):
    f.__code__ = (lambda b=2: 3).__code__


def change_member(f, read):
    read["K"].a = 3


@pytest.mark.parametrize("change", [change_global, change_default, change_code, change_member])
def test_a_change_of_what_was_sent_is_noticed(change):
    f, read = of_here("f", "class K:\n    a = 1\ndef f(b=2): return a + b + K.a + len([])", a=1)
    _, code = dumped(f)
    read["c"] = f.c = 4  # which it does not read
    assert not code.has_changed()
    change(f, read)
    assert code.has_changed()


def test_a_change_of_a_closure_is_noticed():
    f, read = of_here(
        "f",
        "def make(a):\n def put(b):\n  nonlocal a\n  a = b\n return lambda: a, put\nf, put = make(1)",
    )
    assert isinstance(f, FunctionType)
    _, code = dumped(f)
    assert not code.has_changed()
    read["put"](2)
    assert code.has_changed()


def test_what_code_assigns_itself_is_no_change():
    text = "class K:\n    made = 0\ndef f():\n    global calls\n    calls += 1\n    K.made += 1"
    f, _ = of_here("f", text, calls=0)
    _, code = dumped(f)
    f()
    assert not code.has_changed()


ASSIGNED = """
class K:
    made = 0
    def __init__(self): self.rate = self.made = 7
    def count(self): type(self).made += 1
    @classmethod
    def make(cls):
        cls.made += 1
        self.__class__.made = 3
class Other:
    made = rate = 1
def f():
    global calls
    calls += 1
    one = K()
    one.rate = Other.rate + K.made + Other.made
    Other.made += one.rate
    def g(): Other.made = rate + len([])
    return g
"""


@pytest.mark.parametrize(
    ("change", "noticed"),
    [
        ("calls = 5", False),
        ("K.made = 5", False),
        ("Other.made = 5", False),
        ("Other.rate = 5", True),
        ("rate = 5", True),
        ("len = max", True),
        ("K.count = K.make", True),
        ("other = 5", False),
    ],
)
def test_only_what_code_assigns_itself_is_no_change(change, noticed):
    f, read = of_here("f", ASSIGNED, calls=0, rate=1)
    _, code = dumped(f)
    exec(change, read)
    assert code.has_changed() == noticed


def test_a_closure_that_counts_its_own_calls_has_not_changed():
    text = "def make(a):\n def f():\n  nonlocal a\n  a += 1\n  return a\n return f\nf = make(1)"
    f, _ = of_here("f", text)
    _, code = dumped(f)
    assert f() == 2
    assert not code.has_changed()


def test_a_function_with_a_cache_travels_by_value():
    text = "import functools\n@functools.lru_cache(7)\ndef f(n): return n * f(n - 1) if n else a"
    f, read = of_here("f", text, a=2)
    payload, code = dumped(f)
    assert ran(ARRIVED, told=payload) == "48 7\n"
    assert pickle.loads(payload) is f
    read["a"] = 3
    assert code.has_changed()


ARRIVED = """
import pickle, sys
f = pickle.loads(bytes.fromhex(sys.argv[1]))
print(f(4), f.cache_parameters()["maxsize"])
"""


def test_the_global_that_cannot_be_sent_is_named():
    f, _ = of_here("f", "def f(): return lock", lock=threading.Lock())
    code = Code()
    code.note_function(f)
    assert "global 'lock'" in code.unsendable()


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not this one")


def test_what_does_not_pickle_raises():
    with pytest.raises(TypeError, match="not this one"):
        dumps([Unpicklable()])


def test_buffers_go_beside():
    array, buffers = np.arange(3.0), []
    payload = dumps([array, lambda: 3], buffers.append)
    assert len(buffers) == 1
    arrived, function = pickle.loads(payload, buffers=buffers)
    np.testing.assert_array_equal(arrived, array)
    assert function() == 3
