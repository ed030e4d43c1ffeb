"""What a script sees of an error that ranks raise: its line, the node, the shapes, and once."""

import traceback

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph import Apply, Op

import synk

ROWS = np.ones((6, 3))


def shown(error):
    return "".join(traceback.format_exception(error)).splitlines()


@pytest.fixture
def mismatched(module_ranks):
    x, y = pt.matrix("x"), pt.matrix("y")
    return synk.function([x], pt.dot(x, y).sum(), bcast_inputs=[y])


def raised(call, *arguments):
    with pytest.raises(synk.RemoteError) as caught:
        call(*arguments)
    return caught.value


def test_an_error_of_shapes_shows_the_scripts_lines_and_the_node_once(mismatched):
    error = raised(mismatched, ROWS, np.ones((4, 2)))
    lines = shown(error)
    assert [line for line in lines if line.startswith("  File")] == [
        *[line for line in lines if line.startswith(f'  File "{__file__}"')],
    ]
    assert len(lines) < 25, lines
    text = "\n".join(lines)
    for part in (
        "call(*arguments)",
        "synk.RemoteValueError: rank 0: ValueError: shapes (3,3) and (4,2) not aligned",
        "--- rank 0, and alike on rank 1 ---",
        "Apply node that caused the error: Dot22(x, y)",
        "pt.dot(x, y).sum()",
        "  y: float64 (4, 2)",
        "exception_verbosity",
    ):
        assert part in text, text
    assert text.count("Apply node") == 1
    # The whole is there for those who look.
    assert [failure.rank for failure in error.failures] == [0, 1]
    for failure in error.failures:
        assert "linker.py" in failure.traceback


def test_ranks_whose_shapes_differ_are_alike(mismatched):
    error = raised(mismatched, ROWS[:5], np.ones((4, 2)))
    assert "--- rank 0, and alike on rank 1 ---" in str(error)
    assert [failure.brief.count("float64 (2, 3)") for failure in error.failures] == [0, 1]


def test_verbosity_shows_the_whole(mismatched):
    with pytensor.config.change_flags(
        exception_verbosity="medium"
    ):  # of rank 0; workers have it from the fork
        error = raised(mismatched, ROWS, np.ones((4, 2)))
        text = "\n".join(shown(error))
    assert isinstance(error.__cause__, ValueError)
    for part in ("in raise_failures", "in _run_anew", "linker.py", "direct cause"):
        assert part in text


class Picky(Op):
    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        look_at(inputs[0])


def look_at(value):
    raise LookupError(f"{value.shape} is no shape")


def test_frames_of_an_op_of_the_scripts_are_shown(module_ranks):
    x = pt.matrix("x")
    error = raised(synk.function([x], (Picky()(x).sum(), "sum")), ROWS)
    frames = [line for line in str(error).splitlines() if ", in " in line]
    assert [line.rpartition(" ")[2] for line in frames[:2]] == ["perform", "look_at"]
    assert not any("host_call" in line for line in frames)


def test_an_error_without_a_node_shows_where_it_was_raised(module_ranks):

    def fail(rank):
        return lambda: [][rank]

    error = raised(synk.on_ranks(fail))
    assert "return lambda: [][rank]" in str(error)
    assert "--- rank 1 ---" in str(error)  # whose code has no file, so it is not the same text


def test_a_refused_argument_shows_the_call_and_what_refused_it(module_ranks):
    x = pt.matrix("x")
    f = synk.function([x], x.sum())
    for call, arguments in ((f, [np.ones(3)]), (synk.all_reduce, [3])):
        with pytest.raises(TypeError) as caught:
            call(*arguments)
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [frame.filename == __file__ for frame in frames] == [True, False]
