"""The options of `synk.fork` that are for GPUs only: checked in any run, and refused on cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synk.compile.programs.text.transfer import NARROW, check_narrow
from synk.values.checks import checked_flag

PRECISIONS = ("float32", "tf32", *NARROW)
CPU_PRECISION = "float32"  # the precision in which cores multiply float32 matrices


@dataclass(frozen=True)
class GpuOptions:
    """Options as the script gives them; None, or False, where it does not.

    Attributes
    ----------
    memory_limit : float, optional
        The fraction of each GPU's memory for the arrays of all ranks on it together.
    precision : {"float32", "tf32", "bfloat16", "float16"}, optional
        The precision in which GPUs multiply matrices.
    cuda_graphs : bool
        Whether GPUs record and repeat the launches of a function.
    """

    memory_limit: float | None = None
    precision: str | None = None
    cuda_graphs: bool = False

    @classmethod
    def checked(cls, memory_limit: Any, precision: Any, cuda_graphs: Any) -> GpuOptions:
        """Return the options; raise TypeError or ValueError if one is wrong.

        Raise ImportError if ``precision`` is bfloat16, and the package that implements it is not installed.
        """
        if precision is not None and precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        if precision in NARROW:
            check_narrow(precision)
        return cls(_checked_fraction(memory_limit), precision, checked_flag("cuda_graphs", cuda_graphs))

    def refuse_on_cores(self) -> None:
        """Raise ValueError if one is given that asks for more than cores do anyway."""
        if self.precision in NARROW:
            raise ValueError(
                f"precision={self.precision!r} is for GPUs, and this run computes on cores, in float32: "
                "leave precision out; for its numbers on cores, pass "
                f"mode=array_mode(ArrayLinker(narrow={self.precision!r})), of synk.compile, to synk.function"
            )
        asked = {
            "memory_limit": self.memory_limit,
            "precision": None if self.precision == CPU_PRECISION else self.precision,
            "cuda_graphs": self.cuda_graphs or None,
        }
        for name, value in asked.items():
            if value is not None:
                raise ValueError(
                    f"{name}={value!r} is for GPUs, and this run computes on cores: leave {name} out, or "
                    "pass device='cuda', which insists on GPUs"
                )


def _checked_fraction(limit: Any) -> float | None:
    """Return ``memory_limit`` as a fraction above 0 and at most 1; raise if it is given and is none."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.number):
        raise TypeError(f"memory_limit={limit!r} is not a fraction of a GPU's memory")
    if not 0 < limit <= 1:
        raise ValueError(f"memory_limit={limit} is not a fraction of a GPU's memory, above 0 and at most 1")
    return float(limit)
