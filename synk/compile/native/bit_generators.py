"""Copy NumPy's generators, and let C call the functions by which NumPy draws from their bits.

name of a function -> drawing_text: C that calls it by its address in the library's table ``drawing``
pointers -> the addresses, for that table
"""

import ctypes
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np

# By name in NumPy: the C types of the arguments behind the bits, and of the result.
FUNCTIONS = {
    "random_normal": ("double, double", "double"),
    "random_standard_normal_f": ("", "float"),
    "random_uniform": ("double, double", "double"),
    "random_standard_uniform_f": ("", "float"),
    "random_exponential": ("double", "double"),
    "random_gamma": ("double, double", "double"),
    "random_beta": ("double, double", "double"),
    "random_laplace": ("double, double", "double"),
    "random_logistic": ("double, double", "double"),
    "random_lognormal": ("double, double", "double"),
    "random_poisson": ("double", "long"),
    "random_bounded_uint64": ("unsigned long, unsigned long, unsigned long, _Bool", "unsigned long"),
}
NAMES = tuple(FUNCTIONS)

# The C interface of NumPy's generators: an extension finds a generator's bits in a capsule.
BITS = f"""\
typedef struct {{
    void *state;
    unsigned long (*next_uint64)(void *);
    unsigned int (*next_uint32)(void *);
    double (*next_double)(void *);
    unsigned long (*next_raw)(void *);
}} Bits;
void *drawing[{len(NAMES)}];
extern void *PyObject_GetAttrString(void *, const char *), *PyCapsule_GetPointer(void *, const char *);
SHARED Bits *bits_of(void *generator)
{{
    void *const bits = PyObject_GetAttrString(generator, "bit_generator");
    void *const capsule = bits ? PyObject_GetAttrString(bits, "capsule") : 0;
    Bits *const found = capsule ? PyCapsule_GetPointer(capsule, "BitGenerator") : 0;
    if (bits)
        Py_DecRef(bits); /* the generator keeps it */
    if (capsule)
        Py_DecRef(capsule);
    return found;
}}

/* Begin a walk over views in C order, where one element may serve all along an axis; 0 if they do not fit. */
SHARED int in_c_order(int n, int ndim, const View *const *views, long *index, long (*stride)[n], char **p)
{{
    for (int k = 0; k < n; k++) {{
        p[k] = views[k]->data;
        for (int axis = 0; axis < ndim; axis++) {{
            const long length = views[k]->shape[axis];
            if (length != 1 && length != views[0]->shape[axis])
                return 0;
            index[axis] = 0;
            stride[axis][k] = length == 1 ? 0 : views[k]->strides[axis];
        }}
    }}
    return 1;
}}
"""


def drawing_text(name: str) -> str:
    """Return a C expression for one of `FUNCTIONS`; the text that uses it must declare `BITS` before."""
    takes, gives = FUNCTIONS[name]
    return f"(({gives} (*)({', '.join(filter(None, ('Bits *', takes)))}))drawing[{NAMES.index(name)}])"


def copy_generator(generator: Any) -> Any:
    """Return a copy of a generator, in the same state; NumPy's take a tenth of the time of ``deepcopy``."""
    if not isinstance(generator, np.random.Generator):
        return deepcopy(generator)
    bits: Any = generator.bit_generator
    new_bits = type(bits)(bits.seed_seq)
    new_bits.state = bits.state
    return np.random.Generator(new_bits)


@cache
def pointers() -> list[int | None]:
    """Return the addresses of `FUNCTIONS`, in the order of `NAMES`."""
    generator: Any = np.random._generator
    library = ctypes.CDLL(generator.__file__)
    return [ctypes.cast(library[name], ctypes.c_void_p).value for name in NAMES]
