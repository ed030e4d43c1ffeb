"""Regions: runs of nodes that are compiled to one C function each.

    nodes -> grouping -> Region -> region_writer: c_text of each node -> C -> a function

`c_text` is a table with an entry an Op; elements, movement, making, indexing, products, linear_algebra,
factors, blocks, loops and draws hold the entries.
"""

from synk.compile.regions import blocks as blocks
from synk.compile.regions import draws as draws
from synk.compile.regions import elements as elements
from synk.compile.regions import factors as factors
from synk.compile.regions import grouping as grouping
from synk.compile.regions import hoisting as hoisting
from synk.compile.regions import indexing as indexing
from synk.compile.regions import linear_algebra as linear_algebra
from synk.compile.regions import loops as loops
from synk.compile.regions import making as making
from synk.compile.regions import movement as movement
from synk.compile.regions import products as products
