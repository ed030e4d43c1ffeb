"""Around every test: a deadline, and a look at what it leaves behind; and the fixtures that fork.

``ranks`` forks for one test, ``module_ranks`` once for all tests of a module. Only these import synk, so the
tests of the lower floors run without it. Scripts of ``survival`` are forked by one process that has imported
synk, where ``warm_interpreter`` is asked for. Hypothesis gets settings that suit a busy machine, and so do
the collector of garbage and the threads of BLAS.
"""

import contextlib
import faulthandler
import gc
import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from support.processes import leaks

DEADLINE = 300  # seconds for one test, idle or not; then tracebacks are printed and the whole run ends
SLOW_DEADLINE = 600

# CUDA keeps sockets, events and threads of its own once it is initialised.
LEFT_BY_CUDA = frozenset({"descriptors", "threads"})

# What a run makes for a test is released with the run, and looked at then.
LEFT_TO_THE_RUN = frozenset({"segments", "descriptors"})

# Modules of tests that bring a driver or a CuPy of their own: their GPUs are made up, and not to be hidden.
MAKE_GPUS = ("fake_driver", "fake_cupy")

# On a busy machine any example may take long; and who runs the tests again gets the same ones, but by
# --hypothesis-profile=random. Environments that only run the GPU's tests are without hypothesis.
with contextlib.suppress(ImportError):
    import hypothesis

    patient = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.register_profile("random", patient)
    hypothesis.settings.register_profile("synk", patient, derandomize=True)
    hypothesis.settings.load_profile("synk")

# Between products a thread of OpenBLAS spins for 2^26 cycles, some 30 ms, unless told, and tests have more
# processes than the machine has cores. The library reads this when it is loaded; scripts inherit it.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")

real_stderr = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption("--at-most-failed", type=int, help="run nothing where more tests failed the last time")


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        # What the other processes of xdist leave behind is an orphan of their group, not of ours.
        os.setpgid(0, 0)
    # Graphs are many small objects: looked at after every 700, a sixth of a run was spent on looking.
    gc.set_threshold(20_000, 20, 20)
    # A shell has its background jobs ignore ^C, and so would all scripts that tests type it to.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Capturing is not active yet: this is the terminal, where a hung test can still be seen.
    config.stash[real_stderr] = os.dup(sys.__stderr__.fileno())


def pytest_sessionstart(session):
    most = session.config.option.at_most_failed
    failed = most is not None and session.config.cache.get("cache/lastfailed", {})
    if failed and len(failed) > most:
        pytest.exit(f"{len(failed)} tests failed, more than the {most} that are run once more", returncode=1)


def pytest_unconfigure(config):
    os.close(config.stash[real_stderr])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    deadline = SLOW_DEADLINE if item.get_closest_marker("soak") else DEADLINE
    faulthandler.dump_traceback_later(deadline, exit=True, file=item.config.stash[real_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(config, items):
    for item in items:
        for marker in item.iter_markers("leaks"):
            if not marker.kwargs.get("reason") or not set(marker.args) <= set(leaks.KINDS):
                raise pytest.UsageError(
                    f"{item.nodeid}: the marker leaks takes kinds of {leaks.KINDS} and a reason"
                )
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    for item in on_gpu:
        item.add_marker(pytest.mark.filterwarnings("ignore:::cupy"))  # some of its modules are experimental
    missing = on_gpu and missing_gpu()
    if not missing:
        return
    for item in on_gpu:
        item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU and CuPy: {missing}"))
    if "gpu" not in (config.option.markexpr or ""):
        twins = {item for item in on_gpu if item.get_closest_marker("gpu").kwargs.get("twin")}
        config.hook.pytest_deselected(items=list(twins))
        items[:] = [item for item in items if item not in twins]


def pytest_collection_finish():
    # What the modules of tests hold stays to the end: no collection has to walk through it again.
    gc.collect()
    gc.freeze()


def missing_gpu():
    """Return the reason why CuPy does not compute, or "".

    A child process looks: CUDA must not be initialised here, before the tests fork.
    """
    if "GPU_MISSING" in os.environ:  # who runs many processes of tests has looked
        return os.environ["GPU_MISSING"]
    compute = "import cupy; assert cupy.arange(3).sum().get() == 3"
    try:
        ended = subprocess.run([sys.executable, "-c", compute], capture_output=True, text=True, timeout=100)
    except subprocess.TimeoutExpired:
        return "no answer from the GPU"
    said = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
    return said[-1] if ended.returncode else ""


def open_run():
    """Return the pids of the current run, or None without one."""
    synk = sys.modules.get("synk")
    # Who imports nothing but modules of the lower floors may have them without the verbs.
    if not hasattr(synk, "pids"):
        return None
    try:
        return synk.pids()
    except synk.SynkStateError:
        return None


@contextlib.contextmanager
def nothing_left(what, excused=frozenset()):
    """Fail when the body leaves a run open or something behind; close and end it first."""
    run, before = open_run(), leaks.take()
    yield
    left_open = open_run() not in (None, run)
    if left_open:
        sys.modules["synk"].close()
    if "synk.run.session.current" in sys.modules:
        # It outlives runs, for the next one on GPUs, and so it would outlive the test.
        sys.modules["synk.run.session.current"].dismiss_fork_server()
    found = leaks.leftovers(before, excused)
    leaks.end_children(before)
    if left_open:
        pytest.fail(f"{what} left a run open: call synk.close(), or fork by `ranks`", pytrace=False)
    if found:
        lines = [f"  {kind}: {', '.join(those)}" for kind, those in found.items()]
        pytest.fail("\n".join([f"{what} left behind:", *lines]), pytrace=False)


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request):
    """Hold every test to leaving shared memory, children, descriptors and threads as it found them."""
    excused = {kind for marker in request.node.iter_markers("leaks") for kind in marker.args}
    if request.node.get_closest_marker("gpu"):
        excused |= LEFT_BY_CUDA
    if "module_ranks" in request.fixturenames:
        excused |= LEFT_TO_THE_RUN
    with nothing_left("the test", frozenset(excused)):
        yield


@pytest.fixture(autouse=True)
def cores_unless_told(request):
    """Hide GPUs from tests that are not for them, and from their scripts: `synk.fork` would take them."""
    made_up = any(hasattr(request.module, name) for name in MAKE_GPUS)
    if not find_spec("cupy") or made_up or request.node.get_closest_marker("gpu"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture(scope="session")
def warm_interpreter():
    """Make ``scripts.run`` fork instead of starting an interpreter each time."""
    from support.processes import scripts
    from support.processes.warm import Warm

    with Warm() as scripts.warm:
        yield
    scripts.warm = None


@pytest.fixture
def ranks(leaves_nothing_behind):
    """Fork on call, with the arguments of ``synk.fork``; the run is closed before leaks are looked for."""
    import synk

    yield synk.fork
    if open_run():
        synk.close()


@pytest.fixture(scope="module")
def module_ranks(request):
    """Fork once for all tests of a module: CPU ranks, 2 or as its ``N_RANKS`` says; return how many."""
    import synk

    with nothing_left(request.module.__name__):
        yield synk.fork(getattr(request.module, "N_RANKS", 2), device="cpu")
        if open_run():
            synk.close()
