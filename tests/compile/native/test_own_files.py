"""From a folder that others may have written to nothing is taken, and no FIFO is waited for."""

import os
import tracemalloc

import pytest

from synk.compile.native.own_files import LARGEST, NotOwn, own_folder, read_own_file


@pytest.fixture
def umask():
    before = os.umask(0)
    yield os.umask
    os.umask(before)


def enter(folder, make=False):
    with own_folder(folder, make) as descriptor:
        return os.fstat(descriptor)


def read(folder, name="file"):
    with own_folder(folder) as descriptor:
        return read_own_file(name, descriptor)


def test_a_file_of_this_user_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    assert read(tmp_path) == b"content"


def test_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    tracemalloc.start()
    try:
        read(tmp_path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(NotOwn, match=f"belongs to user .*, and this is user {stranger}"):
        enter(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("given", ["", "inner", "inner/file"])
def test_root_takes_nothing_that_another_user_owns(tmp_path, given):
    (tmp_path / "inner").mkdir(mode=0o755)
    (tmp_path / "inner/file").touch(mode=0o644)
    os.chown(tmp_path / given, 12345, -1)
    with pytest.raises(NotOwn, match="belongs to user 12345, and this is user 0"):
        read(tmp_path / "inner")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(NotOwn, match=f"others may write to {tmp_path}: chmod go-w {tmp_path}"):
        enter(tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_in_one_that_others_may_write_to_is_refused(tmp_path, mode):
    (tmp_path / "inner").mkdir()
    tmp_path.chmod(mode)
    with pytest.raises(NotOwn, match=f"others may write to {tmp_path}"):
        enter(tmp_path / "inner")
    with pytest.raises(NotOwn):
        enter(tmp_path / "new", make=True)
    tmp_path.chmod(mode | 0o1000)
    enter(tmp_path / "inner")


def test_a_link_is_not_entered_but_may_lead_to_the_folder_around(tmp_path):
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    enter(tmp_path / "link/inner")
    with pytest.raises(NotOwn, match="link is a link"):
        enter(tmp_path / "link")


@pytest.mark.parametrize("mask", [0, 0o22, 0o777])
def test_folders_are_made_for_this_user_only(tmp_path, umask, mask):
    umask(mask)
    enter(tmp_path / "outer/inner", make=True)
    made = (tmp_path / "outer", tmp_path / "outer/inner")
    assert [path.stat().st_mode & 0o7777 for path in made] == [0o700] * 2


def make_link(path):
    path.with_name("other").touch()
    path.symlink_to("other")


def make_huge(path):
    path.touch()
    os.truncate(path, LARGEST + 1)


def make_open(path):
    path.touch()
    path.chmod(0o666)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_link, make_huge, make_open])
def test_what_is_no_file_of_this_user_alone_is_refused_at_once(tmp_path, make):
    make(tmp_path / "file")
    with pytest.raises(OSError):  # noqa: PT011  (a link is the kernel's to refuse)
        read(tmp_path)


def test_what_is_put_in_the_place_of_an_open_folder_is_not_read(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/file").write_bytes(b"mine")
    with own_folder(tmp_path / "inner") as descriptor:
        (tmp_path / "inner").rename(tmp_path / "away")
        (tmp_path / "inner").mkdir()
        (tmp_path / "inner/file").write_bytes(b"another")
        assert read_own_file("file", descriptor) == b"mine"


def test_no_descriptor_is_left_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    for folder in (tmp_path, tmp_path / "none", tmp_path / "none/none"):
        try:
            enter(folder)
        except FileNotFoundError:
            assert folder != tmp_path
    assert os.listdir("/proc/self/fd") == before
