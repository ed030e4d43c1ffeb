"""``python -m synk cache``, and the size limit of the store that it shows."""

import io
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from synk.__main__ import main
from synk.compile.native import kept
from synk.compile.native.kept import size_limit
from synk.compile.native.store import Store


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of a store, in which nothing is kept yet."""
    monkeypatch.setenv("SYNK_CACHE", str(tmp_path / "store"))
    return tmp_path / "store"


def keep(*names, size=1000):
    """Keep libraries, each by a process of its own as it were; the first is used longest ago."""
    for used, name in enumerate(names, start=1):
        store = Store()
        store.keep(name, bytes(size))
        if (path := store.folder / f"{name}.so").exists():
            os.utime(path, (used, used))


def names(folder):
    return sorted(path.stem for path in folder.iterdir())


# --- the command -------------------------------------------------------------------------------------


def test_the_summary_says_what_is_kept_and_what_is_not_taken(folder, capsys):
    keep("k1", "k2")
    (folder / "k3.so").symlink_to("k1.so")
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    assert f"folder     {folder}\nkept       2 libraries, 2 KiB\nlimit      1 GiB" in said
    assert "last used  from 1970-01-01" in said
    assert "not taken  k3.so is no regular file" in said


def test_programs_read_the_summary_as_json(folder, capsys):
    keep("k1")
    assert main(["cache", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == str(folder)
    assert said["libraries"] == [{"name": "k1.so", "bytes": 1032, "used": 1.0}]
    assert (said["limit"], said["refused"]) == (2**30, [])


def test_a_folder_that_is_not_there_is_empty(folder, capsys):
    assert main(["cache"]) == 0
    assert "0 libraries" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == "removed 0 libraries, 0 bytes\n"
    assert not folder.exists()


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, []), ("\n", 1, ["k1"]), ("", 1, ["k1"])])
def test_only_a_yes_clears(folder, monkeypatch, capsys, answer, status, left):
    keep("k1")
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert main(["cache", "--clear"]) == status
    said = capsys.readouterr()
    assert f"Remove 1 library, 1 KiB from {folder}? [y/N] " in said.out
    assert ("nothing is removed" in said.err) == bool(left)
    assert names(folder) == left


def test_clearing_leaves_what_is_no_library_of_this_user(folder, capsys):
    keep("k1", "k2")
    for name in ("notes.txt", "other.so", "k3.so"):
        (folder / name).touch()
    (folder / "k3.so").chmod(0o666)
    assert main(["cache", "--clear", "--yes"]) == 0
    assert capsys.readouterr().out == "removed 2 libraries, 2 KiB\n"
    assert names(folder) == ["k3", "notes", "other"]


@pytest.mark.parametrize("arguments", [[], ["--clear", "--yes"]])
def test_a_folder_that_others_may_write_to_is_left_alone(folder, capsys, arguments):
    keep("k1")
    folder.chmod(0o777)
    assert main(["cache", *arguments]) == 1
    assert f"others may write to {folder}" in capsys.readouterr().err
    assert names(folder) == ["k1"]


# --- the limit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nbytes"), [("", 2**30), ("0", 0), ("1500", 1500), ("512m", 2**29), ("2G", 2**31)]
)
def test_sizes_are_read(text, nbytes):
    assert size_limit({"SYNK_CACHE_LIMIT": text}) == nbytes


def test_a_limit_that_is_no_size_is_said_and_nothing_kept(folder, monkeypatch, capsys):
    monkeypatch.setenv("SYNK_CACHE_LIMIT", "large")
    with pytest.warns(UserWarning, match="not kept in .*SYNK_CACHE_LIMIT=large is no size"):
        keep("k1")
    assert not folder.exists()
    assert main(["cache"]) == 1
    assert "SYNK_CACHE_LIMIT=large is no size" in capsys.readouterr().err


def test_what_was_used_longest_ago_goes(folder, monkeypatch):
    keep("k1", "k2", "k3")
    assert Store().find("k1") == bytes(1000)  # used now
    monkeypatch.setenv("SYNK_CACHE_LIMIT", "3500")  # of which each takes 1,032
    keep("k4")
    assert names(folder) == ["k1", "k3", "k4"]


def test_files_of_others_do_not_go(folder, monkeypatch):
    keep("k1")
    (folder / "old.txt").write_bytes(bytes(5000))
    monkeypatch.setenv("SYNK_CACHE_LIMIT", "0")
    keep("k2")
    assert names(folder) == ["old"]


def test_a_full_folder_is_not_listed_for_each_library(folder, monkeypatch):
    looks = []
    look_into = kept.look_into
    monkeypatch.setattr(kept, "look_into", lambda folder: looks.append(1) or look_into(folder))
    monkeypatch.setenv("SYNK_CACHE_LIMIT", "64000")
    store = Store()
    for number in range(5):
        store.keep(f"k{number}", bytes(400))
    assert len(looks) == 2  # at first, and after 1,000 bytes


def test_processes_keep_find_and_remove_at_the_same_time(folder, monkeypatch):
    monkeypatch.setenv("SYNK_CACHE_LIMIT", "5000")

    def work(seed):
        for number in range(60):
            store, name = Store(), f"k{(seed * number) % 7}"
            store.keep(name, name.encode() * 500)
            assert store.find(name) in (None, name.encode() * 500)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, (1, 2, 3, 5)))
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 5000 + 4 * 1032
