"""Two hosts: what is said of them before anything runs, and of those on which nothing can."""

import json
import sys
import time

import pytest

from support.machines.hosts import INTERFACE
from support.processes.waiting import wait_until

SECONDS = 20.0  # within which a run that cannot start says so


def synk_on(hosts, *words):
    return hosts.run("h1", [sys.executable, "-m", "synk", *words])


def forked(hosts):
    """Return what a fork over both hosts says."""
    script = f"import synk; synk.fork(1, hosts='h1,h2', interface={INTERFACE!r})"
    return hosts.run("h1", [sys.executable, "-c", script])


@pytest.fixture
def closed(hosts):
    """Let nobody log in to the hosts."""
    key = hosts.folder / "id.pub"
    key.rename(hosts.folder / "away")
    yield
    (hosts.folder / "away").rename(key)


@pytest.fixture
def full(hosts):
    """Leave little room in the second host's shared memory."""
    fill = "free=$(df --output=avail -k /dev/shm | tail -1)\n"
    fill += "head -c $((free - 4096))K /dev/zero > /dev/shm/full"
    assert hosts.run("h2", ["sh", "-c", fill]).returncode == 0
    yield
    hosts.run("h2", ["rm", "/dev/shm/full"])


@pytest.mark.slow
def test_the_doctor_looks_at_all_hosts(hosts):
    ended = synk_on(hosts, "doctor", "--json", "--hosts", "h1,h2", "--interface", INTERFACE)
    assert ended.returncode == 0, ended.stdout
    found = json.loads(ended.stdout)["findings"]
    subjects = {finding["subject"] for finding in found}
    looked_at = ("versions", "clock", "/dev/shm", "cores", "port")
    assert subjects == {f"{host}: {what}" for host in ("h1", "h2") for what in looked_at} | {"h2: ssh"}
    assert {finding["level"] for finding in found} == {"ok"}


@pytest.mark.slow
def test_the_doctor_names_hosts_that_let_nobody_in(hosts, closed):
    ended = synk_on(hosts, "doctor", "--hosts", "h1,h2")
    assert ended.returncode == 1, ended.stdout
    assert "h2: ssh" in ended.stdout
    assert "Permission denied" in ended.stdout


@pytest.mark.slow
def test_a_launcher_names_the_hosts(hosts, tmp_path):
    (tmp_path / "train.py").write_text("import sys, synk\nprint(synk.fork(), sys.argv[1:])\nsynk.close()\n")
    words = ("-np", "3", "-H", "h1:2,h2:2", "--interface", INTERFACE, str(tmp_path / "train.py"), "-x")
    ended = synk_on(hosts, "run", *words)
    assert ended.stdout == "3 ['-x']\n"
    assert hosts.left("h1") == hosts.left("h2") == []


@pytest.mark.slow
def test_a_host_that_lets_nobody_in_is_named_in_time(hosts, closed):
    began = time.monotonic()
    ended = forked(hosts)
    assert time.monotonic() - began < SECONDS
    assert ended.returncode == 1
    assert "host h2: root@h2: Permission denied" in ended.stdout
    assert "`ssh -o BatchMode=yes h2 true` has to work without a question" in ended.stdout
    assert hosts.left("h1") == hosts.left("h2") == []


TOO_MANY = f"""
import synk
try:
    synk.fork(hosts="h1:1,h2:100000", interface={INTERFACE!r})
except synk.SynkStateError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_host_that_cannot_have_so_many_ranks_is_named_and_nothing_is_left(hosts):
    ended = hosts.run("h1", [sys.executable, "-W", "always::ResourceWarning", "-c", TOO_MANY])
    assert ended.stdout.startswith("host h2 could not start its ranks: ")
    assert "unclosed" not in ended.stdout
    wait_until(lambda: not (hosts.left("h1") or hosts.left("h2")), SECONDS)  # a guard tidies up


TIMED = """
import synk, time
began = time.monotonic()
try:
    {}
except synk.SynkStateError as error:
    print(time.monotonic() - began, error)
"""


@pytest.mark.soak
def test_a_host_that_never_calls_is_named_in_time(hosts, tmp_path):
    hangs = "import socket, time\nif socket.gethostname() == 'h2': time.sleep(100)\n"
    (tmp_path / "sitecustomize.py").write_text(hangs)  # runs where any Python starts
    script = f"synk.fork(1, hosts='h1,h2', interface={INTERFACE!r})"
    ended = hosts.run("h1", [sys.executable, "-c", TIMED.format(script)], PYTHONPATH=str(tmp_path))
    seconds, said = ended.stdout.split(" ", 1)
    assert float(seconds) < SECONDS
    assert said.startswith("host h2 has not called within")
    assert hosts.left("h1") == hosts.left("h2") == []


REFUSED = """
data = synk.data(np.ones(1 << 22))
for attempt in range(2):
    try:
        synk.on_ranks(keep, data)
    except synk.SharedMemoryFull as error:
        print(f"refused: {error}")
print(synk.on_ranks(keep)())
"""


@pytest.mark.slow
def test_a_host_without_shared_memory_is_named_and_the_run_goes_on(hosts, full):
    define = "import numpy as np, synk\ndef keep(rank, data=None): return lambda: rank\n"
    script = define + f"synk.fork(1, hosts='h1,h2', interface={INTERFACE!r})\n" + REFUSED
    ended = hosts.run("h1", [sys.executable, "-c", script])
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("refused: rank 1 on host h2: synk.SharedMemoryFull: ") == 2, ended.stdout
    assert ended.stdout.endswith("[0, 1]\n")


HANGING = """
def hang(rank, late): return lambda: time.sleep(30 if rank == late else 0)
for late in (3, 2):
    try:
        with synk.timeout(3):
            synk.on_ranks(hang, late)()
    except synk.SynkTimeout as error:
        stack = error.ranks[late].stack
        print("late", late, error.late, "in hang" in stack or "in <lambda>" in stack)
    synk.restart()
"""


@pytest.mark.slow
def test_a_rank_of_another_host_that_hangs_is_named_and_no_other(hosts):
    script = f"import synk, time\nsynk.fork(2, hosts='h1,h2', interface={INTERFACE!r})\n" + HANGING
    ended = hosts.run("h1", [sys.executable, "-c", script])
    assert ended.returncode == 0, ended.stdout
    assert [line for line in ended.stdout.splitlines() if line.startswith("late")] == [
        "late 3 (3,) True",
        "late 2 (2,) False",  # of a host's first rank nobody can say where it hangs
    ]
