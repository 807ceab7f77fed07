"""Objectives of the laboratory and of full_scale: pure tensor functions, (tensors) -> (loss, metrics).

The only place a loss is written. What this package does not do: it knows nothing of worlds, policies or trainers, holds
no state, and imports only torch and lldsim's types, config and errors.
"""

from lldsim.objectives.aggregate import aggregate
from lldsim.objectives.answer_weight import answer_weight
from lldsim.objectives.kl import kl_k3
from lldsim.objectives.llds import llds_penalty
from lldsim.objectives.reweight import (
    masked_importance_weights,
    nthr_weights,
    probability_weights,
    shared_prefix_weights,
)
from lldsim.objectives.surrogate import cispo_surrogate, clipped_surrogate, sequence_surrogate
from lldsim.objectives.total import total_loss, truncated_weights

__all__ = [
    "aggregate",
    "answer_weight",
    "cispo_surrogate",
    "clipped_surrogate",
    "kl_k3",
    "llds_penalty",
    "masked_importance_weights",
    "nthr_weights",
    "probability_weights",
    "sequence_surrogate",
    "shared_prefix_weights",
    "total_loss",
    "truncated_weights",
]
