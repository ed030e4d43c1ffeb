"""Train for some epochs: a loop over steps, with validation, callbacks and checkpoints.

    fit(step, data, epochs=..., batch_size=..., callbacks=[...]) -> History

``loop`` has the loop, ``feeds`` makes the batches, ``metrics`` averages and validates, ``checkpoints`` saves
and resumes, ``callback`` has the base class of callbacks.
"""

from synk.extensions.fit.callback import Callback
from synk.extensions.fit.checkpoints import Checkpoints
from synk.extensions.fit.folder import best, latest
from synk.extensions.fit.history import History
from synk.extensions.fit.logs import CSVLog, JSONLog
from synk.extensions.fit.loop import fit
from synk.extensions.fit.rates import LinearScaling, ReduceOnPlateau
from synk.extensions.fit.stopping import EarlyStopping, StopOnNaN
from synk.extensions.fit.tensorboard import TensorBoard
from synk.extensions.fit.training import Training

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoints",
    "EarlyStopping",
    "History",
    "JSONLog",
    "LinearScaling",
    "ReduceOnPlateau",
    "StopOnNaN",
    "TensorBoard",
    "Training",
    "best",
    "fit",
    "latest",
]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__
