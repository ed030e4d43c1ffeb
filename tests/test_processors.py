"""That tests run on the paths of other processors where the environment says so: `make other-processors`."""

import os

import numpy as np
import pytest
import threadpoolctl

ONEDNN_ISAS = {"SSE41": 0x1, "AVX2": 0x7, "AVX512_CORE": 0x27}  # dnnl_cpu_isa_t

core = os.environ.get("OPENBLAS_CORETYPE")
isa = os.environ.get("ONEDNN_MAX_CPU_ISA")


@pytest.mark.skipif(not core, reason="OPENBLAS_CORETYPE is not set")
def test_openblas_computes_as_it_is_told():
    np.ones((2, 2)) @ np.ones((2, 2))
    found = threadpoolctl.threadpool_info()
    assert {of["architecture"] for of in found if of["internal_api"] == "openblas"} == {core}


@pytest.mark.skipif(not isa, reason="ONEDNN_MAX_CPU_ISA is not set")
def test_onednn_computes_as_it_is_told():
    library = pytest.importorskip("synk.compile.native.find_onednn").find().library
    if library is None:
        pytest.skip("there is no oneDNN")
    assert library.dnnl_get_effective_cpu_isa() == ONEDNN_ISAS[isa]
