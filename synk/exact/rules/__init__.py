"""Rules, one for each Op, that tell how ranks' values relate to one process's value of the same variable."""

from synk.exact.rules import elementwise as elementwise
from synk.exact.rules import indexing as indexing
from synk.exact.rules import inner_graphs as inner_graphs
from synk.exact.rules import lengths as lengths
from synk.exact.rules import movement as movement
from synk.exact.rules import products as products
from synk.exact.rules import random as random
from synk.exact.rules import reductions as reductions
from synk.exact.rules import sorting as sorting
from synk.exact.rules.relations import SAME as SAME
from synk.exact.rules.relations import SUM as SUM
from synk.exact.rules.relations import Partial as Partial
from synk.exact.rules.relations import Rows as Rows
from synk.exact.rules.table import relate as relate
