import subprocess
import sys

PROGRAM = """
import sys
import synk
assert not [name for name in sys.modules if name.startswith(("pytensor.sparse", "pytensor.typed_list"))]

import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
from pytensor.typed_list import make_list

class Sum(ps.math.SpSum):
    pass

x, y = ps.csr_matrix(dtype="float64"), pt.dvector()
function = pytensor.function([x, y], [Sum()(x), make_list([y]).length()], mode=synk.compile.array_mode())
assert function.vm.jit_fn.host_nodes == ()
assert [float(value) for value in function([[1, 2], [3, 4]], [5])] == [10, 1]
"""


def test_families_are_registered_by_the_first_of_their_ops():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
