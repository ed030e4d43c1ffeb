"""Judge whether a fault was reported as promised: type, rank, cause, time, and errors of later calls."""

import time
import traceback

import numpy as np
from acts import the_stage

import synk

REPORT_SECONDS = 3.0  # for one fault on a machine under load; the campaign holds the 99th percentile to 1 s
REFUSAL_SECONDS = 0.010
PHASES = ("idle", "compiling", "computing", "in a collective")
EXPECTED = {
    "died": "WorkerDied",
    "late": "SynkTimeout",
    "raised": "RemoteError",
    "interrupted": "KeyboardInterrupt",
}


class Wrong(AssertionError):
    """A promise was not kept."""


def told(error, most=3000):
    """Return the end of an exception's traceback."""
    return "".join(traceback.format_exception(error))[-most:]


def judge(record, injury, error, began, caught):
    """Compare the error that the script got with the promise, and add times to the record.

    Parameters
    ----------
    record : dict
    injury : Injury
    error : BaseException or None
        What came out of the call.
    began, caught : float
        When that call began and when the error was there, in seconds of the monotonic clock.
    """
    record["error"] = type(error).__name__ if error else None
    if error is None:
        if injury.outcome in ("died", "late", "raised"):
            raise Wrong("nothing was raised")
        return
    if not fits(injury, error):
        raise Wrong(f"it was told otherwise: {told(error)}") from error
    waited = record.get("timeout", 0.0)
    record["report_s"] = max(0.0, caught - max(the_stage.struck, began) - waited)
    if record["report_s"] > REPORT_SECONDS:
        record["wrong"].append(f"told after {record['report_s']:.2f} s")
    check = {"died": _check_death, "late": _check_timeout, "raised": _check_remote}.get(injury.outcome)
    if check is not None:
        record["wrong"] += [f"{text}: {error}"[:2000] for text in check(record, injury, error)]


def fits(injury, error):
    """Return whether an error is one of those promised."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    promised = EXPECTED.get(injury.outcome)
    if promised and promised not in kinds:
        # What is no Exception leaves rank 0 as it is.
        return injury.outcome == "raised" and not isinstance(error, Exception)
    return not injury.errors or bool(kinds & set(injury.errors))


def _check_death(record, injury, error):
    record["phase"] = error.phase
    if error.rank not in record["ranks"]:
        yield f"rank {error.rank} is said to have died, not one of {record['ranks']}"
    if error.cause not in injury.causes:
        yield f"the cause is said to be {error.cause}, not {injury.causes}"
    if error.phase not in PHASES or (injury.in_op and error.phase != "computing"):
        yield f"it is said to have been {error.phase}"
    if not error.function or f"rank {error.rank} (pid {error.pid})" not in str(error):
        yield "the message does not say which rank and function"
    if injury.crashes and "Extension modules:" not in error.stderr:
        yield f"what it wrote to standard error is missing, there is {error.stderr!r}"


def _check_timeout(record, injury, error):
    states = {state.rank: state for state in error.ranks}
    if error.seconds != record["timeout"]:
        yield f"the deadline is said to be {error.seconds} s, not {record['timeout']} s"
    for rank in record["ranks"]:
        state = states.get(rank)
        if state is None:
            yield f"nothing is said of rank {rank}"
            continue
        record["phase"] = state.phase
        if state.state not in injury.states:
            yield f"rank {rank} is said to be {state.state}, not {injury.states}"
        if injury.line and injury.line not in state.stack:
            yield f"the stack of rank {rank} does not name {injury.line}"
        if f"rank {rank}" not in str(error):
            yield f"the message does not name rank {rank}"


def _check_remote(record, injury, error):
    failing = [failure.rank for failure in getattr(error, "failures", ())]
    if not set(failing) <= set(record["ranks"]) or (not failing and 0 not in record["ranks"]):
        yield f"ranks {failing} are said to have failed, not {record['ranks']}"
    if failing and injury.line not in str(error):
        yield f"the traceback does not name {injury.line}"


def check_refusals(record, world, said):
    """On a broken run every call fails at once with what was ``said`` first: a type and a message."""
    v, row = world.variables["v"], np.ones(4)
    calls = {
        "function": lambda: world.reduced(np.ones((8, 4)), row),
        "sequence": lambda: world.several(np.ones((8, 4)), row),
        "all_reduce": lambda: synk.all_reduce(v),
        "get_value": lambda: synk.get_value(0, v),
        "data": lambda: synk.data(np.ones(3)),
        "new function": lambda: synk.function([], v.sum()),
        "commit": synk.commit,
    }
    slowest = 0.0
    for name, call in calls.items():
        took = min(_refusal_seconds(name, call, said) for _ in range(3))
        slowest = max(slowest, took)
        if took > REFUSAL_SECONDS:
            record["wrong"].append(f"{name} of a broken run took {1000 * took:.1f} ms to fail")
    record["refusal_s"] = slowest


def _refusal_seconds(name, call, said):
    began = time.monotonic()
    try:
        call()
    except synk.SynkError as again:
        took = time.monotonic() - began
        if (type(again), str(again)) != said:
            raise Wrong(f"{name} said {again!r} after {said}") from None
        return took
    raise Wrong(f"{name} went on after {said}")
