"""The run of two ranks that the doctor tries."""

import sys

import pytest

from support.processes.scripts import check_gone
from synk.tools.doctor import rehearsal
from synk.tools.doctor.finding import Level, examined


def played(script, seconds=20.0):
    """Return the finding where this script is run for the rehearsal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "COMMAND", [sys.executable, "-I", "-c", script])
        patch.setattr(rehearsal, "DEADLINE", seconds)
        return rehearsal.rehearse(None)


def test_the_rehearsal_tells_where_it_failed():
    found = played("print('import synk', flush=True); raise OSError('no processes left')")
    assert (found.level, found.found) == (Level.PROBLEM, "start two ranks: OSError: no processes left")


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_rehearsal_that_hangs_is_ended_with_all_its_processes(tmp_path, by_itself):
    told = tmp_path / "pids"
    say = "import os, time; print(os.fork(), file=open({!r}, 'a'), flush=True)"
    hang = say + "; os.closerange(1, 3); time.sleep(60)"
    found = examined(played, hang.format(str(told)), 2 if by_itself else 60, seconds=60 if by_itself else 2)
    check_gone(filter(None, map(int, told.read_text().split())), 5)
    assert found.found == (
        "import synk: no end after 2 s" if by_itself else "could not be checked within 2 s"
    )


def test_hints_after_an_exception_are_no_reason():
    failing = "import os, sys; print('OSError: full\\nHINT: set it', file=sys.stderr); sys.exit(1)"
    assert played(failing).found == "import synk: OSError: full"


def test_a_rehearsal_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal.tempfile, "tempdir", str(tmp_path))
    leave = "import tempfile; assert tempfile.mkdtemp().startswith({!r})"
    assert played(leave.format(str(tmp_path))).found == "import synk: exit code 0"
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_that_skips_a_stage_is_no_success():
    stages = [stage for stage in rehearsal.REMEDIES if stage != "all-reduce"]
    found = played(f"print(*{stages!r}, sep='\\n')")
    assert (found.level, found.found) == (Level.PROBLEM, "all-reduce: exit code 0")
