import os
import stat

import pytest

from synk.extensions.atomic_write import atomic_write


@pytest.fixture
def path(tmp_path):
    """A file with content, alone in its folder."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def fail(*args, **kwargs):
    raise OSError("the disk is on fire")


def write(path, content=b"new"):
    with atomic_write(path) as file:
        file.write(content)


def assert_old_file_stands_alone(path):
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


def test_new_content_replaces_old(path):
    write(path)
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == [path.name]


def test_a_file_is_made_where_there_was_none(tmp_path):
    write(tmp_path / "first")
    assert (tmp_path / "first").read_bytes() == b"new"


def test_old_content_is_there_until_the_end(path):
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_old_file_stays_when_the_body_raises(path, error):
    def pieces():
        yield b"half of the n"
        raise error

    with pytest.raises(error), atomic_write(path) as file:
        file.writelines(pieces())
    assert_old_file_stands_alone(path)


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_old_file_stays_when_the_disk_fails(path, monkeypatch, call):
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="on fire"):
        write(path)
    assert_old_file_stands_alone(path)


def test_new_file_is_in_place_when_only_the_folder_fails(path, monkeypatch):
    fsync = os.fsync

    def fail_on_folders(descriptor):
        return fail() if stat.S_ISDIR(os.fstat(descriptor).st_mode) else fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_on_folders)
    with pytest.raises(OSError, match="on fire"):
        write(path)
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == [path.name]


def test_file_and_folder_are_brought_to_disk_in_order(path, monkeypatch):
    order = []
    fsync, rename = os.fsync, os.rename

    def tell_fsync(descriptor):
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def tell_rename(*names):
        order.append("rename")
        rename(*names)

    monkeypatch.setattr(os, "fsync", tell_fsync)
    monkeypatch.setattr(os, "rename", tell_rename)
    write(path)
    assert order == ["file", "rename", "folder"]


def test_a_symbolic_link_stays_one(path):
    link = path.with_name("link")
    link.symlink_to(path)
    write(link)
    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_permissions_are_those_of_any_new_file(path):
    plain = path.with_name("plain")
    plain.write_bytes(b"")
    write(path)
    assert path.stat().st_mode == plain.stat().st_mode
