"""How kernels of GPUs go over arrays, decided from shapes and strides alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synk.compile.programs.elementwise.body import Operand
from synk.gpu.elementwise.cuda_access import stride_axes
from synk.gpu.elementwise.cuda_layout import AT_ONCE, MOST_BLOCKS, THREADS, joined, lay_out
from synk.gpu.elementwise.cuda_packs import pack_width, row_width


def layout_of(*arrays, patterns=None):
    """Return the layout of a launch on arrays; None stands for a number."""
    patterns = patterns or [(False,) * arrays[-1].ndim] * len(arrays)
    operands = [
        Operand("float32" if a is None else str(a.dtype), pattern)
        for a, pattern in zip(arrays, patterns, strict=True)
    ]
    geometries = [None if a is None else (a.shape, a.strides) for a in arrays]
    return lay_out(operands, geometries, [4 if a is None else a.itemsize for a in arrays])


def empty(*shape):
    return np.empty(shape, "float32")


X = empty(3, 4, 5)


@pytest.mark.parametrize(
    ("arrays", "flat"),
    [
        ([X, X], True),
        ([X.T, X.T], True),
        ([X.transpose(1, 0, 2), X.transpose(1, 0, 2)], True),  # filled, in an order of its own
        ([X, X.reshape(5, 4, 3).T], False),
        ([X, X[::-1]], False),
        ([X[:, ::2], X[:, ::2]], False),
        ([X[:, :1], empty(4, 3, 5).transpose(1, 0, 2)[:, :1]], False),
        ([empty(3, 1, 5), empty(3, 1, 5)[:, ::-1]], True),  # an axis of one element has any stride
        ([empty(), empty()], True),
    ],
)
def test_what_fills_memory_in_one_order_is_flat(arrays, flat):
    assert layout_of(*arrays).flat == flat


def test_numbers_and_single_elements_leave_a_launch_flat():
    one = (True, True)
    assert layout_of(empty(1, 1), None, empty(4, 5), patterns=[one, one, (False, False)]).flat
    assert not layout_of(empty(1, 5), empty(4, 5), patterns=[(True, False), (False, False)]).flat
    assert layout_of(empty(1, 5), empty(1, 5), patterns=[(True, False), (False, False)]).flat


def test_lengths_that_differ_have_no_layout():
    assert layout_of(empty(3, 4), empty(3, 5)) is None
    assert layout_of(empty(3, 1), empty(3, 5)) is None  # not declared
    assert layout_of(empty(3, 4), empty(3, 5), patterns=[(False, True), (False, False)]) is None
    assert layout_of(empty(4), empty(3, 4), patterns=[(False,), (False, False)]) is None


MANY = THREADS * AT_ONCE


@pytest.mark.parametrize(
    ("n", "blocks"),
    [
        *[(0, 0), (1, 1), (THREADS, 1), (THREADS + 1, 2), (MANY, AT_ONCE), (MANY + 1, AT_ONCE // 4 + 1)],
        (10 * 4 * THREADS * MOST_BLOCKS, MOST_BLOCKS),
    ],
)
def test_blocks(n, blocks):
    array = np.lib.stride_tricks.as_strided(empty(1), (n,), (4,))
    layout = layout_of(array, array)
    assert layout.blocks == blocks
    assert layout.integers == (n,)
    assert all(type(number) is np.int64 for number in layout.integers)


@pytest.mark.parametrize(
    ("dtypes", "width"),
    [
        (["float32", "float32"], 4),
        (["float32:bfloat16", "bool"], 8),
        (["float32:float16", "float32"], 4),
        (["float32", "float64"], 2),
        (["int8"], 16),
        (["int8", "float64 number"], 16),  # which is read once
        (["float64 number"], 1),
    ],
)
def test_of_the_widest_a_pack_has_what_one_instruction_reads(dtypes, width):
    operands = []
    for word in dtypes:
        dtype, _, stored = word.split()[0].partition(":")
        operands.append(Operand(dtype, (word.endswith("number"),), stored))
    assert pack_width(operands) == row_width(operands) == width


def test_what_broadcasts_along_rows_does_not_narrow_their_packs():
    operands = [Operand("float64", (False, True)), Operand("float32", (False, False))]
    assert (pack_width(operands), row_width(operands)) == (2, 4)
    many, column = np.empty((3000, 1000), "float32"), np.empty((3000, 1), "float64")
    layout = layout_of(column, many, patterns=[o.broadcast for o in operands])
    assert (layout.flat, layout.blocks) == (False, -(-many.size // (4 * THREADS)))


def test_axes_are_joined_where_all_arrays_allow_it():
    # A bias of channels: rows and columns of images are one axis.
    image, bias = empty(2, 3, 4, 5), empty(3)[None, :, None, None]
    patterns = [(False,) * 4, (True, False, True, True), (False,) * 4]
    layout = layout_of(image, bias, image, patterns=patterns)
    strides = [*image.strides, bias.strides[1], *image.strides]
    assert layout.integers == (120, 2, 3, 1, 20, *strides)
    assert joined((2, 3, 4), [(48, 16, 4), (0, 0, 4)]) == [1, 6, 4]
    assert joined((2, 3, 4), [(48, 16, 4)]) == [1, 1, 24]


@st.composite
def strided(draw):
    """Return two arrays of one shape, in any order of axes and direction."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))

    def array():
        order = draw(st.permutations(range(len(shape))))
        steps = [draw(st.sampled_from([1, 1, 1, -1, 2])) for _ in shape]
        memory = np.empty([shape[axis] * abs(step) for axis, step in zip(order, steps, strict=True)], "int16")
        whole = memory[tuple(slice(None, None, step) for step in steps)]
        return whole.transpose(np.argsort(order))

    return array(), array()


@given(arrays=strided())
def test_every_element_is_visited_with_its_own_of_the_other_array(arrays):
    layout = layout_of(*arrays)
    operands = [Operand("int16", (False,) * arrays[0].ndim)] * 2
    n, *numbers = layout.integers
    assert n == arrays[0].size
    offsets = [
        sum(index * step for index, step in zip(np.indices(a.shape), a.strides, strict=True)).ravel()
        for a in arrays
    ]
    if layout.flat:
        visited = [np.arange(n) * 2] * 2
        offsets = [own - own.min() for own in offsets]
    else:
        ndim = arrays[0].ndim
        lengths, strides = numbers[:ndim], np.reshape(numbers[ndim:], (2, len(stride_axes(operands[0]))))
        indices = np.indices(lengths).reshape(ndim, n)
        visited = [own @ indices for own in strides]
    assert sorted(zip(*visited, strict=True)) == sorted(zip(*offsets, strict=True))
