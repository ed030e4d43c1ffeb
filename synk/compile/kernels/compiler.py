"""Find the system's C compiler, and run it.

``CC`` names another one, with arguments if need be: ``CC="ccache gcc"``. Compiled code depends on the
machine too, so `Compiler.fingerprint` covers both.
"""

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from synk.compile.kernels.dialect import ELEMENTARY

# No -ffast-math: NaN and infinity mean what they mean in NumPy. No contraction either: a product that is not
# rounded before it is added would make a fused graph differ from the same graph unfused.
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
]

VECTOR_LIBRARY = "libmvec.so.1"


@dataclass(frozen=True)
class Compiler:
    """A C compiler.

    Attributes
    ----------
    command : tuple of str
        Program and its first arguments.
    """

    command: tuple[str, ...]

    @cached_property
    def fingerprint(self) -> str:
        """What compiled code depends on beside its source: compiler, flags and processor.

        A compiler is known by its files: asking it for its version takes longer than loading all kernels.
        """
        programs = [shutil.which(word) for word in self.command]
        files = [_identity(program) for program in programs if program is not None]
        return "\n".join([*self.command, *files, *FLAGS, processor()])

    def compile(self, source: str, folder: Path) -> Path:
        """Compile C text to a shared library in ``folder``.

        Raises
        ------
        CompileError
            With what the compiler wrote.
        """
        text, library = folder / "kernels.c", folder / "kernels.so"
        text.write_text(source)
        libraries = ["-lmvec"] if vector_functions() else []
        command = [*self.command, *FLAGS, str(text), "-o", str(library), *libraries, "-lm"]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            raise CompileError(f"{shlex.join(command)} failed: {reason}") from None
        return library


class CompileError(RuntimeError):
    """The compiler does not compile a kernel."""


def _identity(program: str) -> str:
    path = Path(program).resolve()
    facts = path.stat()
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"


def find_compiler() -> Compiler | None:
    """Return the compiler that ``CC`` names, else ``cc``, ``gcc`` or ``clang``; None without one."""
    wanted = shlex.split(os.environ.get("CC", ""))
    for command in [wanted] if wanted else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return Compiler(tuple(command))
    return None


def vector_functions() -> frozenset[str]:
    """Return the elementary functions that the C library computes on vectors, as compiled loops need."""
    try:
        library = ctypes.CDLL(VECTOR_LIBRARY)
    except OSError:
        return frozenset()
    return frozenset(name for name in ELEMENTARY if all(hasattr(library, s) for s in _symbols(name)))


def _symbols(name: str) -> tuple[str, str]:
    """Names of the forms for float and double on the shortest vectors, which come with all longer ones."""
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
