import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import array_mode


def test_join(compare):
    x, y = pt.matrix("x", dtype="float32"), pt.matrix("y", dtype="int8")
    outputs = [pt.join(0, x, y), pt.concatenate([x, y, x], axis=1), pt.stack([x, x], axis=1), pt.join(0, x)]
    compare([x, y], outputs, [np.ones((2, 3), "float32"), np.full((2, 3), 2, "int8")])


def test_split(compare):
    x, lengths = pt.matrix("x"), pt.lvector("lengths")
    outputs = [
        *pt.split(x, lengths, n_splits=3, axis=1),
        *pt.split(x, [1, 1], axis=0),
        pt.split(x, [2], axis=0),
    ]
    compare([x, lengths], outputs, [np.arange(8, dtype=x.dtype).reshape(2, 4), np.array([1, 0, 3])])


@pytest.mark.parametrize(
    ("lengths", "match"), [([1, 2], "sum to 3"), ([5, -1], "negative"), ([4], "1 lengths for 2")]
)
def test_split_lengths_are_checked(lengths, match):
    x, n = pt.vector("x"), pt.lvector("n")
    function = pytensor.function([x, n], pt.split(x, n, n_splits=2), mode=array_mode())
    with pytest.raises(ValueError, match=match):
        function(np.zeros(4, x.dtype), np.array(lengths))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex64"])
def test_all_dtypes(compare, dtype):
    x = pt.matrix("x", dtype=dtype)
    outputs = [pt.join(1, x, x), *pt.split(x, [1, 2], n_splits=2, axis=1)]
    compare([x], outputs, [np.arange(6).reshape(2, 3).astype(dtype)])
