"""The stand-ins for cuDNN and CuPy, as the provider finds them."""

import pytest

from support.cudnn import fake_cudnn
from synk.gpu.kernels.cudnn import find_cudnn, handle


@pytest.fixture
def cudnn(monkeypatch):
    """Return the stand-in for cuDNN, which the provider finds; it is left as it was."""
    module = fake_cudnn.make()
    monkeypatch.setattr(find_cudnn, "find", lambda: find_cudnn.FoundCudnn(module))
    monkeypatch.delenv("CUPY_TF32", raising=False)
    forget()
    yield module
    forget()


@pytest.fixture
def cupy(monkeypatch):
    return fake_cudnn.make_cupy(monkeypatch)


def forget():
    """Make the next kernel make handles and plans anew."""
    handle.plans.cache_clear()
    handle._handles.cache_clear()
