import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.slow import slow

SCRIPT = """
import numpy as np, pytensor, pytensor.tensor as pt, synk
synk.fork({ranks})
x = pt.dmatrix("x")
w = pytensor.shared(np.{value}(3), name="w")
state = pytensor.shared(np.random.default_rng({ranks}), name="state")
next_state, noise = pt.random.normal(size=(x.shape[0],), rng=state, return_next_rng=True)
loss = ((x @ w + noise) ** {power}).mean()
{made}
fingerprint = step.fingerprint()
"""


def in_this_process(**options):
    variables = {}
    exec(SCRIPT.format(**options), variables)
    synk.close()
    return variables["fingerprint"]


def in_another_process(**options):
    script = SCRIPT.format(**options) + "print(fingerprint)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


PLAIN = "step = synk.function([x], loss, updates=[(w, w + x.sum()), (state, next_state)])"
ADAM = """
from synk.extensions import train, updates
step = train.make_train_function(loss, [w], [x], updates.adam, updates=[(state, next_state)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("made", [PLAIN, slow(ADAM)], ids=["plain", "adam"])
def test_it_is_that_of_the_graph_in_every_process_for_any_ranks_and_values(made):
    one = in_this_process(ranks=1, value="zeros", power=2, made=made)
    assert in_another_process(ranks=2, value="ones", power=2, made=made) == one
    assert in_this_process(ranks=1, value="zeros", power=4, made=made) != one


def test_what_a_function_tells_of_its_graph(ranks):
    ranks(2)
    x, y, scale = pt.dmatrix("x"), pt.dvector("y"), pt.dscalar("scale")
    v = pytensor.shared(np.zeros(4), name="v")
    total = (x.sum() * scale).copy("total")
    f = synk.function([x, y], [total, y.sum()], bcast_inputs=[scale])
    g = synk.function([y], updates=[(v, v + y.sum())])
    both = synk.sequence(f, (synk.all_reduce, v), g)
    assert f.scattered == (x, y)
    assert both.scattered == (x, y)
    assert f.outputs[0] is total
    assert len(both.outputs) == len(both(np.ones((3, 2)), np.ones(3), 1.0)) == 2
    assert len({f.fingerprint(), g.fingerprint(), both.fingerprint()}) == 3
    again = synk.function([x, y], [total, y.sum()], bcast_inputs=[scale])
    assert again.fingerprint() == f.fingerprint()
    assert (
        synk.function([x, y], [(total, "sum"), y.sum()], bcast_inputs=[scale]).fingerprint()
        != f.fingerprint()
    )
