"""Models written for one process train to its numbers on ranks, with few collectives and fewer gathers."""

from typing import NamedTuple

import numpy as np
import pytest

from support.exact.models import batches, regressions, rules, sequences, unsupervised
from support.exact.simulated import OneProcess, Simulated
from support.slow import slow
from synk.exact.define import define

pytestmark = pytest.mark.usefixtures("steps_as_written")

STEPS = 2
ROWS = (11, 2)  # uneven on all numbers of ranks, and fewer than ranks
RANKS = (1, 2, 5)


class Case(NamedTuple):
    """A model, and how its ranks meet in a step."""

    model: object
    collectives: int
    gathers: int = 0  # of these


CASES = [
    # The gradients of all parameters are one collective, whatever the model.
    Case(regressions.linear_regression, 1),
    Case(regressions.poisson_regression_with_offset, 1),
    Case(regressions.ridge_regression, 1),
    Case(regressions.multinomial_logit, 1),
    Case(sequences.long_short_term_memory, 1),
    Case(sequences.attention_over_tokens, 1),
    Case(unsupervised.variational_autoencoder, 1),
    Case(unsupervised.matrix_factorisation, 1),
    Case(rules.clipped_by_global_norm, 1),
    Case(rules.momentum, 1),
    Case(rules.adam, 1),
    Case(regressions.gaussian_process, 1),
    # Before it, a sum that the gradients of rows are divided by.
    Case(regressions.weighted_logistic_regression, 2),
    Case(sequences.masked_recurrent_network, 2),
    # Means, then what lies around them.
    Case(unsupervised.principal_component, 2),
    Case(unsupervised.gaussian_mixture, 2),
    Case(unsupervised.k_means_with_one_hot, 1),
    # Whole numbers are a collective of their own: loads of experts; the largest cluster's number, counts.
    Case(batches.mixture_of_experts, 2),
    Case(unsupervised.k_means, 3),
    # Means and variances, their gradients, those of the parameters.
    Case(batches.batch_norm_by_hand, 5),
    Case(batches.convolutional_batch_norm, 5),
    # Rows meet: what each is told by others, its gradient from others, gradients of the parameters.
    Case(batches.info_nce, 3, gathers=1),
    Case(batches.triplet_loss, 5, gathers=3),
    Case(regressions.cox_partial_likelihood, 5, gathers=3),
]


def trained(run, model, steps):
    """Return the losses and parameters of several steps, and leave the parameters as they were."""
    before = [parameter.get_value() for parameter in model.parameters]
    found = []
    for values in steps:
        loss, *new = run(values)
        found.append([loss, *new])
        for (parameter, _), value in zip(model.updates, new, strict=True):
            parameter.set_value(value)
    for parameter, value in zip(model.parameters, before, strict=True):
        parameter.set_value(value)
    return found


# What they are made of, others have, too.
LATER = (
    sequences.long_short_term_memory,
    sequences.masked_recurrent_network,
    regressions.poisson_regression_with_offset,
    regressions.multinomial_logit,
    unsupervised.matrix_factorisation,
    unsupervised.k_means_with_one_hot,
    batches.convolutional_batch_norm,
    batches.triplet_loss,
)


@pytest.mark.parametrize(
    "case",
    [slow(case) if case.model in LATER else case for case in CASES],
    ids=lambda case: case.model.__name__,
)
def test_ranks_train_a_model_as_one_process_does(case):
    model = case.model()
    definition = define(
        "train", model.inputs, model.loss, bcast_inputs=model.bcast_inputs, updates=model.updates
    )
    alone, ranks = OneProcess(definition), Simulated(definition)
    for n_rows in ROWS:
        rng = np.random.default_rng(n_rows)
        steps = [model.data(n_rows, rng) for _ in range(STEPS)]
        expected = trained(alone, model, steps)
        for n_ranks in RANKS:
            found = trained(lambda values, n_ranks=n_ranks: ranks(values, n_ranks), model, steps)
            for step, (ones, others) in enumerate(zip(found, expected, strict=True)):
                for one, other in zip(ones, others, strict=True):
                    assert np.isfinite(other).all()
                    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=f"step {step}")
            met = ranks.together.count, ranks.together.gathered
            assert met == (case.collectives, case.gathers)
