"""Metadata of other projects called synk, beside ours under its present and its former name."""

import os
import warnings
from pathlib import Path

import pytest

import synk
from synk.values import namesake

REQUIRES = "Requires-Dist: pytensor<4,>=3.0\n"


@pytest.fixture
def place(tmp_path):
    """Make metadata of a distribution."""

    def place(name, text=""):
        (tmp_path / name).mkdir()
        (tmp_path / name / "METADATA").write_text(f"Name: {name}\n{text}")
        return str(tmp_path / name)

    return place


def test_another_project_is_found_and_ours_is_not(place, tmp_path):
    other = place("synk-0.0.1.dist-info")
    place("synk_pytensor-0.1.0.dist-info", REQUIRES)
    place("synk-0.1.0.dist-info", REQUIRES)  # the name it had before
    place("synk_tools-1.0.dist-info")
    assert namesake.namesakes([str(tmp_path), str(tmp_path), str(tmp_path / "missing")]) == [other]


def test_metadata_that_cannot_be_read_are_no_error(tmp_path):
    (tmp_path / "synk-0.0.1.dist-info").mkdir()
    assert namesake.namesakes([str(tmp_path)]) == []
    os.mkfifo(tmp_path / "synk-0.0.1.dist-info" / "METADATA")  # reading would wait for a writer
    assert namesake.namesakes([str(tmp_path)]) == []


@pytest.mark.parametrize(
    "name", ["Synk-0.0.1.dist-info", "synk-0.0.1-py3.11.egg-info", "synk-0.0.1.egg-info"]
)
@pytest.mark.parametrize("file", ["METADATA", "PKG-INFO", ""])
def test_other_installers_metadata_are_found(tmp_path, name, file):
    path = tmp_path / name / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("Name: synk\n")
    assert namesake.namesakes([str(tmp_path)]) == [str(tmp_path / name)]
    path.write_text(f"Name: synk\n{REQUIRES}")
    assert namesake.namesakes([str(tmp_path)]) == []


def test_a_version_alone_does_not_make_a_file_ours(tmp_path):
    (tmp_path / "__init__.py").write_text('__version__ = "0.0.1"\n')
    assert not namesake.is_ours(tmp_path / "__init__.py")
    assert namesake.is_ours(Path(synk.__file__))


def test_it_is_looked_for_where_packages_are(place, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path / "site-packages"), str(tmp_path)])
    (tmp_path / "site-packages").mkdir()
    place("synk-2.0.dist-info")
    assert namesake.namesakes() == []  # a folder of scripts may be large
    other = place("site-packages/synk-0.0.1.dist-info")
    assert namesake.namesakes() == [other]
    with pytest.warns(synk.SynkWarning, match=r"another project called synk .*pip uninstall synk; then"):
        namesake.warn_of_namesakes()


def test_without_another_project_nothing_is_said(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        namesake.warn_of_namesakes()
