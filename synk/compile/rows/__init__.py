"""Know how the values of a graph relate to the rows that ranks share: relations, and a rule for each Op."""

from synk.compile.rows import elementwise as elementwise
from synk.compile.rows import indexing as indexing
from synk.compile.rows import inner_graphs as inner_graphs
from synk.compile.rows import lengths as lengths
from synk.compile.rows import movement as movement
from synk.compile.rows import products as products
from synk.compile.rows import random as random
from synk.compile.rows import reductions as reductions
from synk.compile.rows import sorting as sorting
from synk.compile.rows.relations import SAME as SAME
from synk.compile.rows.relations import SUM as SUM
from synk.compile.rows.relations import Partial as Partial
from synk.compile.rows.relations import Rows as Rows
from synk.compile.rows.table import relate as relate
