"""Options of leaders that may compute on a GPU, on synk's side.

add_options -> fork(options) -> finish, which waits for the GPU
"""

import argparse
from collections.abc import Callable

import synk


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", help="of products on a GPU; float32 unless told")
    parser.add_argument("--graphs", action="store_true", help="have steps replayed as CUDA graphs")


def fork(options: argparse.Namespace) -> Callable[[], None]:
    """Fork the ranks of `options`; return what waits for this rank's GPU."""
    wanted = {"precision": options.precision} if options.precision and options.device == "cuda" else {}
    wanted |= {"cuda_graphs": True} if options.graphs else {}
    synk.fork(options.ranks, device=options.device, threads=1, **wanted)
    if options.device == "cpu":
        return lambda: None
    import cupy

    return cupy.cuda.Device().synchronize
