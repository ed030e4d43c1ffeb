"""Scripts of the warm process begin and end as those of ``python -c`` do."""

import subprocess
import time

import pytest

from support.processes import scripts

pytestmark = pytest.mark.usefixtures("warm_interpreter")

TELL = "import sys; print(__name__, sys.argv, sys.path[0] == ''); print('no', file=sys.stderr); sys.exit(3)"


def in_both(text, *arguments):
    """Return how a script ended in the warm process, and how in an interpreter of its own."""
    fresh = scripts.run(text, *arguments, deadline=60, env=None)
    return [
        (done.returncode, done.stdout, done.stderr) for done in (scripts.warm.run(text, arguments, 60), fresh)
    ]


@pytest.mark.parametrize(
    "text",
    [
        TELL,
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; print('so', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(print, 'the end')",
        "import os; print(os.getcwd(), sorted(os.listdir('/proc/self/fd')))",
    ],
)
def test_a_script_ends_as_in_an_interpreter_of_its_own(text):
    warm, fresh = in_both(text, "a", "b c")
    assert warm == fresh


@pytest.mark.parametrize(("error", "code"), [("1 / 0", 1), ("raise KeyboardInterrupt", -2)])
def test_an_error_is_told_of_and_ends_the_script(error, code):
    warm, fresh = in_both(error)
    assert warm[0] == fresh[0] == code
    assert warm[2].splitlines()[-1] == fresh[2].splitlines()[-1]


def test_a_script_that_does_not_end_is_killed():
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        scripts.warm.run("import time; time.sleep(60)", [], 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        scripts.warm.run("import os, time; os.close(1); os.close(2); time.sleep(60)", [], 0.5)
    assert time.monotonic() - began < 30
    assert scripts.warm.run("print(1)", [], 60).stdout == "1\n"


def test_another_environment_asks_for_an_interpreter_of_its_own(monkeypatch):
    assert scripts.warm.knows()
    monkeypatch.setenv("SYNK_WARM", "no")
    assert not scripts.warm.knows()
    assert scripts.run("import os; print(os.environ['SYNK_WARM'])", deadline=60).stdout == "no\n"
