import subprocess
import sys

import pytest

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
results = [Sum()(x), make_list([y]).length(), pt.exp(y) * 2]
function = pytensor.function([x, y], results, mode=synk.compile.array_mode())
assert function.vm.jit_fn.host_nodes == ()
assert [float(value) for value in function([[1, 2], [3, 4]], [5])[:2]] == [10, 1]
assert "scipy.special.cython_special" not in sys.modules  # which no region here calls

import synk.ops.kernels.onednn
assert "libdnnl" not in open("/proc/self/maps").read()
"""


@pytest.mark.slow
def test_families_and_libraries_are_loaded_by_the_first_that_needs_them():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
