import errno
import os
import re
import resource
import secrets
import signal
import stat
from pathlib import Path

import numpy as np
import posix_ipc
import pytensor.tensor as pt
import pytest

import synk
from support.processes import leaks
from support.processes.scripts import run_in_small_shared_memory
from synk.transport.memory import shm
from synk.transport.memory.limits import MemoryLimits, Shortage
from synk.transport.memory.shm import Segment
from synk.values.errors import SharedMemoryFull


def open_descriptors():
    return set(leaks.descriptors())


@pytest.fixture
def named(monkeypatch):
    """Stand for a file system whose files have names."""

    def refuse():
        raise OSError(errno.EOPNOTSUPP, "no nameless files here")

    monkeypatch.setattr(shm, "_nameless_file", refuse)


def test_a_segment_never_has_a_name(monkeypatch):
    monkeypatch.setattr(shm, "_unlinked_file", None)
    before = set(os.listdir(shm.DIRECTORY))
    segment = Segment.create(1000)
    assert set(os.listdir(shm.DIRECTORY)) - before == set()
    assert os.readlink(f"/proc/self/fd/{segment.descriptor}").startswith(shm.DIRECTORY + "/#")
    assert stat.S_IMODE(os.fstat(segment.descriptor).st_mode) & 0o077 == 0
    segment.close()


@pytest.fixture
def births(monkeypatch, named):
    """Record name and mode of each segment at the moment its name is unlinked."""
    seen = []

    class Recording(posix_ipc.SharedMemory):
        def unlink(self):
            entry = Path(shm.DIRECTORY, self.name.lstrip("/"))
            seen.append((entry, stat.S_IMODE(entry.stat().st_mode)))
            super().unlink()

    monkeypatch.setattr(posix_ipc, "SharedMemory", Recording)
    return seen


def test_a_segment_with_a_name_is_private(births):
    old = os.umask(0)
    try:
        Segment.create(10).close()
    finally:
        os.umask(old)
    [(_, mode)] = births
    assert mode == 0o600


def test_names_are_long_and_never_the_same(births):
    for _ in range(20):
        Segment.create(1).close()
    names = {entry.name for entry, _ in births}
    assert len(names) == 20
    assert all(re.fullmatch("synk-[0-9a-f]{32}", name) for name in names)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_name_that_is_taken_is_neither_used_nor_removed(monkeypatch, named, tmp_path, kind):
    name = secrets.token_hex(16)
    target, entry = tmp_path / "target", Path(shm.DIRECTORY, f"synk-{name}")
    target.write_bytes(b"someone else's")
    monkeypatch.setattr(shm.secrets, "token_hex", lambda n: name)
    if kind == "link":
        entry.symlink_to(target)
    else:
        entry.write_bytes(b"someone else's")
    before = open_descriptors()
    try:
        with pytest.raises(posix_ipc.ExistentialError):
            Segment.create(4)
        assert open_descriptors() == before
        assert entry.read_bytes() == target.read_bytes() == b"someone else's"
    finally:
        entry.unlink()


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4097, 3_000_000])
def test_a_segment_is_all_zero_and_set_aside(nbytes):
    segment = Segment.create(nbytes)
    assert segment.nbytes == nbytes
    assert not segment.array("u1", (nbytes,)).any()
    assert os.fstat(segment.descriptor).st_size == max(nbytes, 1)
    assert os.fstat(segment.descriptor).st_blocks * 512 >= nbytes
    segment.close()


def test_both_sides_see_the_same_bytes():
    here = Segment.create(800)
    there = Segment.attach(os.dup(here.descriptor), 800)
    here.seal()
    here.array("f8", (10, 10))[:] = np.arange(100.0).reshape(10, 10)
    assert there.array("f8", (100,)).tolist() == list(range(100))
    there.array("<i4", (2,), offset=8)[:] = [7, -7]
    assert here.array("<i4", (4,), offset=8).tolist()[:2] == [7, -7]
    assert here.array("f8", (1,), offset=16).tolist() == [2.0]
    for segment in (here, there):
        segment.close()


def test_arrays_end_with_the_segment():
    segment = Segment.create(64)
    with pytest.raises(TypeError, match="buffer is too small"):
        segment.array("f8", (9,))
    segment.close()


def test_words_are_the_first_eight_byte_integers():
    segment = Segment.create(64)
    words = segment.words(3)
    assert len(words) == 3
    words[0], words[2] = -1, 1 << 62
    assert segment.array("<i8", (4,)).tolist() == [-1, 0, 1 << 62, 0]
    segment.array("<i8", (4,))[1] = 5
    assert words[1] == 5
    words.release()
    segment.close()


def test_attaching_takes_the_descriptor():
    segment = Segment.create(16)
    descriptor = os.dup(segment.descriptor)
    other = Segment.attach(descriptor, 16)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(AssertionError, match="no descriptor"):
        _ = other.descriptor
    for each in (other, segment):
        each.close()


def test_a_sealed_segment_works_but_cannot_be_sent():
    segment = Segment.create(16)
    descriptor = segment.descriptor
    segment.seal()
    segment.seal()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(AssertionError, match="no descriptor"):
        _ = segment.descriptor
    segment.array("u1", (16,))[:] = 1
    assert segment.array("u1", (16,)).sum() == 16
    segment.close()


def mapped_segments():
    return Path("/proc/self/maps").read_text().count("/dev/shm/")


def test_arrays_outlive_the_segment():
    before = mapped_segments()
    segment = Segment.create(80)
    array = segment.array("f8", (10,))
    array[:] = np.arange(10)
    segment.close()
    assert array.tolist() == list(range(10))
    array[0] = 5
    assert mapped_segments() == before + 1
    del array
    assert mapped_segments() == before


def test_a_closed_segment_has_no_arrays():
    segment = Segment.create(80)
    segment.close()
    with pytest.raises((AssertionError, ValueError)):
        segment.array("f8", (10,))


def test_a_request_beyond_the_file_system_is_refused():
    limit = os.statvfs(shm.DIRECTORY).f_blocks * os.statvfs(shm.DIRECTORY).f_frsize
    before = open_descriptors()
    with pytest.raises(SharedMemoryFull) as caught:
        Segment.create(limit + 2**30)
    assert open_descriptors() == before
    assert isinstance(caught.value, MemoryError)
    numbers = r"needed ([\d.]+) MiB, free ([\d.]+) MiB of ([\d.]+) MiB in /dev/shm; .*--shm-size"
    needed, free, whole = map(float, re.search(numbers, str(caught.value)).groups())
    assert needed == pytest.approx((limit + 2**30) / 2**20, abs=0.1)
    assert whole == pytest.approx(limit / 2**20, abs=0.1)
    assert 0 <= free <= whole


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), OSError(12, "No memory"), OSError(5, "I/O error")]
)
def test_only_a_lack_of_room_is_called_that(monkeypatch, error):
    def refuse(descriptor, offset, length):
        raise error

    before = open_descriptors()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(SharedMemoryFull if error.errno != 5 else OSError) as caught:
        Segment.create(5 << 20)
    assert caught.value is error if error.errno == 5 else "needed 5.0 MiB" in str(caught.value)
    assert open_descriptors() == before


MIB = 1 << 20


class Scarce(MemoryLimits):
    """Limits that give out after so many looks."""

    def __init__(self, looks):
        self.looks, self.asked = looks, []

    def shortage(self, nbytes):
        self.asked.append(nbytes)
        return (
            Shortage(3 * MIB, 9 * MIB, "a box", "buy a bigger one") if len(self.asked) > self.looks else None
        )


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_memory_that_runs_out_is_an_error_before_it_is_taken(monkeypatch, looks):
    allocate, taken = os.posix_fallocate, []
    scarce = Scarce(looks)
    monkeypatch.setattr(shm, "_memory_limits", lambda: scarce)
    monkeypatch.setattr(shm, "LOOK_BYTES", 4 * MIB)
    monkeypatch.setattr(os, "posix_fallocate", lambda *what: (taken.append(what[1:]), allocate(*what)))
    before = open_descriptors()
    with pytest.raises(SharedMemoryFull) as caught:
        Segment.create(10 * MIB + 1)
    # What was taken for it by then is given back, so it is free as well.
    free = 3 + 4 * looks
    expected = f"needed 10.0 MiB, free {free}.0 MiB of 9.0 MiB in a box; buy a bigger one"
    assert expected in str(caught.value)
    assert scarce.asked == [10 * MIB + 1 - 4 * MIB * look for look in range(looks + 1)]
    assert sum(length for _, length in taken) == looks * 4 * MIB
    assert open_descriptors() == before


def test_memory_is_taken_in_pieces_without_gap_or_overlap(monkeypatch):
    allocate, pieces = os.posix_fallocate, []
    monkeypatch.setattr(os, "posix_fallocate", lambda *what: (pieces.append(what[1:]), allocate(*what)))
    Segment.create(3 * shm.CHUNK_BYTES + 5).close()
    ends = [start + length for start, length in pieces]
    assert [start for start, _ in pieces] == [0, *ends[:-1]]
    assert ends[-1] == 3 * shm.CHUNK_BYTES + 5
    assert max(length for _, length in pieces) == shm.CHUNK_BYTES


def test_what_does_not_fit_the_file_system_takes_nothing_from_others(monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", lambda *what: pytest.fail("it was tried"))
    usage = os.statvfs(shm.DIRECTORY)
    with pytest.raises(SharedMemoryFull, match="--shm-size"):
        Segment.create(usage.f_bavail * usage.f_frsize + MIB)


def test_a_file_system_without_a_limit_says_so_by_zeros(monkeypatch):
    usage = os.statvfs(shm.DIRECTORY)
    unlimited = os.statvfs_result([*usage[:2], 0, 0, 0, *usage[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: unlimited)
    Segment.create(MIB).close()


class ScarceInWorkers:
    """Limits that let the master take what it wants, and nobody else."""

    def shortage(self, nbytes):
        return None if os.getpid() == MASTER else Shortage(3 * MIB, 9 * MIB, "a box", "buy a bigger one")


MASTER = os.getpid()


def test_memory_that_runs_out_in_a_worker_is_told_with_its_rank_and_the_run_goes_on(monkeypatch, ranks):
    scarce = ScarceInWorkers()
    monkeypatch.setattr(shm, "_memory_limits", lambda: scarce)
    ranks(3)
    x = pt.vector("x")
    f = synk.function([x], (x * 2, "gather"))
    for _ in range(2):
        # What a worker answers is too much for the channel, so it wants a segment.
        with pytest.raises(SharedMemoryFull, match="needed .* in a box") as caught:
            f(np.ones(MIB))
        assert isinstance(caught.value, synk.RemoteError)
        assert isinstance(caught.value, MemoryError)
        assert [failure.rank for failure in caught.value.failures] == [1, 2]
        assert f(np.ones(6)).tolist() == [2] * 6


# --- signals -------------------------------------------------------------------------------------------


class GaveUp(Exception):
    """Raised by a signal handler."""


@pytest.fixture
def alarm():
    """Call a handler every millisecond."""

    def start(handler):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    before = signal.getsignal(signal.SIGALRM)
    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_do_not_keep_a_large_segment_from_being_made(alarm):
    seen = []
    alarm(lambda *_: seen.append(1))
    # In one piece, all handlers would wait for the end, or the kernel would begin anew after each.
    segment = Segment.create(200 * MIB)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(seen) > 5
    assert os.fstat(segment.descriptor).st_blocks * 512 >= 200 * MIB
    segment.close()


def test_a_signal_handler_may_end_the_making_of_a_segment(alarm):
    before, count = open_descriptors(), 0

    def give_up(*_):
        nonlocal count
        count += 1
        if count == 5:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise GaveUp

    alarm(give_up)

    def make_many():
        while True:
            Segment.create(500 * MIB).close()

    with pytest.raises(GaveUp):
        make_many()
    assert open_descriptors() == before
    assert count == 5


@pytest.mark.parametrize("moment", ["created", "unlinked"])
def test_no_name_is_left_when_a_signal_handler_raises_at_once(monkeypatch, named, moment):
    class Interrupting(posix_ipc.SharedMemory):
        def __init__(self, *args, **keywords):
            super().__init__(*args, **keywords)
            entries.append(Path(shm.DIRECTORY, self.name.lstrip("/")))
            assert entries[0].exists()
            if moment == "created":
                raise GaveUp  # with the descriptor lost to us

        def unlink(self):
            super().unlink()
            raise GaveUp

    entries, before = [], open_descriptors()
    monkeypatch.setattr(posix_ipc, "SharedMemory", Interrupting)
    with pytest.raises(GaveUp):
        Segment.create(100)
    [entry] = entries
    assert not entry.exists()
    assert open_descriptors() == before


def test_a_mapping_that_fails_leaves_no_descriptor(monkeypatch):
    def refuse(*arguments):
        return shm.MAP_FAILED

    read, write = os.pipe()
    before = open_descriptors()
    monkeypatch.setattr(shm._libc, "mmap", refuse)
    with pytest.raises(OSError, match="cannot be mapped"):
        Segment.create(100)
    assert open_descriptors() == before
    with pytest.raises(OSError, match="cannot be mapped"):
        Segment.attach(read, 100)
    assert len(open_descriptors()) == len(before) - 1
    os.close(write)


FULL = """
import os
from synk.values.errors import SharedMemoryFull
from synk.transport.memory.limits import MemoryLimits, Shortage
from synk.transport.memory.shm import Segment

def refused(mebibytes):
    descriptors = sorted(os.listdir("/proc/self/fd"))
    try:
        Segment.create(mebibytes << 20)
    except SharedMemoryFull as error:
        assert sorted(os.listdir("/proc/self/fd")) == descriptors
        return str(error)
    raise SystemExit("there was room")

message = refused(100)
assert "needed 100.0 MiB, free 64.0 MiB of 64.0 MiB" in message, message
assert "--shm-size" in message, message

first = Segment.create(40 << 20)
first.array("u1", (40 << 20,))[:] = 1
message = refused(30)
assert "needed 30.0 MiB, free 24.0 MiB of 64.0 MiB" in message, message
assert first.array("u1", (40 << 20,)).all()

second = Segment.create(20 << 20)
second.array("u1", (20 << 20,))[:] = 2
first.close()
third = Segment.create(40 << 20)
assert not third.array("u1", (40 << 20,)).any()
assert os.listdir("/dev/shm") == []
print("as promised")
"""


@pytest.mark.slow
def test_the_64_mib_of_a_container():
    ended = run_in_small_shared_memory(FULL, mebibytes=64)
    assert ended.stdout == "as promised\n", ended.stderr


def test_a_limit_on_the_length_of_files_is_told_as_such():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        Segment.create(1 << 20).close()
        with pytest.raises(SharedMemoryFull, match=r"1048577 bytes .* 1048576 bytes \(RLIMIT_FSIZE\)"):
            Segment.create((1 << 20) + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
