import pickle
import subprocess

import numpy as np
import pytest

from synk.values import errors
from synk.values.errors import Failure, RemoteError, SynkError, WorkerDied, remote_error


class Plain(Exception):
    pass


class NeedsArguments(Exception):
    def __init__(self, path, line):
        super().__init__(f"{path}:{line}")
        self.path = path


class NeedsArgumentsToExist(Exception):
    def __new__(cls, path, line):
        return super().__new__(cls, path, line)


class HasItsOwnText(ValueError):
    def __str__(self):
        return f"{self.detail}"  # set where it was raised, and only there


class ChecksSubclasses(Exception):
    def __init_subclass__(cls, *, code, **kwargs):
        super().__init_subclass__(**kwargs)


class Fussy(Exception):
    def __new__(cls, *args):
        if not args:
            raise ValueError("Fussy needs a reason")
        return super().__new__(cls, *args)


def told(kind, summary="it broke", rank=1):
    return Failure(rank, kind, summary, f'  File "model.py", line {rank}\n{summary}\n')


@pytest.mark.parametrize(
    "kind",
    [
        ValueError,
        KeyError,
        IndexError,
        ZeroDivisionError,
        NotImplementedError,
        MemoryError,
        AssertionError,
        StopIteration,
        OSError,
        FileNotFoundError,
        TimeoutError,
        ImportError,
        UnicodeDecodeError,
        subprocess.CalledProcessError,
        np.linalg.LinAlgError,
        Plain,
        NeedsArguments,
        HasItsOwnText,
        errors.CollectiveMismatch,
        errors.SharedMemoryFull,
        errors.SynkTimeout,
        WorkerDied,
        NeedsArgumentsToExist,
        Fussy,
    ],
)
def test_a_remote_error_is_of_the_users_class_too(kind):
    error = remote_error([told(kind, "it broke")], n_ranks=3)
    assert isinstance(error, kind)
    assert isinstance(error, RemoteError)
    assert isinstance(error, SynkError)
    assert str(error).startswith("rank 1: it broke\n")
    assert str(error) == error.report
    with pytest.raises(kind):
        raise error


@pytest.mark.parametrize("kind", [Exception, RuntimeError, SynkError, RemoteError, None])
def test_a_remote_error_is_enough_for_its_own_bases(kind):
    error = remote_error([told(kind)], n_ranks=2)
    assert type(error) is RemoteError


class RefusesHeirs(Exception):
    def __init_subclass__(cls):
        raise RuntimeError("not meant to be a base")


ENDING = [BaseException, KeyboardInterrupt, SystemExit, GeneratorExit]  # the worker, but not the master


@pytest.mark.parametrize("kind", [*ENDING, ExceptionGroup, ChecksSubclasses, RefusesHeirs])
def test_a_class_that_cannot_or_must_not_be_mixed_in_still_tells(kind):
    error = remote_error([told(kind, f"{kind.__name__}: it broke")], n_ranks=2)
    assert type(error) is RemoteError
    assert f"{kind.__name__}: it broke" in str(error)


def test_the_name_tells_the_users_class():
    assert type(remote_error([told(KeyError)], n_ranks=2)).__name__ == "RemoteKeyError"


def test_every_failing_rank_is_told_with_its_own_traceback():
    failures = [told(ValueError, "ValueError: x is negative", rank) for rank in (1, 3)]
    error = remote_error(failures, n_ranks=4)
    assert [failure.rank for failure in error.failures] == [1, 3]
    assert [failure.kind for failure in error.failures] == [ValueError, ValueError]
    assert str(error) == (
        "rank 1: ValueError: x is negative\n"
        "\n--- rank 1 ---\n"
        'Worker 1 of 4:\n  File "model.py", line 1\nValueError: x is negative\n'
        "\n--- rank 3 ---\n"
        'Worker 3 of 4:\n  File "model.py", line 3\nValueError: x is negative'
    )


def test_ranks_on_which_a_node_fails_with_other_shapes_are_told_once():
    places = [(0, ""), (1, ""), (2, "h2"), (3, "h2"), (5, "h2")]
    failures = [
        told(ValueError, rank=rank)._replace(host=host, brief=f'  File "a.py", line 7\n({rank + 5}, 3)')
        for rank, host in places
    ]
    error = remote_error(failures, n_ranks=6)
    assert str(error) == (
        "rank 0: it broke\n"
        "\n--- rank 0, and alike on rank 1, ranks 2 to 3 on host h2, rank 5 on host h2 ---\n"
        'Worker 0 of 6:\n  File "a.py", line 7\n(5, 3)'
    )


def test_the_first_failing_rank_gives_the_class():
    error = remote_error([told(KeyError, rank=0), told(ValueError)], n_ranks=2)
    assert isinstance(error, KeyError)
    assert not isinstance(error, ValueError)


def test_errors_do_not_share_their_failures():
    one = remote_error([told(ValueError, "one")], n_ranks=2)
    two = remote_error([told(ValueError, "two")], n_ranks=2)
    assert "one" in str(one)
    assert "two" in str(two)
    assert RemoteError.failures == ()


def test_a_failure_travels():
    failure = told(NeedsArguments)
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_a_dead_worker_says_who_and_how():
    error = WorkerDied(2, 4711, "signal SIGKILL", "in a collective", "f")
    assert (error.rank, error.pid, error.cause) == (2, 4711, "signal SIGKILL")
    assert (error.phase, error.function) == ("in a collective", "f")
    assert str(error).startswith("rank 2 (pid 4711) died of signal SIGKILL while in a collective, running f ")
    assert "out of memory" in str(error)  # the system does not say so
    assert "synk.restart()" in str(error)
    assert error.stderr == ""
    assert "standard error" not in str(error)


def test_a_dead_worker_s_last_words_are_quoted():
    error = WorkerDied(1, 4711, "exit code 3", "computing", "f", "Fatal:\n  it broke\n")
    assert error.stderr == "Fatal:\n  it broke\n"
    assert str(error).endswith("its last words on standard error:\nFatal:\n  it broke")
    assert "out of memory" not in str(error)


STATES = (
    errors.RankState(0, 10, "running", "in a collective", "  File 'script.py', line 3 in <module>"),
    errors.RankState(1, 11, "running", "computing", "  File 'user.py', line 1 in hang\n"),
    errors.RankState(2, 12, "stopped", "idle", ""),
)


def test_a_timeout_tells_of_every_rank():
    error = errors.SynkTimeout(2.0, "f", (1, 2), STATES)
    assert str(error) == (
        "f did not end within 2 s, waiting for rank 1, rank 2; "
        "synk.restart() starts new workers, synk.close() ends the run\n\n"
        "rank 0 (pid 10) running, in a collective:\n  File 'script.py', line 3 in <module>\n\n"
        "rank 1 (pid 11) running, computing:\n  File 'user.py', line 1 in hang\n\n"
        "rank 2 (pid 12) stopped, idle"
    )
    assert "the master's own part" in str(errors.SynkTimeout(0.5, "f", (), STATES))


@pytest.mark.parametrize(
    "error",
    [
        errors.SynkTimeout(2.0, "f", (1, 2), STATES),
        WorkerDied(2, 4711, "signal SIGKILL", "idle", "f", "last words"),
    ],
)
def test_errors_of_ranks_travel(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), vars(back)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.SynkStateError, RuntimeError),
        (errors.CudaInitialisedError, errors.SynkStateError),
        (errors.SharedMemoryFull, MemoryError),
        (errors.CollectiveMismatch, ValueError),
        (errors.SynkTimeout, TimeoutError),
        (errors.NonFinite, ArithmeticError),
        (errors.WorkerDied, RuntimeError),
        (errors.RemoteError, RuntimeError),
    ],
)
def test_errors_are_caught_as_the_built_in_ones_they_are(kind, base):
    assert issubclass(kind, base)
    assert issubclass(kind, SynkError)
    assert not issubclass(errors.SynkWarning, SynkError)
    assert issubclass(errors.SynkWarning, UserWarning)


def test_a_rank_on_another_machine_is_told_with_its_host():
    error = remote_error([told(ValueError), told(ValueError, rank=2)._replace(host="h2")], n_ranks=3)
    assert str(error).startswith("rank 1: it broke\n")
    assert "--- rank 2 on host h2 ---\nWorker 2 of 3 on host h2:\n" in str(error)
