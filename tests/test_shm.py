import os
import re
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import leaks
import numpy as np
import posix_ipc
import pytest

import synk
from synk import shm
from synk.errors import SharedMemoryFull
from synk.shm import Segment

ROOT = Path(synk.__file__).parents[1]


def open_descriptors():
    return set(leaks.descriptors())


@pytest.fixture
def births(monkeypatch):
    """Record name and mode of each segment at the moment its name is unlinked."""
    seen = []

    class Recording(posix_ipc.SharedMemory):
        def unlink(self):
            entry = Path(shm.DIRECTORY, self.name.lstrip("/"))
            seen.append((entry, stat.S_IMODE(entry.stat().st_mode)))
            super().unlink()

    monkeypatch.setattr(posix_ipc, "SharedMemory", Recording)
    return seen


def test_no_name_is_left(births):
    segment = Segment.create(1000)
    [(entry, _)] = births
    assert not entry.exists()
    segment.close()


def test_nobody_else_may_open_it_while_it_has_a_name(births):
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
def test_a_name_that_is_taken_is_neither_used_nor_removed(monkeypatch, tmp_path, kind):
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


def test_closing_leaves_no_descriptor():
    before = open_descriptors()
    segment = Segment.create(1000)
    other = Segment.attach(os.dup(segment.descriptor), 1000)
    assert open_descriptors() > before
    for each in (segment, other, segment):
        each.close()
    assert open_descriptors() == before


def test_a_sealed_segment_holds_no_descriptor():
    before = open_descriptors()
    segment = Segment.create(1000)
    segment.seal()
    held = open_descriptors() - before
    segment.close()
    assert not held


def mapped_segments():
    return Path("/proc/self/maps").read_text().count("/dev/shm/synk-")


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
from synk.errors import SharedMemoryFull
from synk.shm import Segment

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


def test_the_64_mib_of_a_container():
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    try:
        probe = subprocess.run(
            ["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True, timeout=30
        )
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if probe.returncode:
        pytest.skip(f"no file system can be mounted here: {probe.stderr.strip()}")
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, FULL]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.stdout == "as promised\n", ended.stderr
