"""Signals at every moment: none gets lost, none does harm, and ^C ends a script as everybody is used to.

Each test is a script of its own with a deadline. The first ones get signals a thousand times a second while
they do everything that a run can do; the others sit at a terminal where somebody presses ^C.
"""

import os
import pty
import select
import signal
import time
from pathlib import Path

import pytest

from support.processes import scripts
from support.processes.scripts import DEADLINE, PROLOGUE
from support.slow import slow


def script(body):
    """Run ``body`` after ``EVERYTHING``; its asserts must hold."""
    done = scripts.script(EVERYTHING + body)
    assert done.stdout.endswith("the end\n"), done.stdout + done.stderr


# --- signals a thousand times a second ---------------------------------------------------------------------

EVERYTHING = '''
import random

LARGE = np.arange(100_000.0)


class Everything:
    """A run with a function, Data and a shared variable, and what can be done with them."""

    def __init__(self, n_ranks=3):
        synk.fork(n_ranks)
        x = pt.vector("x")
        self.n_ranks = n_ranks
        self.f = synk.function([x], [(x.sum(), "sum"), (x, "gather")], name="f")
        self.v = pytensor.shared(np.ones(50_000), name="v")
        self.step = synk.sequence(self.f, (synk.all_reduce, self.v))
        self.data = synk.data(ROWS)

    def call(self):
        total, rows = self.f(ROWS)
        assert total == 66 and (rows == ROWS).all()

    def call_with_much(self):
        sent = LARGE[: random.randrange(60_000, 100_000)]  # the answer to another call has another length
        total, rows = self.f(sent)  # out and back through shared memory
        assert total == sent.sum() and (rows == sent).all()

    def call_in_steps(self):
        assert self.step(self.data[:])[0] == self.data[:].sum()

    def combine(self):
        synk.broadcast(self.v, np.ones(50_000))
        synk.all_reduce(self.v, "sum")
        assert (synk.gather(self.v) == self.n_ranks).all()
        assert (synk.get_value(self.n_ranks - 1, self.v) == self.n_ranks).all()

    def allocate(self):
        data = synk.data(np.full(random.randrange(1, 300_000), 2.0))
        assert (data[:] == 2).all()
        data.set_length(2 * len(data))
        data.free_memory()
        assert data.shape == (0,)

    def change(self):
        self.data.set_value(np.arange(float(random.randrange(1, 100))))
        assert self.f(self.data)[0] == sum(range(len(self.data)))

    def build(self):
        y = pt.vector("y")
        assert synk.function([y], (y.max(), "max"))(ROWS) == 11

    def all(self):
        return [self.call, self.call_with_much, self.call_in_steps, self.combine, self.allocate, self.change,
                self.build]
'''


@pytest.mark.parametrize(("runs", "calls", "times"), [(1, 150, 1), slow(2, 300, 3)])
def test_signals_do_no_harm(runs, calls, times):
    script(
        f"runs, calls, times = {runs}, {calls}, {times}"
        + """
seen, others = 0, []

def tick(*_):
    global seen
    seen += 1
    for pid in others:  # the workers are interrupted as well
        os.kill(pid, signal.SIGALRM)

before = held()
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for round_ in range(runs):
    run = Everything(3 - round_ % 2)
    others[:] = synk.pids()[1:]
    for _ in range(calls):
        run.call()
    for _ in range(times):
        for act in run.all():
            act()
    others.clear()  # before their pids may belong to anybody else
    run = None
    synk.close()
signal.setitimer(signal.ITIMER_REAL, 0)
assert seen > calls, seen
assert held()[1:] == before[1:] and held()[0] <= before[0] + 1, (before, held())
print("the end")
"""
    )


BETWEEN = """
from synk.transport.commands import channel

class GaveUp(Exception):
    pass

def give_up_after(function):
    def giving_up(*arguments):
        result = function(*arguments)
        if armed:
            armed.clear()
            raise {kind}("the script gave up")  # as a signal handler does, which runs between two lines
        return result
    return giving_up

armed = []
channel.send = give_up_after(channel.send)
channel.MasterChannel.command = give_up_after(channel.MasterChannel.command)
run = Everything(3)
for act in run.all():
    act()
armed.append(1)
try:
    {interrupted}
    raise AssertionError("nothing was raised")
except {kind} as error:
    assert "the script gave up" in str(error), error
try:
    run.data.set_value(np.arange(5.0))
    assert run.f(run.data)[0] == 10
    for act in run.all():
        act()
except synk.SynkStateError as error:
    assert "synk.restart()" in str(error), error
synk.close()
print("the end")
"""


SENDING = {
    "a command": "run.call()",
    "a command with a large answer": "run.call_with_much()",
    "half of a message": "synk.data(ROWS)",
}


@pytest.mark.parametrize(
    ("kind", "interrupted"),
    [
        pytest.param(kind, act, id=f"{kind} after {what} was sent", marks=marks)
        for what, act in SENDING.items()
        for kind, marks in {
            "KeyboardInterrupt": pytest.mark.slow if what == "a command with a large answer" else (),
            "GaveUp": pytest.mark.slow,
            "SystemExit": pytest.mark.slow,
        }.items()
    ],
)
def test_an_exception_of_a_handler_while_a_message_is_sent(kind, interrupted):
    script(BETWEEN.format(kind=kind, interrupted=interrupted))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["GaveUp", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("seed", [1, 2])
def test_exceptions_of_handlers_are_kept_and_the_run_is_right_or_says_that_it_is_broken(kind, seed):
    script(f"""
class GaveUp(Exception):
    pass

armed, swallowed = False, 0

def give_up(*_):
    if armed:
        raise {kind}("the script gave up")

def swallow(ignored):
    # Python drops what is raised in a finalizer, which may not have freed its memory then.
    global swallowed
    assert "the script gave up" in str(ignored.exc_value), ignored
    swallowed += 1

def until_it_gives_up(run):
    global armed
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 8e-3), 0.05)
        # PyTensor's rewriting logs exceptions and goes on, but for those that mean the end.
        parts = [act for act in run.all() if act != run.build or not issubclass({kind}, Exception)]
        while True:
            random.choice(parts)()
    finally:
        armed = False

random.seed({seed})
signal.signal(signal.SIGALRM, give_up)
sys.unraisablehook = swallow
run = Everything(2)
for act in run.all():
    act()  # compiled, so that every round reaches every part
before, broken = held(), 0
for round_ in range(60):
    try:
        until_it_gives_up(run)
    except {kind} as error:
        assert "the script gave up" in str(error), error
    try:
        for act in run.all():
            act()
    except synk.SynkStateError as error:
        assert "synk.restart()" in str(error), error
        broken += 1
        synk.close()
        run = Everything(2)
signal.setitimer(signal.ITIMER_REAL, 0)
print("broken:", broken, "swallowed:", swallowed)
run = None
synk.close()
descriptors, segments, children = held()
assert children == [] and descriptors <= before[0] and segments <= swallowed, (before, held(), swallowed)
print("the end")
""")


# --- ^C at a terminal --------------------------------------------------------------------------------------


SITS_AT_A_TERMINAL = """
os.setsid()
terminal = os.open({name!r}, os.O_RDWR)  # the first that a session opens is its own
for standard in range(3):
    os.dup2(terminal, standard)
os.close(terminal)
"""


class Terminal:
    """A script that runs at a terminal of its own; ``presses`` of ^C end it."""

    def __init__(self, body):
        self.screen, theirs = pty.openpty()
        name = os.ttyname(theirs)
        text = PROLOGUE.format(deadline=DEADLINE) + SITS_AT_A_TERMINAL.format(name=name) + body
        self.running = scripts.start(text)
        self.said = ""
        self.deadline = time.monotonic() + DEADLINE
        try:
            self.read("\n")
        except BaseException:
            self.close()
            raise
        finally:
            os.close(theirs)  # the script has it now

    def read(self, until=None):
        """Read what is on the screen: until a line has come, or the script has ended."""
        while until is None or until not in self.said:
            left = self.deadline - time.monotonic()
            assert select.select([self.screen], [], [], max(left, 0))[0], f"it hangs: {self.said}"
            try:
                self.said += os.read(self.screen, 4096).decode()
            except OSError:  # nobody has the terminal any more
                assert until is None, self.said
                return

    def press_ctrl_c(self):
        os.write(self.screen, b"\x03")

    def end(self):
        """Wait for the end; return the exit code."""
        return self.running.wait()

    def close(self):
        self.running.kill()
        with self.running:
            os.close(self.screen)


def all_gone(pids, deadline):
    """Wait until processes have ended; say whether they did before the deadline."""
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


SCRIPT = """
synk.fork(3)
v = pytensor.shared(np.ones(5), name="v")
resting = [acting(rank, sleep_long) for rank in (0, 1)]
synk.all_reduce(v)
synk.distribute()
print("ranks", *synk.pids(), flush=True)
{wait}
"""

WAITS = {
    "idle": "time.sleep(60)",
    "at a prompt": "input('name? ')",
    "the master computes": "resting[0](ROWS, 1)",
    "a worker computes": "resting[1](ROWS, 1)",
    "workers are in a collective": "synk.sequence(resting[0], (synk.all_reduce, v))(ROWS, 1)",
    "the master is in a collective": "synk.sequence(resting[1], (synk.all_reduce, v))(ROWS, 1)",
}

# The master waits for the workers' replies then, and once more at the end.


def endings():
    for presses in (1, 2):
        for name, wait in WAITS.items():
            often = (name, presses) == ("idle", 1)
            marks = () if often else pytest.mark.slow
            yield pytest.param(wait, presses, id=f"{name}, {presses} times", marks=marks)


@pytest.mark.parametrize(("wait", "presses"), list(endings()))
def test_ctrl_c_at_a_terminal(wait, presses):
    terminal = Terminal(SCRIPT.format(wait=wait))
    try:
        pids = [int(word) for word in terminal.said.splitlines()[0].split()[1:]]
        assert len(pids) == 3, terminal.said
        time.sleep(1)  # for the call to get where it is to be interrupted
        terminal.press_ctrl_c()
        limit = time.monotonic() + 5
        if presses == 2:
            time.sleep(0.3)
            terminal.press_ctrl_c()
            limit = time.monotonic() + 1
        in_time = all_gone(pids[1:], limit)
        terminal.read()
        code = terminal.end()
    finally:
        terminal.close()
    assert in_time, f"workers outlived the ^C: {terminal.said}"
    assert code == -signal.SIGINT, terminal.said
    # A second ^C may come while the traceback of the first is printed.
    assert presses == 2 or "KeyboardInterrupt" in terminal.said
    # The workers say none.
    assert wait != WAITS["idle"] or terminal.said.count("KeyboardInterrupt") <= presses
    assert all_gone(pids, time.monotonic())
