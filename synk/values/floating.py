"""Two contexts that set how NumPy treats floating-point errors: ignore them, or raise on overflow.

    IGNORING.copy().run(function, ...) -> two calls, where the context of np.errstate takes six

Run a function in a copy of a context: a context that has been entered cannot be entered again, say by another
thread, and a copy costs next to nothing. The function sees none of the script's context variables.
"""

from contextvars import Context

import numpy as np

IGNORING, STRICT = Context(), Context()
IGNORING.run(np.seterr, all="ignore")  # infinities and NaN are values, as in compiled programs
STRICT.run(np.seterr, all="ignore", over="raise")
