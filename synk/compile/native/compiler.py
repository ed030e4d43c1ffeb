"""Find the system's C compiler, and run it.

``CC`` names another one, with arguments if need be: ``CC="ccache gcc"``. It runs in a folder of its own, so
paths in its arguments must be absolute. Compiled code depends on the processor too, so
`Compiler.fingerprint` covers compiler and processor.
"""

import ctypes
import os
import platform
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from synk.compile.native.building import CompileError, compile_all

# No -ffast-math: NaN and infinity mean what they mean in NumPy. No contraction either: a product that is not
# rounded before it is added would make a fused graph differ from the same graph unfused. Loops begin where
# processors fetch: a log-density of a few short ones takes 47 us so, else 47 or 61 as they happen to fall.
# The last elements of a row, which do not fill a vector, stay a loop: unrolled, they would take a quarter of
# all compilation.
FLAGS = [
    "-O3",
    "-march=native",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-w",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-falign-loops=32",
    "--param=max-completely-peel-times=4",
]

# Functions of the mathematical library that may have forms for vectors, by their name for double.
ELEMENTARY = frozenset(
    {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc"}
    | {"sin", "cos", "tan", "asin", "acos", "atan", "atan2"}
    | {"sinh", "cosh", "tanh", "asinh", "atanh"}
)
VECTOR_LIBRARY = "libmvec.so.1"  # has them


@dataclass(frozen=True)
class Compiler:
    """The system's C compiler, by the command that runs it."""

    command: tuple[str, ...]  # program and its first arguments

    @cached_property
    def fingerprint(self) -> str:
        """All that compiled code depends on beside its source: compiler, flags and processor.

        The size and the time of the compiler's files stand for its version: asking the compiler for that
        takes longer than loading all kernels.
        """
        programs = [shutil.which(word) for word in self.command]
        files = [_identity(program) for program in programs if program is not None]
        return "\n".join([*self.command, *files, *FLAGS, processor()])

    def compile(self, sources: Sequence[str]) -> list[bytes | CompileError]:
        """Compile C texts to shared libraries, as `compile_all` does."""
        libraries = ["-lmvec"] if vector_functions() else []
        return compile_all(sources, [*self.command, *FLAGS], [*libraries, "-lm"])


def _identity(program: str) -> str:
    try:
        path = Path(program).resolve()
        facts = path.stat()
    except OSError:  # it is just being replaced
        return program
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"


def find_compiler() -> Compiler | None:
    """Return the compiler that ``CC`` names, else ``cc``, ``gcc`` or ``clang``; None without one."""
    try:
        wanted = shlex.split(os.environ.get("CC", ""))
    except ValueError:
        return None
    for command in [wanted] if wanted else [["cc"], ["gcc"], ["clang"]]:
        found = shutil.which(command[0])
        if found:
            program = command[0] if os.path.isabs(found) else os.path.abspath(found)
            return Compiler((program, *command[1:]))
    return None


def why_none(environ: Mapping[str, str] = os.environ) -> str:
    """Return the reason why `find_compiler` returns None."""
    named = environ.get("CC", "").strip()
    if not named:
        return "no cc, gcc or clang on PATH"
    try:
        shlex.split(named)
    except ValueError as error:
        return f"CC={named} cannot be split into words: {error}"
    return f"CC={named} is not on PATH"


def vector_functions() -> frozenset[str]:
    """Return the elementary functions of which the C library has forms for vector instructions."""
    try:
        library = ctypes.CDLL(VECTOR_LIBRARY)
    except OSError:
        return frozenset()
    return frozenset(name for name in ELEMENTARY if all(hasattr(library, s) for s in _symbols(name)))


def _symbols(name: str) -> tuple[str, str]:
    """Return the symbols of a function's forms for the shortest vectors of float and of double.

    A library that has these has the forms for longer vectors too.
    """
    arguments = "vv" if name == "atan2" else "v"
    return f"_ZGVbN4{arguments}_{name}f", f"_ZGVbN2{arguments}_{name}"


def processor() -> str:
    """Return the processor's model and its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), *(line for line in lines if line.startswith(wanted))])
