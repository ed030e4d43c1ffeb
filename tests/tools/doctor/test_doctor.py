"""The command `doctor`, here and on what `unshare` makes of this machine; and how commands are listed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from synk.__main__ import main
from synk.tools.doctor import cores, memory, processes
from synk.tools.doctor.finding import Level

ROOT = Path(__file__).parents[3]


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


def test_nothing_to_say_of_a_good_machine(machine):
    here = machine()
    families = (memory, cores, processes)
    findings = [check(here) for family in families for check in family.CHECKS]
    assert [finding for finding in findings if finding.level is not Level.OK] == []


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
