import contextlib
import hashlib
import io
import json
import os
import pathlib
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
from support.slow import slow
from synk.extensions import checkpoint, train, updates
from synk.extensions.checkpoint import file_format, store
from synk.extensions.checkpoint.generators import generator_of

BIT_GENERATORS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]


def variables(fill=0.0):
    return {
        "W": pytensor.shared(np.full((2, 3), fill), name="W"),
        "b": pytensor.shared(np.full(3, fill, "float32"), name="b"),
        "t": pytensor.shared(np.asarray(int(fill)), name="t"),
        "rng": pytensor.shared(np.random.default_rng(int(fill)), name="rng"),
    }


def snapshot(named):
    """Return the values in a form that can be compared."""
    state = named["rng"].get_value(borrow=True).bit_generator.state
    return [named[name].get_value().tolist() for name in ("W", "b", "t")], state


@contextlib.contextmanager
def unchanged(named):
    before = snapshot(named)
    yield
    assert snapshot(named) == before


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


def forge(path, fields, arrays=b""):
    """Write a file with a valid digest around any header."""
    header = json.dumps(fields, default=lambda array: array.tolist()).encode()
    prefix = file_format.PREFIX.pack(file_format.MAGIC, file_format.VERSION, len(header))
    content = prefix + header + arrays
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "checkpoint"
    checkpoint.save(path, variables(7.0))
    return path


def test_what_is_saved_is_loaded(saved):
    named = variables()
    checkpoint.load(saved, named)
    assert snapshot(named) == snapshot(variables(7.0))


@pytest.mark.parametrize("bit_generator", BIT_GENERATORS)
def test_every_generator_goes_on_where_it_was(tmp_path, bit_generator):
    path, generator = tmp_path / "checkpoint", np.random.Generator(bit_generator(3))
    generator.random(5)
    generator.integers(9, dtype=np.uint32)  # leaves half a draw in the state
    checkpoint.save(path, {"rng": pytensor.shared(generator)})
    other = pytensor.shared(np.random.Generator(bit_generator(4)))
    checkpoint.load(path, {"rng": other})
    again = other.get_value(borrow=True)
    assert again.integers(2**40, size=20).tolist() == generator.integers(2**40, size=20).tolist()


def test_a_damaged_file_changes_nothing(saved):
    content = bytearray(saved.read_bytes())
    content[-40] ^= 1
    saved.write_bytes(content)
    named = variables()
    with unchanged(named), pytest.raises(checkpoint.CheckpointCorrupt, match="SHA-256"):
        checkpoint.load(saved, named)


def test_missing_and_extra_names_are_told(saved):
    named = variables()
    asked = {"W": named["W"], "rng": named["rng"], "bias": named["b"], "t": named["t"]}
    message = r"^the checkpoint lacks \['bias'\] and also has \['b'\]"
    with unchanged(named), pytest.raises(KeyError, match=message):
        checkpoint.load(saved, asked)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("t", np.asarray(1, "int32"), "'t' is an array of dtype int32 and shape .*int64"),
        ("b", np.zeros(3), "'b' is an array of dtype float64.*float32"),
        ("b", np.zeros(4, "float32"), r"'b' is an array of dtype float32 and shape \(4,\).*\(3,\)"),
        ("b", np.zeros((3, 1), "float32"), r"'b' .* \(3, 1\)"),
        ("b", np.random.default_rng(1), "'b' is a PCG64 generator.*array"),
        ("rng", np.random.Generator(np.random.MT19937(1)), "'rng' is a MT19937 generator.*PCG64"),
        ("rng", np.zeros(3), "'rng' is an array.*generator"),
    ],
)
def test_another_shape_dtype_or_kind_is_named(saved, name, value, message):
    named = variables()
    with unchanged(named), pytest.raises(ValueError, match=message):
        checkpoint.load(saved, {**named, name: pytensor.shared(value)})


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


def counting():
    """Return a count that is per rank, and a step in which ranks draw, and count, for their rows."""
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    count, same = (pytensor.shared(np.asarray(0), name=name) for name in ("count", "same"))
    w, x = pytensor.shared(np.ones(2), name="w"), pt.dmatrix("x")
    next_rng, noise = pt.random.normal(size=(x.shape[0],), rng=rng, return_next_rng=True)
    own = [(rng, next_rng), (count, count + x.shape[0], None), (same, same + 1)]
    loss = pt.sqr(x @ w + noise).mean()
    return count, train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1, updates=own)


def test_every_rank_goes_on_with_its_own(tmp_path, ranks):
    ranks(3, device="cpu")
    path, rows = tmp_path / "checkpoint", np.ones((5, 2))
    count, step = counting()
    step(rows)
    checkpoint.save(path, step)
    expected = [step(rows), step(rows), synk.gather(count).tolist()]
    assert len(set(expected[2])) == 2
    synk.close()
    ranks(3, device="cpu")
    count, step = counting()
    checkpoint.load(path, step)
    assert [step(rows), step(rows), synk.gather(count).tolist()] == expected


@pytest.mark.parametrize(("saved_on", "loaded_on"), [slow(2, 1), (2, 3)])
def test_what_ranks_have_of_their_own_is_refused_by_other_ranks(tmp_path, ranks, saved_on, loaded_on):
    ranks(saved_on, device="cpu")
    path = tmp_path / "checkpoint"
    count, step = counting()
    step(np.ones((5, 2)))
    checkpoint.save(path, step)
    synk.close()
    ranks(loaded_on, device="cpu")
    count, step = counting()
    message = (
        f"variable 'count' is per rank: {saved_on} had .* for which {loaded_on} have no place; load it on"
    )
    with pytest.raises(ValueError, match=message):
        checkpoint.load(path, step)
    assert synk.gather(count).tolist() == [0] * loaded_on  # nothing has changed


def test_the_value_of_a_single_rank_is_that_of_all(tmp_path, ranks):
    path, of_before = tmp_path / "checkpoint", tmp_path / "of before"
    ranks(1, device="cpu")
    w = pytensor.shared(np.arange(3.0), name="w")
    synk.on_ranks(lambda rank, v: lambda: v.set_value(v.get_value() + 1), w, changes=[w])()
    assert synk.per_rank(w)
    checkpoint.save(path, w)
    store.write(of_before, {"w": file_format.OfRanks((w.get_value(),))}, {})
    synk.close()
    ranks(2, device="cpu")
    for file in (path, of_before):
        v = pytensor.shared(np.zeros(3), name="w")
        checkpoint.load(file, v)
        np.testing.assert_array_equal(synk.gather(v, nd_up=1), [[1, 2, 3]] * 2)
        assert synk.function([], v.sum())() == 6


def test_a_file_of_version_1_is_read(ranks):
    """Three ranks wrote it, after one step of `counting` on five rows."""
    path = pathlib.Path(__file__).with_name("checkpoint_version_1.ckpt")
    assert path.read_bytes()[8] == 1
    ranks(3, device="cpu")
    count, step = counting()
    rng = {variable.name: variable for variable in step.state}["rng"]
    assert checkpoint.load(path, step) == {"epoch": 3}
    assert synk.gather(count).tolist() == [2, 2, 1]
    drawn = [synk.get_value(rank, rng).random() for rank in range(3)]
    own = [np.random.Generator(np.random.PCG64(5).jumped(rank)) for rank in range(3)]
    for generator, n_rows in zip(own, (2, 2, 1), strict=True):
        generator.normal(size=n_rows)
    assert drawn == [generator.random() for generator in own]
    damaged = bytearray(path.read_bytes())
    for at in range(16, len(damaged), 37):
        damaged[at] ^= 1
        with pytest.raises(checkpoint.CheckpointCorrupt):
            file_format.read_entries(io.BytesIO(damaged))
        damaged[at] ^= 1


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


# --- one moment ------------------------------------------------------------------------------------------


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


# --- whose it is -----------------------------------------------------------------------------------------


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


# --- what is per rank -------------------------------------------------------------------------------------


ROWS = np.arange(14.0).reshape(7, 2)


def table():
    return pytensor.shared(np.zeros((0, 2)), name="table")


@pytest.mark.parametrize("n_ranks", [slow(1), 2, slow(3), slow(5), None])
@pytest.mark.parametrize("saved_on", [slow(1), 3])
def test_scattered_rows_are_dealt_out_on_any_number_of_ranks(tmp_path, ranks, saved_on, n_ranks):
    ranks(saved_on, device="cpu")
    a, path = table(), tmp_path / "checkpoint"
    synk.scatter(a, ROWS)
    checkpoint.save(path, [a])
    synk.close()
    b = table()
    if n_ranks is None:  # without a run
        checkpoint.load(path, [b])
        assert b.get_value().tolist() == ROWS.tolist()
        return
    ranks(n_ranks, device="cpu")
    checkpoint.load(path, [b])
    assert synk.get_lengths(b) == [len(part) for part in np.array_split(ROWS, n_ranks)]
    assert synk.gather(b, nd_up=0).tolist() == ROWS.tolist()
    checkpoint.save(path, [b])  # it is known that they are rows
    checkpoint.load(path, [b])
    assert synk.gather(b, nd_up=0).tolist() == ROWS.tolist()


def test_equal_rows_are_rows(tmp_path, ranks):
    ranks(2, device="cpu")
    a, path = table(), tmp_path / "checkpoint"
    synk.scatter(a, np.ones((4, 2)))
    checkpoint.save(path, a)
    synk.close()
    b = table()
    checkpoint.load(path, b)
    assert b.get_value().shape == (4, 2)


def test_rows_of_any_lengths_come_back_to_their_ranks(tmp_path, ranks):
    ranks(3, device="cpu")
    a, path = table(), tmp_path / "checkpoint"
    synk.scatter(a, ROWS[:4])
    synk.all_to_all(a)
    lengths, whole = synk.get_lengths(a), synk.gather(a, nd_up=0)
    assert lengths == [3, 1, 0]
    checkpoint.save(path, a)
    synk.broadcast(a, ROWS)
    checkpoint.load(path, a)
    assert synk.get_lengths(a) == lengths
    assert synk.gather(a, nd_up=0).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pytensor.shared(np.zeros((0, 3)), name="table"), r"\(7, 2\) was saved"),
        (lambda: pytensor.shared(np.zeros((0, 2), "float32"), name="table"), "float64 .* was saved"),
        (lambda: pytensor.shared(np.zeros(2), name="table"), r"\(7, 2\) was saved"),
        (lambda: pytensor.shared(np.random.default_rng(1), name="table"), "PCG64 generator"),
        (lambda: pytensor.shared(np.zeros((7, 2)), name="table", shape=(7, 2)), "7 rows by its type"),
    ],
)
def test_rows_are_loaded_into_a_variable_that_can_have_them(tmp_path, ranks, make, message):
    ranks(2, device="cpu")
    a, path = table(), tmp_path / "checkpoint"
    synk.scatter(a, ROWS)
    checkpoint.save(path, a)
    with pytest.raises(ValueError, match=message):
        checkpoint.load(path, make())


@pytest.mark.parametrize(
    "value", [np.arange(3.0), np.asarray(7), slow(np.zeros((0, 2), "float32")), slow(np.ones(1, bool))]
)
def test_what_was_set_on_one_rank_comes_back_to_it(tmp_path, ranks, value):
    ranks(3, device="cpu")
    v, path = pytensor.shared(np.zeros_like(value), name="v"), tmp_path / "checkpoint"
    synk.set_value(1, v, value)
    if value.ndim:
        synk.set_value(2, v, value[:1])  # as many rows as no other has, mostly
    expected = [synk.get_value(rank, v).tolist() for rank in range(3)]
    checkpoint.save(path, v)
    synk.broadcast(v)
    checkpoint.load(path, v)
    assert [synk.get_value(rank, v).tolist() for rank in range(3)] == expected


def test_what_the_script_set_on_rank_0_is_not_taken_for_all(tmp_path, ranks):
    ranks(2, device="cpu")
    v, path = pytensor.shared(1.0, name="v"), tmp_path / "checkpoint"
    synk.broadcast(v)
    with pytest.warns(synk.SynkWarning, match="changed rank 0 only"):
        v.set_value(2.0)
    checkpoint.save(path, v)
    checkpoint.load(path, v)
    assert synk.gather(v).tolist() == [2, 1]
    synk.close()
    with pytest.raises(ValueError, match="'v' is per rank: 2 had"):
        checkpoint.load(path, v)


def test_values_that_ended_with_the_run_are_not_saved_as_if_they_were_all(tmp_path, ranks):
    ranks(2, device="cpu")
    a, w = table(), pytensor.shared(1.0, name="w")
    synk.scatter(a, ROWS)
    synk.broadcast(w)
    synk.close()
    path = tmp_path / "checkpoint"
    with pytest.raises(ValueError, match="'table' is per rank since synk.scatter, and .* before synk.close"):
        checkpoint.save(path, [a, w])
    assert os.listdir(tmp_path) == []
    a.set_value(ROWS)
    checkpoint.save(path, [a, w])
    assert synk.per_rank(a) is None


@pytest.mark.one_machine(reason="kills a worker by its pid")
def test_rows_of_a_worker_that_died_are_not_passed_over(tmp_path, ranks):
    ranks(2, device="cpu")
    a, w, path = table(), pytensor.shared(1.0, name="w"), tmp_path / "checkpoint"
    synk.scatter(a, ROWS)
    synk.broadcast(w)
    os.kill(synk.pids()[1], signal.SIGKILL)
    with pytest.raises(synk.WorkerDied) as died:
        checkpoint.save(path, [a, w])
    assert "'table' is per rank since synk.scatter; the other variables can be saved" in died.value.__notes__
    checkpoint.save(path, w)


def test_a_variable_may_be_called_like_the_value_of_a_rank(tmp_path, ranks):
    ranks(2, device="cpu")
    g = pytensor.shared(np.random.default_rng(5), name="g")
    named = [g, pytensor.shared(np.ones(2), name="rank 1/g"), pytensor.shared(np.asarray(3), name="rank 2/g")]
    synk.scatter(named[1], np.arange(3.0))
    synk.get_value(0, named)
    path = tmp_path / "checkpoint"
    checkpoint.save(path, named)
    synk.broadcast(named[1:], [np.zeros(2), 0])
    checkpoint.load(path, named)
    assert synk.gather(named[1], nd_up=0).tolist() == [0, 1, 2]
    assert synk.gather(named[2]).tolist() == [3, 3]
    drawn = [synk.get_value(rank, g).random() for rank in range(2)]
    assert drawn == [np.random.Generator(np.random.PCG64(5).jumped(rank)).random() for rank in range(2)]


# --- plain values ----------------------------------------------------------------------------------------


def test_plain_values_come_back(tmp_path):
    path, v = tmp_path / "checkpoint", pytensor.shared(1.0, name="v")
    shuffling = np.random.default_rng(3)
    values = {"epoch": 3, "best": 0.1, "losses": [1.5, None], "order": shuffling.bit_generator.state}
    checkpoint.save(path, v, values)
    assert checkpoint.load(path, v) == values
    checkpoint.save(path, v)
    assert checkpoint.load(path, v) == {}


def test_names_of_values_and_variables_are_not_mixed(tmp_path):
    path, v = tmp_path / "checkpoint", pytensor.shared(1.0, name="v")
    with pytest.raises(ValueError, match=r"\['v'\] name variables as well as values"):
        checkpoint.save(path, v, {"v": 1})
    assert os.listdir(tmp_path) == []
    checkpoint.save(path, {}, {"v": 1})
    with pytest.raises(ValueError, match="'v' is an array .*, but a plain value was saved"):
        checkpoint.load(path, v)


# --- files of others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "folder", "/dev/zero"])
def test_only_regular_files_are_loaded(tmp_path, kind):
    path = tmp_path / kind  # of a device: itself
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(checkpoint.CheckpointCorrupt, match="not a regular file"):
        checkpoint.load(path, {})


def test_an_error_stays_short_whatever_the_file_says(tmp_path):
    names = {f"{number:01000}": {"dtype": "<f8", "shape": [0]} for number in range(1000)}
    path = forge(tmp_path / "forged", names)
    with pytest.raises(checkpoint.CheckpointNames, match="and 990 more; pass") as caught:
        checkpoint.load(path, {})
    assert len(str(caught.value)) < 3000


def test_a_position_outside_of_the_generator_s_buffer_changes_nothing(tmp_path):
    state = np.random.MT19937(1).state
    state["state"]["pos"] = 10**6
    path, rng = (
        forge(tmp_path / "forged", {"rng": {"state": state}}),
        np.random.Generator(np.random.MT19937(2)),
    )
    before = rng.bit_generator.state["state"]["pos"]
    with pytest.raises(checkpoint.CheckpointCorrupt, match="pos is 1000000, not a number from 0 to 624"):
        checkpoint.load(path, {"rng": pytensor.shared(rng, borrow=True)})
    assert rng.bit_generator.state["state"]["pos"] == before


def test_a_sparse_file_of_a_terabyte_is_refused_at_once(tmp_path):
    path = forge(tmp_path / "forged", {"v": {"dtype": "<f8", "shape": [2**37]}})
    os.truncate(path, path.stat().st_size + 2**40)
    with pytest.raises(ValueError, match="137438953472"):
        checkpoint.load(path, pytensor.shared(np.zeros(3), name="v"))


# Positions are looked at before a bit generator gets them: it would read memory there.


def mt19937(position):
    state = np.random.MT19937(1).state
    state["state"]["pos"] = position
    return state


def philox(position):
    return {**np.random.Philox(1).state, "buffer_pos": position}


@pytest.mark.parametrize(("state_at", "first", "last"), [(mt19937, 0, 624), (philox, 1, 4)])
def test_positions_in_the_buffer_are_taken(state_at, first, last):  # some NumPys refuse Philox's 0 themselves
    for position in (first, last):
        state = state_at(position)
        like = getattr(np.random, state["bit_generator"])()
        assert 0 <= generator_of(state, like).random() < 1


@pytest.mark.parametrize(("state_at", "last"), [(mt19937, 624), (philox, 4)])
@pytest.mark.parametrize("position", [-1, "beyond", 2**31 - 1, -(2**31), 2**70, 1.5, True, None, "0"])
def test_positions_outside_are_refused(state_at, last, position):
    state = state_at(last + 1 if position == "beyond" else position)
    like = getattr(np.random, state["bit_generator"])()
    with pytest.raises(ValueError, match=f"not a number from 0 to {last}"):
        generator_of(state, like)


def test_a_state_without_a_position_is_refused():
    state = np.random.MT19937(1).state
    del state["state"]["pos"]
    with pytest.raises(KeyError):
        generator_of(state, np.random.MT19937())


def changed(kind, **entries):
    state = kind(1).state
    inner = state["state"]
    inner.update({key: value for key, value in entries.items() if key in inner})
    state.update({key: value for key, value in entries.items() if key in state})
    return state


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        (np.random.MT19937, {"key": [0] * 624}),
        (np.random.MT19937, {"key": [1] * 700}),
        (np.random.MT19937, {"key": [1.5] * 624}),
        (np.random.Philox, {"buffer": [1] * 9}),
        (np.random.PCG64, {"has_uint32": 77}),
        (np.random.PCG64, {"has_uint32": -5}),
        (np.random.PCG64, {"inc": 2}),
    ],
)
def test_what_no_generator_gives_is_refused(kind, entries):
    with pytest.raises((ValueError, TypeError)):
        generator_of(changed(kind, **entries), like=kind(1))


def test_random_states_alone_are_loaded_by_the_first_command(ranks, tmp_path):
    state = pytensor.shared(np.random.default_rng(3), name="state")
    checkpoint.save(tmp_path / "file", [state])
    ranks(2)
    checkpoint.load(tmp_path / "file", [state])
    assert synk.get_value(0, state).random() == np.random.default_rng(3).random()
