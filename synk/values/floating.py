"""Set how NumPy treats floating-point errors: ignore them, as compiled programs do, or raise on overflow.

    IGNORING.copy().run(function, ...) -> two calls, where the context of np.errstate takes six

Copy a context, which takes no time: none can be entered twice, by another thread say. What runs in one sees
no context variables of the script's.
"""

from contextvars import Context

import numpy as np

IGNORING, STRICT = Context(), Context()
IGNORING.run(np.seterr, all="ignore")  # infinities and NaN are values
STRICT.run(np.seterr, all="ignore", over="raise")
