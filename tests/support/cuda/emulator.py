"""Run CUDA C without a GPU: g++ compiles it as host code, with the threads of a block as fibers.

    text -> compiled (once, and kept) -> Kernel(grid, block, arguments): run forwards, run backwards, compare

``emulator.h`` runs fibers, ``words.h`` has what CUDA brings: shuffles, atomics, 16-bit types. Every
launch runs twice, on copies of its arrays: threads and blocks once in order and once in the reverse, with
other garbage in shared memory and around the arrays. Results that differ come from a race, from memory that
nobody wrote, or from beyond an array, and are an error; so are writing beyond an array, and addresses that a
GPU would not take. What no GPU would run is refused.

`RawModule` is called as CuPy's. The header knows what kernels of synk use; a text that needs more does not
compile.
"""

import contextlib
import ctypes
import fcntl
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from support.cuda.regions import LaunchError, Regions
from support.cupy import stand_in
from synk.compile.native.libraries import load
from synk.compile.native.store import Store, name_of

HEADER = Path(__file__).with_name("emulator.h")
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing"]
FLAGS += ["-Wall", "-Werror", "-Wno-unused", "-Wno-unknown-pragmas", "-Wno-sign-compare"]
# Templates say `x != x` of an int too (isnan), and `~` or `x ^ y < z` as PyTensor does.
FLAGS += ["-Wno-tautological-compare", "-Wno-parentheses"]
# Every access asks the header whether its address is a multiple of the type's alignment: a GPU would fail.
FLAGS += ["-fsanitize=alignment"]

# Hardware's limits for one launch.
MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)

SCALARS = {np.dtype(letter).type for letter in "?bhilqBHILQefdFD"}


class CompileError(Exception):
    """The text is no CUDA that the emulator knows."""


class Race(LaunchError):
    """A result depends on the order of threads, or on memory that nobody wrote."""


def available():
    """Return whether g++ is installed, which compiles the emulated kernels."""
    return shutil.which("g++") is not None


class RawModule:
    """A replacement of ``cupy.RawModule`` that compiles CUDA text for the host."""

    def __init__(self, *, code, options=()):
        _demand(code=(code, str), options=(options, tuple))
        for option in options:
            _demand(option=(option, str))
        self.code, self.options = code, options

    def get_function(self, name):
        """Return a kernel by its name, that of an ``extern "C"`` function."""
        _demand(name=(name, str))
        kernel = compiled(self.code, self.options).function(name)

        def launch(grid, block, args):
            _demand(grid=(grid, tuple), block=(block, tuple))
            kernel.launch(grid, block, args)

        return launch


def _demand(**typed):
    for name, (value, kind) in typed.items():
        if not isinstance(value, kind):
            raise TypeError(
                f"Argument '{name}' has incorrect type (expected {kind.__name__}, got {type(value).__name__})"
            )


@cache
def compiled(code, options=()):
    """Return the library of a text, compiled at most once a process."""
    return Library(code, [option for option in options if option[:2] in ("-D", "-U")])


class Library:
    """A text of CUDA, compiled."""

    def __init__(self, code, macros):
        code = translated(code)
        bounds = launch_bounds(code, macros)
        ends = [f"EMULATED_KERNEL({k}, {name})" for k, name in enumerate(bounds)]
        self.library = _load("\n".join([code, *ends]), macros)
        self.library.emulated_launch.restype = ctypes.c_char_p
        self.functions = {
            name: Kernel(self.library, name, k, bound) for k, (name, bound) in enumerate(bounds.items())
        }

    def function(self, name):
        """Return a kernel.

        Raises
        ------
        LaunchError
            As CUDA's driver: there is none with this name, or its name is C++'s.
        """
        if name not in self.functions or not hasattr(self.library, name):
            raise LaunchError(f'CUDA_ERROR_NOT_FOUND: named symbol not found: {name}; is it extern "C"?')
        return self.functions[name]


def _load(text, macros):
    """Return the library for a text, compiled now or kept in synk's store by an earlier run."""
    words = [path.read_text() for path in (HEADER, HEADER.with_name("words.h"))]
    store, name = Store(), name_of("emulated", text, *words, *FLAGS, *macros)
    library = store.find(name)
    if library is None:
        with _one_at_a_time():
            library = store.find(name)
            if library is None:
                library = _compile(text, macros)
                store.keep(name, library)
    return load(library)


@contextlib.contextmanager
def _one_at_a_time():
    """Return a lock between processes, so that ranks do not compile the same text at the same time."""
    with HEADER.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(text, macros):
    with tempfile.TemporaryDirectory(prefix="emulated-") as folder:
        unlinked, target = Path(folder, "kernels.o"), Path(folder, "kernels.so")
        command = ["g++", "-x", "c++", "-include", str(HEADER), "-", "-c", "-o", str(unlinked)]
        _run([*command, *FLAGS, *macros], text)
        # Linked on its own, it takes the header's functions for those of the sanitizer's library.
        _run(["g++", "-shared", str(unlinked), "-o", str(target)])
        return target.read_bytes()


def translated(code):
    """Return CUDA text in the words of C++ that the header cannot teach it."""
    operands = r':\s*"=\w"\((.*?)\)\s*:\s*"\w"\((.*?)\)\s*'
    instruction = rf'asm\s*(?:volatile)?\s*\(\s*"([\w.]+)\s+%0,\s*%1;"\s*{operands}\)\s*;'
    return re.sub(instruction, lambda m: f"emulated::{m[1].replace('.', '_')}({m[2]}, {m[3]});", code)


def launch_bounds(code, macros):
    """Return how many threads a block may have, by names of kernels."""
    text = _run(["g++", "-E", "-P", "-x", "c++", *macros, "-"], code)
    bound = r"(?:__launch_bounds__\s*\(\s*(\d+)[^)]*\)\s*)?"
    found = re.findall(rf"__global__\s+{bound}void\s+{bound}(\w+)\s*\(", text)
    return {name: int(before or after or MAX_THREADS) for before, after, name in found}


def _run(command, text=""):
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr)
    return done.stdout


class Kernel:
    """A function of a library."""

    def __init__(self, library, name, number, most_threads):
        self.library, self.name, self.most_threads = library, name, most_threads
        self.call = ctypes.cast(library[f"emulated_call_{number}"], ctypes.c_void_p)
        text = ctypes.create_string_buffer(1000)
        library[f"emulated_describe_{number}"](text)
        self.parameters = text.value.decode().split()

    def launch(self, grid, block, args):
        """Run it on arrays of `stand_in`, twice; raises `LaunchError` or TypeError."""
        # Zero becomes one in CuPy: who has nothing to do must not launch.
        grid, block = ([max(1, int(n)) for n in (*size, 1, 1)[:3]] for size in (grid, block))
        for what, size, most in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
            if (
                any(n > limit for n, limit in zip(size, most, strict=True))
                or np.prod(block) > self.most_threads
            ):
                raise LaunchError(f"CUDA_ERROR_INVALID_VALUE: invalid argument: {what} {tuple(size)}")
        values = self.checked(args)
        stand_in.counts.launches += 1
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if stand_in.on_use is not None:
            for array in arrays:
                stand_in.on_use(array, False)
        if stand_in.tape is not None:
            stand_in.tape.meet(arrays)
            stand_in.tape.note(self.compute, (values, grid, block), {}, ())
        self.compute(values, grid, block)

    def compute(self, values, grid, block):
        """Run it twice, and compare."""
        regions = Regions([value for value in values if isinstance(value, np.ndarray)])
        first = self.run(values, regions, grid, block, backwards=False, garbage=0xFF)
        second = self.run(values, regions, grid, block, backwards=True, garbage=0x2E)
        for a, b in zip(first, second, strict=True):
            if not np.array_equal(a, b):
                raise Race(
                    f"{self.name}: {np.count_nonzero(a != b)} bytes of results depend on the order of "
                    "threads, on memory that was not written, or on what lies beyond an array"
                )
        regions.write(first)

    def run(self, values, regions, grid, block, backwards, garbage):
        """Run it once on copies, and return the bytes of all regions after that."""
        copies = regions.copies(garbage)
        cells = [self.cell(value, regions, copies) for value in values]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*[ctypes.addressof(cell) for cell in cells])
        sizes = [(ctypes.c_uint * 3)(*size) for size in (grid, block)]
        wrong = self.library.emulated_launch(self.call, pointers, *sizes, int(backwards), garbage)
        if wrong:
            raise LaunchError(f"{self.name}: {wrong.decode()}")
        return regions.results(copies, garbage, self.name)

    @staticmethod
    def cell(value, regions, copies):
        """Return memory that holds an argument."""
        if value is None:
            return ctypes.c_void_p(0)
        if isinstance(value, np.ndarray):
            return ctypes.c_void_p(regions.address(value, copies))
        return ctypes.create_string_buffer(value.tobytes(), value.itemsize)

    def checked(self, args):
        """Return the arguments as NumPy's arrays and scalars, unless the kernel would misread one."""
        values = [_value(argument) for argument in args]
        if len(values) != len(self.parameters):
            raise TypeError(f"{self.name} has {len(self.parameters)} parameters; {len(values)} were given")
        for k, (value, parameter) in enumerate(zip(values, self.parameters, strict=True)):
            if not _fits(value, parameter):
                kind = None if value is None else f"{type(value).__name__} of {value.dtype}"
                raise TypeError(f"{self.name}: argument {k} is {kind}; its parameter is {parameter}")
        return values


def _value(argument):
    if argument is None:
        return None
    if isinstance(argument, stand_in.ndarray):
        return argument._value
    if type(argument) in SCALARS:
        return argument
    # As CuPy: of Python's numbers it takes 8 bytes.
    if isinstance(argument, int):
        return np.int64(argument)
    if isinstance(argument, float):
        return np.float64(argument)
    raise TypeError(f"Unsupported type {type(argument)}")


def _fits(value, parameter):
    """Return whether a value fits a kernel's parameter, which has a letter and size as in ``Kind``."""
    if value is None or isinstance(value, np.ndarray):
        if parameter[0] != "p":
            return False
        letter, size = parameter[1], int(parameter[2:])
        if value is None or not size:
            return True
        # What has 16 bits may be taken for its bits, and a structure for anything of its size.
        kinds = {"f": "f", "i": "iu", "u": "iub", "b": "bu", "?": "iufVc"}[letter]
        return value.dtype.itemsize == size and value.dtype.kind in (kinds if size != 2 else "iufV")
    kinds = {"f": "f", "i": "iu", "u": "iu", "b": "b"}.get(parameter[0], "")
    return value.dtype.kind in kinds and value.itemsize == int(parameter[1:])
