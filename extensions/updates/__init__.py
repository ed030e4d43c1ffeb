"""Update rules: how parameters follow the gradient of a loss.

Every rule is called as ``rule(loss, params, **options)`` and returns

    grad_updates   [(flat_gradient, what one slice adds to it, "sum")], for the gradient function
    param_updates  [(variable, new value), ...], for the update function
    flat_gradient  the shared vector to all-reduce between the two

`synk.extensions.train.make_train_function` puts the three together. The loss is a mean over rows,
``g`` below its gradient over the rows of all slices and ranks; operations are elementwise.
``params`` is a list of shared variables, or one alone. Options may be numbers, shared scalars or 0-d
expressions of shared variables. Parameters and their state keep the parameters' dtype, whatever floatX is.

All rules raise TypeError and ValueError as `synk.extensions.gradients.flat_gradient` does, and
ValueError for an option that is not a scalar, or a decay rate outside ``[0, 1)``.

`clipped`, `clipped_by_value`, `decayed`, `averaged`, `accumulated` and `local` take a rule and return one; so
does `distributed`, of rules that were written for one process. Names and defaults that Lasagne's `updates`
module has are the same here.
"""

from synk.extensions.updates.adafactor import adafactor
from synk.extensions.updates.adam import adam, adamax, adamw, amsgrad
from synk.extensions.updates.averages import Averaged, averaged
from synk.extensions.updates.clipping import clipped, clipped_by_value
from synk.extensions.updates.foreign import distributed
from synk.extensions.updates.layerwise import lamb, lars
from synk.extensions.updates.lion import lion
from synk.extensions.updates.local_steps import local
from synk.extensions.updates.parts import Updates, from_gradient
from synk.extensions.updates.rules import (
    adadelta,
    adagrad,
    apply_momentum,
    apply_nesterov_momentum,
    momentum,
    nesterov_momentum,
    rmsprop,
    sgd,
)
from synk.extensions.updates.wrappers import accumulated, decayed

__all__ = [
    "Averaged",
    "Updates",
    "accumulated",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "amsgrad",
    "apply_momentum",
    "apply_nesterov_momentum",
    "averaged",
    "clipped",
    "clipped_by_value",
    "decayed",
    "distributed",
    "from_gradient",
    "lamb",
    "lars",
    "lion",
    "local",
    "momentum",
    "nesterov_momentum",
    "rmsprop",
    "sgd",
]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__
