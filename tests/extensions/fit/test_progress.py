"""What shows how a training goes in a notebook; tests of fit have the bar of a terminal and the lines."""

import re

from support.notebook import Kernel
from synk.extensions.fit import fit, progress


def test_a_notebook_shows_a_bar_in_one_place_and_keeps_the_lines(case, monkeypatch, capsys):
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    kernel = Kernel(monkeypatch)
    history = fit(case.step, case.data, epochs=2, batch_size=10)
    assert capsys.readouterr().out == ""
    (shown,) = kernel.areas
    pages = [bundle["text/html"] for bundle in shown]
    bars = [found.groups() for found in re.finditer(r'<progress value="(\d+)" max="(\d+)">', "".join(pages))]
    assert bars == [(str(step), "5") for step in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5)]
    assert "epoch 2/2  step 3/5  loss " in shown[-4]["text/plain"]
    assert "epoch 1/2  loss " in shown[-4]["text/html"]  # above the bar
    assert "<progress" not in pages[-1]
    lines = shown[-1]["text/plain"].splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert f"loss {history['loss'][1]:.4g}" in lines[1]


def test_without_progress_a_notebook_shows_nothing(case, monkeypatch):
    kernel = Kernel(monkeypatch)
    fit(case.step, case.data, epochs=1, batch_size=10, progress=False)
    assert kernel.areas == []


def test_the_number_of_steps_need_not_be_known(case, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    kernel = Kernel(monkeypatch)
    fit(case.step, lambda epoch: iter([case.data] * 2), epochs=1)
    assert "<progress></progress> epoch 1/1  step 2  loss" in kernel.areas[0][2]["text/html"]
