"""The fast engine: one run after another through the compiled kernels, each in its own memory.

A run is independent of its neighbours by construction, so a batch of R runs is a loop (or a pool of processes) and its
memory is that of one world per worker. trainer.py is the same loop in a form to read.
What this file does not do: cache results (sweep.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lldsim import arm_kernels, kernels
from lldsim.config import RunConfig
from lldsim.draws import draw
from lldsim.errors import NonFiniteError
from lldsim.kernels import Dials, Memo, Rollout, Scratch, Tables
from lldsim.record import COLUMNS, RunRecord, make_record
from lldsim.world import SearchWorld, world_of


class Run:
    """One run that can be advanced, looked at and resumed.

    >>> run = Run(RunConfig().replace(updates=2))
    >>> sorted(run.step())[:3]
    ['clip_fraction', 'entropy', 'first_search_wrong']
    """

    def __init__(self, config: RunConfig, *, world: SearchWorld | None = None) -> None:
        self.config = config
        self.world = world or world_of(config)
        self.dtype = np.dtype(config.trainer.dtype)
        self.tables = _tables(self.world, self.dtype)
        self.dials = _dials(config, self.dtype)
        self.roll, self._memo, self._scratch = _buffers(config, self.tables, self.dtype)
        shape = (config.world.vocab_size, config.world.n_features)
        self.weights = np.zeros(shape, self.dtype)
        self._past = np.zeros((config.trainer.staleness + 1, *shape), self.dtype)  # ring of weights, by update
        self.critic = _critic(config, self.tables)
        self.update = 0

    @property
    def policy(self) -> np.ndarray:
        """The matrix (V, D) that meets the hidden states: the weights W, or W U where features are trained."""
        if self.config.trainer.feature_rate == 0:
            return self.weights
        kernels.multiply(self.weights, self._scratch)
        return self._scratch.product

    def step(self) -> dict[str, float]:
        """Sample one rollout batch, train on it, and return the update's row (names of record.COLUMNS)."""
        draws = draw(self.config, self.update)
        described = np.empty(kernels.N_DESCRIBED)
        self.sample(draws)
        kernels.describe(self.roll, self.dials.group_size, described)
        self.weigh()
        sums = np.zeros(kernels.N_METRICS)
        finite = kernels.update(self.tables, self.dials, self.weights, self.roll, draws.order, self._scratch, sums)
        if not finite:
            raise NonFiniteError(
                f"the gradient of update {self.update} is not finite (seed {self.config.trainer.seed}); "
                f"lower learning_rate={self.config.trainer.learning_rate} or use a kl_form other than 'raw'"
            )
        row = self._row(described, sums)
        self.update += 1
        return row

    def sample(self, draws: Any) -> Rollout:
        """Sample a rollout batch from the (stale) sampler into `self.roll` and return it; weights stay as they are."""
        ring = len(self._past)
        policy = self.policy
        self._past[self.update % ring] = policy
        stale = self._past[max(0, self.update - ring + 1) % ring]
        kernels.rollout(self.tables, self.dials, policy, stale, draws, self.roll, self._memo)
        kernels.advantages(self.dials, self.roll)
        kernels.spread_advantages(self.roll)
        return self.roll

    def gradient(self, members: np.ndarray) -> np.ndarray:
        """Return dLoss/dW (V, D) of the sampled responses `members` (M,) at the current weights (Eq. 6)."""
        sums = np.zeros(kernels.N_METRICS)
        members = np.asarray(members, np.int64)
        kernels.loss_gradient(
            self.tables, self.dials, self.policy, self.weights, self.roll, members, self._scratch, sums
        )
        return self._scratch.gradient.copy()

    def weigh(self) -> None:
        """Replace group advantages by a critic's and fill the token weights, where the configuration says so."""
        d = self.dials
        if d.gae:
            arm_kernels.gae_advantages(d, self.critic, self.roll)
        if d.tis or d.mis or d.nthr or d.mask_shared_prefix or d.probability_weight > 0:
            arm_kernels.token_weights(d, self.tables, self.policy, self.roll)

    def state(self) -> dict[str, Any]:
        """Return all that a later `restore` needs to go on as if never interrupted."""
        s = self._scratch
        return {
            "update": self.update,
            "weights": self.weights.copy(),
            "past": self._past.copy(),
            "first": s.first.copy(),
            "second": s.second.copy(),
            "steps": s.steps.copy(),
            "features": s.features.copy(),
            "feature_first": s.feature_first.copy(),
            "feature_second": s.feature_second.copy(),
            "critic": self.critic.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of a run with the same configuration."""
        self.update = state["update"]
        self.weights[:], self._past[:] = state["weights"], state["past"]
        self.critic[:] = state["critic"]
        for name in ("first", "second", "steps", "features", "feature_first", "feature_second"):
            getattr(self._scratch, name)[:] = state[name]

    def _row(self, described: np.ndarray, sums: np.ndarray) -> dict[str, float]:
        k, steps = kernels, self.dials.updates_per_rollout
        row = {
            "update": float(self.update),
            "reward": described[k.REWARD],
            "logp_correct": described[k.LOGP_CORRECT],
            "logp_wrong": described[k.LOGP_WRONG],
            "entropy": described[k.ENTROPY],
            "grad_norm": sums[k.GRAD_NORM] / steps,
            "ratio_max": sums[k.RATIO_MAX],
            "response_length": described[k.LENGTH],
            "valid_searches": described[k.SEARCHES],
            "invalid_actions": described[k.INVALIDS],
            "tied_groups": described[k.TIED],
            "gate_fraction": sums[k.GATE_FRACTION] / steps,
            "clip_fraction": sums[k.CLIP_FRACTION] / steps,
            "kl": sums[k.KL] / steps,
            "llds": sums[k.LLDS] / steps,
            "sampler_gap": described[k.SAMPLER_GAP],
            "logp_correct_action1": described[k.CORRECT_1],
            "logp_correct_action2": described[k.CORRECT_2],
            "logp_wrong_action1": described[k.WRONG_1],
            "logp_wrong_action2": described[k.WRONG_2],
            "first_search_wrong": described[k.FIRST_SEARCH_WRONG],
        }
        return {name: float(value) for name, value in row.items()}


def simulate(config: RunConfig, *, on_update: Callable[[int], None] | None = None) -> RunRecord:
    """Run `config` to its end and return the record; `on_update` is called with the number of updates done."""
    run = Run(config)
    rows = []
    for done in range(1, config.trainer.updates + 1):
        rows.append(run.step())
        if on_update:
            on_update(done)
    return make_record(
        {name: np.array([row[name] for row in rows]) for name in COLUMNS}, config.flat(), config.config_hash()
    )


def simulate_many(configs: Sequence[RunConfig], *, workers: int = 1) -> Iterator[tuple[int, RunRecord]]:
    """Yield (index, record) of every configuration as it finishes, in any order when workers > 1.

    Workers are separate single-thread processes; results do not depend on their number.
    """
    if workers <= 1 or len(configs) <= 1:
        for i, config in enumerate(configs):
            yield i, simulate(config)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    warm_up()  # compile once, so that workers load the cache instead of compiling each
    with ProcessPoolExecutor(min(workers, len(configs)), mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(simulate, config): i for i, config in enumerate(configs)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def warm_up(dtype: str = "float64") -> float:
    """Compile the kernels (or load them from the cache) and return the seconds it took."""
    start = time.perf_counter()
    simulate(RunConfig().replace(updates=1, dtype=dtype, n_queries=2, updates_per_rollout=2, max_turns=2))
    return time.perf_counter() - start


def _tables(world: SearchWorld, dtype: np.dtype) -> Tables:
    hidden = world.hidden_table
    return Tables(
        world.canon,
        world.feature_row,
        world.base_row,
        np.ascontiguousarray(world.base_logps, dtype),
        np.ascontiguousarray(hidden.plain, dtype),
        np.ascontiguousarray(hidden.mix, dtype),
        np.ascontiguousarray(hidden.garbage, dtype),
    )


def _dials(config: RunConfig, dtype: np.dtype) -> Dials:
    w, o, t, real = config.world, config.objective, config.trainer, dtype.type
    return Dials(
        group_size=w.group_size,
        n_answers=w.n_answers,
        invalid_threshold=w.invalid_threshold,
        search_noise=w.search_noise,
        invalid_ends_episode=w.invalid_ends_episode,
        hops=w.hops,
        near_miss=w.near_miss,
        inverse_temperature=real(1 / t.temperature),
        top_k=w.vocab_size if t.top_k is None else t.top_k,
        top_p=float(t.top_p),
        sampler_noise=float(t.sampler_noise),
        updates_per_rollout=t.updates_per_rollout,
        adam=t.optimizer == "adam",
        learning_rate=real(t.learning_rate),
        momentum=real(t.momentum),
        feature_rate=real(t.feature_rate * t.learning_rate),
        grad_clip=real(t.grad_clip),
        std_ddof=t.std_ddof,
        std_normalize=t.std_normalize,
        advantage_eps=float(t.advantage_eps),
        gae=t.advantage == "gae",
        gae_lambda=float(t.gae_lambda),
        critic_states=("constant", "shared", "query").index(t.critic_states),
        critic_step=float(t.critic_step),
        whiten=t.whiten,
        surrogate=("grpo", "gspo", "cispo").index(o.surrogate),
        aggregation=("token-mean", "seq-mean-token-mean", "seq-mean-token-sum").index(o.aggregation),
        clip_low=float(o.clip_eps),
        clip_high=float(o.clip_eps if o.clip_eps_high is None else o.clip_eps_high),
        dual_clip=math.inf if o.dual_clip is None else float(o.dual_clip),
        ratio_to_sampler=o.ratio_to == "sampler",
        tis=o.tis_cap is not None,
        tis_cap=math.inf if o.tis_cap is None else float(o.tis_cap),
        mis=o.mis_high is not None,
        mis_low=float(o.mis_low),
        mis_high=math.inf if o.mis_high is None else float(o.mis_high),
        cispo_cap=float(o.cispo_cap),
        probability_weight=float(o.probability_weight),
        nthr=o.nthr_beta is not None,
        nthr_beta=0.0 if o.nthr_beta is None else float(o.nthr_beta),
        nthr_eta=float(o.nthr_eta),
        mask_shared_prefix=o.mask_shared_prefix,
        negative_weight=float(o.negative_weight),
        kl_coef=float(o.kl_coef),
        kl_form=("clamped", "linear", "raw").index(o.kl_form),
        entropy_coef=float(o.entropy_coef),
        llds_coef=float(o.llds_coef),
        gate=("token", "response", "action").index(o.gate),
        normalize_all=o.normalizer == "all",
        answer_weight=float(o.answer_weight),
        answer_weight_rule=("fixed", "paper", "released").index(o.answer_weight_rule),
    )


def _buffers(config: RunConfig, tables: Tables, dtype: np.dtype) -> tuple[Rollout, Memo, Scratch]:
    n_queries, turns, k, n_feedback = tables.feature_row.shape
    levels = tables.base_row.shape[2]
    v, d = config.world.vocab_size, config.world.n_features
    b = n_queries * config.world.group_size
    slots = min(config.world.group_size * turns * k, turns * k * n_feedback * levels)
    n = b // config.trainer.updates_per_rollout * turns * k

    def ints(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int64)

    def reals(*shape: int) -> np.ndarray:
        return np.zeros(shape, dtype)

    per_token = [reals(b, turns, k) for _ in range(4)]
    roll = Rollout(
        ints(b, turns, k), ints(b, turns, k), ints(b, turns), ints(b), np.zeros(b), np.zeros(b), ints(b), ints(b),
        ints(b), *per_token, token_advantage=np.zeros((b, turns, k)), token_weight=np.ones((b, turns, k)),
    )  # fmt: skip
    contexts = (turns, k, n_feedback, levels)
    memo = Memo(
        ints(*contexts), ints(*contexts), reals(slots, v), reals(slots, v), reals(slots, v), reals(slots), reals(d)
    )
    scratch = Scratch(
        ints(n), ints(n), ints(n), reals(n, d), reals(n, v), reals(n, v), reals(n), reals(n), reals(n), reals(n),
        reals(v, d), reals(v, d), reals(v, d), ints(1),
        np.eye(d, dtype=dtype), reals(v, d), reals(d, d), reals(d, d), reals(d, d),
    )  # fmt: skip
    return roll, memo, scratch


def _critic(config: RunConfig, tables: Tables) -> np.ndarray:
    n_queries, turns, _, n_feedback = tables.feature_row.shape
    states = {"constant": (1, 1, 1, 1, 1), "shared": (1, turns, n_feedback, tables.base_row.shape[2], 2)}
    shape = states.get(config.trainer.critic_states, (n_queries, *states["shared"][1:]))
    return np.full(shape, config.trainer.critic_init)
