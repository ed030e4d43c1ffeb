"""Exchange parameters with other frameworks, as safetensors files: arrays by name.

params -> save_safetensors -> file -> load_safetensors -> every rank
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

import numpy as np

import synk
from synk.extensions.checkpoint.contents import causes, causes_text, copies, named, value_of
from synk.extensions.checkpoint.store import assign, check_names
from synk.values.atomic_write import atomic_write

__all__ = ["load_safetensors", "save_safetensors"]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__


def save_safetensors(
    path: str | os.PathLike[str],
    variables: Any,
    metadata: Mapping[str, str] | None = None,
    *,
    transpose: Collection[str] = (),
) -> None:
    """Write the values of shared tensors, equal on all ranks, to a safetensors file, under their names.

    Parameters
    ----------
    path : path-like
        Replaced as a whole.
    variables : as of `synk.extensions.checkpoint.save`
        A dict gives the names that another framework expects. Random states are left out.
    metadata : dict of str to str, optional
    transpose : collection of str
        Names of those whose axes come in reverse order in the file: weights of `Dense` are (inputs, outputs),
        those of torch's ``Linear`` (outputs, inputs).

    Raises
    ------
    ImportError
        safetensors is not installed.
    ValueError
        A variable is per rank: a file for other frameworks has one value of each.
    TypeError, ValueError, OSError
        As `synk.extensions.checkpoint.save`.

    See Also
    --------
    synk.extensions.interchange.load_safetensors : reads such files.

    Examples
    --------
    >>> from synk.extensions.interchange import save_safetensors
    >>> w = pytensor.shared(np.zeros((2, 3)), name="w")
    >>> save_safetensors("w.safetensors", {"linear.weight": w}, transpose=["linear.weight"])
    >>> from safetensors.numpy import load_file
    >>> load_file("w.safetensors")["linear.weight"].shape
    (3, 2)
    """
    numpy = _module()
    with synk.turn("save_safetensors"):
        if found := causes(_tensors(variables)):
            raise ValueError(
                f"{causes_text(found)}; make it equal on all ranks first, rows by synk.all_gather, else by "
                "synk.all_reduce or synk.broadcast"
            )
        copied = copies(_tensors(variables))
    _check_transposed(transpose, copied)
    arrays = {
        name: np.asarray(value.T if name in transpose else value, order="C") for name, value in copied.items()
    }
    with atomic_write(path) as file:
        file.write(numpy.save(arrays, None if metadata is None else dict(metadata)))


def load_safetensors(
    path: str | os.PathLike[str], variables: Any, *, strict: bool = True, transpose: Collection[str] = ()
) -> None:
    """Give shared tensors the values of a safetensors file that have their names, on every rank.

    Parameters
    ----------
    path : path-like
    variables : as of `save_safetensors`
        Each with the shape and dtype that the file has.
    strict : bool
        Whether to refuse a file that has other names as well.
    transpose : as of `save_safetensors`

    Raises
    ------
    ImportError
        safetensors is not installed.
    CheckpointNames
        Names are missing from the file, or, if it is to be strict, not asked for; nothing has changed then.
    ValueError
        A shape or dtype differs, or NumPy has no such dtype; nothing has changed then.

    See Also
    --------
    synk.extensions.interchange.save_safetensors : writes such files.

    Examples
    --------
    >>> from safetensors.numpy import save_file
    >>> save_file({"w": np.ones(2)}, "torch.safetensors")
    >>> from synk.extensions.interchange import load_safetensors
    >>> w = pytensor.shared(np.zeros(2), name="w")
    >>> load_safetensors("torch.safetensors", [w])
    >>> synk.get_value(1, w)
    array([1., 1.])
    """
    wanted = _tensors(variables)
    _check_transposed(transpose, wanted)
    with open(path, "rb") as file:
        try:
            arrays = _module().load(file.read())
        except KeyError as unknown:
            raise ValueError(
                f"{path} has tensors of dtype {unknown}, which NumPy lacks; convert them to F32 there"
            ) from None
    arrays |= {name: arrays[name].T for name in transpose if name in arrays}
    check_names(arrays if strict else arrays.keys() & wanted.keys(), wanted)
    for name, variable in wanted.items():
        saved, present = arrays[name], value_of(variable)
        if (saved.dtype, saved.shape) != (present.dtype, present.shape):
            raise ValueError(
                f"variable '{name}' is of dtype {present.dtype} and shape {present.shape}, but {path} has "
                f"{saved.dtype} and {saved.shape}"
                + (f"; pass transpose=[{name!r}]" if saved.shape == present.shape[::-1] else "")
            )
    with synk.turn("load_safetensors"):
        assign([(variable, np.array(arrays[name], order="C")) for name, variable in wanted.items()])


def _check_transposed(transpose: Collection[str], names: Collection[str]) -> None:
    if isinstance(transpose, str) or (unknown := set(transpose) - set(names)):
        said = transpose if isinstance(transpose, str) else sorted(unknown)
        raise ValueError(f"transpose has {said!r}, but the variables are {sorted(names)}")


def _tensors(variables: Any) -> dict[str, Any]:
    return {name: one for name, one in named(variables).items() if isinstance(value_of(one), np.ndarray)}


def _module() -> Any:
    try:
        return import_module("safetensors.numpy")
    except ImportError as missing:
        raise ImportError(
            "safetensors is not installed. Use pip install 'synk-pytensor[safetensors]'."
        ) from missing
