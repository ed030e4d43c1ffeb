import contextlib
import io
import os
import sys

import pytest

from support.processes.scripts import in_world
from synk.transport.processes import stderr_log
from synk.transport.processes.stderr_log import STDERR, TAIL_BYTES, StderrLog

pytestmark = pytest.mark.usefixtures("warm_interpreter")


class Word:
    """The shared word, where there is one process."""

    def __init__(self):
        self.value = 0

    def get(self):
        return self.value

    def set(self, value):
        self.value = value


@pytest.fixture
def log():
    word = Word()
    made = StderrLog(word.get, word.set)
    yield made
    made.close()


@contextlib.contextmanager
def in_the_place_of_stderr(file):
    """Make ``file`` descriptor 2 for a while, and Python's own stream one that writes there."""
    before, stream = os.dup(STDERR), sys.stderr
    os.dup2(file, STDERR)
    os.close(file)
    try:
        with open(STDERR, "w", closefd=False) as sys.stderr:
            yield
    finally:
        os.dup2(before, STDERR)
        os.close(before)
        sys.stderr = stream


@pytest.fixture
def taking_over(log, tmp_path):
    """Make the log take over on entry; what has come to the real standard error is returned on call."""

    @contextlib.contextmanager
    def take_over():
        path = tmp_path / "stderr"
        with in_the_place_of_stderr(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)):
            log.take_over()
            try:
                yield path.read_bytes
            finally:
                os.close(log._real)

    return take_over


def test_what_is_written_below_python_waits_until_it_is_delivered(log, taking_over):
    with taking_over() as real:
        os.write(STDERR, b"from C\n")
        assert real() == b""
        log.deliver()
        assert real() == b"from C\n"
        log.deliver()
        assert real() == b"from C\n"


def test_what_python_writes_is_there_at_once_and_in_order(log, taking_over):
    with taking_over() as real:
        os.write(STDERR, b"one\n")
        print("two", end="", file=sys.stderr)
        assert real() == b"one\ntwo"
        sys.stderr.writelines(["\n", "three\n"])
        assert real() == b"one\ntwo\nthree\n"
        assert log.tail() == "one\ntwo\nthree\n"


def test_the_tail_is_whole_lines_of_four_kilobytes_at_most(log):
    for number in range(2000):
        os.write(log._file, b"line %d\n" % number)
    lines = log.tail().splitlines()
    assert lines == [f"line {number}" for number in range(2000 - len(lines), 2000)]
    assert TAIL_BYTES - 20 < len(log.tail()) <= TAIL_BYTES


@pytest.mark.parametrize("text", [b"x" * 10_000, b"\xff\xfe" * 5_000, b"no end", b""])
def test_the_tail_of_any_bytes_is_text(log, text):
    os.write(log._file, text)
    assert len(log.tail()) <= TAIL_BYTES
    assert log.tail() == text[-TAIL_BYTES:].decode(errors="replace")


def test_what_was_delivered_is_thrown_away(log, taking_over, monkeypatch):
    monkeypatch.setattr(stderr_log, "TRIM_BYTES", 10_000)
    with taking_over() as real:
        for number in range(5000):
            os.write(STDERR, b"line %d\n" % number)
            if number % 100 == 0:
                log.deliver()
                assert os.fstat(log._file).st_size < 12_000
        log.deliver()
        assert real() == b"".join(b"line %d\n" % number for number in range(5000))
    assert log.tail().endswith("line 4998\nline 4999\n")


def test_a_signal_handler_that_writes_in_the_middle_doubles_nothing(log, taking_over, monkeypatch):
    write_all, handled = stderr_log._write_all, []

    def interrupted(descriptor, text, seconds=None):
        write_all(descriptor, text)
        if descriptor != log._file and not handled:
            handled.append(1)
            print("handler", file=sys.stderr)

    with taking_over() as real:
        monkeypatch.setattr(stderr_log, "_write_all", interrupted)
        sys.stderr.write("script ")
        assert real() == b"script handler\n"


def test_output_to_other_files_is_kept_and_not_delivered(log, taking_over, monkeypatch):
    cell = io.StringIO()
    with taking_over() as real:
        os.close(log._real)
        monkeypatch.setattr(sys, "stderr", cell)  # as a notebook does
        log.take_over()
        print("to a cell", file=sys.stderr)
        log.deliver()
        assert real() == b""
    assert cell.getvalue() == log.tail() == "to a cell\n"


def test_what_c_wrote_is_delivered_where_python_writes_elsewhere(log, taking_over, monkeypatch):
    with taking_over() as real:
        monkeypatch.setattr(sys, "stderr", stderr_log._Prompt(io.StringIO(), log._note))  # as in a notebook
        os.write(STDERR, b"from C\n")
        print("to a cell", file=sys.stderr)
        assert real() == b"from C\n"
        assert log.tail() == "from C\nto a cell\n"


def test_a_reader_that_is_gone_does_no_harm(log):
    reading, writing = os.pipe()
    with in_the_place_of_stderr(writing):
        log.take_over()
        os.close(reading)
        print("to nobody", file=sys.stderr)
        os.close(log._real)
    assert log.tail() == "to nobody\n"


# --- of workers --------------------------------------------------------------------------------------


def test_what_workers_write_comes_once_and_whole():
    done = in_world("""
def in_python():
    for number in range(50):
        print(f"python {number}", file=sys.stderr)

def in_c():
    os.write(2, b"".join(b"native %d\\n" % number for number in range(50)))
    os.system("echo a child of its own >&2")

def of_threads():
    def write(name):
        for number in range(200):
            print(f"{name} {number}", file=sys.stderr)
    threads = [threading.Thread(target=write, args=(f"thread {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

ACTS.update(in_python=in_python, in_c=in_c, of_threads=of_threads)
world(3)
for what in ("in_python", "in_c", "of_threads"):
    act(f, 1, what)
print("of the master", file=sys.stderr)
""")
    for name in ("python", "native"):
        assert done.stderr.count(name) == 50
    for number in range(4):
        assert done.stderr.count(f"thread {number} ") == 200
    assert done.stderr.count("a child of its own") == 1
    assert done.stderr.endswith("of the master\n")


def test_last_words_are_told_with_the_death_and_printed_once():
    done = in_world("""
def last_words():
    for number in range(1000):
        print(f"line {number}", file=sys.stderr)
    os.write(2, b"and this from C\\n")
    os._exit(3)

ACTS["last_words"] = last_words
world(3)
began = time.monotonic()
error = raised(synk.WorkerDied, act, f, 2, "last_words")
assert time.monotonic() - began < 1
assert error.stderr.endswith("line 998\\nline 999\\nand this from C\\n"), error.stderr
assert len(error.stderr.encode()) <= 4096 and error.stderr.startswith("line ")
assert "its last words on standard error:" in str(error) and "and this from C" in str(error)
synk.restart()
error = raised(synk.WorkerDied, act, f, 1, "segfault")
assert "Fatal Python error: Segmentation fault" in error.stderr, error.stderr
assert "in segfault" in error.stderr  # where
assert "line 999" not in error.stderr  # of another process
synk.restart()
error = raised(synk.WorkerDied, act, f, 1, "kill")
assert error.stderr == "" and "last words" not in str(error)
""")
    assert done.stderr.count("line 999\n") == 1
    assert done.stderr.count("and this from C") == 1
    assert done.stderr.count("Fatal Python error") == 1


@pytest.mark.slow
def test_megabytes_come_whole():
    done = in_world("""
def talk():
    for _ in range(64):
        os.write(2, b"x" * (1 << 16))

ACTS["talk"] = talk
world(2)
for _ in range(3):
    act(f, 1, "talk")
act(f, 1, "talk")
assert raised(synk.WorkerDied, act, f, 1, "leave").stderr == "x" * 4096
""")
    assert done.stderr.count("x") == 4 * (4 << 20)
