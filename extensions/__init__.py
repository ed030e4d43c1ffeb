"""What is built on the public verbs: training functions, update rules, batches, checkpoints.

    batches -> train.make_train_function(loss, params, inputs, updates.adam) -> checkpoint.save

Nothing here is needed by synk itself, and nothing here uses more of it than any script can.
"""

from synk.extensions import checkpoint, gradients, train, updates
from synk.extensions.batches import batches

__all__ = ["batches", "checkpoint", "gradients", "train", "updates"]
