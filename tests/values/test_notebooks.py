"""What a notebook shows as HTML, a script prints."""

import sys
from types import SimpleNamespace

import pytest

from support.notebook import Kernel
from synk.values.notebooks import Area, in_notebook, preformatted


def test_a_kernel_is_a_notebook_and_a_terminal_is_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    for shell in (None, SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert not in_notebook()
    Kernel(monkeypatch)
    assert in_notebook()


def test_an_area_changes_in_its_place(monkeypatch):
    kernel = Kernel(monkeypatch)
    area = Area("a < b")
    area.update("c", "<b>c</b>")
    assert kernel.areas == [
        [
            {"text/plain": "a < b", "text/html": preformatted("a < b")},
            {"text/plain": "c", "text/html": "<b>c</b>"},
        ]
    ]
    assert "a &lt; b" in preformatted("a < b")


def test_the_topology_is_shown_or_printed(monkeypatch, ranks, capsys):
    synk = pytest.importorskip("synk")
    ranks(2)
    synk.topology()
    printed = capsys.readouterr().out
    kernel = Kernel(monkeypatch)
    synk.topology()
    synk.topology(sys.stdout)
    assert capsys.readouterr().out == printed
    assert [shown[-1]["text/plain"] + "\n" for shown in kernel.areas] == [printed]
