"""A shared variable that no run has."""

import numpy as np
from pytensor.link.basic import Container


def is_plain(variable, expected):
    """Hold a variable to being one that no run has, with this value on the host."""
    container = variable.container
    assert type(container) is Container
    assert not {"to_host", "note_set", "warned"} & vars(container).keys()
    assert type(container.storage[0]) is np.ndarray
    np.testing.assert_array_equal(variable.get_value(), expected)
    variable.set_value(np.zeros(3))  # without a warning
    return True
