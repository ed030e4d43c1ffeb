"""All scripts of these tests are forked by the process in ``warm``."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def warm(warm_interpreter):
    """Nobody has to ask for it."""
