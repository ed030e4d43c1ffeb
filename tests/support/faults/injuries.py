"""The injuries: faults that are inflicted on a run, their moments, and the promised outcome of each.

INJURIES[name].inflict(ordeal) -> the stage is armed, or the referee is told whom to shoot and when
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import acts
import shortages
from acts import COMPILING, COMPUTING, the_stage

OUTCOMES = (
    "died",  # WorkerDied; the run is broken
    "late",  # SynkTimeout; the run is broken
    "raised",  # RemoteError; the run goes on
    "refused",  # another error; the run goes on
    "interrupted",  # KeyboardInterrupt; the run goes on or says that it is broken
    "unharmed",  # nothing
    "ended",  # the master ends
)
KILLED = "signal SIGKILL"
MOMENT = 0.06  # seconds in which a shot from outside falls; several deeds take as long


@dataclass(frozen=True)
class Injury:
    """One kind of fault.

    ``inflict(ordeal)`` prepares it and returns the ranks it is meant for.
    """

    name: str
    outcome: str
    inflict: Callable
    causes: tuple[str, ...] = ()  # of a death
    errors: tuple[str, ...] = ()  # names of classes, one of which the error is an instance of
    during: str = "deeds"  # or "fork", "close", "restart", "commit"
    deeds: tuple[str, ...] = ()  # which ones; all where empty
    codes: tuple[int, ...] = ()  # exit codes of the master
    shortage: Callable | None = None  # a context manager around the deeds
    timeout: tuple[float, ...] = ()  # seconds, one of which is the deadline
    loses_data: bool = False  # whether Data that grew meanwhile have to be made anew
    in_op: bool = False  # whether it can only happen while a rank computes
    crashes: bool = False  # whether the worker's last words are a report of faulthandler
    states: tuple[str, ...] = ("running",)  # of a rank that hangs
    line: str = ""  # what its traceback or stack names


# --- how it is done ------------------------------------------------------------------------------------


def inside(act, several=False, also_rank_0=False, place=COMPUTING, soon=4):
    """Make an Op on a worker, on several, or on any rank, do it at one of its next calls."""

    def inflict(ordeal):
        ranks = ordeal.pick_ranks(several, also_rank_0)
        the_stage.arm(acts.NUMBERS[act.__name__], place, {rank: ordeal.draw(1, soon) for rank in ranks})
        return ranks

    return inflict


def outside(*signals, several=False, apart=0.0, moment=MOMENT):
    """Ask the referee to send signals at a random moment, each ``apart`` seconds after the one before."""

    def inflict(ordeal):
        ranks = ordeal.pick_ranks(several)
        ordeal.shoot([ordeal.pids[rank] for rank in ranks], signals, apart, moment)
        return ranks

    return inflict


def at_master(*signals, apart=0.0, moment=MOMENT):
    """Ask the referee to send signals to the master."""

    def inflict(ordeal):
        ordeal.shoot([os.getpid()], signals, apart, moment)
        return [0]

    return inflict


def newborn(number):
    """Ask the referee to send a signal to a worker while it is being forked."""

    def inflict(ordeal):
        known = ordeal.pids if ordeal.is_open() else ()
        ordeal.tell(newborn=[ordeal.random.uniform(0, 0.004), int(number), list(known)])
        return [1, 2, 3]  # any of those to come

    return inflict


def first_inside_then_outside(act):
    """Make one worker hang, and then kill another, or the same."""

    def inflict(ordeal):
        (hanging,) = inside(act, soon=2)(ordeal)
        ordeal.follow(ordeal.pids[ordeal.draw(1, ordeal.n_ranks - 1)])
        return [hanging, *range(1, ordeal.n_ranks)]

    return inflict


def misshape(ordeal):
    """Give one rank a value of another shape than the others'."""
    import synk

    world, rank = ordeal.world, ordeal.draw(0, ordeal.n_ranks - 1)
    synk.set_value(rank, world.variables["v"], [1.0] * ordeal.draw(5, 9))
    the_stage.strike()
    return [rank]


def nothing(ordeal):
    """Leave it to the shortage."""
    the_stage.strike()
    return []


# --- the table -------------------------------------------------------------------------------------------

IN_OP = ("reduce_rows", "change_data", "add_up", "do_several", "train")
RAISING = ("reduce_rows", "add_up", "do_several", "train")
PROMPT = (*IN_OP, "all_reduce", "reduce", "broadcast", "set_one", "scatter")  # nothing is compiled
DEADLINES = (1.0, 2.0)  # seconds
GROWING = ("change_data", "make_data", "broadcast_large", "send_large")


def _named(act):
    return act.__name__.replace("raise_", "raises ").replace("_", " ")


def _deaths():
    causes = {
        acts.kill: KILLED,
        acts.segfault: "signal SIGSEGV",
        acts.abort: "signal SIGABRT",
        acts.leave: "exit code 3",
        acts.leave_in_peace: "exit code 0",
        acts.quit: "signal SIGVTALRM",
        acts.swell: KILLED,
    }
    for act, cause in causes.items():
        yield Injury(
            f"{_named(act)} in an op",
            "died",
            inside(act),
            (cause,),
            deeds=IN_OP,
            in_op=True,
            crashes=act in (acts.segfault, acts.abort),
        )
    for name in ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGVTALRM", "SIGBUS"):
        yield Injury(f"{name} at a worker", "died", outside(signal.Signals[name]), (f"signal {name}",))
    kill, stop, go_on = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
    yield Injury("several die in an op", "died", inside(acts.kill, several=True), (KILLED,), deeds=IN_OP)
    yield Injury("several killed at once", "died", outside(kill, several=True), (KILLED,))
    yield Injury("stopped, then killed", "died", outside(stop, kill, apart=0.2), (KILLED,))
    yield Injury("stopped, then continued", "unharmed", outside(stop, go_on, apart=0.3))
    compiling = inside(acts.kill, place=COMPILING, soon=1)
    yield Injury("dies compiling", "died", compiling, (KILLED,), deeds=("compile",))
    yield Injury("killed compiling", "died", outside(kill), (KILLED,), deeds=("compile",))
    large = ("send_large", "broadcast_large")
    yield Injury("killed amid a big message", "died", outside(kill), (KILLED,), deeds=large)
    for act in (acts.sleep, acts.spin):
        hanging = first_inside_then_outside(act)
        yield Injury(f"{_named(act)}, then a death", "died", hanging, (KILLED,), deeds=IN_OP)
    yield Injury("killed during fork", "died", newborn(kill), (KILLED,), during="fork")
    yield Injury("killed during close", "unharmed", outside(kill, moment=0.004), during="close")
    yield Injury("stopped during close", "unharmed", outside(stop, moment=0.004), during="close")
    yield Injury("killed during commit", "died", outside(kill), (KILLED,), during="commit")
    yield Injury("killed during restart", "died", newborn(kill), (KILLED,), during="restart")


def _hangs():
    # Of `pause`, which keeps the interpreter's lock, the stack need not be known.
    for act, line in ((acts.sleep, "sleep"), (acts.pause, ""), (acts.spin, "spin")):
        name = f"{_named(act)} in an op"
        yield Injury(name, "late", inside(act), deeds=IN_OP, timeout=DEADLINES, in_op=True, line=line)
    stopped = {"states": ("stopped",), "timeout": DEADLINES}
    yield Injury("stop in an op", "late", inside(acts.stop), deeds=IN_OP, in_op=True, **stopped)
    yield Injury("SIGSTOP at a worker", "late", outside(signal.SIGSTOP), deeds=PROMPT, **stopped)
    several = outside(signal.SIGSTOP, several=True)
    yield Injury("SIGSTOP at several", "late", several, deeds=PROMPT, **stopped)


def _errors():
    like = {
        acts.raise_plain: ("ValueError",),
        acts.raise_refused: ("LookupError",),
        acts.raise_unpicklable: ("ValueError",),
        acts.raise_huge: ("ValueError",),
        acts.raise_out_of_memory: ("MemoryError",),
        acts.raise_recursion: ("RecursionError",),
    }
    for act in acts.ERRORS:
        inflict = inside(act, also_rank_0=True)
        yield Injury(
            _named(act), "raised", inflict, errors=like.get(act, ()), deeds=RAISING, line=act.__name__
        )
    several = inside(acts.raise_plain, several=True, also_rank_0=True, soon=1)
    yield Injury(
        "several raise", "raised", several, errors=("ValueError",), deeds=RAISING, line="raise_plain"
    )
    compiling = inside(acts.raise_plain, also_rank_0=True, place=COMPILING, soon=1)
    yield Injury("raises compiling", "raised", compiling, errors=("ValueError",), deeds=("compile",))
    mismatch = ("CollectiveMismatch",)
    yield Injury("ranks disagree", "refused", misshape, errors=mismatch, deeds=("all_reduce", "reduce"))


def _shortages():
    full, limits = ("MemoryError",), ("OSError", "MemoryError")
    for name, shortage in (("no room", shortages.full), ("files may not grow", shortages.small_files)):
        yield Injury(name, "refused", nothing, errors=full, deeds=GROWING, shortage=shortage)
        yield Injury(f"{name} at fork", "refused", nothing, errors=full, during="fork", shortage=shortage)
    few = shortages.few_descriptors
    yield Injury("no descriptors", "refused", nothing, errors=limits, deeds=GROWING, shortage=few)
    yield Injury("no descriptors at fork", "refused", nothing, errors=limits, during="fork", shortage=few)
    yield Injury(
        "no descriptors at a worker",
        "refused",
        nothing,
        errors=limits,
        deeds=GROWING,
        shortage=shortages.few_descriptors_at_worker,
        loses_data=True,
    )
    eagain = shortages.no_processes
    yield Injury("no processes at fork", "refused", nothing, errors=limits, during="fork", shortage=eagain)
    again = "no processes at restart"
    yield Injury(again, "refused", nothing, errors=limits, during="restart", shortage=eagain)


def _interrupts():
    interrupt = signal.SIGINT
    yield Injury("SIGINT", "interrupted", at_master(interrupt))
    yield Injury("SIGINT twice", "interrupted", at_master(interrupt, interrupt, apart=0.002))
    for during in ("fork", "close", "restart"):
        soon = at_master(interrupt, moment=0.01)
        yield Injury(f"SIGINT at {during}", "interrupted", soon, during=during)


def _ends():
    kill, terminate = signal.SIGKILL, signal.SIGTERM
    yield Injury("master killed", "ended", at_master(kill), codes=(-kill,))
    yield Injury("master crashes", "ended", at_master(signal.SIGSEGV), codes=(-signal.SIGSEGV,))
    yield Injury("master killed forking", "ended", at_master(kill), during="fork", codes=(-kill,))
    yield Injury("master killed restarting", "ended", at_master(kill), during="restart", codes=(-kill,))
    yield Injury("SIGTERM", "ended", at_master(terminate), codes=(143,))
    twice = at_master(terminate, terminate, apart=0.01)
    yield Injury("SIGTERM twice", "ended", twice, codes=(143, -terminate))


INJURIES = {
    injury.name: injury
    for family in (_deaths, _hangs, _errors, _shortages, _interrupts, _ends)
    for injury in family()
}
