"""Scripts of the warm process begin and end as those of ``python -c`` do."""

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
