import json
import struct
import sys

import numpy as np
import pytensor
import pytest

import synk
from support.cases.fitting import make
from synk.extensions.checkpoint import CheckpointNames
from synk.extensions.interchange import load_safetensors, save_safetensors

safetensors = pytest.importorskip("safetensors.numpy")


def variables(fill):
    return {
        "layer.weight": pytensor.shared(np.full((2, 3), fill), name="W"),
        "layer.bias": pytensor.shared(np.full(3, fill, "float32"), name="b"),
        "count": pytensor.shared(np.asarray(int(fill))),
    }


def test_values_go_through_a_file_that_others_read_to_every_rank(tmp_path, ranks):
    path = tmp_path / "model.safetensors"
    save_safetensors(path, variables(7.0), {"made": "here"})
    alone = variables(1.0)
    load_safetensors(path, alone)
    assert all(one.get_value(borrow=True).flags.writeable for one in alone.values())
    read = safetensors.load_file(path)
    assert {name: (str(array.dtype), array.shape) for name, array in read.items()} == {
        "layer.weight": ("float64", (2, 3)),
        "layer.bias": ("float32", (3,)),
        "count": ("int64", ()),
    }
    ranks(2)
    named = variables(1.0)
    load_safetensors(path, named)
    for variable in named.values():
        assert (synk.gather(variable) == 7).all()


def test_a_step_is_saved_without_its_random_states(tmp_path, ranks):
    ranks(2)
    case, path = make(noise=True), tmp_path / "step"
    case.step(*case.data)
    save_safetensors(path, case.step)
    assert sorted(safetensors.load_file(path)) == ["t", "w", "w_mean", "w_squares"]
    expected = case.w.get_value()
    case.step(*case.data)
    load_safetensors(path, case.w, strict=False)
    assert (synk.gather(case.w) == expected).all()


@pytest.mark.parametrize(
    ("change", "strict", "error", "message"),
    [
        ({"other": pytensor.shared(1.0)}, False, CheckpointNames, r"lacks \['other'\] and also has \[\]"),
        ({"count": None}, True, CheckpointNames, r"lacks \[\] and also has \['count'\]"),
        ({"count": pytensor.shared(1.0)}, True, ValueError, "'count' is of dtype float64.*has int64"),
        ({"count": pytensor.shared(np.arange(2))}, True, ValueError, r"shape \(2,\), but .* \(\)"),
    ],
)
def test_what_does_not_fit_changes_nothing(tmp_path, change, strict, error, message):
    path = tmp_path / "file"
    save_safetensors(path, variables(7.0))
    named = {name: one for name, one in {**variables(1.0), **change}.items() if one is not None}
    with pytest.raises(error, match=message):
        load_safetensors(path, named, strict=strict)
    assert (named["layer.weight"].get_value() == 1).all()


def test_axes_may_come_in_reverse_order(tmp_path):
    path, W = tmp_path / "file", pytensor.shared(np.arange(6.0).reshape(2, 3), name="W")
    save_safetensors(path, W, transpose=["W"])
    assert safetensors.load_file(path)["W"].tolist() == [[0, 3], [1, 4], [2, 5]]
    expected = W.get_value()
    W.set_value(0 * expected)
    with pytest.raises(ValueError, match=r"shape \(2, 3\), but .* \(3, 2\); pass transpose=\['W'\]"):
        load_safetensors(path, W)
    load_safetensors(path, W, transpose=["W"])
    assert (W.get_value() == expected).all()
    assert W.get_value(borrow=True).flags.c_contiguous
    for wrong in (["w"], "W"):
        with pytest.raises(ValueError, match=r"but the variables are \['W'\]"):
            load_safetensors(path, W, transpose=wrong)


def test_a_dtype_that_numpy_lacks_is_told(tmp_path):
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ValueError, match=r"file has tensors of dtype 'BF16', which NumPy lacks"):
        load_safetensors(tmp_path / "file", pytensor.shared(np.zeros(2, "float32"), name="w"))


def test_a_missing_library_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match=r"not installed. Use pip install 'synk-pytensor\[safetensors\]'"):
        save_safetensors(tmp_path / "file", variables(1.0))
