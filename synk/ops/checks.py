"""Check the inputs of symbolic Ops: dtypes, numbers of axes and lengths."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import pytensor.tensor as pt
from pytensor.tensor.type import integer_dtypes

FLOATS = ("float32", "float64")

Function = TypeVar("Function", bound=Callable[..., Any])


def named(function: Function) -> Function:
    """Return ``function`` with its name before the message of a TypeError or ValueError that it raises."""

    @wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except (TypeError, ValueError) as error:
            name = f"{function.__name__}: "
            message = name + str(error).removeprefix(name)  # what also checks arrays says it itself
            raise type(error)(message).with_traceback(error.__traceback__) from None

    return cast(Function, run)


def float_tensor(name: str, value: Any, ndims: Sequence[int] = (), dtype: str | None = None) -> Any:
    """Return ``value`` as a symbolic tensor of ``dtype``, or by default of float32 or float64.

    Raise TypeError for another dtype, ValueError if the number of axes is not in ``ndims``; messages say
    ``name``.
    """
    variable = pt.as_tensor_variable(value)
    wanted = FLOATS if dtype is None else (dtype,)
    if variable.type.dtype not in wanted:
        names = " or ".join(wanted)
        raise TypeError(
            f"{name} must be {names}, not {variable.type.dtype}: use {name}.astype('{wanted[0]}')"
        )
    return with_axes(name, variable, ndims)


def integer_tensor(name: str, value: Any, ndims: Sequence[int] = ()) -> Any:
    """Return ``value`` as a symbolic tensor of integers; raise the errors of `float_tensor`."""
    variable = pt.as_tensor_variable(value)
    if variable.type.dtype not in integer_dtypes:
        raise TypeError(f"{name} must be integers, not {variable.type.dtype}: use {name}.astype('int64')")
    return with_axes(name, variable, ndims)


def with_axes(name: str, variable: Any, ndims: Sequence[int]) -> Any:
    """Return ``variable``; raise ValueError if ``ndims`` lists numbers of axes, and not the variable's."""
    if ndims and variable.type.ndim not in ndims:
        numbers = " or ".join(map(str, ndims))
        raise ValueError(f"{name} must have {numbers} axes, not {variable.type.ndim}: reshape it")
    return variable


def common_length(what: str, *lengths: int | None) -> int | None:
    """Return the length of axes that must be equally long; None stands for a length that is not known.

    Raise ValueError if two known ones differ; the message calls the axes ``what``.
    """
    known = {int(length) for length in lengths if length is not None}
    if len(known) > 1:
        numbers = " and ".join(map(str, sorted(known)))
        raise ValueError(f"{what} must be equal, here they are {numbers}: give them one length")
    return next(iter(known), None)


def same_shape(what: str, *arrays: Any) -> None:
    """Raise ValueError unless all arrays have the shape of the first."""
    for array in arrays:
        if array.shape != arrays[0].shape:
            raise ValueError(f"{what} must have one shape, not {arrays[0].shape} and {array.shape}")
