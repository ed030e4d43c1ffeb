"""Options of torch's leaders on a GPU: precision, compiling, and rows from pinned memory.

    Gpu(options) -> device, compiled(net), pinned(arrays) once, here(rows) and autocast() in a step, finish()

On cores all of it does nothing. Nothing of synk or PyTensor is imported.
"""

import argparse
import contextlib
from typing import Any

import torch


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--resident", action="store_true", help="keep the data on the GPU")


class Gpu:
    """The choices of `add_options`."""

    def __init__(self, options: argparse.Namespace):
        self.device = torch.device(options.device)
        self._is_gpu, self._compile, self._resident = (
            options.device == "cuda",
            options.compile,
            options.resident,
        )
        self._narrow = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(options.precision)
        tf32 = options.precision != "float32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True

    def compiled(self, net: Any) -> Any:
        return torch.compile(net) if self._compile else net

    def pinned(self, *arrays: Any) -> list[Any]:
        """Return data sets where rows of them are read fastest: page-locked, or on the GPU."""
        if not self._is_gpu:
            return list(arrays)
        return [array.to(self.device) if self._resident else array.pin_memory() for array in arrays]

    def here(self, *rows: Any) -> list[Any]:
        """Return rows on the device, without waiting for them."""
        return [part.to(self.device, non_blocking=True) for part in rows]

    def autocast(self) -> Any:
        if self._narrow is None or not self._is_gpu:
            return contextlib.nullcontext()
        return torch.autocast("cuda", dtype=self._narrow)

    def finish(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize()
