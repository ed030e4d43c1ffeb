"""The course of a training, as a notebook shows it."""

import re

from synk.extensions.fit import History


def test_a_notebook_shows_a_table_of_all_epochs():
    history = History()
    history.epochs = [
        {"epoch": 0, "loss": 0.123456, "seconds": 1.0, "rows_per_second": 100.0},
        {"epoch": 1, "loss": 0.05, "a<b": 3, "seconds": 1.0, "rows_per_second": 1234567.0},
    ]
    history.steps, history.stopped = 20, "loss < 0.1"
    shown = history._repr_html_()
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", shown)]
    assert rows == [
        ["epoch", "loss", "a&lt;b", "seconds", "rows_per_second"],
        ["0", "0.1235", "", "1", "100"],
        ["1", "0.05", "3", "1", "1.235e+06"],
    ]
    assert "<caption>2 epochs, 20 steps; stopped: loss &lt; 0.1</caption>" in shown
