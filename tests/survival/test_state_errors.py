"""Everything public in every state that does not allow it: SynkStateError or the right result, never a hang.

What is tried is read off ``synk.__all__``, `Data` and `Function`, so what is new there is tried as well.
"""

import gc
import inspect
import os
import signal
import sys
import threading
import time
import types
import warnings
import weakref

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import OfRank, asking
from support.slow import slow
from synk.run.arrays.data import INTERNAL
from synk.run.session.session import Session

MASTER = os.getpid()

# They begin and end a run, or do nothing before they are entered, so they have tests of their own.
OF_THE_RUN = {"fork", "close", "is_open", "per_rank", "turn"}

# What is known without the run, or asked of the values in hand only.
FACTS = {
    synk.Data: {
        "dtype",
        "ndim",
        "shape",
        "size",
        "alloc_size",
        "minibatch",
        "name",
        "filename",
    }
    | {"__len__", "__repr__"},
    synk.Function: {
        "name",
        "inputs",
        "output_modes",
        "update_modes",
        "n_results",
        "returns",
        "state",
        "scattered",
        "outputs",
        "fingerprint",
        "gathers",
        "explain",
        "parts",
        "__repr__",
    },
}

# Dunder methods of Data and Function; all others are found by name.
ITEMS, EXPORTS = ["__getitem__", "__setitem__"], ["__array__", "__dlpack__", "__dlpack_device__"]
SPECIAL = {
    synk.Data: [*ITEMS, *EXPORTS, "__len__", "__repr__"],
    synk.Function: ["__call__", "__repr__"],
}


@pytest.fixture(autouse=True)
def files_are_written_to_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def idle(rank, *arguments):
    """Return an object that does nothing."""
    return print


class World:
    """Shared variables and graphs; and in an open run, Data and functions."""

    def __init__(self, open_run=True):
        self.x = pt.vector("x")
        self.v = pytensor.shared(np.ones(4), name="v")
        # What is given for a parameter of this name.
        self.arguments = {
            "shared_vars": self.v,
            "values": np.ones(4),
            "rank": 0,
            "inputs": [self.x],
            "items": (synk.all_reduce, self.v),
            "input_data": np.ones(4),
            "length": 3,
            "shape": (3,),
            "key": 0,
            "value": 2.0,
            "args": np.ones(4),
            "seconds": 60.0,
            "path": "timeline.json",
            "make": idle,
            "arguments": 0,
        }
        if open_run:
            self.data = synk.data(np.arange(4.0), name="d")
            self.function = synk.function([self.x], (self.x.sum(), "sum"), name="f")
            self.sequence = synk.sequence(self.function, (synk.all_reduce, self.v))
            self.function(self.data)

    def call(self, callable_):
        """Call something with what its parameters need."""
        arguments, keywords = [], {}
        for name, parameter in inspect.signature(callable_).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.default is parameter.empty:
                assert name in self.arguments, f"say in World.arguments what to give for {name!r}"
                arguments.append(self.arguments[name])
            elif name == "n_calls":
                keywords[name] = 1
        value = callable_(*arguments, **keywords)
        if callable_ is synk.timeline:
            value.close()
        return value

    def verbs(self):
        """Yield every public verb, by name, as a call without arguments."""
        for name in sorted(synk.__all__):
            verb = getattr(synk, name)
            if isinstance(verb, types.FunctionType) and name not in OF_THE_RUN:
                yield f"synk.{name}", lambda verb=verb: self.call(verb)

    def uses(self, thing, facts):
        """Yield every use of a Data or Function, by name, as a call without arguments."""
        kind = synk.Data if isinstance(thing, synk.Data) else synk.Function
        names = [name for name in dir(kind) if not name.startswith("_")] + SPECIAL[kind]
        # Used by the package only.
        inner = (
            INTERNAL
            if kind is synk.Data
            else {"can_batch", "can_batch_s", "can_slice", "check", "prepare", "run_alone", "as_written"}
            | {"check_alone", "effects", "explanation", "graph_text"}
        )
        for name in names:
            if name not in inner and (name in FACTS[kind]) == facts:
                yield f"{kind.__name__}.{name}", lambda name=name: self.use(thing, name)

    def use(self, thing, name):
        value = getattr(thing, name)
        return self.call(value) if callable(value) else value

    def all(self, facts):
        for thing in (self.data, self.function, self.sequence):
            yield from self.uses(thing, facts)


def seen(value):
    """Return something that compares."""
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


def not_refused(calls, match=""):
    """Return the names of the calls that do not raise SynkStateError with ``match`` in it."""
    wrong = []
    for name, call in calls:
        try:
            call()
            wrong.append(f"{name} was allowed")
        except synk.SynkStateError as error:
            if match not in str(error):
                wrong.append(f"{name}: {error}")
        except BaseException as error:
            wrong.append(f"{name}: {error!r}")
    return wrong


def still_right(world):
    """Check that the run does what it did."""
    assert world.function(np.arange(5.0)) == 10
    assert synk.gather(world.v).shape == (len(synk.pids()), 4)
    world.data.set_value(np.arange(7.0))
    assert world.function(world.data) == 21


def test_all_that_is_public_is_tried(ranks):
    ranks(2)
    world = World()
    assert len(list(world.verbs())) >= 15
    for facts in (True, False):
        assert len(list(world.all(facts))) >= 12
    # Each works where it is allowed, so what is refused below is not refused for its arguments.
    for name, call in [*world.all(True), *world.all(False), *world.verbs()]:
        if name not in ("synk.function", "synk.data"):  # their arguments would be incomplete
            call()
            world.data.set_value(np.arange(4.0))
            synk.broadcast(world.v, np.ones(4))


# --- no run, or another one ------------------------------------------------------------------------------


def test_before_fork():
    world = World(open_run=False)
    assert not_refused(world.verbs(), "call synk.fork() first") == []
    assert synk.close() is None


@pytest.mark.parametrize(
    "again", [0, slow(1), slow(2)], ids=["closed", "forked again", "forked and closed again"]
)
def test_after_close(ranks, again):
    ranks(2)
    world = World()
    facts = [seen(call()) for _, call in world.all(facts=True)]
    synk.close()
    if again:
        ranks(2)
    if again == 2:
        synk.close()
    assert not_refused(world.all(facts=False), "closed") == []
    assert [seen(call()) for _, call in world.all(facts=True)] == facts
    if again == 1:
        still_right(World())
    else:
        assert not_refused(world.verbs(), "call synk.fork() first") == []
    synk.close()
    synk.close()


def test_forked_twice(ranks):
    ranks(2)
    world = World()
    pids = synk.pids()
    for arguments in ({}, {"n_parallel": 3}, {"device": "cpu"}):
        with pytest.raises(synk.SynkStateError, match="a run is open already"):
            synk.fork(**arguments)
    assert synk.pids() == pids
    still_right(world)


def test_a_turn_without_a_run_only_lets_handlers_wait():
    done = []
    before = signal.signal(signal.SIGALRM, lambda *_: done.append("handler"))
    try:
        with synk.turn("test"):
            signal.raise_signal(signal.SIGALRM)
            done.append("body")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done == ["body", "handler"]


def test_verbs_work_in_a_turn(ranks):
    ranks(2)
    world = World()
    with synk.turn("test"):
        still_right(world)
        synk.commit()
        synk.restart()
        still_right(world)
        synk.close()


# --- processes that are not the master -------------------------------------------------------------------


STALE = []


def refused_in_a_worker():
    if os.getpid() == MASTER:
        return 0
    [stale] = STALE
    wrong = not_refused([*World(open_run=False).verbs(), *stale.all(facts=False)])
    synk.close()  # a worker cannot end the run
    print(*wrong, sep="\n", file=sys.stderr)
    return len(wrong)


def test_in_a_worker(ranks):
    ranks(2)
    # Workers inherit what was made in an earlier run; a Data or function of theirs does not reach them.
    STALE.append(World())
    synk.close()
    try:
        ranks(3)
        assert asking(refused_in_a_worker)().tolist() == [0, 0, 0]
        still_right(World())
    finally:
        STALE.clear()


def fork_here():
    if os.getpid() == MASTER:
        return 0
    wrong = not_refused([("fork", lambda: synk.fork(2))])
    synk.close()
    return len(wrong)


def test_a_worker_does_not_fork_a_run_of_its_own(ranks):
    ranks(2)
    assert asking(fork_here)().tolist() == [0, 0]


def in_a_child(check):
    """Run ``check()`` in a fork of this process; return the names it returns."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if child == 0:
        try:
            os.close(read)
            wrong = check()
            os.write(write, "\n".join(wrong).encode() or b"nothing")
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return [] if said == "nothing" else (said or "it died").split("\n")


@pytest.mark.parametrize("generations", [slow(1), 2])
def test_in_a_child_of_the_script(ranks, generations):
    ranks(2)
    world = World()
    facts = [seen(call()) for _, call in world.all(facts=True)]

    def check():
        wrong = not_refused(
            [
                *world.verbs(),
                *world.all(facts=False),
                ("fork", lambda: synk.fork(2)),
                ("turn", synk.turn("test").__enter__),
            ],
            "not the master",
        )
        wrong += ["facts"] * ([seen(call()) for _, call in world.all(facts=True)] != facts)
        synk.close()
        world.data = world.function = world.sequence = None
        gc.collect()  # nor do finalizers of a child tell the workers anything
        return wrong

    assert in_a_child(check if generations == 1 else lambda: in_a_child(check)) == []
    still_right(world)


@pytest.mark.slow
def test_a_child_may_fork_a_run_of_its_own_where_none_is_open(ranks):
    ranks(2)
    world = World()
    synk.close()

    def check():
        synk.fork(2)
        still_right(World())
        wrong = not_refused(world.all(facts=False))
        synk.close()
        return wrong

    assert in_a_child(check) == []
    ranks(2)
    still_right(World())


# --- other threads ---------------------------------------------------------------------------------------


def in_threads(works):
    """Run each of ``works`` in a thread, changing often; return what they raised."""
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error.with_traceback(None))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    finally:
        sys.setswitchinterval(before)
    return errors


def test_from_other_threads_the_results_are_right(ranks):
    ranks(2)
    world = World()
    v = pytensor.shared(np.ones(4), name="shared by all")
    expected_pids = synk.pids()

    def reader(number):
        # Of all ranks, or of one: whatever others do meanwhile, no value is half changed.
        for _ in range(8):
            assert synk.pids() == expected_pids
            assert synk.get_shapes(v) == [(4,), (4,)]
            assert synk.get_lengths(v) == [4, 4]
            assert len(set(synk.get_value(number % 2, v))) == 1
            assert len(set(synk.gather(v).reshape(-1))) == 1
            assert len(set(synk.reduce(v, "max", in_place=False))) == 1

    def writer(number):
        for _ in range(8):
            synk.broadcast(v, np.full(4, float(number)))
            synk.all_reduce(v)
            own = pytensor.shared(np.full(2, float(number)), name=f"own {number}")
            synk.all_reduce(own, "sum")
            assert (synk.gather(own) == 2 * number).all()
            synk.set_value(1, own, np.zeros(2))
            assert synk.gather(own).tolist() == [[2 * number] * 2, [0, 0]]
            synk.scatter(own, np.arange(5.0))
            assert synk.get_lengths(own) == [3, 2]
            synk.all_gather(own)
            assert synk.gather(own).tolist() == [[0, 1, 2, 3, 4]] * 2

    def caller(number):
        for round_ in range(8):
            values = np.full(10 + number, float(round_))
            data = synk.data(values)
            x = pt.vector("x")
            f = synk.function([x], (x.sum(), "sum"))
            both = synk.sequence(f, (synk.all_reduce, v))
            assert f(data) == f(values) == f.as_pytensor(values) == both(data) == values.sum()
            assert f.build_inputs(values).shape == values.shape
            data.set_length(5)
            assert (data[:] == round_).all()
            data.free_memory()
            assert data.shape == (0,)
            assert world.function(world.data) == 6

    works = [(reader, 1), (reader, 2), (writer, 3), (writer, 4), (caller, 5), (caller, 6)]
    assert in_threads([lambda work=work, number=number: work(number) for work, number in works]) == []
    still_right(world)


@pytest.mark.slow
def test_a_function_that_another_thread_drops_is_not_distributed(ranks, monkeypatch):
    ranks(2)
    world, doomed = World(), [synk.function([], pt.constant(1.0))]
    turn = Session.turn

    def late(session, label):
        if label == "distribute":
            doomed.clear()  # as another thread may, whose turn is before this one
            gc.collect()
        return turn(session, label)

    monkeypatch.setattr(Session, "turn", late)
    synk.distribute()
    still_right(world)


def test_closing_while_another_thread_calls(ranks):
    ranks(2)
    slow, told = asking(wait_here), []
    slow()

    def call():
        try:
            told.append(slow().tolist())
        except synk.SynkStateError:
            told.append("closed")

    def close():
        time.sleep(0.1)
        synk.close()

    assert in_threads([call, close]) == []
    assert told in ([[0, 0]], ["closed"])


# --- in the middle of a call -------------------------------------------------------------------------------

# These do not go to the workers: in the middle of a call they say what is.
READS = {"synk.timeout", "synk.pids", "synk.n_ranks", "synk.topology", "synk.function"}
READS |= {"Data.data", "Data.__getitem__", "Data.__setitem__", "Data.__array__"}
READS |= {"Data.__dlpack__", "Data.__dlpack_device__", "Data.set_length", "Data.set_shape", "Data.set_value"}
READS |= {"Data.free_memory"}  # heard of at the end of the call


def wait_here():
    """Take a while, on the master."""
    wake = time.monotonic() + 0.3 * (os.getpid() == MASTER)
    while time.monotonic() < wake:
        time.sleep(0.01)
    return 0


def ring_here():
    """Send the master a signal while it computes."""
    return ring(os.getpid() == MASTER)


def ring_there():
    """Send the master a signal while the workers compute."""
    return ring(os.getpid() != MASTER)


def ring(here):
    # A timer might ring before the call has begun: who computes knows that it has.
    if here:
        time.sleep(0.1)
        os.kill(MASTER, signal.SIGALRM)
        time.sleep(0.2)
    return 0


class Dropped:
    """Something that a finalizer hangs on."""


def by_signal(action, call):
    before = signal.signal(signal.SIGALRM, lambda *_: action())
    try:
        return call()
    finally:
        signal.signal(signal.SIGALRM, before)


def by_finalizer(action, call):
    gc.disable()  # else it may come too early
    try:
        dropped = Dropped()
        dropped.itself = dropped  # garbage, once it is let go
        weakref.finalize(dropped, action).atexit = False
        del dropped
        return by_signal(gc.collect, call)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("wait", "how"),
    [
        (ring_here, by_finalizer),
        (ring_there, by_signal),
        slow(ring_here, by_signal),
        slow(ring_there, by_finalizer),
    ],
)
def test_in_the_middle_of_a_call(ranks, how, wait):
    ranks(2)
    world, slow = World(), asking(wait)
    by_signal(lambda: None, slow)  # compiled
    wrong = ["nothing was tried"]
    calls = [*world.verbs(), *world.all(facts=False)]

    def action():
        refused = [(name, call) for name, call in calls if name not in READS | NOT_YET]
        wrong[:] = not_refused(refused, "in the middle of")
        wrong.extend(name for name, call in calls if name == "synk.pids" and call() != pids)
        wrong.extend(["Data"] * (world.data[:].tolist() != [0, 1, 2, 3]))

    pids = synk.pids()
    assert how(action, slow).tolist() == [0, 0]
    assert wrong == []
    still_right(world)


# Refused once `Commands.post` looks whether a command runs.
NOT_YET = {"synk.data", "synk.sequence", "Function.build_inputs", "Function.profile"}


def make_data():
    if os.getpid() == MASTER:
        STALE.append(synk.data(np.full(4000, 7.0)))
    return 0


def test_data_made_in_the_middle_of_a_call_is_refused(ranks):
    ranks(2)
    v = pytensor.shared(np.ones(100_000), name="v")
    trigger = pt.scalar("trigger")
    f = synk.function([], (OfRank(make_data)(trigger), "gather"), [trigger])
    # The collective makes memory that the workers attach in the middle of the command.
    both = synk.sequence(f, (synk.reduce, v, "sum"))
    try:
        with pytest.raises(synk.SynkStateError, match="in the middle of"):
            both(0.0)
        still_right(World())
    finally:
        STALE.clear()


@pytest.mark.parametrize("wait", [slow(ring_here), ring_there])
def test_closing_in_the_middle_of_a_call_is_refused(ranks, wait):
    ranks(2)
    world, slow, wrong = World(), asking(wait), ["nothing was tried"]
    by_signal(lambda: None, slow)  # compiled

    def action():
        wrong[:] = not_refused([("synk.close", synk.close)], "in the middle of")

    assert by_signal(action, slow).tolist() == [0, 0]
    assert wrong == []
    still_right(world)
