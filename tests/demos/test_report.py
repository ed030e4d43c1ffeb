"""The lines that a training run prints while it goes."""

import re

import pytest

from support.processes.demo_scripts import DEMOS, modules_beside

pytest.importorskip("rich")


@pytest.fixture
def report():
    for load in modules_beside(DEMOS / "mnist" / "train_mnist.py"):
        yield load("report")


def lines_of(report, capsys):
    with report.Report("A network", n_epochs=1, n_rows=6) as running:
        for _ in range(3):
            running.step(0.5, n_rows=2)
        running.epoch(0.25, 1.0)
    return [re.sub(r"\d+\.\d s", "some s", line) for line in capsys.readouterr().out.splitlines()]


EPOCH = "epoch   1 of 1   loss 0.5000   test loss 0.2500   test accuracy 100.00 %"


def test_without_a_terminal_lines_tell_how_it_goes(report, capsys, monkeypatch):
    monkeypatch.setattr(report, "QUIET_SECONDS", 0)
    assert lines_of(report, capsys)[:6] == [
        "A network",
        "compiling",
        "first step done some s after the start",
        "epoch   1: 4 images, loss 0.5000",
        "epoch   1: 6 images, loss 0.5000",
        EPOCH,
    ]


def test_quick_steps_are_not_told_one_by_one(report, capsys):
    assert lines_of(report, capsys)[2:4] == ["first step done some s after the start", EPOCH]
