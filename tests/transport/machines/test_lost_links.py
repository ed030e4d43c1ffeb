"""Three hosts: the ways between the second and the third, of which the master hears from these alone."""

import subprocess
import sys
import time

import pytest

from support.machines.hosts import INTERFACE

N_HOSTS = 3
SECONDS = 20.0  # within which a run that cannot start says so

SCRIPT = f"""
import sys, numpy as np, pytensor, synk
synk.fork(1, hosts="h1,h2,h3", interface={INTERFACE!r})
w = pytensor.shared(np.zeros(int(sys.argv[1])), name="w")
synk.all_reduce(w)
print("cut", flush=True)
try:
    while True:
        synk.all_reduce(w)
except synk.LinkLost as error:
    first = str(error).splitlines()[0]
try:
    synk.all_reduce(w)
except synk.LinkLost as error:
    print(str(error).startswith(first), first, flush=True)
sys.stdin.readline()
synk.restart()
synk.all_reduce(w)
print(synk.n_ranks())
"""


@pytest.mark.slow
@pytest.mark.parametrize("n_items", [1, 1_000_000])
def test_a_cut_between_two_others_ends_the_wait_and_a_restart_links_them_again(hosts, n_items):
    command = hosts.command("h1", ["timeout", "60", sys.executable, "-c", SCRIPT, str(n_items)])
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=hosts.environment()) as script:
        assert script.stdout.readline() == "cut\n"
        hosts.cut("h2", "h3")
        said = script.stdout.readline()
        hosts.mend("h2", "h3")
        assert script.communicate("go on\n")[0] == "3\n"
    known, _, first = said.partition(" ")
    assert known == "True"
    others = {host: hosts.address(host) for host in ("h2", "h3")}
    assert any(
        f"on host {host}: synk.LinkLost: no connection to {others[other]}" in first
        for host, other in (("h2", "h3"), ("h3", "h2"))
    ), first
    for host in hosts.names:
        assert hosts.left(host) == []


START = f"""
import synk
try:
    synk.fork(1, hosts="h1,h2,h3", interface={INTERFACE!r})
except synk.SynkStateError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_cut_before_the_start_is_named_in_time(hosts):
    hosts.cut("h2", "h3")
    began = time.monotonic()
    ended = hosts.run("h1", [sys.executable, "-W", "always::ResourceWarning", "-c", START])
    assert time.monotonic() - began < SECONDS
    hosts.mend("h2", "h3")
    reason = "a firewall may be between ("
    assert reason in ended.stdout, ended.stdout
    assert any(f"{hosts.address(host)} does not reach all others" in ended.stdout for host in ("h2", "h3"))
    assert "unclosed" not in ended.stdout
    for host in hosts.names:
        assert hosts.left(host) == []
