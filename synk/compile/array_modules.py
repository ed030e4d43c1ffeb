"""Modules of arrays: NumPy, and others with its interface, which enter here what they do in another way.

    xp -> array_module -> NumPy's answers, or those of the class in `ARRAY_MODULES` by the module's name

A program is written for any of them; entries of Ops and rewrites ask the `ArrayModule` where modules differ.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from pytensor.graph.basic import Apply


class ArrayModule:
    """The answers of NumPy, which serve any module with its interface that has entered none of its own.

    Attributes
    ----------
    xp : module
    fusion : str
        The tag of the rewrites that join elementwise Ops for `elementwise`; "" where nothing computes them.
    scipy : str
        The package that has SciPy's functions for these arrays.
    sparse_dtypes : frozenset of str, optional
        The dtypes of its sparse matrices; None: all.
    """

    fusion = ""
    scipy = "scipy"
    sparse_dtypes: frozenset[str] | None = None

    def __init__(self, xp: Any):
        self.xp = xp

    def scipy_module(self, name: str) -> ModuleType:
        """Return the module that stands in the place of ``scipy.linalg`` for ``name="linalg"``."""
        return import_module(f"{self.scipy}.{name}")

    @property
    def matmul(self) -> Callable:
        """The function ``matmul(left, right, out=None)`` of matrices, and of batches of them."""
        return self.xp.matmul

    @property
    def dot(self) -> Callable:
        """The function ``dot(left, right, out=None)`` of matrices and vectors."""
        return self.xp.dot

    @property
    def product(self) -> Callable | None:
        """The function ``product(left, right, out_dtype=, out=None)`` of factors of 16 bits, or None.

        It adds up in float32, and returns that or 16 bits. Without it factors are converted to float32.
        """
        return None

    def elementwise(
        self,
        node: Apply,
        instead: Callable[[], Callable],
        reads: Sequence[str] = (),
        gives: Sequence[str] = (),
    ) -> Callable | None:
        """Return an implementation of an Elemwise node by one kernel, or None if there is none.

        ``instead`` returns the implementation to use if the kernel does not compile. ``reads`` and ``gives``
        are the dtypes of inputs and outputs that are stored in 16 bits, "" for others.
        """
        return None

    def sampler(self, op: Any) -> Callable | None:
        """Return ``sample(generator, size, *parameters)``, which draws where the arrays are, or None.

        Without it the random variable ``op`` is drawn by NumPy. ``sample`` advances the generator and returns
        an array of ``xp``; ``size`` is a tuple of int or None, parameters are arrays of ``xp``, or NumPy
        arrays of one element.
        """
        return None

    def raising(self, function: Callable) -> Callable:
        """Return ``function`` of ``xp.linalg`` in a form that raises LinAlgError where it fails."""
        return function


# By the name of the module.
ARRAY_MODULES: dict[str, type[ArrayModule]] = {}


def array_module(xp: Any) -> ArrayModule:
    """Return the answers of an array module."""
    return ARRAY_MODULES.get(xp.__name__, ArrayModule)(xp)
