"""The picture of how training went."""

from types import SimpleNamespace

import numpy as np
import pytest

from support.processes.demo_scripts import DEMOS, modules_beside

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

ACCURACIES = {
    "rising": np.linspace(20, 92, 4),
    "falling": np.linspace(92, 20, 8),
    "level": 95 * (1 - np.exp(-np.arange(60.0))),
    "one epoch": [50.0],
}


@pytest.fixture
def curve():
    for load in modules_beside(DEMOS / "mnist" / "train_mnist.py"):
        yield load("curve")


def report(accuracies):
    losses = np.exp(-np.arange(len(accuracies)) / 3)
    steps = [loss * np.linspace(1.2, 0.9, 9) for loss in losses]
    return SimpleNamespace(
        title="A network",
        n_epochs=len(losses),
        step_losses=steps,
        train_losses=losses,
        test_losses=losses,
        accuracies=accuracies,
    )


@pytest.mark.leaks("descriptors", reason="matplotlib keeps its fonts open")
@pytest.mark.parametrize("accuracies", ACCURACIES.values(), ids=ACCURACIES)
def test_no_text_lies_over_a_line(curve, accuracies, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    curve.draw(tmp_path / "curve.png", report(accuracies))
    figure = drawn[0]
    figure.draw_without_rendering()
    for axes in figure.axes:
        texts = [*axes.texts, *figure.legends, *([axes.legend_] if axes.legend_ else [])]
        for text in texts:
            extent = text.get_window_extent()
            assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
            for line in axes.lines:
                path = line.get_transform().transform_path(line.get_path())
                assert not path.intersects_bbox(extent, filled=False), (text, line)
