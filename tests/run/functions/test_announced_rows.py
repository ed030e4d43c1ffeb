"""Rows that were announced are there for the next call, if that reads just these of unchanged Data."""

import numpy as np
import pytest

from synk.run.arrays.data import Data
from synk.run.functions.announced_rows import AnnouncedRows
from synk.run.functions.selections import Selection
from synk.values.messages import ArrayRef
from synk.values.rows import SelectedRows


class KeptData(Data):
    """Data that no run has."""

    minibatch, changes = False, 0

    def __init__(self):
        pass

    def ref(self):
        return ArrayRef(1, "<f8", (6, 2))


def rows(*listed):
    return SelectedRows(0, len(listed), np.array(listed))


def taken(announced, data, batch, following=None):
    return announced.take([data], Selection(batch, None, following))


@pytest.fixture
def data():
    return KeptData()


@pytest.fixture
def announced(data):
    made = AnnouncedRows()
    assert taken(made, data, rows(0, 1), following=rows(4, 2)) == 0
    return made


def test_announced_rows_are_taken_once(announced, data):
    assert taken(announced, data, rows(4, 2)) == announced.token == 1
    assert taken(announced, data, rows(4, 2)) == 0


def test_each_announcement_has_a_token_of_its_own(announced, data):
    assert taken(announced, data, rows(4, 2), following=rows(3, 5)) == 1
    assert taken(announced, data, rows(3, 5)) == 2


def test_other_rows_are_gathered_anew(announced, data):
    assert taken(announced, data, rows(2, 4)) == 0


def test_rows_of_data_that_may_have_changed_are_gathered_anew(announced, data):
    data.changes = 1
    assert taken(announced, data, rows(4, 2)) == 0


def test_rows_that_the_ranks_do_not_have_any_more_are_gathered_anew(announced, data):
    announced.forget()
    assert taken(announced, data, rows(4, 2)) == 0
