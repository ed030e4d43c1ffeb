"""Extensions on the public verbs: layers, losses, training functions, update rules, batches, checkpoints.

    layers -> losses -> loss, params
    batches -> train.make_train_function(loss, params, inputs, updates.adam) -> checkpoint.save

synk itself needs none of them, and they use only what any script can use. ``layers`` and ``losses``
must be imported by themselves, ``from synk.extensions import layers``, because they load kernels.
"""

import synk

if not hasattr(synk, "fork"):
    raise ImportError(
        "synk/__init__.py is another project's, called synk too, in the place of the file of this one: "
        "`python -m synk doctor` says what to do",
        name="synk",
    )

from synk.extensions import checkpoint, gradients, initialisers, schedules, train, updates
from synk.extensions.batches import batches

__all__ = ["batches", "checkpoint", "gradients", "initialisers", "schedules", "train", "updates"]


def __dir__() -> list[str]:
    """List what is for users, with the parts that a script has imported by themselves."""
    return [*__all__, *({"fit", "interchange", "layers", "losses", "pymc"} & globals().keys())]
