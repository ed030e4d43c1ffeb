import threading
import time

import pytest

import synk
from support.cases.fitting import N_ROWS, anew, make, numbers
from synk.extensions.fit import fit
from synk.extensions.fit.feeds import feed
from synk.extensions.fit.prefetch import prefetched


@pytest.mark.slow
def test_a_function_of_rows_feeds_the_same_batches_as_arrays(ranks):
    ranks(2)
    found = []
    for shuffle in (True, False):
        case = make()
        x, y = case.data
        kinds = [
            {"data": {"y": y, "x": x}},
            {"data": lambda rows, x=x, y=y: (x[rows], y[rows]), "n_rows": N_ROWS},
            {"data": lambda rows, x=x, y=y: {"x": x[rows], "y": y[rows]}, "n_rows": N_ROWS},
        ]
        for kind in kinds:
            case = make()
            history = fit(case.step, epochs=2, batch_size=10, seed=1, shuffle=shuffle, progress=False, **kind)
            found.append(numbers(history))
    assert found[0] == found[1] == found[2] != found[3] == found[4] == found[5]


@pytest.fixture(scope="module")
def still(module_ranks):
    """A training that learns nothing: so losses of batches are those of one model."""
    return make(learning_rate=0.0)


@pytest.mark.parametrize("kind", ["tuples", "dicts", "batches of Data"])
def test_losses_of_uneven_batches_are_averaged_over_rows(still, kind):
    x, y = still.data
    cuts = [slice(0, 5), slice(5, N_ROWS)]
    stored = still.step.build_inputs(x, y)
    made = {
        "tuples": [(x[cut], y[cut]) for cut in cuts],
        "dicts": [{"y": y[cut], "x": x[cut]} for cut in cuts],
        "batches of Data": [
            {"x": stored[0], "y": stored[1], "batch": list(range(N_ROWS)[cut]) if at else cut}
            for at, cut in enumerate(cuts)
        ],
    }[kind]
    history = fit(still.step, lambda epoch: made, epochs=1, progress=False)
    assert history["loss"] == [pytest.approx((y**2).mean())]


def test_batches_without_rows_count_nothing(still):
    x, y = still.data
    history = fit(still.step, lambda epoch: [(x, y), (x[:0], y[:0])], epochs=1, progress=False)
    assert history["loss"] == [pytest.approx((y**2).mean())]


def test_batches_of_a_function_of_the_epoch_and_of_an_iterable(case):
    x, y = case.data
    pieces = [(x[:20], y[:20]), (x[20:], y[20:])]
    first = fit(case.step, lambda epoch: iter(pieces), epochs=2, progress=False)

    class Again:
        def __iter__(self):
            return iter(pieces)

    second = fit(anew(case).step, Again(), epochs=2, progress=False)
    third = fit(anew(case).step, case.data, epochs=2, batch_size=20, shuffle=False, progress=False)
    assert numbers(first) == numbers(second)
    assert first.steps == 4
    assert third.steps == 6
    assert first.epochs[0]["loss"] != third.epochs[0]["loss"]


def test_random_numbers_of_augmentation_depend_on_the_batch_alone(case):
    drawn = {}

    def augmented(rows, rng):
        drawn.setdefault(epoch, []).append(rng.random())
        return case.data[0][rows], case.data[1][rows]

    made = feed(case.step, augmented, batch_size=10, n_rows=N_ROWS)
    for epoch in (0, 1):
        assert len(list(made.batches(epoch))) == made.n_steps == 5
    of_two = drawn.copy()
    drawn.clear()
    epoch = 1
    list(made.batches(1, start=3))
    assert drawn[1] == of_two[1][3:]
    assert len({*of_two[0], *of_two[1]}) == 10


def test_an_epoch_begins_where_it_is_told(case):
    for made in (
        feed(case.step, case.data, batch_size=10),
        feed(case.step, lambda rows: rows, batch_size=10, n_rows=N_ROWS),
    ):
        whole, rest = [list(made.batches(2, start)) for start in (0, 2)]
        assert sum(n_rows for _, _, n_rows in whole) == N_ROWS
        assert str(whole[2:]) == str(rest)
        assert list(made.batches(2, 5)) == []


# --- prefetching -----------------------------------------------------------------------------------------


def test_items_are_made_ahead_in_one_thread():
    made, threads = [], set()

    def items():
        for number in range(6):
            threads.add(threading.current_thread())
            made.append(number)
            yield number

    ahead = prefetched(items())
    assert next(ahead) == 0
    for _ in range(100):
        if len(made) == 3:
            break
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2]  # the one that was taken, and two ahead
    assert list(ahead) == [1, 2, 3, 4, 5]
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_an_error_comes_where_its_item_would_have_come():
    def items():
        yield 1
        raise KeyError("mine")

    ahead = prefetched(items())
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="mine"):
        next(ahead)


def test_a_thread_that_does_not_end_is_told(monkeypatch):
    monkeypatch.setattr("synk.extensions.fit.prefetch.JOIN_SECONDS", 0.01)
    go_on = threading.Event()

    def items():
        yield 1
        go_on.wait(10)
        yield 2

    ahead = prefetched(items())
    next(ahead)
    with pytest.warns(synk.SynkWarning, match=r"has not returned within 0\.01 s"):
        ahead.close()
    go_on.set()


def test_the_thread_ends_with_who_reads():
    before = threading.active_count()
    ahead = prefetched(iter(int, 1))
    next(ahead)
    assert threading.active_count() == before + 1
    ahead.close()
    assert threading.active_count() == before
