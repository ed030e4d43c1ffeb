"""Scripts end as without workers, however they end, and their workers with them."""

import signal
import time

import pytest

from support.processes.scripts import alive, check_gone, script, started
from support.slow import slow

ORPHANS = """
synk.fork(3)
f = acting({rank}, sleep_long)
v = pytensor.shared(np.ones(5), name="v")
both = synk.sequence(f, (synk.all_reduce, v))
data = synk.data(np.ones(1_000_000))
print(*synk.pids(), flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "rank"),
    [
        slow("time.sleep(60)", 0),  # idle
        slow("f(ROWS, 1)", 1),  # waiting for a reply
        ("both(ROWS, 1)", 1),  # in a collective, as is rank 2
        slow("both(ROWS, 1)", 0),  # computing, while the workers are in a collective
    ],
)
def test_workers_are_gone_when_the_master_is_killed(end, rank):
    with started(ORPHANS.format(end=end, rank=rank)) as (_, pids):
        assert len(pids) == 3
        time.sleep(0.3)
        assert all(map(alive, pids))
    check_gone(pids, 2)


@pytest.mark.parametrize("end", ["os._exit(7)", slow("os.kill(MASTER, signal.SIGTERM)"), slow("os.abort()")])
def test_workers_are_gone_however_the_master_ends(end):
    done = script(ORPHANS.format(end=end, rank=0), check=False)
    assert done.returncode in (7, 128 + signal.SIGTERM, -signal.SIGABRT)
    check_gone(list(map(int, done.stdout.split())), 2)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        slow("sys.exit(3)", 3),
        slow("sys.exit('because')", 1),
        ("1 / 0", 1),
        slow("raise KeyboardInterrupt", -2),
    ],
)
def test_scripts_end_as_they_would_without_workers(end, code):
    done = script(
        f"""
    import atexit
    atexit.register(print, "at exit")
    print("unfinished line", end=" ")
    synk.fork(3)
    f = acting(1, kill)
    data = synk.data(ROWS)
    print(*synk.pids())
    {end}
    """,
        check=False,
    )
    assert done.returncode == code
    # Neither buffered output nor what was registered to run at exit comes twice.
    first, second, *rest = done.stdout.split("\n")
    assert first.startswith("unfinished line ")
    assert (second, rest) == ("at exit", [""])
    check_gone(list(map(int, first.split()[2:])), 0.5)
    expected = {"1 / 0": "ZeroDivisionError", "sys.exit('because')": "because"}.get(end, "")
    assert expected in done.stderr
    if not expected and code >= 0:
        assert done.stderr == ""


@pytest.mark.slow
def test_a_script_ends_though_a_call_fails():
    done = script("synk.fork(3)\nacting(1, lambda: 1 / 0)(ROWS, 1)", check=False)
    assert done.returncode == 1


def test_a_child_of_the_script_may_exit_and_leaves_the_run_alone():
    done = script("""
    import warnings
    warnings.simplefilter("ignore")
    synk.fork(3)
    f = acting(1, kill)
    data = synk.data(ROWS)
    faulthandler.cancel_dump_traceback_later()  # a child would wait for its thread
    child = os.fork()
    if child == 0:
        sys.exit(5)  # runs what is registered at exit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert f(data, 0) == 66
    data.set_length(6)
    assert f(data, 0) == 15
    synk.close()
    """)
    assert done.stderr == ""
