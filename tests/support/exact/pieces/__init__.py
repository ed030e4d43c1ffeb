"""Pieces of random graphs: each makes a new value, or several, of values that a graph has.

    graph.real(2), graph.near(x), graph.number(...) -> piece -> variables

A piece raises `Unfit` where the graph has nothing for it. What it makes may fail to be computed, or be no
number; the graph leaves it out then. A seed's graph depends on the order of the pieces, that of the modules'
names.
"""

from support.exact.pieces import elements, moves, positions, products, subgraphs
from support.exact.pieces.registry import PIECES

__all__ = ["PIECES", "elements", "moves", "positions", "products", "subgraphs"]
