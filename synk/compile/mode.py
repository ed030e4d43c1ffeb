"""The compilation mode: an array linker with the rewrites that suit it.

array_mode() -> Mode -> pytensor.function(..., mode=...)
"""

from pytensor.compile.mode import Mode

from synk.compile.linker import ArrayLinker
from synk.compile.rewriting.rewrites import array_query


def array_mode(linker: ArrayLinker | None = None) -> Mode:
    """Return a mode for ``pytensor.function`` that makes array programs.

    Parameters
    ----------
    linker : ArrayLinker, optional
        Default: a new ``ArrayLinker()`` on NumPy.

    Returns
    -------
    pytensor.compile.mode.Mode
        All of ``fast_run``, in-place rewrites included, without Ops that exist in C alone. Elementwise
        graphs are fused where the linker's array module has kernels; what they overwrite is decided when
        the program is emitted.
    """
    linker = ArrayLinker() if linker is None else linker
    return Mode(linker, array_query(linker.xp))
