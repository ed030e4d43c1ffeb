"""Three hosts, two of which do not reach each other any more, while the first reaches both."""

import sys

import pytest

from support.machines.hosts import INTERFACE, NETWORK

N_HOSTS = 3

SCRIPT = """
import os, time, numpy as np, pytensor, synk

def route(rank, verb):
    return lambda: os.system(f"ip route {{verb}} blackhole {network}.3") if rank == 1 else 0

synk.fork(1, hosts="h1,h2,h3", interface={interface!r})
v = pytensor.shared(np.zeros(3), name="v")
synk.broadcast(v, np.ones({size}))
synk.commit()
assert set(synk.on_ranks(route, "add")()) == {{0}}
began = time.monotonic()
try:
    synk.all_reduce(v)
except synk.RemoteError as error:
    print("cut:", time.monotonic() - began, "ConnectionError: the connection to {network}." in str(error))
assert set(synk.on_ranks(route, "del")()) == {{0}}
print("again:", synk.restart(), synk.n_ranks(), synk.gather(v).sum() == 3 * {size})
"""


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_cut_between_two_machines_is_named_within_some_seconds(hosts, size):
    script = SCRIPT.format(network=NETWORK, interface=INTERFACE, size=size)
    ended = hosts.run("h1", [sys.executable, "-c", script])
    assert ended.returncode == 0, ended.stdout
    said = dict(
        line.split(": ", 1) for line in ended.stdout.splitlines() if line.startswith(("cut", "again"))
    )
    seconds, named = said["cut"].split()
    assert float(seconds) < 6
    assert named == "True"
    assert said["again"] == "None 3 True"
    assert [hosts.left(name) for name in hosts.names] == [[]] * N_HOSTS
