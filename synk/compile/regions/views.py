"""Views: a type of C by which texts name where the elements of an array lie in memory."""

from typing import NamedTuple

from synk.compile.programs.elementwise.dialect import TYPES


class View(NamedTuple):
    """A view in a C text: its name, by which expressions read its fields."""

    name: str
    dtype: str
    ndim: int

    def __str__(self) -> str:
        return self.name

    @property
    def kind(self) -> str:
        """The C type of an element."""
        return TYPES[self.dtype]

    @property
    def shape(self) -> list[str]:
        """The expressions of its lengths, one for each axis."""
        return [f"{self.name}.shape[{axis}]" for axis in range(self.ndim)]

    @property
    def strides(self) -> list[str]:
        """The expressions of the bytes from one element to the next, one for each axis."""
        return [f"{self.name}.strides[{axis}]" for axis in range(self.ndim)]

    def at(self, *steps: str) -> str:
        """Return the expression of the address of the element at position ``steps`` along the first axes."""
        moves = [f"({n}) * {stride}" for n, stride in zip(steps, self.strides, strict=False) if n != "0"]
        return " + ".join([f"{self.name}.data", *moves])


def listed(views: list[View]) -> str:
    """Return C for an array of pointers to views, which functions take as an argument."""
    return f"(const View *const[]){{{', '.join(f'&{view}' for view in views)}}}"
