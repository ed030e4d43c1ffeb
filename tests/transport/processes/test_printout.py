import contextlib
import io
import os
import sys
import threading

import pytest

from synk.transport.processes import printout
from synk.transport.processes.printout import Printout


@pytest.fixture
def made():
    with contextlib.closing(Printout()) as made:
        yield made


@contextlib.contextmanager
def worker(made, rank=1):
    """Print as a worker does in the body."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        made.take_over(rank)
        yield


def delivered(made):
    """Deliver; return what came to standard output and to standard error."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        made.deliver()
    return output.getvalue(), errors.getvalue()


def test_lines_come_once_with_their_rank_by_the_stream_they_were_printed_to(made):
    for rank in (1, 2):
        with worker(made, rank):
            print("one\n\ntwo")
            print("three", file=sys.stderr)
    assert delivered(made) == (
        "[rank 1] one\n[rank 1] \n[rank 1] two\n[rank 2] one\n[rank 2] \n[rank 2] two\n",
        "[rank 1] three\n[rank 2] three\n",
    )
    assert delivered(made) == ("", "")


def test_a_line_comes_when_it_has_ended(made):
    with worker(made):
        print(end="begun ", flush=True)
        assert delivered(made)[0] == ""
        print("ended")
        print(end="last")
        made.finish()
    assert delivered(made)[0] == "[rank 1] begun ended\n[rank 1] last\n"


def test_lines_of_threads_stay_whole(made):
    def count(name):
        for number in range(1000):
            print(name, number)

    with worker(made):
        threads = [threading.Thread(target=count, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = delivered(made)[0].splitlines()
    for name in "abcd":
        of_thread = [line for line in lines if line.startswith(f"[rank 1] {name}")]
        assert of_thread == [f"[rank 1] {name} {number}" for number in range(1000)]


def test_a_line_that_is_being_written_waits_for_its_end(made):
    os.write(made.fileno(), b"1whole\n1ha")
    assert delivered(made)[0] == "whole\n"
    os.write(made.fileno(), b"lf\n")
    assert delivered(made)[0] == "half\n"


def test_what_was_delivered_takes_no_memory(made, monkeypatch):
    monkeypatch.setattr(printout, "FREE_BYTES", 1 << 16)
    with worker(made):
        for number in range(100):
            print(f"{number:0>9999}")
            assert delivered(made)[0] == f"[rank 1] {number:0>9999}\n"
            assert os.stat(made.fileno()).st_blocks * 512 <= (1 << 16) + 3 * 4096


def test_streams_on_descriptors_of_their_own_are_left_alone(made):
    with open(1, "w", closefd=False) as output, open(2, "w", closefd=False) as errors:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            made.take_over(1)
            assert (sys.stdout, sys.stderr) == (output, errors)
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            made.take_over(1)
            assert (sys.stdout, sys.stderr) == (None, None)


@pytest.mark.parametrize("stream", [None, "closed"])
def test_without_a_stream_lines_are_dropped(made, stream):
    with worker(made):
        print("to nobody")
    nobody = io.StringIO() if stream else None
    if nobody:
        nobody.close()
    with contextlib.redirect_stdout(nobody):
        made.deliver()
    assert delivered(made)[0] == ""


def test_the_rest_is_printed_at_the_end(made):
    with worker(made):
        print("last")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        made.close()
        made.close()
    assert output.getvalue() == "[rank 1] last\n"
