"""Cases that `make test` leaves to `make test-all`, as others of the same test prove as much."""

import pytest


def slow(*values, **keywords):
    """Return these values of a parametrised test, marked slow; ``id`` names them."""
    return pytest.param(*values, marks=pytest.mark.slow, **keywords)


def examples(few, many, *strategies):
    """Hold a test to a few examples of Hypothesis, and in `make test-all` to many."""

    def decorate(test):
        from hypothesis import given, settings  # environments of the GPU's tests are without it

        @pytest.mark.parametrize("n_examples", [few, slow(many)])
        def run(n_examples):
            settings(max_examples=n_examples)(given(*strategies)(test))()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate
