"""The closed sets of names that options choose from (no imports, so that configurations load in no time)."""

from typing import Literal

Gate = Literal["token", "response", "action"]
Normalizer = Literal["preserving", "all"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
