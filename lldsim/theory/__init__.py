"""Theorem 4.2 as code: exact sums, their attribution, their conditions and the smallest worlds that obey them.

    weights -> p_pos, p_neg        kernel -> G        flow -> d/ds ln pi and its twins
    attribution -> who pulled      conditions -> when not      maps -> zero contour      reduction -> growth rates

What it does not do: it knows nothing of the toy world and writes no loss. `flow.flow` is imported from its own module,
because here it would hide that module.
"""

from lldsim.theory.attribution import Source, attribution_matrix, attribution_table, pull_map
from lldsim.theory.checks import probs_from_logps
from lldsim.theory.flow import TrainableFlow, loss_weights, trainable_flow, unembedding_sums
from lldsim.theory.kernel import Gwhes, alpha, gwhes, hidden_gram, residual, sum_actions
from lldsim.theory.maps import gwhes_map, lever_gwhes, lever_zero_contour, pair_gwhes, zero_contour
from lldsim.theory.weights import group_weights, p_neg, p_pos, weights_from_advantages

__all__ = [
    "Gwhes",
    "Source",
    "TrainableFlow",
    "alpha",
    "attribution_matrix",
    "attribution_table",
    "group_weights",
    "gwhes",
    "gwhes_map",
    "hidden_gram",
    "lever_gwhes",
    "lever_zero_contour",
    "loss_weights",
    "p_neg",
    "p_pos",
    "pair_gwhes",
    "probs_from_logps",
    "pull_map",
    "residual",
    "sum_actions",
    "trainable_flow",
    "unembedding_sums",
    "weights_from_advantages",
    "zero_contour",
]
