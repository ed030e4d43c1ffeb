"""Acts, scripts for tests of whole runs on GPUs, each of which `stage` starts in a process.

    python acts.py cupy|stand-in|cores ACT KEYWORDS -> a line of JSON

Acts of training are in ``training``, those in which something breaks in ``breakdowns``.
"""

import faulthandler
import json
import os
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # helpers of all tests

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

ACTS = {}


def act(function):
    """Register an act: ``function(fork, **keywords)`` returns what JSON can hold."""
    ACTS[function.__name__] = function
    return function


def main():
    from support.gpu import breakdowns  # noqa: F401
    from support.gpu import training as gpu_training  # noqa: F401

    faulthandler.enable()
    place, name, keywords = sys.argv[1:]
    warnings.filterwarnings("error", ".*runs on the host")
    warnings.filterwarnings("error", ".*no longer captured")
    warnings.filterwarnings("ignore", ".*share GPU", synk.SynkWarning)
    if place == "stand-in":
        pretend()
    device = "cpu" if place == "cores" else "cuda"

    def fork(n_ranks, **options):
        return synk.fork(n_ranks, device=device, **options)

    result = ACTS[name](fork, **json.loads(keywords))
    synk.close()
    print(json.dumps(result))


def pretend():
    """Make synk find a GPU, and the stand-in where it imports CuPy."""
    from support.cupy import fake_cupy
    from synk.gpu.device import probe
    from synk.gpu.setup import choose_gpus

    fake_cupy.make(n_gpus=1)
    choose_gpus.survey = lambda: probe.Survey((probe.Gpu(0, "a stand-in"),))


def shared(value, name, dtype="float64"):
    return pytensor.shared(np.asarray(value, dtype), name=name)


def drivers(pids):
    """Return which processes have CUDA's driver in their memory."""
    return ["libcuda.so" in Path(f"/proc/{pid}/maps").read_text() for pid in pids]


# --- runs --------------------------------------------------------------------------------------------


@act
def compute(fork, n_ranks):
    """Fork, and only then use CUDA, on every rank."""
    before = drivers([os.getpid()])
    forked = fork(n_ranks)
    v, x = shared(np.arange(3.0), "v"), pt.matrix("x", dtype="float64")
    f = synk.function([x], [(x.sum(), "sum"), (pt.tanh(x).sum(1), "gather")], updates=[(v, 2 * v + 1)])
    rows = np.linspace(0, 1, 10).reshape(5, 2)
    total, parts = f(rows)
    found = {
        "before": before,
        "forked": forked,
        "drivers": drivers(synk.pids()),
        "total": float(total),
        "error": float(np.abs(parts - np.tanh(rows).sum(1)).max()),
        "values": [synk.get_value(rank, v).tolist() for rank in range(n_ranks)],
    }
    synk.close()
    return found | {"after": type(v.get_value()).__module__}


@act
def verbs(fork, n_ranks, dtype="float64"):
    """Use every collective verb on values that a program has left on the device."""
    fork(n_ranks)
    v = shared([1.0, 2.0], "v", dtype)
    double = synk.function([], (v.sum(), "sum"), updates=[(v, 2 * v)])
    seen = {}

    def note(name, values):
        seen[name] = np.asarray(values, "float64").tolist()

    double()
    note("gather", synk.gather(v))
    double()
    synk.all_reduce(v, "sum")
    note("all_reduce", [synk.get_value(rank, v) for rank in range(n_ranks)])
    double()
    note("reduce", synk.reduce(v, "max", in_place=False))
    synk.set_value(n_ranks - 1, v, np.array([1.0, 1.0], dtype))
    double()
    synk.broadcast(v)
    note("broadcast", [synk.get_value(rank, v) for rank in range(n_ranks)])
    double()
    synk.scatter(v, np.arange(4.0).astype(dtype))
    double()
    note("scatter", synk.gather(v, nd_up=0))
    double()
    synk.all_gather(v)
    note("all_gather", [synk.get_value(rank, v) for rank in range(n_ranks)])
    return seen


@act
def restarts(fork):
    """Restart a run of one rank, and assert what a restart with two ranks refuses."""
    fork(1)
    v = shared([1.0], "v")
    synk.function([], updates=[(v, v + 1)])()
    synk.commit()
    synk.restart()
    value = synk.get_value(0, v).tolist()
    synk.close()
    try:
        fork(2)
    except synk.CudaInitialisedError as error:
        return {"value": value, "refused": str(error)}
    return {"value": value, "refused": None}


@act
def product(fork, precision=None, n=512):
    """Return how far a product of float32 matrices is from float64's, relative to the largest number."""
    fork(1, precision=precision)
    a, b = np.random.default_rng(0).normal(size=(2, n, n)).astype("float32")
    x, y = pt.fmatrices("x", "y")
    result = synk.function([], x @ y, givens={x: shared(a, "a", "float32"), y: shared(b, "b", "float32")})()
    exact = a.astype("float64") @ b
    return float(np.abs(result - exact).max() / np.abs(exact).max())


if __name__ == "__main__":
    # Others import this module by its name: theirs is to be the same.
    sys.modules["support.gpu.acts"] = sys.modules["__main__"]
    main()
