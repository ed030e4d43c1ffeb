"""The functions of scipy.special that compiled regions call, so that they have the bits of SciPy's ufuncs.

    name -> special_text: C that calls it by its address in the library's table ``special``
    pointers -> the addresses, for that table

A ufunc computes float32 in double precision, unless `FUNCTIONS` has a float version.
"""

import re
from functools import cache
from typing import Any, NamedTuple

from synk.compile.native.capsules import name_in, pointer_in


class SpecialFunction(NamedTuple):
    """A function of scipy.special whose arguments and result have one C type, ``kind``."""

    name: str
    n_arguments: int
    kind: str = "double"

    @property
    def signature(self) -> str:
        """Return the C signature of the function, which is the name of its capsule."""
        return f"{self.kind} ({f'{self.kind}, ' * self.n_arguments}int __pyx_skip_dispatch)"


FUNCTIONS = (
    *(SpecialFunction(n, 1) for n in ("gammaln", "psi", "gamma", "erfcx", "erfinv", "erfcinv")),
    *(SpecialFunction(n, 1) for n in ("j0", "j1", "i0", "i1")),
    *(SpecialFunction(n, 2) for n in ("jv", "ive", "kve", "owens_t")),
    *(SpecialFunction(n, 2) for n in ("gammainc", "gammaincc", "gammaincinv", "gammainccinv")),
    *(SpecialFunction(n, 3) for n in ("betainc", "betaincinv")),
    SpecialFunction("hyp2f1", 4),
    SpecialFunction("erfinv", 1, "float"),
    *(SpecialFunction(n, 3, "float") for n in ("betainc", "betaincinv")),
)
PREFIX = "scipy_"  # of the names in texts: C has a ``gamma`` of its own
TABLE = f"void *special[{len(FUNCTIONS)}];"
SPECIAL = frozenset(PREFIX + function.name for function in FUNCTIONS)


def special_text(name: str, kind: str) -> str:
    """Return the C definition of one of `SPECIAL`, on ``float`` or ``double``; it needs `TABLE` before it."""
    found = [k for k, function in enumerate(FUNCTIONS) if PREFIX + function.name == name]
    k = next((k for k in found if FUNCTIONS[k].kind == kind), found[0])
    _, n, inner = FUNCTIONS[k]
    given = ", ".join(f"const {kind} x{i}" for i in range(n))
    call = f"(({inner} (*)({f'{inner}, ' * n}int))special[{k}])({''.join(f'x{i}, ' for i in range(n))}0)"
    suffix = "f" if kind == "float" else ""
    return f"static inline {kind} {name}{suffix}({given}) {{ return {call}; }}"


@cache
def pointers() -> list[int]:
    """Return the addresses of `FUNCTIONS`, in their order."""
    from scipy.special import cython_special  # takes 10 ms, which few programs need

    exported: dict[str, Any] = cython_special.__pyx_capi__
    return [
        next(
            pointer_in(capsule)
            for key, capsule in exported.items()
            if re.fullmatch(rf"(__pyx_fuse_\d)?{name}", key) and name_in(capsule) == signature.encode()
        )
        for name, signature in ((function.name, function.signature) for function in FUNCTIONS)
    ]
