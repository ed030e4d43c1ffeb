"""Make `Data` from the values, the shape or the file that the script gives.

synk.data, build_inputs -> make_data -> Data in shared memory, FileData in a file
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.type import DenseTensorType

from synk.exact.run_values import describe
from synk.run.arrays.data import Data
from synk.run.arrays.file_data import FileData
from synk.run.arrays.owner import Owner
from synk.transport.memory.files import as_memmap, file_label, is_in_file
from synk.values.checks import as_array, checked_flag


def make_data(
    owner: Owner,
    value: Any = None,
    var: Any = None,
    *,
    dtype: Any = None,
    ndim: int | None = None,
    shape: Any = None,
    minibatch: bool = False,
    force_cast: bool = False,
    oversize: float = 1,
    name: str | None = None,
) -> Data:
    """Make Data; the parameters are those of `synk.data`."""
    if var is not None:
        dtype, ndim = _of_variable(var, dtype, ndim)
    _check_options(value, shape, minibatch, force_cast, oversize, name)
    if is_in_file(value):
        return _file_data(owner, value, dtype, ndim, minibatch, oversize, name)
    if value is not None and var is None:
        array = as_array(value, f"the value for Data {name!r}" if name else "the value")
        dtype = array.dtype if dtype is None else dtype
        ndim = array.ndim if ndim is None else ndim
    if ndim is None and shape is not None:
        ndim = len(shape)
    if dtype is None or ndim is None:
        raise TypeError("data() needs a value, a variable, or dtype and either ndim or shape")
    result = Data(owner, dtype, ndim, minibatch, name)
    if value is not None:
        result.set_value(value, force_cast=force_cast, oversize=oversize)
    elif shape is not None:
        result.set_shape(shape, oversize=oversize)
    return result


def _of_variable(var: Any, dtype: Any, ndim: int | None) -> tuple[Any, int]:
    """Return dtype and number of dimensions of ``var``; raise TypeError if the options contradict them."""
    if not isinstance(var, Variable) or not isinstance(var.type, DenseTensorType):
        raise TypeError(
            f"var={type(var).__name__} is no tensor variable of PyTensor, which gives dtype and dimensions; "
            "one Data holds one array"
        )
    asked_dtype = None if dtype is None else np.dtype(dtype).name
    for name, asked, has in (("dtype", asked_dtype, var.type.dtype), ("ndim", ndim, var.type.ndim)):
        if asked is not None and asked != has:
            raise TypeError(f"{name}={asked!r}, but {describe(var)} has {has!r}; pass var or {name}")
    return var.type.dtype, var.type.ndim


def _check_options(value: Any, shape: Any, minibatch: Any, force_cast: Any, oversize: Any, name: Any) -> None:
    """Raise TypeError for options of a wrong type, ValueError for options that would have no effect."""
    for option, given in (("minibatch", minibatch), ("force_cast", force_cast)):
        checked_flag(option, given)
    if not isinstance(name, str | None):
        raise TypeError(f"name={name!r} is no string")
    if force_cast and value is None:
        raise ValueError("force_cast=True, but there is no value to cast; leave force_cast out")
    if oversize != 1 and value is None and shape is None:
        raise ValueError(f"oversize={oversize}, but there is neither a value nor a shape to make room for")
    if value is not None and shape is not None:
        raise ValueError(f"shape={shape!r} is for Data without a value, which has a shape of its own")


def _file_data(
    owner: Owner, value: Any, dtype: Any, ndim: int | None, minibatch: bool, oversize: float, name: str | None
) -> FileData:
    """Make Data over a file, after checking that the options fit the array in it."""
    memmap = as_memmap(value)
    where = file_label(memmap.filename)
    if dtype is not None and np.dtype(dtype) != memmap.dtype:
        raise TypeError(
            f"{where} holds {memmap.dtype}, not {np.dtype(dtype)}, and is read in place; store it as that, "
            f"or copy it to shared memory: synk.data(np.array(values), dtype={str(np.dtype(dtype))!r})"
        )
    if ndim is not None and ndim != memmap.ndim:
        raise TypeError(f"the array in {where} has {memmap.ndim} dimensions, not {ndim}")
    if oversize != 1:
        raise ValueError(f"oversize={oversize}, but {where} does not grow; leave oversize out")
    return FileData(owner, memmap, minibatch, name)
