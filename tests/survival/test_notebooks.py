"""Runs in a notebook's kernel, which is killed and restarted with one click."""

import os
import sys
from pathlib import Path

import pytest

from support.processes.scripts import alive, check_gone

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

TESTS = Path(__file__).parents[1]
DEADLINE = 60  # seconds for a cell, most of which it takes to import PyTensor
GONE = 2.0  # seconds in which workers of a kernel that was killed end

CELL = """
import warnings
warnings.simplefilter("error")
import numpy as np, pytensor.tensor as pt, synk
synk.fork(3)
x = pt.vector("x")
total = synk.function([x], (x.sum(), "sum"))
data = synk.data(np.arange(12.0))
assert total(data) == 66
print(*synk.pids())
"""


@pytest.fixture
def kernel():
    manager = jupyter_client.KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def run(manager, cell):
    """Run a cell; return what it printed."""
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE)
        said = []
        answer = client.execute_interactive(cell, timeout=DEADLINE, output_hook=said.append)
        text = "".join(message["content"].get("text", "") for message in said)
        assert answer["content"]["status"] == "ok", answer["content"]
        return text
    finally:
        client.stop_channels()


def check_restarts(manager, count):
    for _ in range(count):
        pids = list(map(int, run(manager, CELL).split()))
        assert len(pids) == 3
        assert all(map(alive, pids))
        before = set(os.listdir("/dev/shm"))
        manager.restart_kernel(now=True)
        check_gone(pids, GONE)
        assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("synk-")} == set()


LIBRARY = "jupyter_client and zmq keep descriptors and threads of their own"


@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_workers_go_with_a_kernel_that_is_restarted(kernel):
    check_restarts(kernel, 1)


PRINTING = """
import os, sys, numpy as np, pytensor.tensor as pt, synk
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

class Say(Op):
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs):
        print("rows", *inputs[0])
        print("complaint", len(inputs[0]), file=sys.stderr)
        outputs[0][0] = inputs[0].copy()
        if len(inputs[0]) == 1:
            print(end="no end yet, ", flush=True)
        if inputs[0][0] > 100:
            os._exit(3)

synk.fork(2)
x = pt.vector("x")
f = synk.function([x], (Say()(x).sum(), "sum"))
"""


@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_the_cell_that_ran_last_shows_what_workers_print(kernel):
    assert run(kernel, PRINTING) == ""
    for _ in range(2):
        lines = run(kernel, "f(np.arange(3.0))").splitlines()
        assert "[rank 1] rows 2.0" in lines
        assert "[rank 1] complaint 1" in lines
        died = run(kernel, "try: f(np.arange(99.0, 102))\nexcept synk.WorkerDied as error: print(error)")
        assert "[rank 1] no end yet, rows 101.0" in died.splitlines()
        assert "its last words on standard error:\ncomplaint 1\ncomplaint 1" in died
        assert "[rank 1]" not in run(kernel, "synk.restart()")
    run(kernel, "f(np.arange(3.0))")
    assert "[rank 1] no end yet, " in run(kernel, "synk.close()").splitlines()


SHOWING = """
import numpy as np, pytensor, pytensor.tensor as pt, synk
from synk.extensions import train, updates
from synk.extensions.fit import fit
synk.fork(2)
synk.topology()
x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
step = train.make_train_function(((w - x) ** 2).mean(), [w], [x], updates.sgd, learning_rate=0.1)
history = fit(step, (np.ones(8),), epochs=2, batch_size=4)
history.plot()
synk.close()
history
"""


@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_a_cell_shows_the_topology_a_bar_a_figure_and_the_history(kernel):
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE)
        said = []
        client.execute_interactive(SHOWING, timeout=DEADLINE, output_hook=said.append)
    finally:
        client.stop_channels()
    shown = [message["content"]["data"] for message in said if "data" in message["content"]]
    kinds = [message["msg_type"] for message in said if "data" in message["content"]]
    assert "ranks 0-1: CPUs" in shown[0]["text/html"]
    assert "<progress" in "".join(one.get("text/html", "") for one in shown)
    assert kinds.count("display_data") == 3
    assert kinds[-2:] == ["display_data", "execute_result"]
    assert shown[-2]["image/png"].startswith("iVBOR")
    assert "2 epochs, 4 steps" in shown[-1]["text/html"]


ON_GPUS = f"""
import sys; sys.path.append({str(TESTS)!r})
import os, signal, numpy as np, pytensor, pytensor.tensor as pt, synk
from support.cupy import fake_cupy
from synk.gpu.device import probe
from synk.gpu.setup import choose_gpus

fake_cupy.make(n_gpus=2)
choose_gpus.survey = lambda: probe.Survey(tuple(probe.Gpu(number, "a stand-in") for number in range(2)))

def make():
    global f, v
    synk.fork(2, device="cuda")
    x, v = pt.vector("x"), pytensor.shared(np.ones(2), name="v")
    f = synk.function([x], (x.sum(), "sum"), updates=[(v, v + 1)])
    assert f(np.arange(5.0)) == 10
    synk.commit()

make()
"""


@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_cells_are_run_again_on_gpus_without_a_new_kernel(kernel):
    """By the stand-in, which refuses CUDA to forks of the kernel once that has used it."""
    run(kernel, ON_GPUS)
    run(kernel, "os.kill(synk.pids()[1], signal.SIGKILL)")
    assert "rank 1" in run(kernel, "try: f(np.arange(5.0))\nexcept synk.WorkerDied as error: print(error)")
    run(kernel, "synk.restart()")
    run(kernel, "assert f(np.arange(5.0)) == 10")
    assert "[3. 3.]" in run(kernel, "print(synk.get_value(1, v))")
    run(kernel, "synk.close()")
    run(kernel, "make()")
    assert "[2. 2.]" in run(kernel, "print(synk.get_value(1, v))")
    pids = run(kernel, "print(synk.run.session.current._source._server.pid, synk.pids()[1])").split()
    kernel.restart_kernel(now=True)
    check_gone(pids, GONE)


@pytest.mark.soak
@pytest.mark.leaks("descriptors", "threads", reason=LIBRARY)
def test_workers_go_with_every_kernel_that_is_restarted(kernel):
    check_restarts(kernel, 20)


# What cells define, and what later cells make of it: cells, then what holds in the end. `both(make)` is what
# each of two ranks has, `once(result)` what one process computes of four ones.
BEGIN = """
import functools, importlib, runpy, sys, textwrap, warnings
from dataclasses import dataclass
from pathlib import Path
import numpy as np, pytensor, pytensor.tensor as pt, synk
from pytensor.graph import Apply, Op
from synk.compile import array_funcify
from synk.exact.rules import relate
warnings.simplefilter("error")
sys.path.insert(0, ".")
synk.fork(2)
x, ones = pt.dvector("x"), np.ones(4)

def both(make):
    first, second = synk.on_ranks(make)()
    assert first == second, (first, second)
    return first

def once(result):
    return pytensor.function([x], result, mode="FAST_COMPILE")(ones)

def on_ranks(result):
    return synk.function([x], (result, "sum"))

def refused(call):
    try:
        print("not refused:", call())
    except synk.SynkStateError as error:
        assert "synk.restart()" in str(error) or "synk.on_ranks makes another" in str(error), error
"""
OP = """
class Scale(Op):
    __props__ = ()
    def make_node(self, x): return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs): outputs[0][0] = inputs[0] * {0}
"""
RULE = (
    OP.format(1)
    + """
@array_funcify.register(Scale)
def scale(op, node, xp): return lambda x: x * {0}
"""
)
SCALED = "f = on_ranks(Scale()(x).sum())\nassert f(ones) == once(Scale()(x).sum()) == 4 * {0}"

REDEFINED = {
    "a function": (
        ["def make(rank): return lambda: 2", "assert both(make) == 2", "def make(rank): return lambda: 3"],
        "both(make) == 3",
    ),
    "a lambda": (
        ["make = lambda rank: lambda: 2", "both(make)", "make = lambda rank: lambda: 3"],
        "both(make) == 3",
    ),
    "a default argument": (
        ["def make(rank, a=2): return lambda: a", "both(make)", "def make(rank, a=3): return lambda: a"],
        "both(make) == 3",
    ),
    "a global": (["a = 2", "def make(rank): return lambda: a", "both(make)", "a = 3"], "both(make) == 3"),
    "a function that another calls": (
        ["def a(): return 2", "def make(rank): return a", "both(make)", "def a(): return 3"],
        "both(make) == 3",
    ),
    "a closure": (
        ["def outer(a): return lambda rank: lambda: a", "both(outer(2))"],
        "both(outer(3)) == 3",
    ),
    "a decorated function": (
        [
            "def more(f): return functools.wraps(f)(lambda rank: lambda: f(rank)() + 1)",
            "@more\ndef make(rank): return lambda: 1",
            "assert both(make) == 2",
            "def more(f): return functools.wraps(f)(lambda rank: lambda: f(rank)() + 2)",
            "@more\ndef make(rank): return lambda: 1",
        ],
        "both(make) == 3",
    ),
    "a class": (
        [
            "class Held:\n def __init__(self, rank): pass\n def __call__(self): return 2",
            "both(Held)",
            "class Held:\n def __init__(self, rank): pass\n def __call__(self): return 3",
        ],
        "both(Held) == 3",
    ),
    "a method put into a class": (
        [
            "class Held:\n def __init__(self, rank): pass\n def __call__(self): return 2",
            "both(Held)",
            "Held.__call__ = lambda self: 3",
        ],
        "both(Held) == 3",
    ),
    "a dataclass that comes back": (
        [
            "@dataclass\nclass Held:\n a: int = 2",
            "both(lambda rank: Held)",
            "@dataclass\nclass Held:\n a: int = 3",
        ],
        "both(lambda rank: Held) == Held(3)",
    ),
    "an instance of a class of before": (
        [
            "class Held:\n def __call__(self): return 2",
            "held = Held()",
            "class Held:\n def __call__(self): return 3",
            "def make(rank, held=held): return lambda: (held(), Held()())",
        ],
        "both(make) == (2, 3)",
    ),
    "an object that ranks have": (
        ["a = 2", "def make(rank): return lambda: a", "held = synk.on_ranks(make)", "a = 3", "refused(held)"],
        "both(make) == 3",
    ),
    "an Op": ([OP.format(2), SCALED.format(2), OP.format(3), SCALED.format(3)], "f(ones) == 12"),
    "an Op of a function that was built": (
        [OP.format("a"), "a = 2", SCALED.format(2), "a = 3"],
        "f(ones) == once(Scale()(x).sum()) == 12",
    ),
    "perform put into an Op": (
        [
            OP.format(2),
            SCALED.format(2),
            "def put(self, node, inputs, outputs): outputs[0][0] = inputs[0] * 3",
            "Scale.perform = put",
        ],
        "f(ones) == once(Scale()(x).sum()) == 12",
    ),
    "a function in a sequence": (
        [
            OP.format("a"),
            "a = 2",
            "f = synk.sequence(on_ranks(Scale()(x).sum()))",
            "f(ones)",
            "f(ones)",
            "a = 3",
        ],
        "f(ones) == 12",
    ),
    "a rule": (
        [
            OP.format(1),
            "f = on_ranks(Scale()(x).sum())\nassert f(ones) == 4",
            RULE.format(2),
            "f = on_ranks(Scale()(x).sum())\nassert f(ones) == 8",
            "@array_funcify.register(Scale)\ndef scale(op, node, xp): return lambda x: x * 3",
            "assert f(ones) == 12",
        ],
        "on_ranks(Scale()(x).sum())(ones) == 12",
    ),
    "a rule of rows": (
        [
            OP.format(2),
            "assert synk.function([x], Scale()(x)).output_modes == [None]",
            "@relate.register(Scale)\ndef rows(op, node, given): return given, given",
            "f = synk.function([x], Scale()(x))\nassert f.output_modes == ['gather']",
        ],
        "(f(ones) == 2).all()",
    ),
    "a script of %run": (
        [
            "Path('ran.py').write_text('def make(rank): return lambda: 2')",
            "%run ran.py",
            "both(make)",
            "Path('ran.py').write_text('def make(rank): return lambda: 3')",
            "%run ran.py",
        ],
        "both(make) == 3",
    ),
    "a script of runpy": (
        [
            "Path('ran.py').write_text("
            + repr(OP.format("a").replace("class", "from __main__ import *\na = 2\nclass"))
            + ")",
            "Scale = runpy.run_path('ran.py')['Scale']",
            SCALED.format(2),
            "Path('ran.py').write_text(Path('ran.py').read_text().replace('a = 2', 'a = 3'))",
            "Scale = runpy.run_path('ran.py')['Scale']",
        ],
        "on_ranks(Scale()(x).sum())(ones) == 12",
    ),
    "a global that replaces a builtin": (
        [OP.format("max(2, 0)"), SCALED.format(2), "def max(*_): return 3"],
        "(f(ones), globals().pop('max'))[0] == 12",
    ),
    "a global that was missing": (
        [
            OP.format("missing"),
            "f = on_ranks(Scale()(x).sum())\ntry: f(ones)\nexcept NameError: missing = 3",
            "assert f(ones) == 12",
            "del missing",
            "try: f(ones)\nexcept NameError: missing = 4",
        ],
        "f(ones) == 16",
    ),
    "a global with the name of an attribute": (
        [
            OP.format("scale").replace(
                "    def make", "    def __init__(self): self.scale = 7\n    def make"
            ),
            "scale = 2",
            SCALED.format(2),
            "scale = 3",
        ],
        "f(ones) == 12",
    ),
    "a function with a cache": (
        [
            "@functools.cache\ndef scale(): return 2",
            OP.format("scale()"),
            SCALED.format(2),
            "@functools.lru_cache(maxsize=3, typed=True)\ndef scale(): return 3",
            "assert f(ones) == 12",
            "@functools.cache\ndef fall(n): return n * fall(n - 1) if n else 1",
        ],
        "both(lambda rank: lambda: fall(4)) == 24",
    ),
    "an Op of a function": (
        [
            "@pytensor.wrap_py([pt.dvector], [pt.dvector])\ndef scale(x): return x * 2",
            "f = on_ranks(scale(x).sum())\nassert f(ones) == 8",
            "@pytensor.wrap_py([pt.dvector], [pt.dvector])\ndef scale(x): return x * 3",
            "assert f(ones) == 8",  # whose graph has the Op of before
        ],
        "on_ranks(scale(x).sum())(ones) == 12",
    ),
    "a global that an Op of a function reads": (
        [
            "a = 2",
            "@pytensor.wrap_py([pt.dvector], [pt.dvector])\ndef scale(x): return x * a",
            "f = on_ranks(scale(x).sum())\nassert f(ones) == 8",
            "a = 3",
        ],
        "f(ones) == 12",
    ),
    "a function with Data": (
        [OP.format("a"), "a = 2", SCALED.format(2), "ones_of_all = synk.data(ones)"]
        + ["assert f(ones_of_all) == 8"] * 3
        + ["a = 3"],
        "f(ones_of_all) == 12",
    ),
    "a function that an object calls": (
        [
            OP.format("a"),
            "a = 2",
            SCALED.format(2),
            "def make(rank, f): return lambda: float(f(ones)[0])",
            "held = synk.on_ranks(make, f)",
            "assert held() == [8, 8]",
            "a = 3",
            "refused(held)",
            "f(ones)",
            "refused(held)",
        ],
        "synk.on_ranks(make, f)() == [12, 12]",
    ),
    "a rule that there was not": (
        [
            OP.format(1),
            "f = on_ranks(Scale()(x).sum())\nassert f(ones) == 4",
            "@array_funcify.register(Scale)\ndef scale(op, node, xp): return lambda x: x * 3",
        ],
        "f(ones, num_slices=2) == f(ones) == 12",
    ),
    "a rule that cannot travel": (
        [
            OP.format(1).replace("Scale", "Other"),
            "lock = __import__('threading').Lock()",
            "@array_funcify.register(Other)\ndef scale(op, node, xp): return lambda x: lock and x",
            "assert on_ranks(x.sum())(ones) == 4",
            "text = ''\ntry: on_ranks(Other()(x).sum())(ones)\nexcept TypeError as error: text = str(error)",
        ],
        "'array_funcify.register(Other)' in text",
    ),
    # These make new workers, which end with their test.
    "workers": ([OP.format(2), SCALED.format(2), OP.format(3), "synk.restart()"], "f(ones) == 8"),
    "a module": (
        [
            "Path('within.py').write_text('a = 2')",
            "Path('module.py').write_text('import within\\ndef make(rank): return lambda: within.a')",
            "import module",
            "synk.restart()",
            "assert both(module.make) == 2",
            "Path('within.py').write_text('a = 30')",
            "import within; importlib.reload(within)",
            "refused(lambda: both(module.make))",
            "refused(lambda: both(lambda rank: module.make(rank)))",
            "synk.restart()",
        ],
        "both(module.make) == 30",
    ),
    "a module of a function that was built": (
        [
            "Path('scaling.py').write_text('a = 2')",
            "Path('opsmod.py').write_text("
            + repr("import scaling\nfrom pytensor.graph import Apply, Op\n" + OP.format("scaling.a"))
            + ")",
            "synk.restart()",
            "import scaling, opsmod",
            "ones_of_all = synk.data(ones)",
            "f = on_ranks(opsmod.Scale()(x).sum())",
            "assert [f(ones_of_all) for _ in range(3)] == [8] * 3",
            "held = synk.on_ranks(lambda rank: lambda: opsmod.scaling.a)",
            "assert held() == [2, 2]",
            "Path('scaling.py').write_text('a = 30')",
            "importlib.reload(scaling)",
            "refused(lambda: f(ones_of_all))",
            "refused(held)",
            "refused(lambda: on_ranks(opsmod.Scale()(x).mean())(ones))",
            "synk.restart()",
        ],
        "f(ones) == 120",
    ),
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A notebook with two ranks, for all cases: it takes seconds to start one."""
    manager = jupyter_client.KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(tmp_path_factory.mktemp("notebook")))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=DEADLINE)

    def do(cell):
        said = []
        answer = client.execute_interactive(cell, timeout=DEADLINE, output_hook=said.append)
        assert answer["content"]["status"] == "ok", (cell, answer["content"])
        printed = [one["content"]["text"] for one in said if one["msg_type"] == "stream"]
        assert printed == [], (cell, printed)

    do(BEGIN)
    yield do
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


@pytest.mark.leaks("children", "descriptors", "threads", reason=LIBRARY + "; the kernel's workers go with it")
@pytest.mark.parametrize("kind", REDEFINED)
def test_what_a_later_cell_defines_anew_is_new_on_every_rank(notebook, kind):
    cells, holds = REDEFINED[kind]
    for cell in cells:
        notebook(cell)
    notebook(f"assert {holds}")
