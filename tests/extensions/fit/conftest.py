"""One small training for all tests of a module that need no other: compiling takes longer than its steps."""

import pytest

from support.cases.fitting import anew, make


@pytest.fixture(scope="module")
def compiled(module_ranks):
    return make()


@pytest.fixture
def case(compiled):
    """The training as it was made; tests that fork for themselves come before those in a module."""
    return anew(compiled)
