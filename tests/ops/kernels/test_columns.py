"""Pieces cover all windows once, whatever the budget; small ones are views."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cases.images import convolutions, normal
from synk.ops.kernels.columns import Grid, channels_first, columns, matrix, part_of, pieces, write_matrix
from synk.ops.kernels.window import LAYOUTS, Window, lengths, ordered


@given(
    st.integers(0, 5),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 2000),
    st.booleans(),
    st.sampled_from([None, 1, 6, 100]),
)
def test_pieces_cover_every_window_once(n_images, outputs, budget, whole, windows):
    grid = Grid.of(Window(), outputs, (2, 2))
    covered = np.zeros((n_images, *outputs), int)
    for piece in pieces(n_images, grid, 8, budget, whole=whole, windows=windows):
        part = covered[piece.images, piece.rows]
        assert part.size
        part += 1
        small_enough = part.size * 32 <= budget
        assert small_enough or (part.shape[0] == 1 and (whole or part.shape[1] == 1))
        assert windows is None or len(part) == 1 or part[0].size * len(part) <= windows
    assert (covered == 1).all()


@given(convolutions(), st.integers(1, 4000))
def test_columns_are_what_windows_see(case, budget):
    convolution, shape, weights, outputs = case
    groups, layout, window = convolution.groups, convolution.layout, convolution.window
    x = channels_first(normal(shape), layout)
    grid = Grid.of(window, lengths(layout, outputs)[2:], weights[2:])
    image = np.pad(x, ((0, 0), (0, 0), *window.padding))
    (dh, dw), (sh, sw) = window.dilation, window.stride
    for piece in pieces(len(x), grid, x.shape[1] * 8, budget):
        found = columns(np, x, grid, groups, layout, piece)
        expected = []
        for n in range(len(x))[piece.images]:
            for row in range(grid.outputs[0])[piece.rows]:
                for column in range(grid.outputs[1]):
                    y0, x0 = row * sh, column * sw
                    extents = y0 + dh * (weights[2] - 1) + 1, x0 + dw * (weights[3] - 1) + 1
                    seen = image[n, :, y0 : extents[0] : dh, x0 : extents[1] : dw]
                    seen = seen.reshape(groups, -1, *weights[2:])
                    seen = seen if layout == "NCHW" else seen.transpose(0, 2, 3, 1)
                    expected.append(seen.reshape(groups, -1))
        np.testing.assert_array_equal(found, np.stack(expected, axis=1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_matrices_already_where_windows_are_pixels(layout):
    x = channels_first(normal(ordered(layout, 1, 6, 3, 4)), layout)
    grid = Grid.of(Window(), (3, 4), (1, 1))
    (piece,) = pieces(1, grid, 48, 1 << 20)
    found = columns(np, x, grid, 2, layout, piece)
    assert found.shape == (2, 12, 3)
    assert np.shares_memory(found, x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_images", [1, 3])
def test_matrices_and_back(layout, n_images):
    x = channels_first(normal(ordered(layout, n_images, 6, 3, 4)), layout)
    (piece,) = pieces(n_images, Grid.of(Window(), (3, 4), (1, 1)), 48, 1 << 20)
    y = np.empty(x.shape)
    write_matrix(matrix(part_of(x, piece), 2, layout), y)
    np.testing.assert_array_equal(y, x)
