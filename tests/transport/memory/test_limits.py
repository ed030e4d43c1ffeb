"""Which limit is in the way of how many bytes, on made-up machines; and that this one is understood."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import synk
from synk.transport.memory import limits as memory_limits
from synk.transport.memory.cgroups import UNLIMITED
from synk.transport.memory.limits import MemoryLimits

ROOT = Path(synk.__file__).parents[1]
MIB = 1 << 20
GIB = 1 << 30
TYPE_2 = "- cgroup2 cgroup2 rw,nsdelegate"
TYPE_1 = "- cgroup cgroup rw,memory"
NO_LIMIT_1 = 9223372036854771712


def machine(folder, membership, mounts, available=100 * GIB, swap=0):
    """Write a /proc; return what looks at it."""
    (folder / "self").mkdir()
    (folder / "self/cgroup").write_text(membership)
    lines = (f"35 31 0:32 {root} {mount} rw,relatime shared:9 {kind}\n" for root, mount, kind in mounts)
    (folder / "self/mountinfo").write_text("".join(lines))
    (folder / "meminfo").write_text(
        f"MemTotal: {200 * GIB // 1024:>12} kB\nMemFree:         5 kB\n"
        f"MemAvailable: {available // 1024:>10} kB\nSwapCached:  7 kB\n"
        f"SwapFree: {swap // 1024} kB\nHugePages_Free: 0\n"
    )
    return MemoryLimits(folder)


def cgroup(folder, stat="", **files):
    """Write the files of one cgroup; a double underscore in a name is a dot's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.stat").write_text(stat)
    for name, value in files.items():
        (folder / f"memory.{name.replace('__', '.')}").write_text(f"{value}\n")


def version_2(proc, tree, path="/a/b", **keywords):
    return machine(proc, f"0::{path}\n", [("/", tree, TYPE_2)], **keywords)


@pytest.fixture
def tree(tmp_path):
    return tmp_path / "cgroups"


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def fits(limits, nbytes):
    """Say whether there is room for so much, after a request that makes it look."""
    limits._unseen = memory_limits.UNSEEN_BYTES
    return limits.shortage(nbytes) is None


def most(limits, end=1 << 48):
    """Return the most bytes for which there is room."""
    low, high = 0, end
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(limits, middle) else (low, middle - 1)
    return low


def test_without_cgroups_the_machine_is_the_limit(proc):
    limits = machine(proc, "", [], available=10 * GIB)
    assert most(limits) == 10 * GIB - memory_limits.RESERVE_BYTES
    short = limits.shortage(11 * GIB)
    assert (short.free, short.limit, short.where) == (10 * GIB - 64 * MIB, 200 * GIB, "this machine")
    assert "more memory" in short.hint


def test_what_can_be_swapped_out_is_room(proc):
    assert most(machine(proc, "", [], available=10 * GIB, swap=3 * GIB)) == 13 * GIB - 64 * MIB


def test_a_machine_that_tells_nothing_limits_nothing(tmp_path):
    assert MemoryLimits(tmp_path / "nowhere").shortage(1 << 60) is None


@pytest.mark.parametrize("limited", ["a/b", "a", "."])
def test_the_limit_of_any_cgroup_around_counts(proc, tree, limited):
    for name in ("a/b", "a", "."):
        cgroup(tree / name, max="max", high="max", current=3 * GIB)
    cgroup(tree / limited, max=4 * GIB, high="max", current=3 * GIB)
    limits = version_2(proc, tree)
    assert most(limits) == GIB - 64 * MIB
    short = limits.shortage(2 * GIB)
    name = "/" if limited == "." else f"/{limited}"
    assert (short.free, short.limit, short.where) == (960 * MIB, 4 * GIB, f"cgroup {name} (memory.max)")
    assert "--memory" in short.hint
    assert "Kubernetes" in short.hint


def test_the_tightest_of_several_limits_counts(proc, tree):
    cgroup(tree / "a/b", max=4 * GIB, current=1 * GIB)
    cgroup(tree / "a", max=8 * GIB, current=6 * GIB)
    cgroup(tree, max="max", current=7 * GIB)
    assert most(version_2(proc, tree)) == 2 * GIB - 64 * MIB


def test_memory_high_counts_like_a_limit(proc, tree):
    cgroup(tree / "a/b", max=4 * GIB, high=2 * GIB, current=GIB)
    limits = version_2(proc, tree)
    assert most(limits) == GIB - 32 * MIB
    assert limits.shortage(GIB).where == "cgroup /a/b (memory.high)"


def test_cached_files_are_room(proc, tree):
    stat = f"anon {GIB}\nfile {2 * GIB}\nshmem {GIB}\ninactive_file {512 * MIB}\nactive_file {256 * MIB}\n"
    cgroup(tree / "a/b", stat, max=4 * GIB, current=4 * GIB)
    assert most(version_2(proc, tree)) == (512 + 256 - 64) * MIB


@pytest.mark.parametrize(("allowed", "room"), [("max", 900), (700 * MIB, 600), (0, 0)])
def test_a_cgroup_may_swap_as_far_as_it_and_the_machine_can(proc, tree, allowed, room):
    cgroup(tree / "a/b", max=4 * GIB, current=4 * GIB - 64 * MIB, swap__max=allowed, swap__current=100 * MIB)
    assert most(version_2(proc, tree, swap=900 * MIB)) == room * MIB


def test_a_cgroup_over_its_limit_has_nothing_free(proc, tree):
    cgroup(tree / "a/b", max=GIB, current=2 * GIB)
    assert version_2(proc, tree).shortage(2 * MIB).free == 0


def test_version_1(proc, tree):
    membership = "9:name=systemd:/x\n4:cpu,memory:/docker/one\n1:cpu:/y\n0::/\n"
    mounts = [("/", tree / "cpu", "- cgroup cgroup rw,cpu"), ("/", tree, TYPE_1)]
    stat = f"inactive_file 5\ntotal_inactive_file {100 * MIB}\ntotal_active_file {28 * MIB}\n"
    cgroup(tree / "docker/one", stat, limit_in_bytes=GIB, usage_in_bytes=GIB)
    cgroup(tree / "docker", limit_in_bytes=NO_LIMIT_1, usage_in_bytes=GIB)
    limits = machine(proc, membership, mounts)
    assert most(limits) == 128 * MIB - 16 * MIB
    assert limits.shortage(GIB).where == "cgroup /docker/one (memory.limit_in_bytes)"


def test_version_1_counts_swap_in_a_limit_of_its_own(proc, tree):
    cgroup(
        tree / "one",
        limit_in_bytes=GIB,
        usage_in_bytes=GIB,
        memsw__limit_in_bytes=2 * GIB,
        memsw__usage_in_bytes=GIB + 512 * MIB,
    )
    limits = machine(proc, "4:memory:/one\n", [("/", tree, TYPE_1)], swap=100 * GIB)
    assert most(limits) == (512 - 32) * MIB
    assert limits.shortage(GIB).where == "cgroup /one (memory.memsw.limit_in_bytes)"


@pytest.mark.parametrize("text", ["", "max\n", "nonsense\n", f"{UNLIMITED}\n"])
def test_what_is_no_number_is_no_limit(proc, tree, text):
    cgroup(tree / "a/b", current=5)
    (tree / "a/b/memory.max").write_text(text)
    assert fits(version_2(proc, tree), GIB)


def test_a_limit_that_changes_is_seen(proc, tree):
    cgroup(tree / "a/b", max=4 * GIB, current=0)
    limits = version_2(proc, tree)
    assert fits(limits, 2 * GIB)
    cgroup(tree / "a/b", max=GIB, current=0)
    assert not fits(limits, 2 * GIB)
    for file in (tree / "a/b").iterdir():
        file.unlink()
    assert fits(limits, 2 * GIB)


def test_small_requests_are_let_through_until_they_add_up(proc, tree):
    cgroup(tree / "a/b", max=GIB, current=GIB)
    limits = version_2(proc, tree)
    small = memory_limits.UNSEEN_BYTES // 4
    for _ in range(3):
        assert [limits.shortage(small) is None for _ in range(5)] == [True] * 4 + [False]


def test_this_machine_is_understood():
    limits = MemoryLimits(Path("/proc"))
    assert fits(limits, 2 * MIB)
    short = limits.shortage(1 << 60)
    assert 0 < short.free <= short.limit


OVER = """
import os, sys
from synk.transport.memory import shm
from synk.values.errors import SharedMemoryFull
from synk.transport.memory.shm import Segment

kept = [Segment.create(40 << 20)]
try:
    kept.append(Segment.create(400 << 20))
except SharedMemoryFull as error:
    sys.exit(f"refused: {error}")
"""


def test_a_limit_of_systemd_is_an_error_instead_of_a_kill():
    # Cgroups are asked for from what manages them, never made beside its back.
    scope = ["systemd-run", "--user", "--scope", "--quiet", "-p", "MemoryMax=256M", "-p", "MemorySwapMax=0"]
    try:
        probe = subprocess.run([*scope, "true"], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("systemd-run is not installed, so no cgroup can be had")
    if probe.returncode:
        pytest.skip(f"systemd gives no cgroup here: {probe.stderr.strip()}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*scope, sys.executable, "-c", OVER]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 1, ended.stderr
    assert re.match(r"refused: .*needed 400.0 MiB, free .* of 256.0 MiB in cgroup", ended.stderr), (
        ended.stderr
    )
