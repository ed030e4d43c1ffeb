import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.gradient import verify_grad

from support.cases.op_checks import PLAIN, agree, draw, ops_of
from synk.compile import array_mode, debug_mode
from synk.ops import softmax_cross_entropy
from synk.ops.cross_entropy import SoftmaxCrossEntropy, SoftmaxCrossEntropyGradient

MODES = [array_mode(), PLAIN]


def definition(logits, labels):
    powers = np.exp(logits)
    return -np.log(powers[np.arange(len(labels)), labels] / powers.sum(axis=1))


@settings(max_examples=10, deadline=None)
@given(
    rows=st.integers(0, 6),
    classes=st.integers(1, 7),
    dtype=st.sampled_from(["float32", "float64"]),
    kind=st.sampled_from(["int8", "int32", "int64", "uint8"]),
    known=st.booleans(),
    seed=st.integers(0, 99),
)
def test_kernels_agree_with_the_definition(rows, classes, dtype, kind, known, seed):
    logits = pt.tensor("logits", shape=(rows, classes) if known else (None, None), dtype=dtype)
    labels, g = pt.vector("labels", dtype=kind), pt.vector("g", dtype=dtype)
    rng = np.random.default_rng(seed)
    values = [draw((rows, classes), dtype, seed), rng.integers(0, classes, rows).astype(kind)]
    outputs = SoftmaxCrossEntropy()(logits, labels)
    if known:
        assert outputs[0].type.shape == outputs[1].type.shape == (rows,)
    losses, log_sum = agree([logits, labels], outputs, values)
    wide = values[0].astype("float64")
    atol = 2e-6 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(losses, definition(wide, values[1]), rtol=1e-5, atol=atol)
    np.testing.assert_allclose(log_sum, np.log(np.exp(wide).sum(1)), rtol=1e-5, atol=atol)
    gradient = pytensor.grad(None, logits, known_grads={outputs[0]: g})
    (glogits,) = agree([logits, labels, g], [gradient], [*values, draw(rows, dtype, seed + 1)])
    np.testing.assert_allclose(glogits.sum(axis=1), 0, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_is_that_of_finite_differences(mode):
    labels = np.array([2, 0, 3])
    verify_grad(
        lambda logits: softmax_cross_entropy(logits, labels),
        [draw((3, 4))],
        n_tests=1,
        rng=np.random.default_rng(0),
        mode=mode,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_logits_neither_overflow_nor_lose_small_losses(dtype):
    logits, labels = pt.matrix("logits", dtype=dtype), pt.lvector("labels")
    losses = softmax_cross_entropy(logits, labels)
    outputs = [losses, pytensor.grad(losses.sum(), logits)]
    values = np.array([[1e4, 1e4 - 3, 0], [-1e4, 20, 0], [0, -np.inf, 0]], dtype), np.array([0, 1, 2])
    result, gradient = agree([logits, labels], outputs, values)
    np.testing.assert_allclose(
        result, [np.log1p(np.exp(-3)), np.log1p(np.exp(-20)), np.log(2)], rtol=2e-6, atol=1e-9
    )
    share = 1 / (1 + np.exp(3))
    np.testing.assert_allclose(gradient[0], [-share, share, 0], rtol=1e-3)
    np.testing.assert_allclose(gradient[2], [0.5, 0, -0.5], rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("label", "row"), [(3, 1), (-1, 0), (1000, 2)])
def test_a_label_out_of_range_is_named(label, row, mode):
    logits, labels = pt.matrix("logits", dtype="float64"), pt.lvector("labels")
    function = pytensor.function([logits, labels], softmax_cross_entropy(logits, labels), mode=mode)
    values = np.array([0, 1, 2])
    values[row] = label
    with pytest.raises(IndexError, match=rf"label {label} .*row {row} "):
        function(np.zeros((3, 3)), values)


@pytest.mark.parametrize("mode", MODES)
def test_one_label_a_row(mode):
    logits, labels = pt.matrix("logits", dtype="float64"), pt.lvector("labels")
    function = pytensor.function([logits, labels], softmax_cross_entropy(logits, labels), mode=mode)
    with pytest.raises(ValueError, match="2 labels for 3 rows of logits: give one label a row"):
        function(np.zeros((3, 3)), np.zeros(2, "int64"))


def test_debug_mode_finds_nothing_wrong():
    logits, labels = pt.matrix("logits", dtype="float32"), pt.lvector("labels")
    losses = softmax_cross_entropy(logits, labels)
    outputs = [losses, pytensor.grad(losses.mean(), logits)]
    pytensor.function([logits, labels], outputs, mode=debug_mode())(draw((4, 5), "float32"), np.arange(4))


def test_shapes_are_inferred_without_computing():
    logits, labels = pt.matrix("logits"), pt.lvector("labels")
    losses = softmax_cross_entropy(logits, labels)
    shapes = [losses.shape, pytensor.grad(losses.sum(), logits).shape]
    function = pytensor.function([logits, labels], shapes, mode=array_mode(), on_unused_input="ignore")
    assert ops_of(function, SoftmaxCrossEntropy | SoftmaxCrossEntropyGradient) == []
    assert [tuple(shape) for shape in function(np.zeros((3, 5)), np.zeros(3, "int64"))] == [(3,), (3, 5)]


def test_rows_known_of_labels_are_known_of_losses():
    labels = pt.tensor("labels", shape=(6,), dtype="int64")
    assert softmax_cross_entropy(pt.matrix(), labels).type.shape == (6,)


def test_labels_have_no_gradient():
    logits, labels = pt.matrix("logits"), pt.lvector("labels")
    loss = softmax_cross_entropy(logits, labels).sum()
    with pytest.raises(pytensor.gradient.DisconnectedInputError):
        pytensor.grad(loss, labels)


def test_second_derivatives_are_refused():
    logits, labels = pt.matrix("logits"), pt.lvector("labels")
    first = pytensor.grad(softmax_cross_entropy(logits, labels).sum(), logits)
    with pytest.raises(
        NotImplementedError, match="second derivatives of softmax_cross_entropy are not available"
    ):
        pytensor.grad(first.sum(), logits)
    _, log_sum = SoftmaxCrossEntropy()(logits, labels)
    with pytest.raises(
        NotImplementedError, match=r"log_sum is not differentiated; use pytensor.tensor.logsumexp"
    ):
        pytensor.grad(log_sum.sum(), logits)


@pytest.mark.parametrize(
    ("logits", "labels", "error", "text"),
    [
        (pt.lmatrix(), pt.lvector(), TypeError, "logits must be float32 or float64, not int64"),
        (pt.fvector(), pt.lvector(), ValueError, "logits must have 2 axes, not 1"),
        (
            pt.fmatrix(),
            pt.fvector(),
            TypeError,
            r"labels must be integers, not float32: use labels.astype\('int64'\)",
        ),
        (pt.fmatrix(), pt.bvector().astype("bool"), TypeError, "labels must be integers, not bool"),
        (pt.fmatrix(), pt.lmatrix(), ValueError, "labels must have 1 axes, not 2"),
        (
            pt.tensor(shape=(3, 2)),
            pt.tensor(shape=(4,), dtype="int64"),
            ValueError,
            "rows and labels .* 3 and 4",
        ),
    ],
)
def test_wrong_arguments_are_named(logits, labels, error, text):
    with pytest.raises(error, match=text):
        softmax_cross_entropy(logits, labels)
