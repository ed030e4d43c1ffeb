import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import stat

import pytest

from synk.values.atomic_write import atomic_write, write_json


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


def test_new_content_replaces_old_at_the_end_and_can_be_read_before(path):
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        file.seek(0)
        assert file.read() == b"new"
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == [path.name]


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


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_a_file_keeps_its_permissions_and_is_private_while_it_is_written(path, mode):
    path.chmod(mode)
    with atomic_write(path) as file:
        file.write(b"new")
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


def test_permissions_of_a_new_file_are_those_of_any(tmp_path):
    plain, made = tmp_path / "plain", tmp_path / "made"
    plain.write_bytes(b"")
    write(made)
    assert made.stat().st_mode == plain.stat().st_mode


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


@pytest.mark.parametrize("make", [os.mkdir, make_pipe, make_socket])
def test_what_is_no_file_is_not_replaced(tmp_path, make, monkeypatch):
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    make("thing")
    before = os.stat("thing")
    with pytest.raises(FileExistsError, match="no regular file, so it is not replaced.*thing"):
        write("thing")
    assert os.stat("thing") == before
    assert os.listdir() == ["thing"]


def test_a_link_to_a_device_is_not_replaced(tmp_path):
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(FileExistsError, match="/dev/null"):
        write(tmp_path / "link")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


# --- what killed writers leave ---------------------------------------------------------------------------


def partials(folder):
    return [name for name in os.listdir(folder) if name.endswith(".partial")]


def killed_while_writing(path):
    """Write in a child that is killed on the way; return what it left."""
    child = os.fork()
    if child == 0:
        try:
            with atomic_write(path) as file:
                file.write(b"half of the n")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return partials(path.parent)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_next_writer_removes_what_a_killed_one_left(path):
    [left] = killed_while_writing(path)
    other = path.with_name("other")
    assert killed_while_writing(other) != [left]  # removed by the one that was killed next
    assert path.read_bytes() == b"old"
    write(path)
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_is_being_written_stays(path):
    other = path.with_name("other")
    with atomic_write(path) as file:
        file.write(b"new")
        write(other)
        assert len(partials(path.parent)) == 1
    assert path.read_bytes() == b"new"
    assert sorted(os.listdir(path.parent)) == ["file", "other"]


def test_files_of_other_names_and_kinds_stay(path):
    (path.parent / "mine.partial").write_bytes(b"")
    (path.parent / f".{'0' * 16}.partial").mkdir()
    os.mkfifo(path.parent / f".{'1' * 16}.partial")
    (path.parent / f".{'2' * 16}.partial").symlink_to(path)
    before = sorted(os.listdir(path.parent))
    write(path)
    assert sorted(os.listdir(path.parent)) == before


@pytest.mark.parametrize("another", ["has removed it", "is removing it"])
def test_a_file_that_another_writer_sweeps_away_is_made_anew(path, monkeypatch, another):
    flock, locked = fcntl.flock, []

    def be_late(descriptor, operation):
        locked.append(descriptor)
        if len(locked) == 1 and another == "is removing it":
            raise BlockingIOError
        if len(locked) == 1:
            [name] = partials(path.parent)
            os.unlink(path.with_name(name))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", be_late)
    write(path)
    assert len(locked) == 2
    assert path.read_bytes() == b"new"


def test_where_there_are_no_locks_files_are_written_and_none_is_removed(path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", fail)
    (path.parent / f".{'0' * 16}.partial").write_bytes(b"")
    write(path)
    assert path.read_bytes() == b"new"
    assert len(os.listdir(path.parent)) == 2


# --- what failed writers do not leave -------------------------------------------------------------------


def failing_at(monkeypatch, module, name, error):
    """Let a function do its work, and raise at its end, as an interrupt does that comes there."""
    real = getattr(module, name)

    def failing(*arguments):
        result = real(*arguments)
        if name == "open":
            os.close(result)
        raise error

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize(
    ("module", "name"), [(os, "open"), (fcntl, "flock"), (os, "fstat"), (os, "fchmod"), (os, "fsync")]
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupt_or_a_full_disk_at_any_call_leaves_no_part(path, monkeypatch, module, name, error):
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt, OSError):
        failing_at(patch, module, name, error)
        write(path)
    assert partials(path.parent) == []
    assert path.read_bytes() in (b"old", b"new")  # new where locks fail, as on file systems without them


def test_a_full_disk_leaves_no_part(path, monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            write(path, bytes(1 << 17))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert_old_file_stands_alone(path)


def test_without_locks_a_writer_that_fails_leaves_no_part(path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", fail)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="on fire"):
        write(path)
    assert_old_file_stands_alone(path)


def test_json_has_the_letters_that_a_file_can_hold_as_they_are(path):
    write_json(path, {"name": "größe a\udc80b"})
    assert path.read_bytes() == '{"name": "größe a?b"}'.encode()


def test_what_is_no_json_leaves_the_file_as_it_was(path):
    with pytest.raises(TypeError):
        write_json(path, {"not": object()})
    assert_old_file_stands_alone(path)


def test_other_partial_files_stay_as_they_are(path):
    other = path.with_name("file.partial")
    other.write_text("mine")
    write_json(path, {})
    assert other.read_text() == "mine"
