"""Losses against formulas in NumPy, their gradients against differences of these; no run is open."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.special import expit, log_softmax

from support.cases.losses import (
    CASES,
    LABELS,
    LOGITS,
    MASKS,
    VALUES,
    WEIGHTS,
    binary,
    by_row,
    compiled,
    labels,
    p,
    w,
    y,
    z,
)
from synk.extensions import losses


@pytest.mark.parametrize("case", CASES)
def test_losses_follow_their_formulas(case):
    graph, formula = CASES[case]
    loss, gradient = compiled([graph, pytensor.grad(graph, z)])(*VALUES)
    np.testing.assert_allclose(loss, formula(*VALUES), rtol=1e-12)
    assert loss.ndim == 0
    for place in [(0, 0, 0, 0), (2, 1, 3, 1), (4, 2, 1, 0), (6, 1, 2, 1)]:
        step = np.zeros_like(LOGITS)
        step[place] = 1e-5
        slope = (formula(LOGITS + step, *VALUES[1:]) - formula(LOGITS - step, *VALUES[1:])) / 2e-5
        np.testing.assert_allclose(gradient[place], slope, rtol=1e-6, atol=1e-9)


def test_losses_of_elements_are_not_reduced():
    got = compiled(
        [
            losses.binary_cross_entropy(z, y, weights=w, reduction=None),
            losses.cross_entropy(z, labels, ignored=255, weights=w, reduction=None),
        ]
    )(*VALUES)
    np.testing.assert_allclose(got[0], by_row(WEIGHTS, LOGITS) * binary(LOGITS, MASKS), rtol=1e-12)
    log_p = log_softmax(LOGITS, axis=1)
    picked = -np.take_along_axis(log_p, (LABELS % 255)[:, None], axis=1)[:, 0]
    wanted = np.where(LABELS == 255, 0, by_row(WEIGHTS, picked) * picked)
    np.testing.assert_allclose(got[1], wanted, rtol=1e-12, atol=1e-15)


def test_where_nothing_counts_the_loss_is_zero_and_so_is_its_gradient():
    empty = np.full_like(LABELS, 255)
    for graph in (
        losses.cross_entropy(z, labels, ignored=255),
        losses.huber(z, y, weights=w),
        losses.dice(0 * p, y, smooth=0),
        losses.dice(0 * p, y, per="image", smooth=0, weights=w),
    ):
        loss, gradient = compiled([graph, pytensor.grad(graph, z)])(LOGITS, 0 * MASKS, empty, 0 * WEIGHTS)
        assert loss == 0
        assert (gradient == 0).all()


def test_dice_of_an_empty_mask_is_as_defined():
    some = expit(LOGITS)
    for smooth in (0, 1, 10.0):
        loss = compiled(losses.dice(p, y, smooth=smooth))(LOGITS, 0 * MASKS, LABELS, WEIGHTS)
        np.testing.assert_allclose(loss, 1 - smooth / (some.sum() + smooth), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_logits_neither_overflow_nor_vanish(dtype):
    z, y, labels = pt.matrix("z", dtype=dtype), pt.matrix("y", dtype="bool"), pt.lvector("labels")
    graphs = [
        losses.binary_cross_entropy(z, y, positive_weight=2.0),
        losses.focal(z, y, gamma=0.5),
        losses.cross_entropy(z, labels, label_smoothing=0.5),
    ]
    value = np.array([[1e4, -1e4], [-1e4, 1e4]], dtype)
    f = compiled([part for one in graphs for part in (one, pytensor.grad(one, z))], [z, y, labels])
    found = f(value, [[True, True], [False, True]], [0, 0])
    # Of four answers, one yes is taken for a no; of two rows, one label is the wrong class.
    np.testing.assert_allclose(found[0], 2 * 1e4 / 4, rtol=1e-6)
    np.testing.assert_allclose(found[2], 1e4 / 4, rtol=1e-6)
    np.testing.assert_allclose(found[4], (0.5 * 0.0 + 0.5 * 1e4 + 0.5 * 2e4 + 0.5 * 1e4) / 2, rtol=1e-6)
    for array in found:
        assert array.dtype == dtype
        assert np.isfinite(array).all()


def test_a_label_that_is_no_class_is_refused():
    with pytest.raises(IndexError):
        compiled(losses.cross_entropy(z, labels))(LOGITS, MASKS, LABELS, WEIGHTS)


def test_a_length_that_is_not_known_is_checked_when_the_function_runs():
    one = pt.tensor("one", shape=(None, 1), dtype="float64")
    other = pt.dmatrix("other")
    f = compiled(losses.huber(one, other), [one, other])
    with pytest.raises(AssertionError):
        f(np.ones((2, 1)), np.ones((2, 3)))


@pytest.mark.parametrize("dtype", ["uint8", "uint64"])
def test_labels_keep_their_dtype_where_some_are_ignored(dtype):
    logits, k = pt.dmatrix("logits"), pt.vector("k", dtype=dtype)
    f = compiled(losses.cross_entropy(logits, k, ignored=255), [logits, k])
    assert f(np.zeros((3, 2)), np.array([0, 255, 1], dtype)) == pytest.approx(np.log(2))


def test_labels_of_other_pixels_are_refused_when_the_function_runs():
    logits, k = pt.tensor4("logits"), pt.tensor("k", dtype="int64", shape=(None, None, None))
    f = compiled(losses.cross_entropy(logits, k), [logits, k])
    assert f(np.zeros((4, 3, 2, 5)), np.zeros((4, 2, 5), int)) == pytest.approx(np.log(3))
    with pytest.raises(ValueError, match="cross_entropy: the labels have other lengths than the logits"):
        f(np.zeros((4, 3, 2, 5)), np.zeros((4, 5, 2), int))


@pytest.mark.parametrize("n", [2, 5])
def test_class_weights_are_counted_when_the_function_runs(n):
    logits, k, c = pt.dmatrix("logits"), pt.lvector("k"), pt.dvector("c")
    f = compiled(losses.cross_entropy(logits, k, class_weights=c), [logits, k, c])
    assert f(np.zeros((4, 3)), [0, 1, 0, 1], np.ones(3)) == pytest.approx(np.log(3))
    with pytest.raises(ValueError, match="class_weights are not as many as classes"):
        f(np.zeros((4, 3)), [0, 1, 0, 1], np.ones(n))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: losses.dice(y, y), TypeError, "dice: probabilities are int64; pass floats"),
        (lambda: losses.dice(p, labels), ValueError, r"dice: probabilities have shape \(None, .*, targets"),
        (lambda: losses.dice(p, y, per="row"), ValueError, "dice: per='row' is neither"),
        (lambda: losses.dice(w, w, per_channel=True), ValueError, "per_channel=True needs axis 1"),
        (lambda: losses.dice(p, y, smooth=-1), ValueError, "dice: smooth=-1 is not between 0"),
        (lambda: losses.huber(z, y, delta=0), ValueError, "huber: delta=0 is not between 0"),
        (lambda: losses.huber(z, y, delta="1"), TypeError, "huber: delta='1' is no number"),
        (lambda: losses.huber(z, y, reduction="avg"), ValueError, "huber: reduction='avg' is none of"),
        (lambda: losses.focal(z, y, alpha=2), ValueError, "focal: alpha=2 is not between 0 and 1"),
        (lambda: losses.huber(w, w, weights=z), ValueError, "huber: weights have 4 axes, the losses 1"),
        (lambda: losses.huber(w, w, weights=2.0), ValueError, "huber: weights have 0 axes"),
        (lambda: losses.cross_entropy(z, y), ValueError, "cross_entropy: logits have shape"),
        (lambda: losses.cross_entropy(z, labels, ignored=2.5), TypeError, "ignored=2.5 is no integer"),
        (lambda: losses.cross_entropy(z, z[:, 0]), TypeError, "cross_entropy: labels are float64; pass int"),
        (
            lambda: losses.cross_entropy(pt.ones((2, 3)), pt.ones(2, dtype="int64"), class_weights=[1, 2]),
            ValueError,
            r"class_weights have shape \(2,\), the logits 3 classes",
        ),
        (
            lambda: losses.huber(pt.ones((2, 3)), pt.ones((2, 1))),
            ValueError,
            r"huber: predictions have shape \(2, 3\), targets \(2, 1\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(make, error, said):
    with pytest.raises(error, match=said):
        make()
