"""Run PyTensor's own benchmarks on this linker beside its NUMBA and C modes, with one thread.

    make pytensor-bench SUITE=<checkout of pytensor at the installed tag>
    python benchmarks/pytensor_bench.py SUITE --only blockwise careduce --modes synk numba

Each file of the suite's tests/benchmarks runs in a process of its own, with a fixture ``benchmark`` that
compiles the graph of the function it is given once in each mode, calls them in turn, and prints a line: the
time to the first result (with what the modes' caches have), the median of a call, and ours over theirs. At
the end come the geometric means. What is no function of a graph, such as a compilation, is not measured.
"""

import argparse
import contextlib
import copy
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import numpy as np
import pytensor
import pytest
from markdown_tables import aligned
from pytensor.compile.mode import get_mode

from synk.compile import array_mode
from synk.tools.bench.pairs import compare, in_units

MODES: dict[str, tuple[Callable[[], Any], bool]] = {  # with Numba's fast mathematics or without
    "synk": (array_mode, False),
    "numba": (lambda: get_mode("NUMBA"), False),
    "numba, fast": (lambda: get_mode("NUMBA"), True),
    "c": (lambda: get_mode("CVM"), False),
}
OPTIONS = "SYNK_PYTENSOR_BENCH"
AT_LEAST = 1e-3  # seconds of the calls that are timed as one
OF_C = ("C", "CVM", "CVM_NOGC", "cvm", "cvm_nogc")


# --- as a plugin -----------------------------------------------------------------------------------


class OutOfTime(BaseException):
    """A mode takes too long; no handler of errors takes it for one."""


class Plugin:
    """Hands tests their ``benchmark``, and keeps what it finds."""

    def __init__(self, modes: list[str], seconds: int, rounds: int, report: str):
        self.modes, self.seconds, self.rounds, self.report = modes, seconds, rounds, report
        self._known: set[str] = set()

    def pytest_collection_modifyitems(self, items):
        """Leave out those in which only the mode is another."""
        names = {item.originalname for item in items}
        for item in list(items):
            twin = item.originalname.removesuffix("_c") + "_numba"
            asked = getattr(item, "callspec", None) and item.callspec.params.get("mode")
            if (item.originalname.endswith("_c") and twin in names) or asked in OF_C:
                items.remove(item)

    @pytest.fixture(name="benchmark")
    def fixture(self, request):
        """Yield what measures a function of a graph."""

        def benchmark(function, *arguments):
            if id(function) not in calls:
                pytest.skip("no function of a graph")
            _, (_, outputs, *_), _ = calls[id(function)]
            text = pytensor.dprint(outputs, file="str", print_type=True) + described(arguments)
            if text not in self._known:
                self._known.add(text)
                self.keep(request.node, self.measure(function, arguments))
            return function(*arguments)

        benchmark.pedantic = lambda *_, **__: pytest.skip("no function of a graph")
        yield benchmark
        calls.clear()

    def keep(self, item, found: dict[str, Any]) -> None:
        """Add a line to the report."""
        name = item.nodeid.removeprefix("tests/benchmarks/test_").replace("_numba", "")
        with open(self.report, "a") as file:
            file.write(json.dumps({"name": name.replace(".py::test_", ": ")} | found) + "\n")

    def measure(self, function, arguments) -> dict[str, Any]:
        """Return the seconds to the first result, and of a call, in each mode; and what fails."""
        made, first, notes, results = {}, {}, {}, {}
        for mode in self.modes:
            try:
                with limit(self.seconds):
                    start = time.perf_counter()
                    made[mode] = retargeted(function, mode)
                    results[mode] = made[mode](*copy.deepcopy(arguments))
                    first[mode] = time.perf_counter() - start
            except (Exception, OutOfTime) as error:
                made.pop(mode, None)
                notes[mode] = f"{type(error).__name__} {error}".splitlines()[0][:100]
        for mode in made:
            if not agree(results[mode], next(iter(results.values()))):
                notes[mode] = "another result"
        results.clear()
        candidates = {mode: repeated(one, arguments) for mode, one in made.items()}
        if not candidates:
            return {"first": first, "seconds": {}, "notes": notes}
        times = compare(candidates, self.rounds, warmup=1, timer=lambda f: f(), seconds=self.seconds / 4)
        return {"first": first, "seconds": times.seconds, "notes": notes}


def retargeted(function, mode: str):
    """Return the function that was asked for, compiled in another mode."""
    _, arguments, options = calls[id(function)]
    make, fast = MODES[mode]
    with pytensor.config.change_flags(numba__fastmath=fast):
        made = as_asked(*arguments, **(options | {"mode": make()}))
    made.trust_input = function.trust_input
    return made


def repeated(function, arguments) -> Callable[[], float]:
    """Return what calls a function as often as makes a measurement, and returns the seconds of one call."""
    start = time.perf_counter()
    function(*arguments)
    n_calls = max(1, math.ceil(AT_LEAST / (time.perf_counter() - start)))

    def run() -> float:
        start = time.perf_counter()
        for _ in range(n_calls):
            function(*arguments)
        return (time.perf_counter() - start) / n_calls

    return run


def agree(ours: Any, theirs: Any) -> bool:
    """Tell whether results are the same numbers."""
    pairs = zip(*(r if isinstance(r, list) else [r] for r in (ours, theirs)), strict=True)
    return all(np.allclose(one, other, rtol=1e-4, equal_nan=True) for one, other in pairs)


def described(arguments: Any) -> str:
    """Return the shapes and strides of arguments."""
    return repr([(getattr(a, "shape", None), getattr(a, "strides", None)) for a in arguments])


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise `OutOfTime` after so many seconds."""

    def end(*_):
        raise OutOfTime(f"after {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


as_asked = pytensor.function
calls: dict[int, tuple[Any, tuple, dict[str, Any]]] = {}  # by the id of what it returned, which is kept


def recorded(*arguments, **options):
    """Stand in for ``pytensor.function``, and note how it was called."""
    made = as_asked(*arguments, **options)
    calls[id(made)] = made, arguments, options
    return made


def pytest_configure(config):
    """Measure, before the suite imports ``function``."""
    if OPTIONS in os.environ:
        pytensor.function = recorded
        config.pluginmanager.register(Plugin(**json.loads(os.environ[OPTIONS])))


# --- as a script -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("suite", type=Path, help="checkout of pytensor")
    add("--only", nargs="+", default=[""], metavar="PART", help="parts of names of files")
    add("--tests", default="", help="as pytest's -k")
    add("--modes", nargs="+", choices=[*MODES], default=[*MODES], metavar="MODE", help=", ".join(MODES))
    add("--seconds", type=int, default=90, help="for the first result of a function in a mode")
    add("--rounds", type=int, default=15)
    add(
        "--report", type=Path, default=Path("build/pytensor_bench.json"), help="every time, a line a function"
    )
    options = parser.parse_args()
    options.report.parent.mkdir(exist_ok=True)
    options.report.unlink(missing_ok=True)
    print(machine.describe(), flush=True)
    for file in sorted((options.suite / "tests/benchmarks").glob("test_*.py")):
        if any(part in file.name for part in options.only):
            run(file, options)
    lines = options.report.read_text().splitlines() if options.report.exists() else []
    print(table([json.loads(line) for line in lines], options.modes))


def run(file: Path, options: argparse.Namespace) -> None:
    """Run one file of the suite, with the PyTensor that is installed: not the checkout's."""
    suite = options.suite.resolve()
    given = {key: getattr(options, key) for key in ("modes", "seconds", "rounds")}
    environment = {
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        OPTIONS: json.dumps(given | {"report": str(options.report.resolve())}),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", Path(__file__).stem]
    # The suite's own conftest has Numba check bounds.
    command += ["-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, f"--rootdir={suite}"]
    command += ["-k", options.tests, f"tests/benchmarks/{file.name}"]
    environment = os.environ | environment
    ended = subprocess.run(command, cwd=suite, env=environment, check=False, capture_output=True, text=True)
    said = ended.stdout.splitlines()
    told = [line[:160] for line in said if line.startswith(("FAILED", "ERROR"))]
    print("\n".join([*told, f"{file.name}: {said[-1] if said else ended.stderr[-1000:]}"]), flush=True)


def table(found: list[dict[str, Any]], modes: list[str]) -> str:
    """Return what was found, the slowest beside the second mode first, and the geometric means."""
    ours, *others = modes
    heads = ["benchmark", *[head for mode in modes for head in (f"{mode}, first", mode)]]
    heads += [*[f"× {mode}" for mode in others], "notes"]
    ratios = [{mode: ratio(one["seconds"], ours, mode) for mode in others} for one in found]
    order = sorted(range(len(found)), key=lambda k: -ratios[k][others[0]] if others else 0)
    rows = []
    for one, against in ((found[k], ratios[k]) for k in order):
        cells = [cell for mode in modes for cell in cells_of(one, mode)]
        notes = "; ".join(f"{mode}: {note}" for mode, note in one["notes"].items())
        rows.append([one["name"], *cells, *[f"{against[mode]:.2f}" for mode in others], notes])
    lines = [aligned(heads, rows)]
    for mode in others:
        there = [against[mode] for against in ratios if against[mode] > 0]
        if there:
            lines.append(
                f"× {mode}: geometric mean {statistics.geometric_mean(there):.2f} of {len(there)}, "
                f"{sum(r > 1 for r in there)} above 1, {sum(r > 2 for r in there)} above 2"
            )
    return "\n".join(lines)


def ratio(seconds: dict[str, list[float]], ours: str, theirs: str) -> float:
    """Return the median of our times over theirs, round by round; 0 if there are none."""
    if ours not in seconds or theirs not in seconds:
        return 0.0
    return statistics.median(a / b for a, b in zip(seconds[ours], seconds[theirs], strict=True))


def cells_of(one: dict[str, Any], mode: str) -> tuple[str, str]:
    """Return the time to the first result, and the median of a call."""
    if mode not in one["seconds"]:
        return "", ""
    return in_units(one["first"][mode]), in_units(statistics.median(one["seconds"][mode]))


if __name__ == "__main__":
    main()
