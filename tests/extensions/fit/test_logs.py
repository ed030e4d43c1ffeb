"""Logs of a training: lines of CSV and JSON, and what TensorBoard reads."""

import csv
import json
import sys

import numpy as np
import pytest

from support.cases.fitting import Pretends, anew, fitted
from synk.extensions.fit import (
    Callback,
    Checkpoints,
    CSVLog,
    JSONLog,
    TensorBoard,
)

N_RANKS = 1


def test_logs_have_a_line_for_every_epoch_and_take_back_what_was_after_a_checkpoint(case, tmp_path):
    def run(name, *others, **options):
        csv_log, json_log = CSVLog(tmp_path / f"{name}.csv"), JSONLog(tmp_path / f"{name}.jsonl", every=2)
        fitted(anew(case), csv_log, json_log, *others, epochs=4, **options)
        lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        with open(tmp_path / f"{name}.csv") as file:
            rows = list(csv.DictReader(file))
        for line in [*lines, *rows]:
            line.pop("seconds", None)
            line.pop("rows_per_second", None)
        return lines, rows

    lines, rows = run("whole")
    assert [line["step"] for line in lines if "step" in line] == list(range(2, 21, 2))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["val_loss"]) for row in rows] == [
        line["val_loss"] for line in lines if "val_loss" in line
    ]

    class Dies(Callback):
        def on_epoch_end(self, training):
            if training.epoch == 2:
                raise RuntimeError

    with pytest.raises(RuntimeError):  # after its line of epoch 2, before its checkpoint
        run("part", Dies(), Checkpoints(tmp_path / "saved"))
    assert len((tmp_path / "part.csv").read_text().splitlines()) == 4
    for name in ("part.csv", "part.jsonl"):  # and much more
        assert len((tmp_path / name).read_text().splitlines()) >= 4
        (tmp_path / name).write_text((tmp_path / name).read_text() + "{}\n" * 1000)
    assert run("part", Checkpoints(tmp_path / "saved"), resume=tmp_path / "saved") == (lines, rows)
    assert run("part") == (lines, rows)  # which begins anew


def test_a_log_of_before_stays_where_a_training_is_refused(case, tmp_path):
    logs = [CSVLog(tmp_path / "log.csv"), JSONLog(tmp_path / "log.jsonl")]
    fitted(anew(case), *logs, Checkpoints(tmp_path / "saved"))
    before = [path.read_text() for path in sorted(tmp_path.glob("log*"))]
    with pytest.raises(ValueError, match="later step"):
        fitted(anew(case), *logs, Checkpoints(tmp_path / "saved"))
    assert [path.read_text() for path in sorted(tmp_path.glob("log*"))] == before


def test_a_table_has_the_columns_of_all_epochs_and_json_only_its_own_numbers(case, tmp_path):
    saved, path = tmp_path / "saved", tmp_path / "log.csv"
    fitted(anew(case), CSVLog(path), Checkpoints(saved), epochs=1, validation=None)
    log = JSONLog(tmp_path / "log.jsonl")
    fitted(anew(case), Pretends(0, np.nan), CSVLog(path), log, Checkpoints(saved), epochs=2, resume=saved)
    with open(path) as file:
        first, second = csv.DictReader(file)
    assert first["val_output_1"] == ""
    assert float(second["val_output_1"]) > 0
    assert json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=pytest.fail)["val_loss"] is None


@pytest.mark.parametrize("kind", [CSVLog, JSONLog])
@pytest.mark.parametrize("path", ["", "missing/log"], ids=["a folder", "in no folder"])
def test_a_log_that_cannot_be_written_is_told_before_the_first_step(case, tmp_path, kind, path):
    with pytest.raises(OSError, match="folder"):
        fitted(case, kind(tmp_path / path))


@pytest.mark.slow
def test_tensorboard_reads_the_numbers(case, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board, saved = tmp_path / "board", tmp_path / "saved"

    class Dies(Callback):
        def on_step_end(self, training):
            if training.history.steps == 13:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fitted(anew(case), TensorBoard(board), Dies(), Checkpoints(saved))
    history = fitted(anew(case), TensorBoard(board, every=3), Checkpoints(saved), resume=saved)
    read = accumulators.EventAccumulator(str(board))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["epoch/loss", "epoch/val_loss", "epoch/val_output_1", "loss"]
    epochs = read.Scalars("epoch/val_loss")
    assert [event.step for event in epochs] == [5, 10, 15]
    assert [event.value for event in epochs] == pytest.approx(history["val_loss"])
    # Of the first run, those before its last checkpoint; then of the second.
    assert [event.step for event in read.Scalars("loss")] == [*range(1, 11), 12, 15]


def test_a_missing_tensorboard_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(
        ImportError, match=r"tensorboard is not installed. Use pip install 'synk-pytensor\[tensorboard\]'"
    ):
        TensorBoard("folder")
