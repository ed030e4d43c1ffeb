"""Decide how many threads a block has, how many blocks are launched, and into how many parts sums are split.

These depend on shapes alone, never on the GPU, so that every GPU adds in the same order. The numbers are
those of an H200, with 132 multiprocessors of up to eight blocks of 256 threads.
"""

THREADS = 256
LANES = 32
WARPS = THREADS // LANES
ROWS = 4  # rows that a thread reads at once, as in common.cu
BLOCKS = 8 * 132
PARTS = 4 * 132  # blocks that form sums: twice as many as run at once, since their registers allow two each


def ceiling(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """Return the least power of two that is not less than n, of at least 1."""
    return 1 << max(0, n - 1).bit_length()


def column_blocks(columns: int, vector: int) -> tuple[tuple[int, int], int]:
    """Return the threads of a block, and how many blocks cover all ``columns``.

    A block has (x, y) threads: x along columns, each for ``vector`` of them, and y along rows.
    """
    packs = ceiling(columns, vector)
    across = min(LANES, power_of_two(packs))
    return (across, THREADS // across), ceiling(packs, across)


def splits(blocks: int, steps: int) -> int:
    """Return into how many parts to split sums; a part takes ``blocks``, and all parts share ``steps``.

    Each part costs time, since its threads' sums are merged, written, and read again; so a step should be
    several reads.
    """
    return max(1, min(ceiling(PARTS, blocks), steps))


def row_threads(width: int, vector: int) -> int:
    """Return how many threads share a row: whole warps, and so many that each reads a few packs."""
    return min(THREADS, max(LANES, power_of_two(ceiling(width, vector * ROWS))))


def flat_blocks(packs: int) -> int:
    """Return how many blocks to launch for so many packs, of which each thread takes one or several."""
    return max(1, min(ceiling(packs, THREADS), 4 * BLOCKS))
