"""The lines that a training prints around those of `fit`."""

import re

import pytest

from support.processes.demo_scripts import DEMOS, modules_beside

pytest.importorskip("rich")


@pytest.fixture
def report():
    for load in modules_beside(DEMOS / "mnist" / "train_mnist.py"):
        yield load("report")


class Begun:
    """A training after so many steps."""

    def __init__(self, steps):
        self.history = type("History", (), {"steps": steps})


@pytest.mark.parametrize(("steps", "more"), [(0, []), (80, ["going on after 80 steps"])])
def test_lines_tell_how_a_training_begins(report, capsys, steps, more):
    running = report.Report("A network")
    running.on_train_begin(Begun(steps))
    for _ in range(3):
        running.on_step_end(Begun(steps + 1))
    lines = [re.sub(r"\d+\.\d s", "some s", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == ["A network", *more, "compiling", "first step done some s after the start"]


def test_results_are_a_table_and_a_plain_line(report, capsys):
    from synk.extensions.fit import History

    history = History()
    history.epochs = [{"loss": 0.5, "val_loss": 0.25, "val_accuracy": 0.9, "rows_per_second": 1234.56}]
    report.finish(history)
    *table, plain = capsys.readouterr().out.splitlines()
    assert plain == "test accuracy 90.00 %"
    rows = ("test loss +│ +0.2500", "training loss +│ +0.5000", "epochs +│ +1 ", "speed +│ +1,234.6 images/s")
    for row in rows:
        assert any(re.search(row, line) for line in table), row


def test_another_score_may_stand_in_its_place(report, capsys):
    from synk.extensions.fit import History

    history = History()
    history.epochs = [{"loss": 0.5, "val_loss": 0.25, "val_dice": 0.95, "rows_per_second": 10.0}]
    report.finish(history, report.Score("dice", "validation Dice", "{:.4f}", "max"))
    *table, plain = capsys.readouterr().out.splitlines()
    assert plain == "validation Dice 0.9500"
    assert any(re.search("validation Dice +│ +0.9500", line) for line in table)
