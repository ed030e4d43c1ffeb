"""New workers are sent values of their own."""

import numpy as np

from synk.run.launch.recovery import RunState
from synk.values import messages


def share(identity, value):
    return messages.Share(identity, dict, None, None, value)


def test_a_state_gives_each_rank_its_own_values_and_copies_them():
    value, kept = np.zeros(2), [np.full(2, rank) for rank in range(3)]
    state = RunState(
        shares=[share(1, value), share(2, value)], values={2: kept}, storage=["storage"], functions=["build"]
    )
    first, second, *rest = state.messages(rank=2)
    assert first.value is not value
    assert (first.value == 0).all()
    assert not first.own
    assert second.value is not kept[2]
    assert (second.value == 2).all()
    assert second.own
    assert rest == ["storage", "build"]
