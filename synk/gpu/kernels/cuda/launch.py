"""Shapes of launches: how many threads in a block, how many blocks, and in how many parts sums are formed.

Pure arithmetic. All depend on shapes alone, never on the GPU, so that every GPU adds in the same order; the
numbers are those of an H200, with 132 multiprocessors of up to eight blocks of 256 threads.
"""

THREADS = 256
LANES = 32
WARPS = THREADS // LANES
ROWS = 4  # that a thread reads at once, as in common.cu
BLOCKS = 8 * 132
PARTS = 4 * 132  # blocks that form sums: they fill the GPU twice, for their registers leave room for two each


def ceiling(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """Return the least power of two that is not less than n, of at least 1."""
    return 1 << max(0, n - 1).bit_length()


def column_blocks(columns: int, vector: int) -> tuple[tuple[int, int], int]:
    """Return the block whose lanes go along ``columns``, and how many of these it takes for all.

    A block has (x, y) threads: along columns, one for each ``vector`` of them, and along rows.
    """
    packs = ceiling(columns, vector)
    across = min(LANES, power_of_two(packs))
    return (across, THREADS // across), ceiling(packs, across)


def splits(blocks: int, steps: int) -> int:
    """Return in how many parts to form sums: each takes ``blocks``, and all have ``steps`` to do.

    A part costs a merger of its threads' sums, and is written and read again: a step should be several reads.
    """
    return max(1, min(ceiling(PARTS, blocks), steps))


def row_threads(width: int, vector: int) -> int:
    """Return how many threads share a row: whole warps, so many that each reads a few packs."""
    return min(THREADS, max(LANES, power_of_two(ceiling(width, vector * ROWS))))


def flat_blocks(packs: int) -> int:
    """Return how many blocks go over that many packs, one for each thread or several."""
    return max(1, min(ceiling(packs, THREADS), 4 * BLOCKS))
