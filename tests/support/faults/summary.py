"""Count the outcomes of a campaign, and describe them as text.

records -> summarize -> {figures} -> table -> text; promises_broken -> reasons for exit status 1
"""

import os
import platform
import statistics
from collections import Counter

# What is timed: field of a record, name in the table, and the promise for the 99th percentile, in seconds.
TIMES = (
    ("report_s", "report", 1.0),
    ("refusal_s", "refusal by a broken run", 0.010),
    ("restart_s", "restart", 2.0),
    ("close_s", "close", 5.0),
    ("fork_s", "fork", None),
    ("end_s", "end of a master", 5.0),
)
ENOUGH = 200  # faults, before a 99th percentile is one


def summarize(records, seconds):
    """Count records of faults.

    Parameters
    ----------
    records : list of dict
        As the referee prints them.
    seconds : float
        How long it took.

    Returns
    -------
    dict
    """
    faults = list(filter(is_fault, records))
    return {
        "faults": len(faults),
        "seconds": round(seconds, 1),
        "kinds": dict(sorted(Counter(record["kind"] for record in faults).items())),
        "ranks": dict(sorted(Counter(record["n_ranks"] for record in faults if "n_ranks" in record).items())),
        "hangs": sum("hang" in record for record in records),
        "leaks": sum("leak" in record for record in records),
        "wrong": sum(bool(record["wrong"]) for record in records),
        "times": {field: spread(records, field) for field, _, _ in TIMES},
        "machine": machine(),
    }


def is_fault(record):
    """Return whether a record is of a fault, and not of a leak or another finding."""
    return "ranks" in record or "end_s" in record


def spread(records, field):
    """Return number, median, 99th percentile and maximum of a time in seconds."""
    times = sorted(record[field] for record in records if record.get(field) is not None)
    if not times:
        return {"n": 0}
    p99 = times[max(0, -(-99 * len(times) // 100) - 1)]
    figures = {"p50": statistics.median(times), "p99": p99, "max": times[-1]}
    return {"n": len(times), **{name: round(value, 5) for name, value in figures.items()}}


def machine():
    """Describe the machine that the figures depend on."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def promises_broken(summary):
    """Return the reasons why a campaign fails; none if all promises were kept."""
    reasons = [f"{summary[name]} {name}" for name in ("hangs", "leaks", "wrong") if summary[name]]
    for field, name, promise in TIMES:
        times = summary["times"][field]
        if promise and times["n"] >= ENOUGH and times["p99"] > promise:
            reasons.append(f"p99 of {name} is {times['p99']:.3f} s, more than {promise} s")
    return reasons


def table(summary):
    """Return the summary as lines of text."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in summary["kinds"].items())
    lines = [
        f"{summary['faults']} faults in {summary['seconds']} s on {summary['machine']}",
        f"  {kinds}",
        f"hangs {summary['hangs']}, leaks {summary['leaks']}, wrong {summary['wrong']}",
        f"{'seconds':<24}{'n':>6}{'p50':>10}{'p99':>10}{'max':>10}",
    ]
    for field, name, _ in TIMES:
        times = summary["times"][field]
        if times["n"]:
            figures = "".join(f"{times[column]:>10.4f}" for column in ("p50", "p99", "max"))
            lines.append(f"{name:<24}{times['n']:>6}{figures}")
    return "\n".join(lines)
