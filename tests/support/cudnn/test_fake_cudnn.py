"""The stand-in for cuDNN's front end has names and keywords of the real one, and no others."""

import inspect
import re

import pytest

from support.cudnn import fake_cudnn
from synk.gpu.kernels.cudnn import find_cudnn

pytestmark = pytest.mark.skipif(not find_cudnn.available(), reason=find_cudnn.reason())

CALLED_BY_KEYWORD = ["__init__", "tensor", "conv_fprop", "conv_dgrad", "conv_wgrad", "bias"]


def keywords(function):
    """Return the names of parameters: a compiled function has them in its first lines only."""
    if inspect.isfunction(function):
        return {*inspect.signature(function).parameters}
    return {*re.findall(r"[(,]\s*(\w+): ", function.__doc__)}


def public(thing):
    return {name for name in vars(thing) if not name.startswith("_")}


def test_the_module():
    real, fake = find_cudnn.find().module, fake_cudnn.make()
    of_the_fake = {"log", "refuses", "fails", "streams"}
    assert [name for name in public(fake) - of_the_fake if not hasattr(real, name)] == []
    for kind in ("data_type", "heur_mode", "build_plan_policy", "numerical_note"):
        assert {*getattr(fake, kind).__members__} <= {*getattr(real, kind).__members__}
    assert keywords(fake.set_stream) == keywords(real.set_stream)
    assert real.__version__ == fake.__version__


def test_graphs():
    real = find_cudnn.find().module.pygraph
    of_the_fake = {"module", "workspace_size"}
    assert [name for name in public(fake_cudnn.Graph) - of_the_fake if not hasattr(real, name)] == []
    for name in CALLED_BY_KEYWORD:
        assert keywords(getattr(fake_cudnn.Graph, name)) <= keywords(getattr(real, name)) | {"self"}, name
    assert {*list(keywords(real.execute))} >= {"tensor_to_device_buffer", "workspace", "handle"}


def test_tensors():
    real = find_cudnn.find().module.tensor
    assert [name for name in public(fake_cudnn.Tensor) - {"at"} if not hasattr(real, name)] == []
