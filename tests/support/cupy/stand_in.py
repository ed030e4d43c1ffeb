"""An array module that computes with NumPy and is as strict about transfers as one on a GPU.

Its arrays refuse every way to the host but ``asnumpy`` and ``get``: no ``int()``, ``bool()``, ``tolist``,
iteration, buffer or ``np.`` function takes one, and its functions take no NumPy array but through
``asarray``. It has the functions that CuPy has (``names.txt``), and kernels in CUDA, which run on the
emulator. Reductions return arrays without axes, not scalars.

    stand_in.counts.reset(); ...; stand_in.counts.uploads

``counts`` tells launches (functions that compute), uploads and downloads; indices by a mask and ``nonzero``
count as downloads, since a GPU is waited for to learn the length of the result.
"""

import operator
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from weakref import WeakValueDictionary

import numpy as np
import pytest
import scipy.linalg
import scipy.special

from support.cupy import stand_in_arrays
from support.cupy.tape import refuse

inf, nan, pi, e, newaxis = np.inf, np.nan, np.pi, np.e, None


def _read_names():
    sections, section = {}, None
    for line in Path(__file__).with_name("names.txt").read_text().splitlines()[1:]:
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), set())
        else:
            section.update(line.split())
    return sections


NAMES = _read_names()
OF_THE_HOST = NAMES["of the host"]  # know types and shapes alone
CREATES = NAMES["creates"]  # take lengths, which are numbers of the host
VIEWS, WAITS = NAMES["views"], NAMES["waits"]
REAL = NAMES["no complex numbers"]  # ufuncs that have loops for these on the host
WITH_METHODS = NAMES[
    "first an array"
]  # ask their first argument for its methods, which numbers of Python lack
PRODUCTS = {"dot", "inner", "matmul", "tensordot", "vdot"}  # CuPy's refuse to be recorded
METHODS_THAT_VIEW = NAMES["methods that view"]
METHODS = METHODS_THAT_VIEW | NAMES["methods"]


class SilentTransfer(TypeError):
    """A device array was about to go to the host, or a host array to the device, unasked."""


@dataclass
class Counts:
    """Counts of the work done since the last reset."""

    launches: int = 0
    uploads: int = 0
    downloads: int = 0

    def reset(self):
        self.launches = self.uploads = self.downloads = 0


counts = Counts()
tape = None  # where launches are noted while a graph is captured
on_use = None  # on_use(array, waits=False) is told of what functions read and write, behind `ndarray`
on_upload = None  # on_upload(array) is told of what is copied from the host

# Memory whose address somebody has asked for, by address, for as long as it is there.
_memories = WeakValueDictionary()


class MemoryPointer:
    """The address of an array."""

    def __init__(self, array):
        memory = array
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        _memories[memory.__array_interface__["data"][0]] = memory
        self.ptr = array.__array_interface__["data"][0]


def memory_at(address, size):
    """Return the array that owns the bytes at an address; None if it has been freed."""
    for start, memory in _memories.items():
        if start <= address and address + size <= start + memory.nbytes:
            return memory
    return None


def _refuse(name):
    def refused(self, *args, **keywords):
        raise SilentTransfer(f"{name} of a device array would copy it to the host; ask for it with asnumpy")

    return refused


class ndarray:
    """An array on the device."""

    __slots__ = ("__weakref__", "_value")
    __hash__ = None

    def __init__(self, value):
        self._value = np.asarray(value)

    shape = property(lambda self: self._value.shape)
    strides = property(lambda self: self._value.strides)
    dtype = property(lambda self: self._value.dtype)
    ndim = property(lambda self: self._value.ndim)
    size = property(lambda self: self._value.size)
    itemsize = property(lambda self: self._value.itemsize)
    nbytes = property(lambda self: self._value.nbytes)
    __cuda_array_interface__ = property(lambda self: {"shape": self.shape, "version": 3})  # it has one
    data = property(lambda self: MemoryPointer(self._value))
    T = property(lambda self: ndarray(self._value.T))
    mT = property(lambda self: ndarray(self._value.mT))
    real = property(lambda self: ndarray(self._value.real))
    imag = property(lambda self: ndarray(self._value.imag))

    @property
    def flags(self):
        flags = self._value.flags
        return SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=flags.owndata
        )

    def get(self):
        return asnumpy(self)

    def set(self, value, stream=None):
        if not isinstance(value, np.ndarray) or value.dtype != self.dtype:
            raise TypeError(f"set takes an array of NumPy of {self.dtype}")
        if value.shape != self.shape:
            raise ValueError(f"an array of shape {value.shape} does not fit into {self.shape}")
        if tape is not None:
            refuse()
        counts.uploads += 1
        _uploading(value)
        self._value[...] = value

    def __getattr__(self, name):
        if name not in METHODS:
            raise AttributeError(f"device arrays have no {name!r}")
        method = getattr(self._value, name)
        if name == "reshape":  # a shape is not an array of the device
            return lambda *args, **keywords: ndarray(method(*args, **keywords))
        return lambda *args, **keywords: _run(
            method, args, keywords, name in METHODS_THAT_VIEW, name in WAITS
        )

    def __getitem__(self, key):
        parts = key if isinstance(key, tuple) else (key,)
        arrays = [part for part in parts if isinstance(part, ndarray)]
        masked = any(array.dtype == bool for array in arrays)
        return _run(self._value.__getitem__, (key,), {}, not arrays, masked)

    def __setitem__(self, key, value):
        parts = key if isinstance(key, tuple) else (key,)
        masked = any(isinstance(part, ndarray) and part.dtype == bool for part in parts)
        _run(self._value.__setitem__, (key, value), {}, waits=masked)

    def __len__(self):
        return len(self._value)

    def __repr__(self):
        return f"<{self.dtype} {self.shape} on the device>"

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def __array_ufunc__(self, function, method, *inputs, **keywords):
        # What `np.float32(2) * array` does; a function of np applied to an array is another thing.
        if method != "__call__" or not any(isinstance(x, np.generic) for x in inputs):
            raise SilentTransfer(f"np.{function.__name__} was called with a device array; call that of xp")
        return _run(function, inputs, keywords)

    def __array_function__(self, function, types, args, keywords):
        raise SilentTransfer(f"np.{function.__name__} was called with a device array; call that of xp")


for _name in ("array", "int", "float", "bool", "complex", "index", "iter", "contains", "buffer", "round"):
    setattr(ndarray, f"__{_name}__", _refuse(f"__{_name}__"))
for _name in ("item", "tolist", "tobytes", "dumps"):
    setattr(ndarray, _name, _refuse(_name))


def _operator(function):
    return lambda *operands: _run(function, operands, {})


def _reflected(function):
    return lambda self, other: _run(function, (other, self), {})


def _in_place(function):
    def update(self, other):
        self._value = _run(function, (self, other), {})._value
        return self

    return update


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
]:
    _function = getattr(operator, f"__{_name}__")
    setattr(ndarray, f"__{_name}__", _operator(_function))
    setattr(ndarray, f"__r{_name}__", _reflected(_function))
    setattr(ndarray, f"__i{_name}__", _in_place(getattr(operator, f"__i{_name}__")))
for _name in ["eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"]:
    setattr(ndarray, f"__{_name}__", _operator(getattr(operator, f"__{_name}__")))


class ufunc:
    """A function of elements. NumPy's own, behind the checks."""

    def __init__(self, function):
        self._function = function
        self.__name__ = function.__name__
        self.types = list(function.types)
        if function.__name__ in REAL:
            self.types = [loop for loop in self.types if not set(loop) & set("FDG")]

    def __call__(self, *args, **keywords):
        if self.__name__ in REAL and any(np.iscomplexobj(_inside(x)) for x in args):
            raise TypeError(f"CuPy's {self.__name__} takes no complex numbers")
        return _run(self._function, args, keywords)

    def __getattr__(self, name):
        if name not in ("outer", "at", "reduce", "accumulate", "reduceat"):
            raise AttributeError(name)
        return lambda *args, **keywords: _run(getattr(self._function, name), args, keywords)


def _run(function, args, keywords, is_view=False, waits=False):
    """Call a function of NumPy on the contents of device arrays, and count the launch."""
    if getattr(function, "__name__", "") in ("sort", "argsort"):
        keywords = {"kind": "stable"} | keywords  # the only kind of a device
    # Memory alone is no launch.
    counts.launches += not is_view and getattr(function, "__name__", "") != "empty_like"
    counts.downloads += waits
    if on_use is not None and not is_view:
        for value in (*args, *keywords.values()):
            _tell(value)
    out = keywords.get("out")
    inside, keywords_inside = [*map(_inside, args)], {name: _inside(x) for name, x in keywords.items()}
    if tape is not None:
        if waits or getattr(function, "__name__", "").strip("_") in PRODUCTS:
            refuse()
        tape.meet(function, inside, keywords_inside)
    result = function(*inside, **keywords_inside)
    returned = out if isinstance(out, ndarray) else _outside(result)
    if tape is not None:
        tape.note(function, inside, keywords_inside, _held(returned))
    return returned


def _held(value):
    """Return NumPy arrays for device arrays, also within tuples and lists."""
    if isinstance(value, ndarray):
        return value._value
    return [_held(part) for part in value] if isinstance(value, tuple | list) else ()


def _tell(value, waits=False):
    if isinstance(value, ndarray):
        on_use(value._value, waits)
    elif type(value) in (tuple, list):
        for one in value:
            _tell(one, waits)


def _inside(value):
    if isinstance(value, ndarray):
        return value._value
    if isinstance(value, np.ndarray):
        raise SilentTransfer(f"a NumPy array of shape {value.shape} was given to a function of the device")
    if type(value) in (tuple, list):
        return type(value)(map(_inside, value))
    return value


def _outside(value):
    if isinstance(value, np.ndarray | np.generic):
        return ndarray(value)
    if isinstance(value, tuple | list):
        values = [_outside(x) for x in value]
        return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
    return value


def asnumpy(array):
    """Copy an array to the host."""
    if not isinstance(array, ndarray):
        return np.asarray(array)
    if tape is not None:
        refuse()
    counts.downloads += 1
    if on_use is not None:
        _tell(array, waits=True)
    return array._value.copy()


def asarray(value, dtype=None):
    """Return an array or number as a device array, copied unless it is one."""
    if isinstance(value, ndarray):
        return value if dtype in (None, value.dtype) else value.astype(dtype)
    return array(value, dtype)


def array(value, dtype=None, copy=True):
    """Return a new device array from a device array, a sequence of them, or host data."""
    if isinstance(value, ndarray):
        return _run(np.array, (value,), {"dtype": dtype})
    if isinstance(value, tuple | list) and any(isinstance(x, ndarray) for x in value):
        return _run(np.array, (value,), {"dtype": dtype})
    if tape is not None:
        refuse()
    counts.uploads += 1
    _uploading(value)
    return ndarray(np.array(value, dtype))


def _uploading(value):
    if on_upload is not None and isinstance(value, np.ndarray) and value.ndim:
        on_upload(value)


def solve_triangular(a, b, **keywords):
    """Like SciPy's, but a singular matrix is not looked for."""
    try:
        return _run(scipy.linalg.solve_triangular, (a, b), keywords)
    except np.linalg.LinAlgError:
        return ndarray(np.full(b.shape, np.inf, b.dtype))


def lu_factor(a, **keywords):
    """Like SciPy's, but a singular matrix gives numbers; CuPy warns of it, for which it waits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        return _run(scipy.linalg.lu_factor, (a,), keywords, waits=True)


def polygamma(n, x):
    """Like SciPy's, of arrays and NumPy's scalars."""
    if not hasattr(n, "dtype"):
        raise AttributeError(f"CuPy asks the order for its dtype, and {type(n).__name__} has none")
    return _run(scipy.special.polygamma, (n, x), {})


def _stride_trick(name):
    function = getattr(np.lib.stride_tricks, name)
    return lambda array, *args, **keywords: _run(function, (array, *args), keywords, True)


def may_share_memory(one, other):
    """Compare addresses: nothing is read."""
    return np.may_share_memory(one._value, other._value)


OVERRIDES = {
    "solve_triangular": solve_triangular,
    "lu_factor": lu_factor,
    "polygamma": polygamma,
    "may_share_memory": may_share_memory,
}
lib = SimpleNamespace(
    stride_tricks=SimpleNamespace(
        as_strided=_stride_trick("as_strided"), sliding_window_view=_stride_trick("sliding_window_view")
    )
)


class _Twin(ModuleType):
    """The fake of one of CuPy's submodules, with those functions of NumPy's that CuPy has."""

    def __init__(self, name):
        super().__init__(name)
        self._original = import_module(name)

    def __getattr__(self, name):
        if name in OVERRIDES:
            return OVERRIDES[name]
        if name not in NAMES[self.__name__]:
            raise AttributeError(f"CuPy has no twin of {self.__name__}.{name}")
        function = getattr(self._original, name)
        if isinstance(function, type) or name in OF_THE_HOST:
            return function
        if isinstance(function, np.ufunc):
            return ufunc(function)
        return lambda *args, **keywords: _call(function, name, args, keywords)


def _call(function, name, args, keywords):
    if name in WITH_METHODS and args and not hasattr(args[0], "dtype"):
        raise AttributeError(f"CuPy's {name} is for arrays, and the first of {args} is none")
    if name == "broadcast_to" and not isinstance(args[0], ndarray):
        raise TypeError(f"CuPy's broadcast_to is for arrays of the device, not {type(args[0])}")
    if name in CREATES:  # lengths are numbers of the host
        counts.launches += name != "empty"
        made = ndarray(function(*args, **keywords))
        if tape is not None:
            tape.note(function, args, keywords, made._value)
        return made
    return _run(function, args, keywords, name in VIEWS, name in WAITS or _looks(name, args, keywords))


def _looks(name, args, keywords):
    """Return whether CuPy waits for the device, to check an index or to learn the length of a result."""
    if name == "choose":
        return keywords.get("mode", "raise") == "raise"
    return name == "repeat" and not isinstance(args[1], int)


_numpy = _Twin("numpy")
linalg, fft = _Twin("numpy.linalg"), _Twin("numpy.fft")

TWINS = {
    "cupyx": SimpleNamespace(errstate=lambda **keywords: nullcontext()),  # factorisations raise at once here
    "cupyx.scipy": ModuleType("cupyx.scipy"),
    **{f"cupyx.scipy.{name}": _Twin(f"scipy.{name}") for name in ("special", "linalg", "signal")},
}


def install(setitem=dict.__setitem__):
    """Let ``import cupyx.scipy.special`` and its siblings find the twins of this module."""
    stand_in_arrays.register()
    for name, module in TWINS.items():
        setitem(sys.modules, name, module)


def __getattr__(name):
    if name == "RawModule":
        emulator = import_module("support.cuda.emulator")  # which imports this
        if not emulator.available():
            pytest.skip("needs g++")
        return getattr(emulator, name)
    return getattr(_numpy, name)
