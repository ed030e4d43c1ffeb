"""Give results without an operation the numbers of one process, by collectives inside the graph if needed.

arguments of `synk.function` -> define -> Definition, as the script wrote it
                             -> for_ranks -> Definition, as ranks compute it, by ``results``, which asks
                                ``completion`` for the graph, and ``rules`` what Ops make of rows
"""

from synk.exact import loops as loops  # these register rules
from synk.exact.collectives import row_positions as row_positions
from synk.exact.collectives import row_softmax as row_softmax
