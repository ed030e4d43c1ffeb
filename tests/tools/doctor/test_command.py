"""The run of two ranks that the doctor tries; and the command, here and on what `unshare` makes of it."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.processes.scripts import alive
from synk.__main__ import main
from synk.tools.doctor import rehearsal
from synk.tools.doctor.finding import Level, examined

ROOT = Path(__file__).parents[3]

# --- the rehearsal ---------------------------------------------------------------------------------


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
    deadline = time.monotonic() + 5
    while any(map(alive, filter(None, map(int, told.read_text().split())))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
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


# --- the command -----------------------------------------------------------------------------------


def doctor(*before, start=("-m", "synk"), after=(), **environ):
    """Run the command with --json; return its exit status and the findings by subject."""
    done = subprocess.run(
        [*before, sys.executable, *start, "doctor", "--json", *after],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, **environ},
    )
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    return done.returncode, {finding["subject"]: finding for finding in answer["findings"]}


def can_unshare():
    program = shutil.which("unshare")
    return program and subprocess.run([program, "-rm", "true"], capture_output=True).returncode == 0


needs_unshare = pytest.mark.skipif(not can_unshare(), reason="needs namespaces without privileges")


def test_this_machine():
    core = str(min(os.sched_getaffinity(0)))
    status, findings = doctor("taskset", "-c", core, OMP_NUM_THREADS="8", SYNK_CACHE="/proc/cache")
    assert status == int(any(finding["level"] == "problem" for finding in findings.values()))
    assert findings["a run of two ranks"]["level"] == "ok"
    assert findings["death with the parent"]["level"] == "ok"
    assert findings["cores"]["level"] == "warning"
    assert findings["thread variables"]["found"] == "OMP_NUM_THREADS=8"
    assert findings["kernel cache"]["level"] == "warning"
    assert all(finding["remedy"] for finding in findings.values() if finding["level"] != "ok")
    assert not any("could not be checked" in finding["found"] for finding in findings.values())


@needs_unshare
def test_shared_memory_as_docker_gives_it():
    mount = 'mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm && exec "$@"'
    status, findings = doctor("unshare", "-rm", "sh", "-c", mount, "sh")
    assert status == 1
    assert findings["shared memory"]["level"] == "problem"
    assert "--shm-size=" in findings["shared memory"]["remedy"]


def test_where_synk_cannot_be_imported(tmp_path):
    (tmp_path / "posix_ipc.py").write_text("raise ImportError('libnothing.so.1: cannot open')\n")
    status, findings = doctor(start=[str(ROOT / "synk")], PYTHONPATH=str(tmp_path))
    assert status == 1
    assert "libnothing.so.1" in findings["posix_ipc"]["found"]
    assert findings["a run of two ranks"]["found"] == "import synk: ImportError: libnothing.so.1: cannot open"
    assert findings["shared memory"]["found"]


def test_commands_are_listed(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert {"doctor", "bench"} <= set(capsys.readouterr().out.split())


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as left:
        main(["surgeon"])
    assert left.value.code == 2
    assert "surgeon" in capsys.readouterr().err
