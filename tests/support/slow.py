"""Cases that `make test` leaves to `make test-all`, as others of the same test prove as much."""

import pytest


def slow(*values, **keywords):
    """Return these values of a parametrised test, marked slow; ``id`` names them."""
    return pytest.param(*values, marks=pytest.mark.slow, **keywords)
