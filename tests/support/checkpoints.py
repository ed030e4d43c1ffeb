"""Variables that tests save and load, and files of any header."""

import contextlib
import hashlib
import json

import numpy as np
import pytensor
import pytensor.tensor as pt

from synk.extensions import train, updates
from synk.extensions.checkpoint import file_format


def variables(fill=0.0):
    return {
        "W": pytensor.shared(np.full((2, 3), fill), name="W"),
        "b": pytensor.shared(np.full(3, fill, "float32"), name="b"),
        "t": pytensor.shared(np.asarray(int(fill)), name="t"),
        "rng": pytensor.shared(np.random.default_rng(int(fill)), name="rng"),
    }


def snapshot(named):
    """Return the values in a form that can be compared."""
    state = named["rng"].get_value(borrow=True).bit_generator.state
    return [named[name].get_value().tolist() for name in ("W", "b", "t")], state


@contextlib.contextmanager
def unchanged(named):
    before = snapshot(named)
    yield
    assert snapshot(named) == before


def forge(path, fields, arrays=b""):
    """Write a file with a valid digest around any header."""
    header = json.dumps(fields, default=lambda array: array.tolist()).encode()
    prefix = file_format.PREFIX.pack(file_format.MAGIC, file_format.VERSION, len(header))
    content = prefix + header + arrays
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


def counting():
    """Return a count that is per rank, and a step in which ranks draw, and count, for their rows."""
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    count, same = (pytensor.shared(np.asarray(0), name=name) for name in ("count", "same"))
    w, x = pytensor.shared(np.ones(2), name="w"), pt.dmatrix("x")
    next_rng, noise = pt.random.normal(size=(x.shape[0],), rng=rng, return_next_rng=True)
    own = [(rng, next_rng), (count, count + x.shape[0], None), (same, same + 1)]
    loss = pt.sqr(x @ w + noise).mean()
    return count, train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1, updates=own)
