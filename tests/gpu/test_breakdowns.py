"""A rank killed in a collective, memory that runs out, memory that is not given back."""

import pytest


@pytest.mark.parametrize("n_items", [pytest.param(1_000, marks=pytest.mark.soak), 4_000_000])
def test_a_rank_killed_in_an_all_reduce_is_told_and_nothing_stays(stage, n_items):
    found = stage.play("killed", n_items=n_items)
    assert found["seen"], "nobody noticed"
    assert "rank 1" in found["seen"]["said"]
    assert "SIGKILL" in found["seen"]["said"]
    # The kernel tells of a death once the driver has taken back what the process had on the GPU.
    assert found["seen"]["seconds"] < (5 if stage.is_gpu else 1)
    assert found["closing"] < 5
    assert found["left"] == []


def test_a_second_run_with_a_restart_ends_with_the_bits_of_the_first(stage):
    found = stage.play("reborn")
    first, second = found["runs"]
    assert first == second
    assert first[0][-1] < first[0][0]
    assert found["told"] < 1
    assert found["left"] == []


def test_more_memory_than_the_limit_raises_and_less_works_again(gpu_stage):
    found = gpu_stage.play("out_of_memory")
    assert found["free"] > found["limit"], "others use this GPU: the limit was never reached"
    kind, said = found["error"]
    assert "OutOfMemoryError" in kind + said
    assert found["after"] == 1000


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_two_hundred_calls_need_no_more_memory_than_twenty(gpu_stage, n_ranks):
    found = gpu_stage.play("steady", n_ranks=n_ranks)
    assert found["after"] - found["before"] < 1e6
