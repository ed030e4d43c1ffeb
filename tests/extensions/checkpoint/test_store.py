import contextlib
import os
import signal
import threading
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk
from support.cases.divided import Trained, assert_equal, is_divided
from support.checkpoints import snapshot, unchanged, variables
from support.slow import slow
from synk.extensions import checkpoint, train, updates
from synk.extensions.checkpoint import file_format, store

MASTER = os.getpid()
ACTS = {}  # what the master, or a worker, does in the middle of a step


class Meanwhile(Op):
    """The input, once what is in ACTS has been done."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        ACTS.get("master" if os.getpid() == MASTER else "worker", list)()
        outputs[0][0] = inputs[0].copy()


@pytest.fixture
def acts():
    yield ACTS
    ACTS.clear()


class Stop(Exception):
    pass


@contextlib.contextmanager
def on_alarm(action):
    before = signal.signal(signal.SIGALRM, lambda *_: action())
    yield lambda *_: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def stepping(n=4):
    """Return two variables and a function that adds one to both, with ACTS in the middle."""
    a, b = (pytensor.shared(np.zeros(n), name=name) for name in "ab")
    return [a, b], synk.function([], updates=[(a, a + 1), (b, Meanwhile()(b) + 1)], name="step")


def test_what_is_saved_is_loaded(saved):
    named = variables()
    checkpoint.load(saved, named)
    assert snapshot(named) == snapshot(variables(7.0))


def test_a_damaged_file_changes_nothing(saved):
    content = bytearray(saved.read_bytes())
    content[-40] ^= 1
    saved.write_bytes(content)
    named = variables()
    with unchanged(named), pytest.raises(checkpoint.CheckpointCorrupt, match="SHA-256"):
        checkpoint.load(saved, named)


def test_a_state_that_is_none_changes_nothing(tmp_path, monkeypatch):
    path, named = tmp_path / "checkpoint", variables()
    with monkeypatch.context() as patch:
        patch.setattr(file_format, "_described", lambda value: {"state": {"bit_generator": "PCG64"}})
        checkpoint.save(path, {"rng": named["rng"]})
    message = "not the state of a PCG64 generator"
    with unchanged(named), pytest.raises(checkpoint.CheckpointCorrupt, match=message):
        checkpoint.load(path, {"rng": named["rng"]})


@pytest.mark.parametrize("variable", [pt.vector("x"), np.zeros(3), pytensor.shared([1, 2], name="list")])
def test_what_is_no_shared_tensor_or_generator_is_named(tmp_path, variable):
    with pytest.raises(TypeError, match="'mine' is neither"):
        checkpoint.save(tmp_path / "checkpoint", {"mine": variable})
    assert os.listdir(tmp_path) == []


def test_names_are_strings_and_a_missing_file_is_told(tmp_path):
    with pytest.raises(TypeError, match="name 3"):
        checkpoint.save(tmp_path / "checkpoint", {3: pytensor.shared(1.0)})
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "checkpoint", variables())


def test_errors_are_of_synk_and_of_python():
    assert issubclass(checkpoint.CheckpointCorrupt, synk.SynkError)
    assert issubclass(checkpoint.CheckpointVersion, ValueError)
    assert issubclass(checkpoint.CheckpointNames, KeyError)


def test_every_rank_gets_the_values(saved, ranks):
    ranks(2, device="cpu")
    named = variables()
    checkpoint.load(saved, named)
    for rank in range(2):
        for name in ("W", "b", "t"):
            np.testing.assert_array_equal(synk.get_value(rank, named[name]), 7)


def test_streams_of_ranks_go_on_where_they_were(tmp_path, ranks):
    ranks(2, device="cpu")
    path, rng = tmp_path / "checkpoint", pytensor.shared(np.random.default_rng(5), name="rng")
    next_rng, numbers = pt.random.uniform(size=(3,), rng=rng, return_next_rng=True)
    draw = synk.function([], (numbers, "gather"), updates=[(rng, next_rng)])
    draw()
    checkpoint.save(path, {"rng": rng})
    expected = draw()
    draw()
    checkpoint.load(path, {"rng": rng})
    np.testing.assert_array_equal(draw(), expected)
    assert not np.array_equal(expected[:3], expected[3:])


def test_training_goes_on_where_it_was(tmp_path, ranks):
    ranks(2, device="cpu")
    path, x = tmp_path / "checkpoint", pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.ones(3), name="w")
    mean = pytensor.shared(np.zeros(3), name="mean")
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    next_rng, noise = pt.random.normal(size=(3,), rng=rng, return_next_rng=True)
    loss = pt.sqr(x @ (w + 0.1 * noise) - 1).mean()
    running = [(mean, 0.5 * mean + x.mean(0)), (rng, next_rng)]
    step = train.make_train_function(
        loss, [w], [x], updates.adam, learning_rate=0.1, updates=running, outputs=(mean, None)
    )
    data = np.random.default_rng(1).normal(size=(9, 3))
    step(data)
    checkpoint.save(path, step, {"epoch": 3})
    expected = [step(data), step(data)]
    assert checkpoint.load(path, step) == {"epoch": 3}
    np.testing.assert_equal([step(data), step(data)], expected)
    with open(path, "rb") as file:
        names = file_format.read_entries(file).keys()
    assert names == {"t", "w", "w_mean", "w_squares", "mean", "rng", "epoch"}


@pytest.mark.slow
def test_training_goes_on_whether_the_update_was_divided_or_is(tmp_path, ranks):
    files = {}
    for shard in (None, "auto"):
        ranks(2, device="cpu")
        trained = Trained(shard=shard)
        trained.train(2)
        checkpoint.save(tmp_path / str(shard), trained.step)
        files[shard] = (tmp_path / str(shard)).read_bytes()
        synk.close()
    assert files[None] == files["auto"]
    for n_ranks in (1, 2, 3):
        ranks(n_ranks, device="cpu")
        runs = [Trained(shard=shard) for shard in (None, "auto")]
        for trained, path in zip(runs, (tmp_path / "auto", tmp_path / "None"), strict=True):
            trained.train(1)  # and so its variables are in the vectors when the file is loaded
            checkpoint.load(path, trained.step)
            trained.train(2)
        assert_equal(*runs, n_ranks)
        assert is_divided(runs[1])
        synk.close()


def test_what_is_saved_is_of_one_moment(tmp_path, monkeypatch):
    named, write = variables(7.0), file_format.write
    named["rng"].get_value(borrow=True).random(3)
    expected = named["rng"].get_value()

    def write_while_they_change(file, values):
        named["rng"].get_value(borrow=True).random(3)
        for name in ("W", "b", "t"):
            named[name].get_value(borrow=True)[...] = 8
        write(file, values)

    monkeypatch.setattr(file_format, "write", write_while_they_change)
    checkpoint.save(tmp_path / "checkpoint", named)
    monkeypatch.undo()
    assert named["W"].get_value().tolist() == [[8] * 3] * 2
    checkpoint.load(tmp_path / "checkpoint", named)
    assert named["W"].get_value().tolist() == [[7] * 3] * 2
    assert named["rng"].get_value().random() == expected.random()


def test_a_save_waits_for_the_call_of_another_thread(tmp_path, ranks, acts):
    ranks(2, device="cpu")
    begun, saving = threading.Event(), threading.Event()

    def until_somebody_saves():
        begun.set()
        saving.wait(10)
        threading.Event().wait(0.1)  # who does not wait is through by then

    acts["master"] = until_somebody_saves
    variables, step = stepping()
    thread = threading.Thread(target=step)
    thread.start()
    assert begun.wait(60)
    saving.set()
    checkpoint.save(tmp_path / "checkpoint", variables)
    thread.join()
    fresh = {name: pytensor.shared(np.zeros(4)) for name in "ab"}
    synk.close()
    checkpoint.load(tmp_path / "checkpoint", fresh)
    assert [variable.get_value().tolist() for variable in fresh.values()] == [[1] * 4] * 2


@pytest.mark.parametrize("verb", [checkpoint.save, checkpoint.load])
def test_a_handler_in_the_middle_of_a_call_is_told_to_wait(saved, ranks, acts, verb):
    ranks(2, device="cpu")
    refused, before = [], saved.read_bytes()
    variables, step = stepping()

    def act():
        with pytest.raises(synk.SynkStateError) as caught:
            verb(saved, variables)
        refused.append(str(caught.value))

    with on_alarm(act) as ring:
        acts["master"] = ring
        step()
    [said] = refused
    assert f"checkpoint.{verb.__name__} was called in the middle of step" in said
    assert f"call checkpoint.{verb.__name__} when step has returned" in said
    assert saved.read_bytes() == before


def test_what_was_written_is_read_before_it_replaces_the_old(saved, monkeypatch):
    before, write = saved.read_bytes(), file_format.write

    def write_wrongly(file, values):
        write(file, values)
        file.seek(-40, os.SEEK_END)
        file.write(b"#")

    monkeypatch.setattr(file_format, "write", write_wrongly)
    with pytest.raises(checkpoint.CheckpointCorrupt, match="SHA-256"):
        checkpoint.save(saved, variables(8.0))
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize(("n_ranks", "at"), [(0, "first"), slow(0, "last"), slow(2, "first"), (2, "last")])
def test_an_interrupt_while_values_are_given_comes_afterwards(saved, ranks, monkeypatch, n_ranks, at):
    if n_ranks:
        ranks(n_ranks, device="cpu")
    named = variables()

    def stop():
        raise Stop

    with on_alarm(stop) as ring:
        assign = store.assign

        def interrupted(pairs):
            if at == "first":
                ring()
            assign(pairs)
            ring()

        monkeypatch.setattr(store, "assign", interrupted)
        with pytest.raises(Stop):
            checkpoint.load(saved, named)
    assert snapshot(named) == snapshot(variables(7.0))
    if n_ranks:
        assert synk.gather(named["W"]).tolist() == [[[7] * 3] * 2] * 2


@pytest.mark.parametrize("verb", [checkpoint.save, slow(checkpoint.load)])
def test_children_of_the_script_are_refused(saved, ranks, verb):
    ranks(2, device="cpu")
    named, before = variables(), saved.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if child == 0:
        with contextlib.suppress(synk.SynkStateError):
            verb(saved, named)
            os._exit(1)
        os._exit(7 if snapshot(named) == snapshot(variables()) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert saved.read_bytes() == before


@pytest.mark.one_machine(reason="hands a worker what to do in memory that it inherits")
def test_workers_are_refused(saved, ranks, acts):
    before = saved.read_bytes()
    acts["worker"] = lambda: checkpoint.save(saved, variables())
    ranks(2, device="cpu")
    _, step = stepping()
    with pytest.raises(synk.SynkStateError, match="checkpoint.save: this process is not the master"):
        step()
    assert saved.read_bytes() == before


@pytest.mark.filterwarnings("error")
def test_variables_that_the_ranks_do_not_know_stay_the_script_s_own(tmp_path, ranks):
    ranks(2, device="cpu")
    v = pytensor.shared(np.ones(3), name="v")
    checkpoint.save(tmp_path / "checkpoint", v)
    v.set_value(np.zeros(3))  # without a warning, as the ranks get this one
    assert synk.gather(v).tolist() == [[0, 0, 0]] * 2


@pytest.mark.one_machine(reason="kills a worker by its pid")
def test_a_broken_run_can_be_saved_but_not_loaded_into(saved, ranks):
    ranks(2, device="cpu")
    named = variables(8.0)
    synk.broadcast(named["W"])
    os.kill(synk.pids()[1], signal.SIGKILL)
    with pytest.raises(synk.WorkerDied):
        synk.gather(named["W"])
    with unchanged(named), pytest.raises(synk.WorkerDied):
        checkpoint.load(saved, named)
    checkpoint.save(saved, named)
    synk.close()
    fresh = variables()
    checkpoint.load(saved, fresh)
    assert snapshot(fresh) == snapshot(named)
