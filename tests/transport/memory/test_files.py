"""Which file an array lies in, whatever became of its name, and which arrays ranks cannot read in place."""

import os
import tempfile
from contextlib import closing
from io import FileIO

import numpy as np
import pytest

from support.processes import leaks
from synk.transport.memory.files import as_memmap, is_in_file, reopened
from synk.transport.memory.segments import SegmentTable
from synk.transport.memory.shm import Segment

VALUES = np.arange(5000, dtype="f8").reshape(1000, 5)
PAGE = 4096


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "values.npy"
    np.save(path, VALUES)
    return path


def segment_of(array):
    """Map the file of an array once more, as the master does."""
    file, offset = reopened(array)
    return closing(Segment(file, array.nbytes, offset, array.flags.writeable))


def values_in(array):
    with segment_of(array) as segment:
        return segment.array(array.dtype, array.shape).copy()


# --- what lies in a file ------------------------------------------------------------------------------


def test_paths_and_mapped_arrays_lie_in_a_file_and_what_is_computed_of_them_does_not(path):
    array = np.load(path, mmap_mode="r")
    for value in (str(path), path, array, array[10:], array[3], array.reshape(-1), array.view("i8"), array.T):
        assert is_in_file(value)
    copies = (array + 1, array.copy(), array[[1, 2]], array.astype("f4"), np.array(array), array.sum(axis=0))
    for value in (*copies, np.asarray(array), b"values.npy", 1.5, None, [str(path)]):
        assert not is_in_file(value)


def test_a_path_is_opened_read_only(path):
    for name in (path, str(path)):
        array = as_memmap(name)
        assert (array.mode, array.flags.writeable) == ("r", False)
        assert array.filename == np.load(name, mmap_mode="r").filename == name
        np.testing.assert_array_equal(array, VALUES)


# --- the same file once more --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("start", [0, 1, 100, 999])
def test_the_same_bytes_are_found(path, mode, start):
    array = np.load(path, mmap_mode=mode)[start:]
    np.testing.assert_array_equal(values_in(array), VALUES[start:])


@pytest.mark.parametrize("offset", [0, 8, PAGE - 8, PAGE, 3 * PAGE + 16])
def test_arrays_begin_anywhere_in_a_file(tmp_path, offset):
    plain = tmp_path / "plain"
    plain.write_bytes(b"x" * offset + VALUES.tobytes() + b"more")
    array = np.memmap(plain, "f8", "r", offset, VALUES.shape)
    for part in (array, array[613:], array[999, 3:], array[5]):
        file, begin = reopened(part)
        file.close()
        assert begin == offset + part.ctypes.data - array.ctypes.data
        np.testing.assert_array_equal(values_in(part), np.array(part))


@pytest.mark.parametrize("fate", ["deleted", "moved", "replaced", "a pipe", "another of the name"])
def test_it_is_the_file_that_was_mapped_whatever_its_name_means_now(path, fate):
    array = np.load(path, mmap_mode="r")
    os.rename(path, path.with_suffix(".old"))
    if fate == "deleted":
        path.with_suffix(".old").unlink()
    elif fate == "replaced":
        np.save(path, -VALUES)
    elif fate == "a pipe":
        os.mkfifo(path)
    elif fate == "another of the name":
        np.save(path, VALUES[:10])
    np.testing.assert_array_equal(values_in(array), VALUES)


def test_a_file_need_not_have_a_name():
    with tempfile.TemporaryFile() as file:
        array = np.memmap(file, "f8", "w+", shape=VALUES.shape)
        array[...] = VALUES
    assert array.filename is None
    np.testing.assert_array_equal(values_in(array), VALUES)


def test_of_several_files_that_are_open_it_is_the_right_one(tmp_path):
    arrays = []
    for number in range(4):
        np.save(tmp_path / "one.npy", VALUES + number)
        arrays.append(np.load(tmp_path / "one.npy", mmap_mode="r"))
        (tmp_path / "one.npy").unlink()
    for number, array in enumerate(arrays):
        np.testing.assert_array_equal(values_in(array), VALUES + number)


def test_what_is_not_found_leaves_no_descriptor(path, monkeypatch):
    before = set(leaks.descriptors())
    array = np.load(path, mmap_mode="r")
    path.unlink()
    np.save(path, VALUES)
    monkeypatch.setattr("synk.transport.memory.files._candidates", lambda filename: [filename])
    with pytest.raises(ValueError, match=r"values\.npy' is not there any more"):
        reopened(array)
    os.truncate(path, 0)
    with pytest.raises(ValueError, match="not there any more"):
        reopened(array)
    del array
    assert set(leaks.descriptors()) == before


def test_a_file_that_was_cut_is_refused(path):
    before = set(leaks.descriptors())
    array = np.load(path, mmap_mode="r")
    os.truncate(path, 30_000)
    with pytest.raises(ValueError, match=r"values\.npy' was cut: it has 30000 bytes, .* end at byte 40128"):
        reopened(array)
    np.testing.assert_array_equal(values_in(array[:500]), VALUES[:500])
    del array
    assert set(leaks.descriptors()) == before


# --- segments over files ------------------------------------------------------------------------------


def test_writing_goes_to_the_file_or_is_refused(path):
    with segment_of(np.load(path, mmap_mode="r+")) as segment:
        segment.array("f8", (5,))[...] = 7
    np.testing.assert_array_equal(np.load(path)[:2], [[7] * 5, VALUES[1]])
    with segment_of(np.load(path, mmap_mode="r")) as segment:
        array = segment.array("f8", (5,))
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 8
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_may_be_larger_than_memory_and_takes_no_descriptor_once_sealed(tmp_path, mode):
    length = 1 << 42  # bytes; none of which is on the disk
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(length)
    array = np.memmap(tmp_path / "sparse", "u1", "r", shape=(length,))
    file, offset = reopened(array)
    del array
    if mode == "r+":
        file.close()
        file = open(tmp_path / "sparse", "r+b", buffering=0)  # noqa: SIM115
    before = len(list(leaks.descriptors()))
    segment = Segment(file, length, offset, writable=mode == "r+")
    assert segment.file_bytes == length
    segment.seal()
    assert len(list(leaks.descriptors())) == before - 1
    assert segment.array("u1", (length,))[-1] == 0
    segment.close()


def test_a_file_that_cannot_be_mapped_is_closed_and_has_no_number(path):
    table, posted = SegmentTable(lambda *arguments: posted.append(arguments)), []
    file = FileIO(path, "a")
    with pytest.raises(PermissionError, match="cannot be mapped: Permission denied"):
        table.map_file(file, str(path), 8, 0, writable=True)
    assert (file.closed, table.mapped(), posted) == (True, {}, [])


# --- what cannot be read in place ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "error", "message"),
    [
        (VALUES.astype(">f8"), TypeError, "holds >f8, .* another order .* store it as <f8"),
        (np.array(["a"]), TypeError, "holds <U1"),
        (np.zeros(3, "M8[D]"), TypeError, "holds datetime64"),
        (np.zeros(3, [("a", "f4"), ("b", "i4")]), TypeError, "holds .*'a'"),
        (np.asfortranarray(VALUES), ValueError, r"not in C order .*strides \(8, 8000\)"),
    ],
    ids=["bytes", "text", "dates", "structured", "fortran"],
)
def test_stored_arrays_that_ranks_cannot_read_are_refused(path, stored, error, message):
    np.save(path, stored)
    for value in (path, np.load(path, mmap_mode="r")):
        with pytest.raises(error, match=rf"values\.npy.*{message}"):
            as_memmap(value)


def test_parts_of_rows_and_odd_places_are_refused(path):
    array = np.load(path, mmap_mode="r")
    for part in (array[::2], array[:, :3], array.T, array[::-1]):
        with pytest.raises(ValueError, match=r"not in C order .*np\.array\(values\)"):
            as_memmap(part)
    with pytest.raises(ValueError, match="not aligned; begin it at a multiple of 8 bytes"):
        as_memmap(np.memmap(path, "f8", "r", 3, (10,)))


def test_copy_on_write_is_refused(path):
    with pytest.raises(ValueError, match=r"copy-on-write .*other ranks would not see .*'r\+'"):
        as_memmap(np.load(path, mmap_mode="c"))


def test_paths_that_name_no_array_are_refused(tmp_path, path):
    before = set(leaks.descriptors())
    for content in (b"", b"some text", path.read_bytes()[:20], path.read_bytes()[:-1]):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ValueError, match=r"other' cannot be read in place as \.npy: .*np\.save"):
            as_memmap(tmp_path / "other")
    np.save(path, np.array([None, 1]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"values\.npy' cannot be .*objects"):
        as_memmap(path)
    np.savez(tmp_path / "several.npz", a=VALUES)
    with pytest.raises(ValueError, match=r"several\.npz' cannot be"):
        as_memmap(tmp_path / "several.npz")
    for missing in (tmp_path / "none.npy", "nothing"):
        with pytest.raises(FileNotFoundError, match="none|nothing"):
            as_memmap(missing)
    with pytest.raises(IsADirectoryError):
        as_memmap(tmp_path)
    assert set(leaks.descriptors()) == before
