"""oneDNN's C functions, constants and errors.

``bind`` declares the functions that this package calls; the constants are those of ``dnnl_types.h``. A status
other than success is raised as an exception, `Unsupported` where oneDNN has no implementation. The functions
in `QUIET` run at every call of a kernel and return their status: an automatic check would double their cost.
"""

import ctypes
from typing import Any

# dnnl_status_t
SUCCESS, OUT_OF_MEMORY, INVALID_ARGUMENTS, UNIMPLEMENTED, LAST_IMPLEMENTATION = range(5)
STATUS = {
    OUT_OF_MEMORY: "out of memory",
    INVALID_ARGUMENTS: "invalid arguments",
    UNIMPLEMENTED: "not implemented",
    LAST_IMPLEMENTATION: "no further implementation",
    5: "failed while running",
    6: "not required",
}

CPU, IN_ORDER, FLOAT32, ANY = 1, 1, 3, 1  # engine, stream, data type, format
FORWARD = 64  # dnnl_forward_training
DIRECT = 1  # dnnl_convolution_direct
USER_SCRATCHPAD = 1

# dnnl_query_t
IMPLEMENTATION, WEIGHTS_DESCRIPTOR, WEIGHTS_GRADIENT_DESCRIPTOR, SCRATCHPAD_DESCRIPTOR = 8, 131, 132, 136

# Arguments of primitives.
SOURCE, TARGET, WEIGHTS, BIAS, SCRATCHPAD = 1, 17, 33, 41, 80
SOURCE_GRADIENT, TARGET_GRADIENT, WEIGHTS_GRADIENT = 129, 145, 161
FIRST_POST_OPERATION = 32768

Handle = ctypes.c_void_p
Dims = ctypes.c_int64 * 12
_int, _out, _dims = ctypes.c_int, ctypes.POINTER(Handle), ctypes.POINTER(ctypes.c_int64)
_window = [_dims] * 4  # strides, dilations, padding before, padding after

ARGUMENTS: dict[str, list[Any]] = {
    "dnnl_engine_create": [_out, _int, ctypes.c_size_t],
    "dnnl_stream_create": [_out, Handle, ctypes.c_uint],
    "dnnl_primitive_attr_create": [_out],
    "dnnl_primitive_attr_set_scratchpad_mode": [Handle, _int],
    "dnnl_primitive_attr_set_post_ops": [Handle, Handle],
    "dnnl_primitive_attr_destroy": [Handle],
    "dnnl_post_ops_create": [_out],
    "dnnl_post_ops_append_prelu": [Handle, _int],
    "dnnl_post_ops_destroy": [Handle],
    "dnnl_memory_desc_create_with_strides": [_out, _int, _dims, _int, _dims],
    "dnnl_memory_desc_create_with_tag": [_out, _int, _dims, _int, _int],
    "dnnl_memory_desc_destroy": [Handle],
    "dnnl_memory_create": [_out, Handle, Handle, Handle],
    "dnnl_memory_set_data_handle": [Handle, Handle],
    "dnnl_memory_destroy": [Handle],
    "dnnl_convolution_forward_primitive_desc_create": [
        *[_out, Handle, _int, _int],
        *[Handle] * 4,
        *_window,
        Handle,
    ],
    "dnnl_convolution_backward_data_primitive_desc_create": [
        *[_out, Handle, _int],
        *[Handle] * 3,
        *_window,
        *[Handle] * 2,
    ],
    "dnnl_convolution_backward_weights_primitive_desc_create": [
        *[_out, Handle, _int],
        *[Handle] * 4,
        *_window,
        *[Handle] * 2,
    ],
    "dnnl_matmul_primitive_desc_create": [_out, *[Handle] * 6],
    "dnnl_reorder_primitive_desc_create": [_out, *[Handle] * 5],
    "dnnl_primitive_desc_next_impl": [Handle],
    "dnnl_primitive_desc_query": [Handle, _int, _int, ctypes.c_void_p],
    "dnnl_primitive_desc_destroy": [Handle],
    "dnnl_primitive_create": [_out, Handle],
    "dnnl_primitive_execute": [Handle, Handle, _int, ctypes.c_void_p],
    "dnnl_primitive_destroy": [Handle],
}
QUIET = {"dnnl_memory_set_data_handle", "dnnl_primitive_execute", "dnnl_primitive_desc_next_impl"}


class OneDnnError(RuntimeError):
    """oneDNN refused a call."""


class Unsupported(OneDnnError):
    """oneDNN has no implementation, or none that is worth using."""


class Argument(ctypes.Structure):
    """``dnnl_exec_arg_t``: an argument of a primitive: its kind, such as SOURCE, and its memory object."""

    _fields_ = (("kind", ctypes.c_int), ("memory", ctypes.c_void_p))


def bind(library: ctypes.CDLL) -> Any:
    """Declare the types of the functions that this package calls, and return the library."""
    for name, arguments in ARGUMENTS.items():
        function = library[name]
        function.argtypes = arguments
        function.restype = ctypes.c_int
        if name not in QUIET:
            function.errcheck = _check
        setattr(library, name, function)
    library.dnnl_memory_desc_get_size.argtypes = [Handle]
    library.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    library.dnnl_memory_desc_equal.argtypes = [Handle, Handle]
    library.dnnl_memory_desc_equal.restype = ctypes.c_int
    library.dnnl_primitive_desc_query_md.argtypes = [Handle, ctypes.c_int, ctypes.c_int]
    library.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
    return library


def created(function: Any, *arguments: Any) -> int:
    """Call a function whose first argument receives a handle, and return the handle."""
    handle = Handle()
    function(ctypes.byref(handle), *arguments)
    assert handle.value is not None
    return handle.value


def failure(status: int, name: str) -> OneDnnError:
    """Return the exception for a status other than success; ``name`` is the function that returned it."""
    kind = Unsupported if status == UNIMPLEMENTED else OneDnnError
    return kind(f"oneDNN: {name}: {STATUS.get(status, f'status {status}')}")


def _check(status: Any, function: Any, arguments: Any) -> Any:
    if status != SUCCESS:
        raise failure(status, function.__name__)
    return status
