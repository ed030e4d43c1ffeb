"""The picture of how a training went."""

import sys
from base64 import b64decode

import numpy as np
import pytest

from support.notebook import Kernel
from synk.extensions.fit import History

pytest.importorskip("matplotlib")

ACCURACIES = {
    "rising": np.linspace(0.2, 0.92, 4),
    "falling": np.linspace(0.92, 0.2, 8),
    "level": 0.95 * (1 - np.exp(-np.arange(60.0))),
    "one epoch": [0.5],
}


def history(accuracies, **more):
    made = History()
    for epoch, accuracy in enumerate(accuracies):
        loss = float(np.exp(-epoch / 3))
        made.epochs.append(
            {"epoch": epoch, "loss": loss, "val_loss": 1.2 * loss, "val_accuracy": float(accuracy)}
            | {"seconds": 1.0, "rows_per_second": 9.0, **more}
        )
    return made


@pytest.fixture
def drawn(monkeypatch):
    """Figures, in place of files."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


@pytest.mark.leaks("descriptors", reason="matplotlib keeps its fonts open")
@pytest.mark.parametrize(
    "accuracies",
    [
        pytest.param(ACCURACIES[name], marks=[] if name == "rising" else pytest.mark.slow, id=name)
        for name in ACCURACIES
    ],
)
@pytest.mark.slow
def test_no_text_lies_over_a_line(drawn, accuracies):
    history(accuracies).plot("curve.png", "A network")
    [figure] = drawn
    figure.draw_without_rendering()
    for axes in figure.axes:
        texts = [*axes.texts, *figure.legends]
        for text in texts:
            extent = text.get_window_extent()
            assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
            for line in axes.lines:
                path = line.get_transform().transform_path(line.get_path())
                assert not path.intersects_bbox(extent, filled=False), (text, line)


@pytest.mark.slow
@pytest.mark.leaks("descriptors", reason="matplotlib keeps its fonts open")
def test_each_metric_has_a_panel_and_each_average_its_place(drawn):
    history([0.5, 0.75], gap=0.0).plot("curve.png")
    loss, accuracy, gap = drawn[0].axes
    assert [axes.get_title() for axes in (loss, accuracy, gap)] == ["loss", "accuracy", "gap"]
    assert [line.get_xdata().tolist() for line in loss.lines] == [[0.5, 1.5], [1.0, 2.0]]
    assert accuracy.lines[0].get_ydata().tolist() == [0.5, 0.75]
    assert [axes.get_yscale() for axes in (loss, accuracy, gap)] == ["log", "linear", "linear"]


@pytest.mark.leaks("descriptors", reason="matplotlib keeps its fonts open")
@pytest.mark.parametrize("loss", [-1.0, float("nan")], ids=["a negative loss", "NaN"])
def test_losses_that_have_no_logarithm_are_drawn_too(drawn, loss):
    history([0.5, 0.75], loss=loss).plot("curve.png")
    assert drawn[0].axes[0].get_yscale() == "linear"


@pytest.mark.leaks("descriptors", reason="matplotlib keeps its fonts open")
def test_a_file_is_written(tmp_path):
    history([0.5, 0.75]).plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.leaks("descriptors", reason="matplotlib keeps its fonts open")
def test_a_notebook_shows_the_figure_in_its_cell(monkeypatch):
    kernel = Kernel(monkeypatch)
    history([0.5, 0.75]).plot()
    ((shown,),) = kernel.areas
    assert b64decode(shown["image/png"])[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_script_is_asked_for_a_file():
    with pytest.raises(TypeError, match="this is no notebook"):
        history([0.5]).plot()


def test_a_training_without_an_epoch_has_no_curve(tmp_path):
    with pytest.raises(ValueError, match="no epoch has ended"):
        History().plot(tmp_path / "curve.png")


def test_a_missing_matplotlib_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        ImportError, match=r"matplotlib is not installed. Use pip install 'synk-pytensor\[plot\]'"
    ):
        history([0.5]).plot(tmp_path / "curve.png")
