import inspect

import pytest

from synk.values import messages

KINDS = [
    kind for _, kind in inspect.getmembers(messages, inspect.isclass) if kind.__module__ == messages.__name__
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_small_and_says_what_it_is_for(kind):
    assert "__slots__" in vars(kind)
    assert not kind.__doc__.startswith(f"{kind.__name__}("), "Python wrote the docstring"
